"""ShareWorkers: workers that collect segments, each of some slots with worlds and policies of its own.

What crosses is weights, segments, and what each share is after its segment: by that another worker goes on with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any

from stretto.collection.experience import Segment
from stretto.collection.share_messages import Act, Gather, Gathered, GoOn, told_slots
from stretto.collection.shares import joined_segments, joined_states, parted_states, shares_of
from stretto.policies.ahead import NOT_COUNTED, Counted
from stretto.policies.questions import Weights
from stretto.workers.base import Backend, Worker
from stretto.workers.fewer import start_or_fewer
from stretto.workers.mail import dump
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, Seat, answers_to, sender
from stretto.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from stretto.collection.share_service import SharePlayer

_LOOK_SECONDS = 0.05
"""How often whoever wants to look at something else meanwhile may do so."""


def _any_room() -> bool:
    return True


@dataclass(frozen=True)
class ShareWorkplace:
    """Where shares are played: in how many workers, each with how many native threads.

    A worker that shows no sign of life for `limit_seconds` hangs. A share whose worker was lost is played again, at most
    `max_restarts` times in a row: by a new worker if there is `room` for one, else by another. `prepare` is called when all
    have been started; or, if `looked_at` is more than these, for so many workers that end after that.
    """

    backend: Backend
    workers: int
    native_threads: int = 1
    limit_seconds: float | None = 60.0
    max_restarts: int = 3
    room: Callable[[], bool] = _any_room
    prepare: Callable[[Supervisor], object] = lambda _: None
    looked_at: int = 0


@dataclass(slots=True)
class _Asked:
    """A segment that was asked for, and what the worker had to be told before."""

    before: list[Request]
    segment: Request


class ShareWorkers:
    """Gives the segments of all slots, one after the other. Agents act by what `acting` returns after each `publish`."""

    def __init__(self, player: SharePlayer, place: ShareWorkplace, acting: Callable[[], Weights]) -> None:
        self._place, self._acting = place, acting
        workers = min(place.workers, player.slots)
        if place.looked_at > workers:
            self._look_at_all(player)
        self._supervisor, _, workers, _ = start_or_fewer(workers, lambda count: self._made(player, count), self._start)
        seats = self._supervisor.seats
        self.shares = shares_of(player.slots, workers)
        self._seats: list[Seat] = [seats[number % len(seats)] for number in range(len(self.shares))]
        self._players: list[Worker | None] = [None] * len(self.shares)  # who plays each share
        self._states: list[Mapping[str, Any] | None] = [None] * len(self.shares)
        self._segments = 0
        self._told: dict[int, tuple[Worker | None, int]] = {}  # by which weights each worker acts
        self._message = b""
        self._counted: list[Counted] = [NOT_COUNTED] * len(self.shares)
        self._lost: Counter[int] = Counter()
        self.version = 0
        self.why_not_resumable = self._begin_all()

    def _begin_all(self) -> str | None:
        """Let all workers make their worlds; return why nobody could go on with these, if so."""
        asked = [self._begin(number) for number in range(len(self.shares))]
        self._supervisor.wait(asked)
        for number, request in enumerate(asked):
            if request.lost:
                self._players[number] = None
        answered = [request for request in asked if not request.lost] or asked
        why: str | None = answers_to(answered)[0]
        return why

    def _begin(self, number: int) -> Request:
        """Let a worker play a share from where it stands."""
        seat = self._seat(number)
        if seat.worker is None:
            self._supervisor.start(seat)
        self._players[number] = seat.worker
        return self._request(seat, GoOn(self.shares[number], self._states[number]))

    def _made(self, player: SharePlayer, workers: int) -> Supervisor:
        supervisor = Supervisor(self._place.backend, native_threads=self._place.native_threads)
        for _ in range(workers):
            supervisor.add_seat(player)
        return supervisor

    def _start(self, supervisor: Supervisor) -> None:
        for seat in supervisor.seats:
            supervisor.start(seat)
        if self._place.looked_at <= len(supervisor.seats):
            self._place.prepare(supervisor)

    def _look_at_all(self, player: SharePlayer) -> None:
        """Prepare in more workers than those that play: those that learn may be where nobody plays."""
        supervisor = self._made(player, self._place.looked_at)
        try:
            for seat in supervisor.seats:
                supervisor.start(seat)
            self._place.prepare(supervisor)
        finally:
            supervisor.close()

    def publish(self, version: int) -> None:
        """Let agents act by new weights from the next segment on."""
        self.version, self._message = version, b""

    @property
    def counted(self) -> Counted:
        """How agents were asked since the beginning."""
        total = NOT_COUNTED
        for one in self._counted:
            total = Counted(*map(add, total, one))
        return total

    # ---- collecting ----

    def gather(self, poll: Callable[[], object] | None = None) -> Segment:
        """Return the next segment of all slots; meanwhile `poll` is called now and again."""
        asked = {number: self._ask(number) for number in range(len(self.shares))}
        found: dict[int, Gathered] = {}
        self._lost.clear()
        while asked:
            self._supervisor.wait([one.segment for one in asked.values()], 1, _LOOK_SECONDS if poll else None)
            if poll is not None:
                poll()
            for number, one in list(asked.items()):
                if not one.segment.finished:
                    continue
                if one.segment.lost:
                    self._lose(number, one.segment)
                    asked[number] = self._ask(number)
                    continue
                del asked[number]
                found[number] = self._taken(one)
        self._segments += 1
        for number, gathered in found.items():
            self._states[number], self._counted[number] = gathered.state, gathered.counted
        return joined_segments([found[number].segment for number in range(len(self.shares))])

    def _ask(self, number: int) -> _Asked:
        """Ask for the next segment of a share; a worker that has not played it before is told where it stands."""
        seat, share = self._seat(number), self.shares[number]
        if seat.worker is None:
            self._supervisor.start(seat)
        before = []
        if self._told.get(seat.index) != (seat.worker, self.version):
            data = self._weights()
            before.append(self._supervisor.ask(seat, lambda worker: worker.post(data), "taking weights", fresh=False))
            self._told[seat.index] = seat.worker, self.version
        if self._players[number] is not seat.worker:
            before.append(self._begin(number))
        return _Asked(before, self._request(seat, Gather(share)))

    def _request(self, seat: Seat, message: GoOn | Gather) -> Request:
        doing = f"collecting in {told_slots(message.share)}"
        limit = self._place.limit_seconds
        return self._supervisor.ask(seat, sender(message), doing, limit, fresh=False)

    def _weights(self) -> bytes:
        """Return the message with the present weights: the same bytes for all, so that each node is sent them once."""
        self._message = self._message or dump(Act(self.version, self._acting()))
        return self._message

    def _taken(self, one: _Asked) -> Gathered:
        for request in (*one.before, one.segment):
            if request.error is not None:
                deliver_all(request.outputs)
                raise request.error
        found: Gathered = one.segment.value
        return found

    # ---- losing ----

    def _lose(self, number: int, request: Request) -> None:
        """Take note of a share whose worker was lost, or raise if it cannot be played again."""
        self._players[number] = None
        self._lost[number] += 1
        begun = self._segments > 0 and self._states[number] is None
        if begun or self._lost[number] > self._place.max_restarts:
            deliver_all(request.outputs)
            assert request.error is not None
            if begun:
                request.error.add_note(
                    "these worlds cannot be saved in the middle of an episode, so nobody else can go on"
                )
            raise request.error

    def _seat(self, number: int) -> Seat:
        """Return who plays a share: who did before, or a new worker in that place, or, without room for one, another."""
        seat = self._seats[number]
        if seat.worker is not None and not seat.requests and not seat.worker.alive():
            self._supervisor.discard(seat)
        if seat.worker is None and not self._place.room():
            busy = Counter(one.index for one in self._seats)
            others = [one for one in self._supervisor.seats if one.worker is not None and one.worker.alive()]
            seat = self._seats[number] = min(others, key=lambda one: busy[one.index], default=seat)
        return seat

    # ---- saving ----

    def state(self) -> dict[str, Any]:
        """Return what `Segments` of all slots would."""
        if any(state is None for state in self._states):
            raise AssertionError("worlds that cannot be gone on with have no state")
        return joined_states([state for state in self._states if state is not None])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, here or elsewhere, before the first segment."""
        self._states = list(parted_states(state, self.shares))
        self._segments = int(state["stage"] is not None)
        self._players = [None] * len(self.shares)

    @property
    def nodes(self) -> Counter[str]:
        """How many slots are on each node of a cluster now."""
        found = Counter[str]()
        for seat, share in zip(self._seats, self.shares, strict=True):
            if seat.worker is not None and seat.worker.node is not None:
                found[seat.worker.node] += len(share)
        return found

    @property
    def pids(self) -> list[int]:
        """The processes of this machine that it runs now."""
        return self._supervisor.pids

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._supervisor.close()
