"""Workers that run in the caller's thread, fail where their script says, and wait by a clock that takes no time."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import pickle
import signal
import sys
import traceback
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import stretto
from stretto.envs import make
from stretto.workers.arena import Arena
from stretto.workers.backends import BACKENDS, Backend
from stretto.workers.base import Failure, Port, Reply, Service, Start, Worker
from stretto.workers.control import DONE, MESSAGE, NO_BELL, POSITION, RING, Bell, Clock, private_words
from stretto.workers.mail import LocalMail, dump, load
from stretto.workers.output import _Forwarder
from stretto.workers.serving import Abandoned, Host

STACK_SECONDS = 0.1
"""How long a fake worker takes to say where its code stands: what is late may be there meanwhile."""

FOR_EVER = 3600.0
"""Nothing in a test takes an hour."""

KILLED = "it was killed by signal 9 (SIGKILL)"

UNSENT, UNCOUNTED, BEFORE, AFTER = "unsent", "uncounted", "before", "after"
"""When a worker fails: before a request is served; when it is done and nothing is sent; when its answer is sent, but not
yet counted as done; after all that."""

_pids = itertools.count(1 << 22)
"""No process can have these: they end where the kernel's numbers do at most."""

_living: weakref.WeakValueDictionary[int, FakeWorker] = weakref.WeakValueDictionary()


# ---- time ----


class FakeClock(Clock):
    """A clock whose sleeps are over at once; what was planned for a time happens when a sleep gets there."""

    def __init__(self) -> None:
        self._now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def now(self) -> float:
        return self._now

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Plan something for so many seconds from now."""
        heapq.heappush(self._planned, (self._now + seconds, next(self._number), act))

    def poll(self, poller: Any, seconds: float) -> list[tuple[int, int]]:
        """Sleep until something happens that was planned, or to the end; some time passes even in none."""
        self._advance(self._now + max(seconds, 1e-6), most=1)
        return []

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass, with all that was planned for them."""
        self._advance(self._now + seconds)

    def _advance(self, until: float, most: int | None = None) -> None:
        assert until < FOR_EVER, "somebody waits for ever"
        while self._planned and self._planned[0][0] <= until:
            self._now, _, act = heapq.heappop(self._planned)
            act()
            if most is not None:
                return
        self._now = until


# ---- scripts ----


class Died(Abandoned):
    """Raised by code in a fake worker that is to die there."""


class Hung(Abandoned):
    """Raised by code in a fake worker that is never to come back from there."""


def die() -> None:
    """End the fake worker that this runs in."""
    raise Died


def hang() -> None:
    """Never come back to the fake worker that this runs in."""
    raise Hung


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls the worker in a seat at one request.

    That is the `nth` request that the seat is asked, counted from 1 (a `Start`) through the lives of all its workers; or the
    `nth` of one `kind`: a class of messages, or `int` for signals.
    """

    nth: int = 1
    kind: type | None = None
    seat: int = 0


@dataclass(frozen=True, slots=True)
class Death(Fault):
    """It dies; a number in `when` says: while it is at that position."""

    when: str | int = BEFORE
    last_words: str = KILLED


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """It never comes back; `stack` is where its code is said to stand."""

    when: str | int = BEFORE
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """It does and answers it `seconds` later; meanwhile it gives `beats` signs of life, or `moves` on so often."""

    seconds: float = 0.0
    beats: int = 0
    moves: int = 0


class Script:
    """Faults, each of which happens once. `struck` are those that have."""

    def __init__(self, *faults: Fault) -> None:
        self._faults = faults
        self._asked: Counter[tuple[int, type | None]] = Counter()
        self.struck: list[Fault] = []

    def due(self, seat: int, kind: type) -> Fault | None:
        """Count a request, and return what befalls its worker now."""
        self._asked.update([(seat, None), (seat, kind)])
        for fault in self._faults:
            if fault.seat == seat and fault.kind in (None, kind) and fault.nth == self._asked[seat, fault.kind]:
                self.struck.append(fault)
                return fault
        return None


# ---- the worker ----


class FakeWorker(Worker):
    """Serves a request in the caller's thread as soon as it is made, unless its script says otherwise.

    What runs in it may also raise `Died` or `Hung`. All that it prints is sent, as a process would.
    """

    def __init__(
        self,
        index: int,
        capacity: int,
        arena: Arena,
        caller_bell: Bell,
        factory: Callable[[Port], Service],
        *,
        script: Script,
        clock: FakeClock,
        pickles: bool = True,
        shares_memory: bool = True,
        **_: Any,
    ) -> None:
        words = private_words(capacity)
        super().__init__(index, words, _PickledMail() if pickles else LocalMail(), NO_BELL)
        self._script, self._clock = script, clock
        self._port = _FakePort(index, words, self._mail, arena if shares_memory else Arena(-1))
        self._port.pickles, self._port.shares_memory = pickles, shares_memory
        self._host: Host | None = Host(self._port)
        self._streams = [_Forwarder(self._port, name, getattr(sys, name)) for name in ("stdout", "stderr")]
        self._kinds: dict[int, type] = {}
        self._answered = 0
        self._busy = False  # it will answer later, or never
        self._stack = ""
        self._ended: str | None = None
        self._pid = next(_pids)
        _living[self._pid] = self
        self.send(Start(factory))

    @property
    def pid(self) -> int:
        return self._pid

    # ---- being asked ----

    def send(self, message: object, *, by_value: bool = True) -> int:
        self._kinds[self.made + 1] = type(message)
        self._mail.post(dump(message, by_value) if self._port.pickles else message, self.made + 1)
        return self.signal(MESSAGE)

    def post(self, data: bytes) -> int:
        self._kinds[self.made + 1] = bytes
        self._mail.post(data, self.made + 1)
        return self.signal(MESSAGE)

    def signal(self, code: int) -> int:
        assert self.made - self.done < self.capacity, "more requests than the ring holds"
        self.words[RING + self.made % self.capacity] = code
        self.made += 1
        number = self.made  # what happens now may stop it, which is a request too
        self._serve()
        return number

    def _serve(self) -> None:
        while self._answered < self.made and not self._busy and self._ended is None:
            self._answered += 1
            fault = self._script.due(self.index, self._kinds.pop(self._answered, int))
            if isinstance(fault, Delay):
                self._be_late(fault)
            else:
                self._answer(fault)

    def _be_late(self, delay: Delay) -> None:
        self._busy = True
        for sign, count in ((self._port.beat, delay.beats), (self._move, delay.moves)):
            for k in range(count):
                self._clock.at(delay.seconds * (k + 1) / (count + 1), sign)
        self._clock.at(delay.seconds, self._answer_now)

    def _move(self) -> None:
        self.words[POSITION] += 1

    def _answer_now(self) -> None:
        if self._ended is None:
            self._busy = False
            self._answer(None)
            self._serve()

    def _answer(self, fault: Fault | None) -> None:
        """Serve the next request, and suffer what is to befall the worker meanwhile."""
        assert self._host is not None
        number, port = self._answered, self._port
        port.fault = fault if isinstance(fault, Death | Hang) else None
        out, err = self._streams
        try:
            port.strike(BEFORE)
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                self._host.answer(number, self.words[RING + (number - 1) % self.capacity])
                if self._host.stopped:
                    out.finish()
                    err.finish()
            port.strike(UNSENT)  # where there was nothing to send
            port.strike(UNCOUNTED)
            self.words[DONE] = number
            port.strike(AFTER)
        except Died:
            self.die(fault.last_words if isinstance(fault, Death) else KILLED)
        except Hung:
            self._busy = True
            self._stack = fault.stack if isinstance(fault, Hang) and fault.stack else traceback.format_exc()
        if self._host.stopped and self.done == number:
            self._ended = self._ended or "it exited with code 0"

    def die(self, how: str = KILLED) -> None:
        """End as a process does that is killed."""
        self._ended = self._ended or how

    # ---- being watched and ended ----

    def alive(self) -> bool:
        return self._ended is None

    def stack(self) -> str:
        self._clock.sleep(STACK_SECONDS)
        return self._stack

    def last_words(self) -> str:
        self.die()
        assert self._ended is not None
        return self._ended

    def kill(self) -> None:
        self.last_words()
        self._host = None  # and with it the arrays

    def close(self, timeout: float) -> None:
        if self._ended is None:
            self.stop()
            self.kill()


class _FakePort(Port):
    """A worker's end at which the worker may fail."""

    def __init__(self, index: int, words: memoryview, mail: LocalMail, arena: Arena) -> None:
        super().__init__(index, words, mail, NO_BELL, NO_BELL, arena)
        self.interruptible = True
        self.fault: Death | Hang | None = None
        self.position: Any = _Position(words, self.strike)

    def strike(self, moment: str | int) -> None:
        """Fail if this is the moment to."""
        if self.fault is not None and self.fault.when == moment:
            (die if isinstance(self.fault, Death) else hang)()

    def send(self, value: object, number: int = 0) -> None:
        if isinstance(value, Reply | Failure):
            self.strike(UNSENT)
        super().send(value, number)


class _Position:
    """What a service is at, and what happens when it gets there."""

    def __init__(self, words: memoryview, strike: Callable[[int], None]) -> None:
        self._words, self._strike = words, strike

    def __getitem__(self, _: int) -> int:
        return int(self._words[POSITION])

    def __setitem__(self, _: int, position: int) -> None:
        self._words[POSITION] = position
        self._strike(position)


class _PickledMail(LocalMail):
    """Hands objects over as another process would get them; messages were pickled by whoever posts them."""

    def receive(self, number: int) -> Any:
        return pickle.loads(super().receive(number))

    def send(self, value: object, number: int = 0) -> None:
        super().send((dump(value), number))

    def collect(self) -> list[Any]:
        return [load(memoryview(data), number) for data, number in super().collect()]


# ---- backends and vector environments ----


def fake_backend(script: Script | None = None, *, pickles: bool = True, shares_memory: bool = True) -> Backend:
    """Return a row of the table of backends, with a clock of its own, whose workers follow the script."""
    clock = FakeClock()
    options = {"pickles": pickles, "shares_memory": shares_memory}
    start = partial(FakeWorker, script=script or Script(), clock=clock, **options)
    return Backend("fake", start, killable=True, clock=clock, **options)


def make_fake_vec(world: Any, count: int, script: Script | None = None, **options: Any) -> Any:
    """Return what `make_vec` makes on two fake workers, neither of which is the caller; `options` are those of both."""
    row = {name: options.pop(name) for name in ("pickles", "shares_memory") if name in options}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKENDS, "fake", fake_backend(script, **row))
        patch.setattr(make, "SPIN_SECONDS", 0.0)  # nobody brings about meanwhile what a spin looks for
        return stretto.make_vec(world, count, backend="fake", **{"workers": min(2, count), "isolate": True, **options})


def kill(pid: int) -> None:
    """Kill a worker, whether it is a process or a fake."""
    if pid in _living:
        _living[pid].die()
    else:
        os.kill(pid, signal.SIGKILL)


def kill_all(envs: Any) -> None:
    """Kill all workers of a vector environment."""
    for pid in envs.worker_pids:
        kill(pid)
