"""Placement: whether worlds are better off in workers or with the caller, looked at again and again while they are stepped.

Processes pay where cores are free. Beside other programs the caller may wait longer for its workers than it would take to
step their worlds itself. Where that lasts, it takes them home; where workers would pay again, it moves them out.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.budget import core_seconds, free_seconds, machine_cores, running_programs
from stretto.envs.messages import RecordSoon
from stretto.workers.requests import Seat, sender

if TYPE_CHECKING:
    from stretto.envs.restoring.recovery import Recovery
    from stretto.envs.slots import SlotState
    from stretto.workers.supervisor import Supervisor

LOOK_SECONDS, LOOKS = 0.03, 8
"""How much stepping is between two looks, which take 0.1 ms at most, and how many looks a judgement rests on."""

COLD, GAIN, BUSY_GAIN = 1.25, 1.05, 1.1
"""How much faster the other place must be; the last is for workers beside other programs, where less is known.

Worlds that take turns with other programs take more of the CPU's time than they take alone: CartPole up to 1.45 times. So a
move home is tried early. What is seen there decides whether it lasts.
"""

IDLE_EFFICIENCY, BUSY_EFFICIENCY = 0.95, 0.75
"""What workers make of the cores that they get: they wait for each other, and for longer where programs take turns."""

LEAST_PATIENCE, MOST_PATIENCE = 0.5, 60.0
"""How many seconds of stepping are between two moves.

A move after which steps are no faster is undone at once, and doubles it. Two in a row that paid halve it. Where other
programs have come or gone since the last move, what it taught counts no more: then it is the least.
"""

FORGET = 4.0
"""After so many times the patience, what was seen of the other place counts no more: it is tried again."""

PAUSE_SECONDS = 0.1
"""What happens while the caller does not step for so long says nothing about its steps."""

PRICE = 0.05
"""A move may take this share of the stepping since the last one."""

START_SECONDS = 0.03
"""What a new process takes beyond building its worlds."""

ALIKE = 0.75
"""So many programs more or fewer make no other case: a busy one is one, and how many there are is seen to about a half."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of some steps: seconds of one, CPU seconds of its workers, and how many other programs compete.

    These need not be whole: one that computes half of the time is a half, and one that is nice is almost none.
    """

    seconds: float
    worker_seconds: float
    others: float

    def is_like(self, other: Look) -> bool:
        """Whether about as many other programs competed."""
        return abs(self.others - other.others) < ALIKE

    @classmethod
    def mean(cls, looks: deque[Look]) -> Look:
        count = len(looks)
        return cls(
            sum(look.seconds for look in looks) / count,
            sum(look.worker_seconds for look in looks) / count,
            sum(look.others for look in looks) / count,
        )


def share(programs: int, others: float, cores: int) -> float:
    """Return how many cores so many of our programs get beside others."""
    return min(programs, programs * cores / (others + programs))


def others_beside(got: float, workers: float, free: float, running: float, cores: int) -> float:
    """Return how many other programs compete, by what the caller `got` of a core whenever it wanted one.

    So many `workers` of ours wanted one, too, and so many cores were `free`. At a moment, so many were `running`, the caller
    among them: one that sleeps after each step waits longer for a core than one that computes on, and got too little.
    """
    if got > ALL_OF_A_CORE:  # then there may be as many others as there are cores for
        return max(0.0, cores - 1 - workers - free)
    return max(0.0, min(cores / max(got, 0.01) - 1 - workers, running - 1))


ALL_OF_A_CORE = 0.95


def better_home(seen: Look, before: Look | None, whole: float, cores: int) -> bool:
    """Whether the caller alone would be faster than its workers are; all have `whole` times the worlds of the workers.

    `before` is what was seen of the caller alone last. The time of the workers is on the CPU's clock. One that looks for
    requests uses the CPU all the time, and counts as somebody who pays; on idle cores nobody is taken home.
    """
    if before is not None and before.is_like(seen):
        return seen.seconds > GAIN * before.seconds
    alone = seen.worker_seconds * whole / share(1, seen.others, cores)
    return seen.seconds * COLD > alone


def better_away(seen: Look, before: Look | None, workers: int, cores: int) -> bool:
    """Whether workers would be faster than the caller alone is; `before` is what was seen of them last."""
    if before is not None and before.is_like(seen):
        return seen.seconds > GAIN * before.seconds
    free = seen.others + workers <= cores + 0.25
    gain = share(workers, seen.others, cores) / share(1, seen.others, cores)
    return gain * IDLE_EFFICIENCY > GAIN if free else gain * BUSY_EFFICIENCY > BUSY_GAIN


@dataclass(frozen=True, slots=True)
class _Clocks:
    """What is seen at a moment: the time, what this thread got of its core, what nobody got, what workers used, what runs."""

    now: float
    core: tuple[float, float] | None
    free: float
    workers: float
    running: float

    def look(self, before: _Clocks, steps: int, seconds: float, cores: int) -> Look:
        """Return what was seen since, in so many steps that took so many seconds."""
        assert self.core is not None
        assert before.core is not None
        passed = self.now - before.now
        computed, waited = (now - then for now, then in zip(self.core, before.core, strict=True))
        got = computed / max(computed + waited, 1e-9)
        used = self.workers - before.workers
        busy = min(1.0, used / max(got, 0.01) / passed)
        free = (self.free - before.free) / passed
        return Look(seconds / steps, used / steps, others_beside(got, busy, free, self.running, cores))


_NOTHING_SEEN = _Clocks(0.0, (0.0, 0.0), 0.0, 0.0, 0.0)


class Placement:
    """Moves the worlds of all workers to the caller and back. Results do not change; `told` says what was done.

    A move does again, in new worlds, what was done to the old ones since their episodes began, and compares. Where that
    shows a difference, nothing was moved, and nothing will be. Worlds that print or warn stay where they are: one would
    hear them twice.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        recovery: Recovery,
        state: SlotState,
        *,
        build_seconds: float,
    ) -> None:
        self._supervisor, self._recovery, self._state = supervisor, recovery, state
        self._cores = machine_cores()
        self._movable = [seat for seat in supervisor.seats if not seat.inline]
        self._workers = len(supervisor.seats)
        self._slots = sum(len(seat.factory.slots) for seat in self._movable)
        self._whole = state.count / self._slots
        self._build_seconds = build_seconds
        self._steps, self._seconds = 0, 0.0  # since the last look
        self._since = 0.0  # seconds of stepping since the last move
        self._looks: deque[Look] = deque(maxlen=LOOKS)
        self._elsewhere: Look | None = None  # what was last seen of the place where the worlds are not
        self._patience = LEAST_PATIENCE
        self._judged = True  # whether it is known if the last move was worth it
        self._paid = True  # whether the one that was judged last was
        self._undoes = False
        self._seen = _NOTHING_SEEN
        self._began = self._ended = 0.0
        self._asked = False  # for points to restore from
        self._stays = False
        self._moves = 0
        self.told = ""

    def begin_step(self) -> None:
        """Take note that all workers step now; now and then after a look at where they are."""
        if time.perf_counter() - self._ended > PAUSE_SECONDS:
            self._steps, self._seconds = 0, 0.0
            self._seen = self._clocks()
        elif self._seconds >= LOOK_SECONDS:
            self.look()
        self._began = time.perf_counter()

    def end_step(self) -> None:
        """Take note that they have."""
        self._steps += 1
        self._ended = time.perf_counter()
        self._seconds += self._ended - self._began

    def look(self) -> None:
        """Take note of the steps since the last look, and move if that would pay."""
        steps, seconds, self._steps, self._seconds = self._steps, self._seconds, 0, 0.0
        before, self._seen = self._seen, self._clocks()
        if self._stays or self._recovery.moved_out or self._seen.core is None:
            self._stays = True
            return
        self._since += seconds
        if before.core is None or before.now == 0.0 or self._seen.workers < before.workers:
            self._looks.clear()  # a worker was replaced, or the thread is another
            return
        self._looks.append(self._seen.look(before, steps, seconds, self._cores))
        if len(self._looks) < LOOKS:
            return
        seen, at_home = Look.mean(self._looks), all(seat.inline for seat in self._movable)
        self._judge(seen)
        if self._since < self._patience and not self._undoes:
            return
        remembered = self._elsewhere if self._since < FORGET * self._patience else None
        if at_home:
            wanted = better_away(seen, remembered, self._workers, self._cores)
        else:
            wanted = better_home(seen, remembered, self._whole, self._cores)
        if wanted and self._is_cheap(seen, at_home):
            self._move(seen, home=not at_home)

    def _judge(self, seen: Look) -> None:
        """Undo a move if steps are no faster after it than they were before, and be more patient then."""
        before = self._elsewhere
        if before is None:
            return
        if not before.is_like(seen):
            self._patience, self._judged, self._paid, self._undoes = LEAST_PATIENCE, True, True, False
            return
        if self._judged:
            return
        self._judged, paid = True, seen.seconds < before.seconds
        if not paid:
            self._patience = min(2 * self._patience, MOST_PATIENCE)
            self._undoes = seen.seconds > GAIN * before.seconds
        elif self._paid:
            self._patience = max(self._patience / 2, LEAST_PATIENCE)
        self._paid = paid

    def _clocks(self) -> _Clocks:
        workers = sum(seat.worker.cpu_seconds() for seat in self._movable if seat.worker is not None)
        return _Clocks(time.perf_counter(), core_seconds(), free_seconds(), workers, running_programs())

    def _is_cheap(self, seen: Look, at_home: bool) -> bool:
        """Whether a move takes little beside what was stepped since the last; ask for points that make it cheaper."""
        if any(seat.has_spoken for seat in self._movable):
            self._stays = True
            return False
        if not self._asked:
            self._asked = True
            requests = [self._supervisor.ask(seat, sender(RecordSoon()), "stepping") for seat in self._movable]
            self._supervisor.settle(requests)
            return False
        history = self._state.history
        steps = sum(history.steps_to_replay(slot) for seat in self._movable for slot in seat.factory.slots)
        each = seen.seconds / self._state.count if at_home else seen.worker_seconds / self._slots
        # Building took as long as it took beside the programs that there were.
        replay = steps * each / share(1, seen.others, self._cores)
        cost = self._build_seconds + replay + (START_SECONDS if at_home else 0.0)
        return cost <= PRICE * self._since

    def _move(self, seen: Look, *, home: bool) -> None:
        reason = self._move_all(self._movable, home=home)
        self._looks.clear()
        self._asked, self._seen = False, _NOTHING_SEEN
        if reason is not None:
            self._stays = True
            self.told = f"; they stay where they are, because they cannot be brought elsewhere: {reason}"
            return
        self._moves += 1
        # Where the worlds come from is known, so a move that undoes another one is not judged.
        self._judged, self._undoes = self._undoes, False
        self._elsewhere, self._since = seen, 0.0
        times = "once" if self._moves == 1 else f"{self._moves} times"
        where = (
            "now all in the caller, because other programs compute, too"
            if home
            else "now in workers, where they are faster"
        )
        self.told = f"; moved {times}, {where}"

    def _move_all(self, seats: list[Seat], *, home: bool) -> str | None:
        """Move all these seats, or none; say why not, if so."""
        for number, seat in enumerate(seats):
            reason = self._recovery.move(self._supervisor, seat, inline=home)
            if reason is not None:
                undone = [self._recovery.move(self._supervisor, one, inline=not home) for one in seats[:number]]
                return reason if not any(undone) else f"{reason}; some of them were moved"
        return None
