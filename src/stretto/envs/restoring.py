"""Bringing a slot of a new worker to where its lost world was, by doing again what was done to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.envs.group import EnvGroup, Rows
from stretto.envs.messages import Call, Restored, SlotPlan


class _Mismatch(Exception):
    """The replayed world is not where the lost one was."""


class Restorer:
    """Restores the slots of a fresh group."""

    def __init__(self, group: EnvGroup) -> None:
        self._group = group
        self._seen: Any = None
        self._replayed = 0
        count = group.count
        self._scratch = Rows(self._see, np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))

    def _see(self, i: int, observation: Any) -> None:
        self._seen = observation

    def restore(self, plans: list[SlotPlan]) -> Restored:
        """Restore every slot that has a plan; say which ones had to be given up."""
        lost: dict[int, str] = {}
        self._group.recording = False
        for plan in plans:
            reason = self._restore_slot(plan)
            if reason is not None:
                lost[plan.slot] = reason
        self._group.recording = True
        return Restored(self._replayed, lost)

    def _restore_slot(self, plan: SlotPlan) -> str | None:
        group, i = self._group, plan.slot - self._group.first
        reason = plan.reason
        for number, attempt in enumerate(plan.attempts):
            if number:
                group.rebuild(i)
            for event in plan.before:
                self._do(i, event)
            try:
                self._replay(i, *attempt)
                self._compare(i, plan)
                return None
            except _Mismatch as mismatch:
                reason = str(mismatch)
        if reason is None:  # it was never reset: there is nothing to restore but attributes
            for event in plan.before:
                self._do(i, event)
            return None
        if plan.attempts:
            group.rebuild(i)
        for event in plan.before:
            self._do(i, event)
        group.tasks[i].update(plan.tasks)
        over = plan.expected is not None and (plan.expected[2] or plan.expected[3])
        group.end_episode(i, plan.last, plan.lost_seed, plan.lost_episode, None if over else reason)
        return None if over else reason

    def _replay(self, i: int, reset: Any, events: list[Any]) -> None:
        observation, _ = self._group.reset_slot(reset)
        self._see(i, observation)
        self._scratch.rewards[i] = 0.0
        self._scratch.terminated[i] = self._scratch.truncated[i] = False
        for event in events:
            self._do(i, event)

    def _do(self, i: int, event: Any) -> None:
        match event:
            case ("step", action):
                self._replayed += 1
                self._group.step([i], [action], self._scratch)
                self._group.progress[0] = -self._replayed  # each step is a sign of life
            case ("set", name, value):
                self._group.set_attr(name, i, value)
            case ("call", Call(name, args, kwargs)):
                self._group.call(name, args, kwargs, only=i)
            case _:
                raise AssertionError(f"no such event: {event!r}")

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
