"""Bringing a slot of a new worker to where its lost world was, by doing again what was done to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

import numpy as np

from stretto.core import NextEpisode
from stretto.envs.arrays import Rows
from stretto.envs.messages import Call, ResetSlot, Restored, SlotPlan
from stretto.spaces import SpaceLayout


class _Mismatch(Exception):
    """The replayed world is not where the lost one was."""


class Replayed(Protocol):
    """Worlds by slot that can be brought to where others were, one slot at a time."""

    first: int
    count: int
    layout: SpaceLayout
    action_layout: SpaceLayout

    def record(self, i: int, on: bool) -> None:
        """Keep points to restore a slot from, or not."""

    def rebuild(self, i: int) -> None:
        """Replace a world by a new one, as if nothing had happened to it yet."""

    def reset_slot(self, how: ResetSlot) -> tuple[Any, dict[str, Any]]:
        """Reset one slot; return its observation and info."""

    def step(self, indices: Sequence[int], actions: Iterable[Any], rows: Rows) -> object:
        """Step some worlds and write their rows."""

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], indices: Iterable[int]) -> list[Any]:
        """Call a method of some worlds."""

    def set_attr(self, name: str, i: int, value: Any) -> None:
        """Set an attribute of one world."""

    def tell_next(self, i: int, episode: NextEpisode) -> None:
        """Let a slot's next automatic reset be as told."""

    def give_up_episode(self, i: int, plan: SlotPlan, reason: str | None) -> None:
        """Go on after an episode that cannot be restored."""


class Restorer:
    """Restores the slots of a fresh group; `beat` is called with every step, as a sign of life."""

    def __init__(self, group: Replayed, beat: Callable[[], None]) -> None:
        self._group, self._beat = group, beat
        self._seen: Any = None
        self._stepped = False
        self._replayed = 0
        count = group.count
        self._scratch = Rows.of(self, np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))

    def __setitem__(self, i: int, observation: Any) -> None:
        self._seen = observation

    def restore(self, plans: list[SlotPlan]) -> Restored:
        """Restore every slot that has a plan; say which ones had to be given up."""
        lost: dict[int, str] = {}
        for plan in plans:
            i = plan.slot - self._group.first
            self._group.record(i, False)
            reason = self._restore_slot(i, plan)
            self._group.record(i, True)
            if reason is not None:
                lost[plan.slot] = reason
        return Restored(self._replayed, lost)

    def _restore_slot(self, i: int, plan: SlotPlan) -> str | None:
        reason = plan.reason
        for number, attempt in enumerate(plan.attempts):
            if number:
                self._group.rebuild(i)
            try:
                self._do_all(i, attempt.before)
                self._begin(i, attempt.reset)
                self._do_all(i, attempt.after)
                self._compare(i, plan)
                return None
            except _Mismatch as mismatch:
                reason = str(mismatch)
            except Exception as error:  # noqa: BLE001  it did not raise before, so this is not the same world again
                reason = f"the world does not repeat itself: replayed, it raised {error!r}"
        if plan.attempts:
            self._group.rebuild(i)
        self._do_all(i, plan.changes)
        if reason is None:  # it was never reset, so that nothing is lost
            return None
        self._group.give_up_episode(i, plan, None if plan.is_over else reason)
        return None if plan.is_over else reason

    def _begin(self, i: int, how: ResetSlot) -> None:
        observation, _ = self._group.reset_slot(how)
        self._seen = observation
        self._stepped = False

    def _do_all(self, i: int, events: list[Any]) -> None:
        for event in events:
            self._do(i, event)

    def _do(self, i: int, event: Any) -> None:
        match event:
            case ("steps", actions):
                for action in self._rows(actions):
                    self._step(i, action)
            case ("reset", how):
                self._begin(i, how)
            case ("next", episode):
                self._group.tell_next(i, episode)
            case ("set", name, value):
                self._group.set_attr(name, i, value)
            case ("call", Call(name, args, kwargs)):
                self._group.call(name, args, kwargs, [i])
            case _:
                raise AssertionError(f"no such event: {event!r}")

    def _rows(self, actions: Any) -> Iterable[Any]:
        """Return the actions of steps that follow each other, one by one."""
        if self._group.action_layout.loose:
            return cast(list[Any], actions)
        return (self._group.action_layout.row(actions, (), k) for k in range(len(actions[0])))

    def _step(self, i: int, action: Any) -> None:
        self._replayed += 1
        self._stepped = True
        self._beat()
        self._group.step([i], [action], self._scratch)

    def _compare(self, i: int, plan: SlotPlan) -> None:
        if plan.expected is None:
            return
        observation, reward, terminated, truncated = plan.expected
        rows, layout = self._scratch, self._group.layout
        for leaf in layout.leaves:
            seen, wanted = leaf.get(self._seen), leaf.get(observation)
            same = _same_bytes(seen, wanted, leaf.dtype) if leaf.fixed else _same_objects(seen, wanted)
            if not same:
                raise _Mismatch(
                    f"the world does not repeat itself: replayed, observation{leaf.name} differs from the one seen before"
                )
        if not self._stepped:
            return  # reward and flags of the row are those of the step that ended the episode before
        flags = bool(rows.terminated[i]), bool(rows.truncated[i])
        if not np.array_equal(rows.rewards[i], reward, equal_nan=True) or flags != (terminated, truncated):
            raise _Mismatch("the world does not repeat itself: replayed, its reward or its end differs")


def _same_bytes(seen: Any, wanted: Any, dtype: np.dtype[Any]) -> bool:
    return np.asarray(seen).astype(dtype).tobytes() == np.asarray(wanted).astype(dtype).tobytes()


def _same_objects(seen: Any, wanted: Any) -> bool:
    try:
        return bool(np.all(seen == wanted))
    except (ValueError, TypeError):  # no meaningful comparison: the fixed leaves have to do
        return True
