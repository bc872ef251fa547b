"""Bringing new worlds to where others were, by doing again what was done to those: in a worker, and for all slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.core import NextEpisode
from stretto.envs.arrays import Rows, as_actions
from stretto.envs.messages import Attempt, Call, Past, ResetSlot, Restore, Restored, SetAttr, SlotPlan, Steps
from stretto.envs.slots import SlotState
from stretto.spaces import Array

if TYPE_CHECKING:
    from stretto.envs.engine import Engine
    from stretto.envs.group import Group

_DIFFERS = "the world does not repeat itself: replayed,"


class Restorer:
    """Restores the slots of a fresh group, unit by unit; `beat` is called with every step, as a sign of life."""

    def __init__(self, group: Group, beat: Callable[[], None]) -> None:
        self._group, self._beat = group, beat
        self._stepped = False
        self._replayed = 0
        layout, count = group.layout, group.count
        self._arrays = [np.zeros(shape, dtype) for shape, dtype in layout.shapes(count)]
        self._objects: list[list[Any]] = [[None] * count for _ in layout.loose]
        target = layout.target(self._arrays, self._put_loose, group.refuse)
        self._rows = Rows.of(target, np.zeros(count), np.zeros(count, bool), np.zeros(count, bool))

    def _put_loose(self, leaf: int, i: int, value: Any) -> None:
        self._objects[leaf][i] = value

    def restore(self, plans: Sequence[SlotPlan]) -> Restored:
        """Restore every slot, by a plan for each; say which ones had to be given up."""
        lost: dict[int, str] = {}
        self._group.record(False)
        for unit in self._group.units:
            share = plans[unit.start : unit.stop]
            reason = self._restore(unit, share)
            if reason is not None:
                lost.update((plan.slot, reason) for plan in share)
        self._group.record(True)
        return Restored(self._replayed, lost)

    def _restore(self, unit: range, plans: Sequence[SlotPlan]) -> str | None:
        """Restore slots that are stepped together; say why they had to be given up, if so."""
        group = self._group
        reason = next((plan.reason for plan in plans if plan.reason is not None), None)
        for number, attempts in enumerate(zip(*(plan.attempts for plan in plans), strict=False)):
            if number:
                group.rebuild(unit)
            reason = self._try(unit, attempts, plans)
            if reason is None:
                return None
        if plans[0].attempts:
            group.rebuild(unit)
        self._do_all(unit, [plan.changes for plan in plans])
        if reason is None:  # they were never reset, so that nothing is lost
            return None
        reason = None if all(plan.is_over for plan in plans) else reason
        group.give_up(unit, plans, reason)
        return reason

    def _try(self, unit: range, attempts: Sequence[Attempt], plans: Sequence[SlotPlan]) -> str | None:
        """Do again what was done to slots; say why they are not where they were, if so."""
        try:
            self._do_all(unit, [attempt.before for attempt in attempts])
            self._reset([attempt.reset for attempt in attempts])
            self._do_all(unit, [attempt.after for attempt in attempts])
        except Exception as error:  # noqa: BLE001  it did not raise before, so this is not the same world again
            return f"{_DIFFERS} it raised {error!r}"
        return next((found for i, plan in zip(unit, plans, strict=True) if (found := self._difference(i, plan))), None)

    def _do_all(self, unit: range, by_slot: Sequence[Sequence[Any]]) -> None:
        """Do events again. Those of slots that are only ever asked together differ in actions and resets alone."""
        group = self._group
        for events in zip(*by_slot, strict=True):
            match events[0]:
                case Steps():
                    for actions in self._each_step([steps.actions for steps in events]):
                        self._replayed += len(unit)
                        self._stepped = True
                        self._beat()
                        group.step(unit, actions, self._rows)
                case ResetSlot():
                    self._reset(events)
                case NextEpisode() as episode:
                    group.tell_next(unit.start, episode)
                case SetAttr(name, values):
                    group.set_attr(name, unit.start, *values.values())
                case Call(name, args, kwargs):
                    group.call(name, args, kwargs, unit)
                case event:
                    raise AssertionError(f"no such event: {event!r}")

    def _reset(self, resets: Sequence[ResetSlot]) -> None:
        self._group.reset(resets, self._rows)
        self._stepped = False

    def _each_step(self, by_slot: Sequence[Any]) -> Iterable[Any]:
        """Return the actions of steps that follow each other; given by slot, one array a leaf."""
        layout = self._group.action_layout
        if layout.loose:
            return zip(*by_slot, strict=True)
        leaves = [np.stack(leaf, axis=1) for leaf in zip(*by_slot, strict=True)]
        return (as_actions(layout, [leaf[k] for leaf in leaves]) for k in range(len(leaves[0])))

    def _difference(self, i: int, plan: SlotPlan) -> str | None:
        """Say what a world has that differs from what was seen before, if anything."""
        if plan.expected is None:
            return None
        observation, *numbers = plan.expected
        rows, layout = self._rows, self._group.layout
        row = layout.row(self._arrays, self._objects, i)
        for leaf in layout.leaves:
            seen, wanted = leaf.get(row), leaf.get(observation)
            same = seen.tobytes() == wanted.tobytes() if leaf.fixed else _same_objects(seen, wanted)
            if not same:
                return f"{_DIFFERS} observation{leaf.name} differs from the one seen before"
        if not self._stepped:
            return None  # reward and flags of the row are those of the step that ended the episode before
        replayed = [rows.rewards[i], rows.terminated[i], rows.truncated[i]]
        same = np.array_equal(replayed, numbers, equal_nan=True)
        return None if same else f"{_DIFFERS} its reward or its end differs"


def _same_objects(seen: Any, wanted: Any) -> bool:
    try:
        return bool(np.all(seen == wanted))
    except (ValueError, TypeError):  # no meaningful comparison: the fixed leaves have to do
        return True


# --- for all slots of a new vector environment, from what was saved of another ---


def last_rows(engine: Engine) -> list[Array]:
    """Return copies of what all slots were given last: an array for each leaf of observations, rewards and both flags."""
    engine.check_idle()
    state = engine.state
    state.align()
    return [array.copy() for array in state.buffers.results(state.buffer)]


def go_on(engine: Engine, pasts: Sequence[Past], rows: Sequence[Array]) -> None:
    """Bring new worlds to where others were, of which these are the pasts and the last rows, slot by slot.

    This is what recovery does for a worker that died. A slot whose world does not repeat itself is truncated by its next
    step, with a warning.
    """
    engine.check_open()
    engine.check_apart("going on with saved episodes")
    state = engine.state
    state.buffer = state.free_buffer(state.buffer)
    for target, saved in zip(state.buffers.results(state.buffer), rows, strict=True):
        target[...] = saved
    seeds, options = [past.episode.seed for past in pasts], [past.episode.options for past in pasts]
    resets = state.plan_reset(seeds, [None if one is None else dict(one) for one in options], engine.everyone)
    plans = [_plan(state, how, past.events) for how, past in zip(resets, pasts, strict=True)]
    answers = engine.supervisor.tell(
        lambda seat: Restore([plans[slot] for slot in seat.factory.slots]), "replaying", engine.recovery.limits.step
    )
    for answer in answers:
        state.restored(answer)
    *_, terminated, truncated = state.buffers.results(state.buffer)
    state.counters.over(terminated | truncated)
    engine.stuck = None


def _plan(state: SlotState, how: ResetSlot, events: Sequence[Steps | NextEpisode]) -> SlotPlan:
    """Note the past of a slot as if it had been played here, so that it can be recovered; return how to restore it."""
    slot, told = how.slot, False
    state.last_reset[slot] = how
    state.history.reset(how)
    for event in events:
        if isinstance(event, NextEpisode):
            state.told_next({slot: event})
            told = True
            continue
        if told:
            state.counters.begin([slot])
            told = False
        for row in range(len(event.actions[0])):
            state.history.stepped([leaf[row : row + 1] for leaf in event.actions], [slot])
    # Not from the history, which forgets what is more than `replay_limit` steps ago.
    return replace(state.plans([slot], None)[0], attempts=[Attempt([], how, list(events))], reason=None)
