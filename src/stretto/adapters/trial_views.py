"""What a policy sees of its trial beside what the world shows: where episodes begin, its last reward, and the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.core import Observation
from stretto.errors import UsageError
from stretto.spaces import Array

__calls_user_code__ = True


class TaskForm:
    """The form in which tasks are shown, which is that of an example: the shapes of the numbers that it consists of.

    A number, a vector, and a dict or a tuple of numbers are shown as one vector, which is what `is_vector` says.
    """

    def __init__(self, example: Any) -> None:
        try:
            self._form = _form(_arrays(example))
        except (TypeError, ValueError):
            raise UsageError(
                f"a task must consist of numbers to be shown, got {example!r}; leave oracle out, or give tasks as "
                f"numbers, arrays, or dicts and tuples of these"
            ) from None
        inner = list(self._form.values()) if isinstance(self._form, dict) else self._form
        self.is_vector = isinstance(inner, tuple) and len(inner) < 2
        if isinstance(inner, list):
            self.is_vector = all(part == () for part in inner)

    @property
    def space(self) -> spaces.Space[Any]:
        """The space of what is shown."""
        if not self.is_vector:
            return _space(self._form)
        size = int(np.prod(self._form)) if isinstance(self._form, tuple) else len(self._form)
        return _space((size,))

    def fits(self, task: Any) -> bool:
        """Whether a task has this form."""
        try:
            return bool(_form(_arrays(task)) == self._form)
        except (TypeError, ValueError):
            return False

    def shown(self, task: Any) -> Any:
        """Return a task as a value of the space."""
        arrays = _arrays(task)
        if not self.is_vector:
            return arrays
        if isinstance(self._form, dict):
            arrays = [arrays[name] for name in self._form]
        return np.array(arrays, np.float64).reshape(-1)


def _arrays(task: Any) -> Any:
    """Return the numbers of a task, in its own structure.

    Raises:
        TypeError: if there is anything else in it.
    """
    if isinstance(task, Mapping):
        return {name: _arrays(part) for name, part in task.items()}
    try:
        array = np.asarray(task)
    except ValueError:  # parts of several lengths
        array = np.asarray(None)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    if isinstance(task, (list, tuple)):
        return tuple(map(_arrays, task))
    raise TypeError(f"{task!r} is no number")


def _form(arrays: Any) -> Any:
    """Return the shapes of arrays, in dicts and lists as these are."""
    if isinstance(arrays, dict):
        return {name: _form(part) for name, part in arrays.items()}
    return list(map(_form, arrays)) if isinstance(arrays, tuple) else arrays.shape


def _space(form: Any) -> spaces.Space[Any]:
    if isinstance(form, dict):
        return spaces.Dict({name: _space(part) for name, part in form.items()})
    if isinstance(form, list):
        return spaces.Tuple([_space(part) for part in form])
    return spaces.Box(-np.inf, np.inf, form, np.float64)


@dataclass(frozen=True, slots=True)
class TrialView:
    """What of a trial is shown: boundaries between episodes, the last reward and action, and the task, if it has a `form`.

    With `asks_world` the task is what the world itself tells (see `told_task`), else what it is given.
    """

    boundaries: bool = False
    rewards: bool = False
    form: TaskForm | None = None
    asks_world: bool = False
    actions: bool = False

    def of(self, space: spaces.Space[Any], actions: spaces.Space[Any]) -> ObservationView:
        """Return how an agent with these spaces of observations and actions is shown it."""
        return ObservationView(space, actions, self)


class ObservationView:
    """Adds to what an agent observes.

    A Box with one axis gets longer, if the task is a vector too: by the task, the flag for boundaries, the action, and the
    reward, in this order. Everything else becomes a Dict of `observation`, `task`, `boundary`, `action` and `reward`. The
    flag is 1 in the first observation of every episode of the trial but the first. Action and reward are those of the step
    before, also where that belongs to the episode before, and 0 when the trial begins. Actions are flat, and choices a one
    among zeros.
    """

    def __init__(self, space: spaces.Space[Any], actions: spaces.Space[Any], view: TrialView) -> None:
        self._view, self._actions = view, actions
        self._nothing = np.zeros(spaces.flatdim(actions) if view.actions else 0, np.float32)
        added: dict[str, spaces.Space[Any]] = {} if view.form is None else {"task": view.form.space}
        if view.boundaries:
            added["boundary"] = spaces.Box(0, 1, (1,), np.float32)
        if view.actions:
            added["action"] = spaces.Box(-np.inf, np.inf, self._nothing.shape, np.float32)
        if view.rewards:
            added["reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.space: spaces.Space[Any] = spaces.Dict({"observation": space, **added})
        self._joins = isinstance(space, spaces.Box) and len(space.shape) == 1 and (not view.form or view.form.is_vector)
        self._dtype = np.dtype(np.float32)
        if self._joins:
            self._dtype = np.result_type(space.dtype or np.float32, np.float32)  # 32 bits, unless it needs more
            boxes: list[Any] = [space, *added.values()]
            low, high = (np.concatenate([getattr(box, side) for box in boxes]) for side in ("low", "high"))
            self.space = spaces.Box(low.astype(self._dtype), high.astype(self._dtype), dtype=self._dtype.type)
        self._tails: tuple[Any, Any] = ({}, {})  # what is added to an observation: without and with the flag

    def begin(self, task: Any) -> None:
        """Begin an episode with this task."""
        shown = {} if self._view.form is None else {"task": self._view.form.shown(task)}
        self._tails = self._tail(shown, 0), self._tail(shown, 1)

    def _tail(self, shown: dict[str, Any], flag: int) -> Any:
        added = {**shown, **({"boundary": np.full(1, flag, np.float32)} if self._view.boundaries else {})}
        return np.concatenate([np.zeros(0), *added.values()]) if self._joins else added

    def see(self, observation: Observation, reward: float = 0.0, action: Any = None, *, boundary: bool = False) -> Any:
        """Return what the agent observes after a step that gave this reward; there was none if there is no action."""
        tail = self._tails[boundary]
        done = self._nothing
        if self._view.actions and action is not None:
            done = np.asarray(spaces.flatten(self._actions, action), np.float32)
        if not self._joins:
            last: dict[str, Any] = {"action": done} if self._view.actions else {}
            last |= {"reward": np.array([reward], np.float64)} if self._view.rewards else {}
            return {"observation": observation, **tail, **last}
        parts = (observation, tail, done, (reward,)) if self._view.rewards else (observation, tail, done)
        seen: Array = np.concatenate(parts, dtype=self._dtype)
        return seen
