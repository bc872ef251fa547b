"""What every vector environment can be asked beside its steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self

from stretto.envs import messages
from stretto.envs.engine import Engine
from stretto.envs.state import Statistics, TaskSource
from stretto.errors import UsageError


class WorldCalls:
    """Questions to all worlds at once; answers come in the order of the slots."""

    _engine: Engine
    close: Callable[[], None]

    def render(self) -> tuple[Any, ...]:
        """Return the frames of all environments."""
        return self._engine.ask_all(messages.Call("render", (), {}), "rendering")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute, and return the results.

        Calls are repeated when a lost world is restored, because they may have changed it.
        """
        message = messages.Call(name, args, kwargs)
        results = self._engine.ask_all(message, f"calling {name!r}")
        self._engine.state.history.called(message)
        return results

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
        return self._engine.ask_all(messages.Call(name, (), {}), f"reading {name!r}")

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any) -> None:
        """Set an attribute of every environment: a list or tuple has a value for each, anything else is for all."""
        count = self._engine.count
        if not isinstance(values, (list, tuple)):
            values = [values] * count
        if len(values) != count:
            raise UsageError(
                f"values must be one for each of the {count} environments, got {len(values)}; pass a single value to "
                f"set it everywhere"
            )
        self._engine.set_attr(name, values)

    def map(self, function: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Run `function(env)` beside each environment and return only what it returns.

        The function must not change the world: it is not repeated when a lost world is restored.
        """
        return self._engine.ask_all(messages.MapWorlds(function), "running a mapped function")

    def set_tasks(self, tasks: TaskSource | Sequence[Any]) -> None:
        """Use another source of tasks for all episodes that begin from now on, in every slot alike."""
        self._engine.set_tasks(tasks)

    def statistics(self) -> Statistics:
        """Return what was counted since construction."""
        return dataclasses.replace(self._engine.state.counts)

    @property
    def worker_pids(self) -> list[int]:
        """The processes, other than the caller's, that hold environments now."""
        return self._engine.crew.worker_pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
