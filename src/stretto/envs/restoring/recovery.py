"""Recovery: bringing the slots of a lost worker to where they were, in a new one; or giving them up."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto import hash_seed
from stretto.envs.arrays import InfoBuffer
from stretto.envs.messages import Attach, Extras, Restore, Restored
from stretto.envs.slots import SlotState
from stretto.errors import FewerWorkers, Place, StrettoError, WorldHung, user_stacklevel
from stretto.workers.base import Output, Worker
from stretto.workers.inline import InlineWorker
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.supervisor import EXIT_SECONDS, Supervisor


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a worker may be without a sign of life, in seconds (`None`: for ever), and how often it may die."""

    start: float | None
    reset: float | None
    step: float | None
    on_crash: str
    max_restarts: int


class Recovery:
    """Replaces workers that died or hang. What the slots were at is in `state`, once there is one.

    A seat that was lost is brought back at once if something was asked of it, else with the next request. Why its slots
    are not to be restored, if that is so, is in `_lost_because`.
    """

    remedy = "isolate=True"

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.state: SlotState | None = None
        self._attach: Attach | None = None
        self._shares_infos = False
        self._early_restarts = 0  # of workers that died while they built their worlds, before there was a state
        self._lost_because: dict[int, str | None] = {}
        self.moved_out = False

    def attach(self, supervisor: Supervisor, message: Attach, state: SlotState) -> list[Any]:
        """Tell all workers, also those that are started later, where the arrays are; `state` can then restore them.

        Returns their answers.
        """
        self._attach, self.state = message, state
        self._shares_infos = message.fields is not None and supervisor.backend.pickles
        for seat in supervisor.seats:
            self.started(seat)
        state.counters.counts.restarts += self._early_restarts
        return supervisor.tell(lambda _: message, "attaching", self.limits.start)

    # ---- what a supervisor asks for ----

    def place(self, seat: Seat, doing: str) -> Place:
        position = 0 if seat.worker is None else seat.worker.progress[1]
        # A worker that was lost while it wrote to us may have left any number behind.
        slots = seat.factory.slots
        slot = slots.start + position - 1 if 0 < position <= len(slots) else None
        place = Place(doing, worker=seat.index, slot=slot)
        if slot is None or self.state is None or seat.worker is None:
            return place
        shared = self._attach is not None and self._attach.fields is not None
        return self.state.place(slot, place, seat.worker.count if shared else None)

    def started(self, seat: Seat) -> None:
        """Know of no kind of infos yet, as the worker that has just been started."""
        seat.complete, seat.usual_limit = None, self.limits.step
        room = self.state.buffers.info_room if self._shares_infos and self.state is not None else None
        if room is not None and not seat.inline:
            slots = seat.factory.slots
            seat.complete = _completing(InfoBuffer(slots.start, room[slots.start : slots.stop]))

    def lost(self, supervisor: Supervisor, seat: Seat, hung_after: float | None) -> None:
        error = supervisor.end(seat, hung_after)
        if error is None:
            return
        limits = self.limits
        asked = [request for request in seat.requests if not request.setup]
        enough = seat.restarts >= limits.max_restarts or limits.on_crash == "raise"
        hangs = hung_after is not None and bool(seat.requests)  # else it has answered at the last moment
        if hangs:
            enough = enough or not supervisor.backend.killable or not asked or any(request.hung for request in asked)
        if enough:
            supervisor.give_up(seat, error)
            return
        if hangs:
            asked[0].hung = True
        self._count_restart(seat)
        self._lost_because[seat.index] = None if limits.on_crash == "replay" else _first_line(error)
        supervisor.discard(seat)
        if asked:
            self._bring_back(supervisor, seat, asked)
        # Else it has answered, and its slots are where they will be only when all others have: not now.

    def revive(self, supervisor: Supervisor, seat: Seat) -> None:
        if seat.error is None:
            self._bring_back(supervisor, seat, [])

    def _count_restart(self, seat: Seat) -> None:
        seat.restarts += 1
        if self.state is None:
            self._early_restarts += 1
        else:
            self.state.counters.counts.restarts += 1

    def _bring_back(self, supervisor: Supervisor, seat: Seat, asked: list[Request]) -> None:
        """Start a worker anew, restore its slots, and ask again what was asked."""
        lost_because = self._lost_because.pop(seat.index, None)
        if lost_because is None:
            seat.outputs.clear()  # what it will do again it will say again
        supervisor.release_outputs(seat)
        state, setup = self.state, []
        if self._attach is not None and state is not None:
            restore = sender(Restore(state.plans(seat.factory.slots, lost_because)))
            setup = [
                Request(seat, sender(self._attach), "attaching", self.limits.start, setup=True),
                Request(seat, restore, "replaying", self.limits.step, state.restored, setup=True),
            ]
        seat.requests.clear()
        try:
            supervisor.start(seat)
        except StrettoError as error:
            seat.requests.extend(asked)
            supervisor.give_up(seat, error)
            return
        for request in (*setup, *asked):
            supervisor.issue(request)

    # ---- what an engine asks for ----

    def recover(self, supervisor: Supervisor) -> None:
        """Wait for what is under way after a failure or an interruption, and start anew who is lost.

        The slots of those who are started anew are as if never reset.
        """
        supervisor.let_go()
        for seat in supervisor.seats:
            if seat.worker is None:
                seat.restarts = 0
                self._lost_because.pop(seat.index, None)
                self._bring_back(supervisor, seat, [])
        supervisor.settle([request for seat in supervisor.seats for request in seat.requests])

    def move_out(self, supervisor: Supervisor) -> None:
        """Move the caller's own share into a worker, so that the caller stays free; tried once."""
        if self.moved_out or supervisor.backend.start is None:
            return
        self.moved_out = True
        for seat in supervisor.seats:
            if isinstance(seat.worker, InlineWorker):
                reason = self.move(supervisor, seat, inline=False)
                if reason is not None:
                    warnings.warn(
                        f"the caller steps its own share of the environments in recv(), because they cannot be "
                        f"brought to where they are in another process: {reason}{hash_seed.hint()}; isolate=True starts "
                        f"them there",
                        FewerWorkers,
                        stacklevel=user_stacklevel(),
                    )

    def move(self, supervisor: Supervisor, seat: Seat, *, inline: bool) -> str | None:
        """Restore a seat's slots in a new worker, in the caller or beside it; say why if that fails, and nothing changes."""
        supervisor.settle(list(seat.requests))
        old, was_inline = seat.worker, seat.inline
        assert old is not None
        seat.seat(None, inline=inline)
        results: list[Restored] = []
        try:
            with supervisor.letting_go():
                self._bring_back(supervisor, seat, [])
                for request in seat.requests:
                    request.on_value = results.append if request.doing == "replaying" else None
                pending = list(seat.requests)
                supervisor.wait(pending)
            problems = [repr(request.error) for request in pending if request.error is not None]
            problems += [reason for result in results for reason in result.lost.values()]
            problems += [] if results else ["the process died"]
        finally:
            if not results or results[0].lost:
                if isinstance(seat.worker, InlineWorker):
                    seat.worker.close(0.0)
                supervisor.give_up(seat, None)
                seat.seat(old, inline=was_inline)
                self.started(seat)
        if not problems:
            _retire(supervisor, seat, old)
        return problems[0] if problems else None


def _retire(supervisor: Supervisor, seat: Seat, old: Worker) -> None:
    """End a worker whose slots are in another one now."""
    new, seat.worker = seat.worker, old
    try:
        old.close(EXIT_SECONDS)
        seat.outputs += [frame for frame in old.collect() if isinstance(frame, Output)]
    finally:
        supervisor.discard(seat)
        seat.worker = new


def _first_line(error: StrettoError) -> str:
    """Return what a user is told of a lost worker in one line."""
    return str(error).partition("; its Python stack" if isinstance(error, WorldHung) else "\n")[0]


def _completing(buffer: InfoBuffer) -> Callable[[Worker, int, Any], Any]:
    """Return what adds to an answer the infos that lie in shared memory, and learns from those that came by mail."""

    def complete(worker: Worker, number: int, value: Any) -> Any:
        if isinstance(value, Extras):
            worker.learned = buffer.learn_from(value.infos, worker.learned)
        elif value is not None:
            return value
        note = worker.note_of(number)
        if note is not None:
            value = value or Extras()
            value.infos = buffer.table(note)
        return value

    return complete
