"""Engine: resets and steps of all slots, on whatever workers there are. Vector environments present its arrays."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stretto.budget import Lease
from stretto.core import NextEpisode
from stretto.envs import messages
from stretto.envs.arguments import needs_single_worlds, slots_of
from stretto.envs.arrays import STEP_ALL, WINDOW, as_actions, shares, step_some
from stretto.envs.infos import InfoJoin, merge, merge_rows
from stretto.envs.messages import Extras
from stretto.envs.placement import Placement
from stretto.envs.restoring.recovery import Recovery
from stretto.envs.slots import Options, Seeds, SlotState
from stretto.errors import ClosedError, ResetNeeded, UsageError
from stretto.identity.watched_globals import GlobalsWatch
from stretto.missions.tasks import Tasks
from stretto.spaces import Array
from stretto.workers.requests import Request, answers_to, sender, signaller
from stretto.workers.single_user import SingleUser
from stretto.workers.supervisor import Supervisor

_NOT_RESET, _STEP_FAILED = "they were not reset yet", "a step was interrupted or failed"


class Engine:
    """Brings workers and the state of their slots together. Must not reference a VectorEnv: its finalizer would never run."""

    def __init__(
        self,
        supervisor: Supervisor,
        recovery: Recovery,
        state: SlotState,
        *,
        lease: Lease,
        blocks: int,
        globals_watch: GlobalsWatch | None,
    ) -> None:
        self.supervisor, self.recovery, self.state = supervisor, recovery, state
        self.count, self.everyone = state.count, range(state.count)
        self.flying: dict[int, Request] = {}
        self._begun: tuple[list[Any], int, list[Request]] | None = None  # a step of all slots
        self.join_infos: InfoJoin = merge
        self._by_signal = supervisor.backend.shares_memory and not state.actions.loose
        self.stuck: str | None = _NOT_RESET  # why all slots must be reset first
        self._closed: str | None = None
        self._lease, self._globals_watch, self.together = lease, globals_watch, blocks > 0
        self.hands_over = state.step_alone is not None
        self.steps_each = state.step_all is not None and supervisor.backend.start is None
        self.alone, self._limits = SingleUser(), recovery.limits
        self.placement: Placement | None = None
        self._keeps_steps = supervisor.backend.start is not None  # worlds of the caller itself are never restored
        self._parts = [slice(seat.factory.slots.start, seat.factory.slots.stop) for seat in supervisor.seats]
        self._seat_of = [seat for seat in supervisor.seats for _ in seat.factory.slots]
        self._windows = [(seat.index, i // WINDOW) for seat in supervisor.seats for i in range(len(seat.factory.slots))]
        _engines.add(self)

    # ---- all slots ----

    def reset(self, seeds: Seeds, options: Options, slots: Sequence[int]) -> dict[str, Any]:
        """Reset `slots`; return the infos. The rows of all slots are then in `state.buffer`."""
        self.check_open()
        if self._globals_watch is not None:
            self._globals_watch.look()
        if self.together and (what := needs_single_worlds(seeds, options, slots, self.count)):
            self.check_apart(what)
        state, supervisor = self.state, self.supervisor
        failed = self.stuck not in (None, _NOT_RESET) or any(seat.error is not None for seat in supervisor.seats)
        if len(slots) < self.count:
            if failed or self.stuck:
                raise ResetNeeded(
                    f"all slots must be reset, not only some, because {self.stuck or 'a worker was lost'}"
                )
            if self.flying:
                return self._reset_beside_others(seeds, options, slots)
        failed = failed or bool(self.flying)
        resets = {how.slot: how for how in state.plan_reset(seeds, options, slots)}
        for slot, how in resets.items():
            state.last_reset[slot] = how
            if failed or how.seed is not None:  # else it may have to be restored to what was before
                state.history.forget(slot)
        if failed:
            self.recovery.recover(supervisor)
            self.flying.clear()
            self._begun = None
        state.align()
        buffer = state.free_buffer(state.buffer)
        self.stuck = "a reset was interrupted or failed"
        shares = [[resets[slot] for slot in seat.factory.slots if slot in resets] for seat in supervisor.seats]
        requests = [
            supervisor.ask(seat, sender(messages.Reset(share, buffer)), "resetting", self._limits.reset)
            for seat, share in zip(supervisor.seats, shares, strict=True)
            if share
        ]
        state.being_reset = frozenset(resets)
        try:
            answers = supervisor.settle(requests)
        finally:
            state.being_reset = frozenset()
        if len(slots) < self.count:
            state.copy_rows([slot for slot in self.everyone if slot not in resets], state.buffer, buffer)
        for how in resets.values():
            state.history.reset(how)
        infos = self._take(answers, buffer, [[how.slot for how in share] for share in shares if share])
        state.buffer = buffer
        state.note_ended(buffer)
        self.stuck = None
        return infos

    def _reset_beside_others(self, seeds: Seeds, options: Options, slots: Sequence[int]) -> dict[str, Any]:
        """Reset `slots` while others are in flight, whose rows are left alone; `gather` has the rows."""
        busy = [slot for slot in slots if slot in self.flying]
        if busy:
            raise UsageError(f"an environment must be received before it is reset, slot {busy[0]} was not; call recv()")
        self.stuck = "a reset was interrupted or failed"
        state, requests = self.state, []
        for how in state.plan_reset(seeds, options, slots):
            slot, buffer = how.slot, state.free_buffer(state.buffer_of(how.slot))
            state.last_reset[slot] = how
            if how.seed is not None:
                state.history.forget(slot)
            issue, done = sender(messages.Reset([how], buffer)), partial(state.reset_one, how, buffer)
            requests.append(self.supervisor.ask(self._seat_of[slot], issue, "resetting", self._limits.reset, done))
        state.being_reset = frozenset(slots)
        try:
            answers = self.supervisor.settle(requests)
        finally:
            state.being_reset = frozenset()
        self.stuck = None
        return self.join_infos([extras.infos for extras in answers], self.count)

    def step_here(self, admitted: list[Any]) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step the only block, which the caller has itself; return what it gave, as arrays that nobody else has."""
        self.stuck = _STEP_FAILED
        *arrays, told = self.state.step_block(admitted)
        self.stuck = None
        return (*arrays, {} if told is None else self.join_infos([told], self.count))

    def step(self, admitted: list[Any]) -> dict[str, Any]:
        """Step every slot with admitted actions; return the infos. The rows are then in `state.buffer`."""
        if self.state.step_all is not None and not self.supervisor.seats[0].requests:
            return self.step_each(as_actions(self.state.actions, admitted), admitted)
        buffer = self._prepare(admitted)
        if self._by_signal:
            if self.placement is not None:
                self.placement.begin_step()
            answers = self.supervisor.signal_all(STEP_ALL + buffer, "stepping", self._limits.step)
            if self.placement is not None:
                self.placement.end_step()
        else:
            answers = self.supervisor.settle(self._ask_to_step(admitted, buffer))
        return self._stepped(admitted, buffer, answers)

    def step_each(self, actions: Any, admitted: list[Any] | None = None) -> dict[str, Any]:
        """Do what `step` does with an action for each slot, where the caller has all itself; no arrays if it `steps_each`."""
        if (step_all := self.state.step_all) is None or self.supervisor.seats[0].requests:
            return self.step([np.array(actions)])
        # Nothing has to be asked of others, or laid where they find it: with one CartPole that took 3 of 10 µs.
        buffer = self._next_buffer()
        told, ended = step_all((actions, buffer))
        return self._stepped(admitted or [], buffer, None if told is None else (told,), ended)

    def begin_step(self, admitted: list[Any]) -> None:
        """Let every slot step, and return at once, unless the caller has to do it; `end_step` waits for them."""
        if not self.together:
            self.recovery.move_out(self.supervisor)
        buffer = self._prepare(admitted)
        requests = self._ask_to_step(admitted, buffer)
        self._begun = admitted, buffer, requests
        self.flying = {slot: request for request in requests for slot in request.seat.factory.slots}
        self.stuck = None

    def end_step(self) -> dict[str, Any]:
        """Wait for the step that was begun; return the infos. The rows are then in `state.buffer`."""
        self.check_open()
        if self._begun is None:
            raise UsageError("step_wait() needs a step under way, and there is none; call step_async(actions) first")
        admitted, buffer, requests = self._begun
        self.stuck = _STEP_FAILED
        self._begun = None
        self.flying.clear()
        return self._stepped(admitted, buffer, self.supervisor.settle(requests))

    def _prepare(self, admitted: list[Any]) -> int:
        """Lay actions where those who step find them; return the buffer that the results go into."""
        buffer = self._next_buffer()
        if self.hands_over:
            self.state.buffers.actions = admitted
        elif self._by_signal:
            for target, array in zip(self.state.buffers.actions, admitted, strict=True):
                target[:] = array
        return buffer

    def _next_buffer(self) -> int:
        """Begin a step of all slots; return the buffer that the results go into."""
        state = self.state
        if state.own_buffer:
            state.align()
            state.note_ended(state.buffer)
        self.stuck = _STEP_FAILED
        return state.free_buffer(state.buffer)

    def _ask_to_step(self, admitted: list[Any], buffer: int) -> list[Request]:
        requests, actions = [], self.state.actions
        for seat, part in zip(self.supervisor.seats, self._parts, strict=True):
            if self._by_signal:
                issue = signaller(STEP_ALL + buffer)
            else:
                rows = admitted[part] if actions.loose else as_actions(actions, [array[part] for array in admitted])
                issue = sender(messages.Step(None, rows, buffer), by_value=False)
            requests.append(self.supervisor.ask(seat, issue, "stepping", self._limits.step))
        return requests

    def _stepped(
        self, admitted: list[Any], buffer: int, answers: Sequence[Extras | None] | None, ended: bool = True
    ) -> dict[str, Any]:
        """Take in a step of all slots, in which episodes may have `ended`."""
        state = self.state
        if self._keeps_steps:
            state.history.stepped(admitted, None)
        infos = {} if answers is None else self._take(answers, buffer, self._parts)
        state.buffer = buffer  # before anything is asked again: a worker may have to be restored to these rows
        count = state.counters.stepped if ended else state.counters.stepped_on
        count(state.buffers.terminated[buffer], state.buffers.truncated[buffer])
        if state.has_tasks:
            self._tell_next(state.coming_by_task(np.flatnonzero(state.counters.settle()).tolist()))
        self.stuck = None
        if self._globals_watch is not None:
            self._globals_watch.count_step()
        return infos

    def _take(self, answers: Sequence[Extras | None], buffer: int, parts: Sequence[Any]) -> dict[str, Any]:
        for extras, part in zip(answers, parts, strict=True):
            self.state.take(extras, buffer, part)
        return self.join_infos([None if extras is None else extras.infos for extras in answers], self.count)

    def _tell_next(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Tell slots what they play next. Nobody waits for the answer: a worker serves its requests in order."""
        for seat in self.supervisor.seats:
            share = {slot: episodes[slot] for slot in seat.factory.slots if slot in episodes}
            if share:
                done = partial(self.state.told_next, share)
                issue = sender(messages.TellNext(share), by_value=False)
                self.supervisor.ask(seat, issue, "hearing what comes next", self._limits.step, done)

    def next_episodes(self, episodes: Mapping[int, NextEpisode]) -> None:
        """Tell slots, also those in flight, what to play when they begin their next episode."""
        with self.alone:
            self.check_open()
            if self.stuck is not None:
                raise ResetNeeded(f"the environments must be reset before they are told more, because {self.stuck}")
            self._check_not_begun()
            self._tell_next(self.state.coming(episodes))

    # ---- some slots ----

    def send(self, admitted: list[Any], slots: Sequence[int], together: int = 1) -> None:
        """Let some slots step; `recv` waits for them. So many of a worker are asked, and ready, `together`: it is cheaper."""
        state = self.state
        self.recovery.move_out(self.supervisor)
        for rows in shares([(*self._windows[slot], state.buffer_of(slot)) for slot in slots], together):
            some = [slots[row] for row in rows]
            seat, buffer = self._seat_of[some[0]], state.free_buffer(state.buffer_of(some[0]))
            parts = [admitted[row] for row in rows] if state.actions.loose else [array[rows] for array in admitted]
            if self._by_signal:
                for target, array in zip(state.buffers.actions, parts, strict=True):
                    target[some] = array
                issue = signaller(step_some([slot - seat.factory.slots.start for slot in some], buffer))
            else:
                actions = parts if state.actions.loose else as_actions(state.actions, parts)
                issue = sender(messages.Step(some, actions, buffer), by_value=False)
            done = partial(state.stepped_some, some, buffer, parts)
            request = self.supervisor.ask(seat, issue, "stepping", self._limits.step, done)
            self.flying.update(dict.fromkeys(some, request))

    def recv(self, ready: int | None, ordered: bool) -> tuple[list[int], dict[str, Any]]:
        """Wait for `ready` of the slots that were sent (default: all); return which, and their infos by row."""
        self.check_open()
        self._check_not_begun()
        wanted = len(self.flying) if ready is None else ready
        if not 0 < wanted <= len(self.flying):
            raise UsageError(
                f"ready must be from 1 to the number of environments that were sent and not received, "
                f"{len(self.flying)}, got {wanted}; call send() first"
            )
        requests = list(self.flying.values())
        self.stuck = "a recv was interrupted or failed"
        self.supervisor.wait(requests[:wanted] if ordered else requests, wanted)
        slots = [slot for slot, request in self.flying.items() if request.finished][:wanted]
        answers = answers_to([self.flying.pop(slot) for slot in slots])
        self.stuck = None
        began = self.state.see_begun(slots)
        if self.state.has_tasks:
            self._tell_next(self.state.coming_by_task(began))
        # Those that were asked together have one answer.
        told = {id(extras): extras.infos for extras in answers if extras is not None}
        return slots, merge_rows(told.values(), slots)

    # ---- the rest ----

    def ask_all(self, message: object, doing: str) -> tuple[Any, ...]:
        """Send all workers the same message and return one result a slot."""
        with self.alone:
            self.check_idle()
            answers = self.supervisor.tell(lambda _: message, doing, self._limits.step)
            return tuple(value for part in answers for value in part)

    def set_attr(self, change: messages.SetAttr) -> None:
        """Set an attribute in the worlds of the slots that have a value."""
        with self.alone:
            self.check_idle()
            doing = f"setting {change.name!r}"
            self.supervisor.tell(lambda seat: change.of(seat.factory.slots), doing, self._limits.step)
            self.state.history.changed(change)

    def set_tasks(self, tasks: Tasks) -> None:
        """Use another source of tasks for all episodes that begin from now on."""
        with self.alone:
            self.check_idle()
            self.state.set_tasks(tasks)
            if self.stuck is None:
                self._tell_next(self.state.coming_by_task(self.everyone))

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._closed}; make a new one")

    def check_apart(self, what: str) -> None:
        """Raise if the worlds are batched, and cannot be asked one by one."""
        if self.together:
            raise UsageError(
                f"{what} needs environments that are stepped one by one, got batched ones; make them with vectorized=False"
            )

    def _check_not_begun(self) -> None:
        if self._begun is not None:
            raise UsageError("a step that was begun with step_async() must be finished first; call step_wait()")

    def check_idle(self) -> None:
        """Raise unless something other than a step can be asked now."""
        self.check_open()
        if self.flying:
            raise UsageError(f"every step that was sent must be received first, {len(self.flying)} are under way")
        if self.stuck is not None and self.stuck is not _NOT_RESET:
            raise ResetNeeded(f"the environments must be reset, because {self.stuck}")

    def check_steppable(self) -> None:
        """Raise unless all slots can be stepped now."""
        if self.stuck is not None or self.flying or self._closed:
            self.check_idle()
            raise ResetNeeded(f"the environments must be reset before they are stepped, because {self.stuck}")

    def check_ids(self, ids: Sequence[int] | Array | None) -> list[int]:
        """Return the slots of these ids (`None`: all); raise unless they can be sent now."""
        self.check_open()
        self.check_apart("send()")
        slots = slots_of(ids, self.count)
        if self.stuck is not None:
            raise ResetNeeded(f"the environments must be reset before they are stepped, because {self.stuck}")
        if not slots:
            raise UsageError("ids must be those of one environment or more, got none")
        for slot in filter(self.flying.__contains__, slots):
            raise UsageError(f"an environment must be received before it is sent again, slot {slot} was not")
        return slots

    def close(self) -> None:
        """End the workers and let go of the arrays; may be called twice."""
        self._closed = "the vector environment is closed"
        try:
            error = self.supervisor.close(self._limits.reset)
        finally:
            self.state.let_go()
            self._lease.release()
        if error is not None:
            raise error

    def disown(self) -> None:
        """Let a process that was forked off keep its hands off the workers: they are its parent's."""
        self.alone = SingleUser()  # whichever thread had it, it is not in this process
        if self.supervisor.remote or self.supervisor.backend.pickles:  # then memory is shared, too
            self._closed = "the workers of this vector environment belong to the process that this one was forked from"


_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_engines):
        engine.disown()


os.register_at_fork(after_in_child=_after_fork)
