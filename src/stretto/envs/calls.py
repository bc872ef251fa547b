"""What all vector environments have in common, and can be asked beside their steps."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from gymnasium.vector import AutoresetMode

from stretto.actions import ActionGate
from stretto.core import NextEpisode
from stretto.envs import messages
from stretto.envs.arguments import slots_of
from stretto.envs.counters import Statistics
from stretto.errors import UsageError
from stretto.missions.tasks import Tasks
from stretto.spaces import Array
from stretto.workers.handing_out import LARGE_BYTES, copiers

if TYPE_CHECKING:
    from stretto.envs.engine import Engine


class WorldCalls:
    """Presents an engine. Questions go to all worlds at once; answers come in the order of the slots."""

    close: Callable[..., None]
    num_envs: int
    metadata: dict[str, Any]
    render_mode: str | None

    def __init__(self, engine: Engine, built: messages.Built, mode: AutoresetMode, *, copy: bool, choice: str) -> None:
        self._engine, self._copy, self._choice = engine, copy, choice
        self.num_envs = engine.count
        self.metadata = {**built.metadata, "autoreset_mode": mode}
        self.render_mode = built.render_mode
        self._gate = ActionGate(engine.state.actions)
        observed = engine.state.buffers.observations[0]
        self._copiers = copiers(observed)
        # One small array, as most worlds have it, is copied with nothing around it: this stands in every step.
        small = engine.state.observations.only is not None and observed[0].nbytes < LARGE_BYTES
        self._small = copy and small and engine.state.handing_out is None
        self._finalizer = weakref.finalize(self, engine.close)

    def _observations(self) -> Any:
        """Return what all worlds have observed last, as a batch."""
        state = self._engine.state
        arrays = state.buffers.observations[state.buffer]
        if self._copy:
            given = {} if state.handing_out is None else state.handing_out.give(state.buffer)
            arrays = [
                given[leaf] if leaf in given else self._copiers[leaf].copy(array) for leaf, array in enumerate(arrays)
            ]
        return state.observations.batch(arrays, state.objects)

    @property
    def choice(self) -> str:
        """What runs the environments, and why, in one sentence; and whether they were moved since."""
        placement = self._engine.placement
        return self._choice if placement is None else self._choice + placement.told

    @property
    def engine(self) -> Engine:
        """What steps the worlds: for the parts of Stretto that play them in another way."""
        return self._engine

    def render(self) -> tuple[Any, ...]:
        """Return the frames of all environments."""
        return self._engine.ask_all(messages.Call("render", (), {}), "rendering")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every environment, or read an attribute, and return the results.

        Calls are repeated when a lost world is restored, because they may have changed it; where there were hundreds,
        only the last of each name.
        """
        return self._call(messages.Call(name, args, kwargs))

    def call_some(self, ids: Sequence[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of some environments, as `call` does, and return the results in the order of `ids`."""
        self._engine.check_apart("call_some()")
        slots = slots_of(ids, self._engine.count)
        results = self._call(messages.Call(name, args, kwargs, frozenset(slots)))
        by_slot = dict(zip(sorted(slots), results, strict=True))
        return tuple(by_slot[slot] for slot in slots)

    def _call(self, message: messages.Call) -> tuple[Any, ...]:
        results = self._engine.ask_all(message, f"calling {message.name!r}")
        self._engine.state.history.changed(message)
        return results

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of every environment."""
        return self._engine.ask_all(messages.Call(name, (), {}), f"reading {name!r}")

    def set_attr(self, name: str, values: list[Any] | tuple[Any, ...] | Any, ids: Sequence[int] | None = None) -> None:
        """Set an attribute of every environment, or of those in `ids`.

        A list or tuple has a value for each, anything else is for all.
        """
        slots = slots_of(ids, self._engine.count)
        if not isinstance(values, (list, tuple)):
            values = [values] * len(slots)
        if len(values) != len(slots):
            raise UsageError(
                f"values must be one for each of the {len(slots)} environments, got {len(values)}; pass a single value "
                f"to set it everywhere"
            )
        if len(slots) < self._engine.count or any(value is not values[0] for value in values):
            self._engine.check_apart("an attribute of some environments, or with values that differ,")
        self._engine.set_attr(messages.SetAttr(name, dict(zip(slots, values, strict=True))))

    def map(self, function: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Run `function(env)` beside each environment and return only what it returns.

        The function must not change the world: it is not repeated when a lost world is restored.
        """
        self._engine.check_apart("map()")
        return self._engine.ask_all(messages.MapWorlds(function), "running a mapped function")

    def set_tasks(self, tasks: Tasks) -> None:
        """Use another source of tasks for all episodes that begin from now on, in every slot alike."""
        if not self._engine.state.has_tasks:
            raise UsageError("tasks can be replaced only where there are some; pass tasks=... to make_vec")
        self._engine.set_tasks(tasks)

    def next_episodes(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Tell some environments, by their ids, what to play when they are reset automatically next.

        This can be done at any time, also while they step; what is told last counts. A reset that is asked for drops it.
        """
        self._engine.check_apart("next_episodes()")
        slots_of(list(episodes), self._engine.count)
        for episode in episodes.values():
            if not isinstance(episode, NextEpisode):
                raise UsageError(f"what comes next must be a stretto.NextEpisode, got {episode!r}")
            seed: Any = episode.seed
            if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
                raise UsageError(f"an episode's seed must be a whole number of at least 0, or None, got {seed!r}")
        self._engine.next_episodes(episodes)

    @property
    def episodes(self) -> Array:
        """The number of the episode that each environment is in: 0 after a reset with a seed, 1 after the next one, ..."""
        return self._engine.state.counters.episodes.copy()

    @property
    def tasks(self) -> tuple[Any, ...]:
        """The task of the episode that each environment is in; `None` for one without a task."""
        return tuple(self._engine.state.task_now(slot) for slot in self._engine.everyone)

    @property
    def in_flight(self) -> int:
        """How many environments are at a step that was sent and not yet received."""
        return len(self._engine.flying)

    def statistics(self) -> Statistics:
        """Return what was counted since construction."""
        return dataclasses.replace(self._engine.state.counters.counts)

    @property
    def worker_pids(self) -> list[int]:
        """The processes, other than the caller's, that hold environments now."""
        return self._engine.supervisor.pids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
