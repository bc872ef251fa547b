"""What every worker must keep, wherever it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stretto.errors import WorldFailed
from stretto.testing.values import ContractBroken, require
from stretto.workers.arena import Arena, Field, lay_out
from stretto.workers.base import Failure, Port, Reply, Service, Worker
from stretto.workers.control import Bell
from stretto.workers.waiting import Waiter

StartWorker = Callable[[int, int, Arena, Bell, Callable[[Port], Service]], Worker]

CAPACITY = 32
SECONDS = 20.0
"""How long an answer may take before the contract counts as broken."""


def check_worker(start_worker: StartWorker, *, pickles: bool = False, shares_memory: bool = True) -> None:
    """Check a kind of worker: `start_worker(index, capacity, arena, bell, factory)` starts one.

    Requests are answered in order, messages and signals alike; what a service raises comes back with its traceback
    and ends nothing; the end may be asked for twice, and closes the service once. What is sent is pickled or not, and
    both sides see the same memory or not, as was said.

    Raises:
        ContractBroken: with the first promise that is not kept.
    """
    with TemporaryDirectory() as folder:
        marker = Path(folder) / "closed"
        arena, bell = Arena.create(shared=pickles and shares_memory), Bell.create()
        worker = start_worker(0, CAPACITY, arena, bell, partial(_Service, str(marker)))
        caller = _Caller(worker, bell)
        try:
            _tells_what_it_shares(caller, pickles, shares_memory)
            if shares_memory:
                _sees_the_same_memory(caller, arena)
            _answers_in_order(caller)
            _reports_failures(caller, pickles)
            _goes_round_its_ring(caller)
            caller.waiter.forget(worker)
            _closes_twice(worker, marker)
        finally:
            worker.close(SECONDS)
            bell.close()
            arena.close()


@dataclass(frozen=True)
class _Raise:
    kind: str


@dataclass(frozen=True)
class _Describe:
    pass


@dataclass(frozen=True)
class _Double:
    fields: list[Field]


class _Service:
    """Answers with all that it was asked so far, and raises on demand."""

    def __init__(self, marker: str, port: Port) -> None:
        self._port, self._marker = port, Path(marker)
        self._asked: list[Any] = []

    def handle(self, message: Any) -> object:
        match message:
            case _Raise(kind):
                _raise(kind)
            case _Describe():
                return self._port.pickles, self._port.shares_memory
            case _Double(fields):
                (array,) = self._port.arena.view(fields)
                array *= 2
                return None
            case _:
                self._asked.append(message)
        return list(self._asked)

    def signal(self, code: int) -> object:
        self._asked.append(code)
        return list(self._asked) if code % 2 else None

    def close(self) -> None:
        with self._marker.open("a") as file:
            file.write("closed\n")


class _Stubborn(Exception):
    """Cannot be pickled."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.lock = threading.Lock()


def _raise(kind: str) -> None:
    raise {"plain": ValueError, "stubborn": _Stubborn, "exit": SystemExit}[kind](f"raised on demand: {kind}")


class _Caller:
    """The simplest caller: asks, waits for the answer, and keeps what came by mail."""

    def __init__(self, worker: Worker, bell: Bell) -> None:
        self.worker = worker
        self.waiter = Waiter(bell, 0.0)
        self.waiter.watch(worker)
        self.frames: dict[int, Any] = {}

    def answer(self, number: int) -> Any:
        """Wait for request `number` and return its reply, its failure, or `None`."""
        worker, deadline = self.worker, time.monotonic() + SECONDS
        while worker.done < number:
            worker.work()
            require(time.monotonic() < deadline, f"request {number} was not answered within {SECONDS:g} s")
            if not worker.alive():
                raise ContractBroken(f"the worker ended while it was asked: {worker.last_words()}")
            if worker.done < number:
                for one in self.waiter.sleep([worker], lambda: worker.done >= number, 1.0):
                    one.exchange()
        for frame in worker.collect():
            if isinstance(frame, (Reply, Failure)):
                require(frame.number not in self.frames, f"request {frame.number} was answered twice")
                self.frames[frame.number] = frame
        return self.frames.get(number)


def _tells_what_it_shares(caller: _Caller, pickles: bool, shares_memory: bool) -> None:
    require(isinstance(caller.answer(1), Reply), "request 1 of a worker is its start, and must be answered")
    shares = caller.answer(caller.worker.send(_Describe())).value
    require(
        shares == (pickles, shares_memory),
        f"a worker's port must say whether it pickles and shares memory, {(pickles, shares_memory)}, got {shares}",
    )


def _sees_the_same_memory(caller: _Caller, arena: Arena) -> None:
    fields, size = lay_out([((4,), np.dtype(np.int64))])
    arena.allocate(size)
    (array,) = arena.view(fields)
    array[:] = range(4)
    caller.answer(caller.worker.send(_Double(fields)))
    seen = array.tolist()
    require(seen == [0, 2, 4, 6], f"both sides must see the same memory, 0 to 3 were doubled there, got {seen} here")


def _answers_in_order(caller: _Caller) -> None:
    worker, made = caller.worker, caller.worker.made
    numbers = [worker.send("a"), worker.signal(1), worker.signal(2), worker.send("b"), worker.signal(3)]
    wanted_numbers = [made + k for k in range(1, 6)]
    require(numbers == wanted_numbers, f"requests must be numbered one by one, got {numbers}")
    caller.answer(numbers[-1])
    values = [getattr(caller.frames.get(number), "value", None) for number in numbers]
    wanted = [["a"], ["a", 1], None, ["a", 1, 2, "b"], ["a", 1, 2, "b", 3]]
    require(values == wanted, f"messages and signals must be served in the order of asking, got {values}")


def _reports_failures(caller: _Caller, pickles: bool) -> None:
    # What is no Exception arrives as text: a world's sys.exit() must not end the caller's program without a word.
    for kind, original in (("plain", ValueError), ("stubborn", _Stubborn), ("exit", SystemExit)):
        got = caller.answer(caller.worker.send(_Raise(kind)))
        require(isinstance(got, Failure), f"what a service raises ({kind}) must come back as a Failure, got {got!r}")
        error = got.error()
        travels = kind != "exit" and not (pickles and kind == "stubborn")
        wanted = original if travels else WorldFailed
        require(type(error) is wanted, f"a {original.__name__} must arrive as {wanted.__name__}, got {error!r}")
        require("in _raise" in got.text, f"a failure must carry the traceback of where it was raised, got {got.text}")
        require(caller.worker.alive(), f"a service that raises ({kind}) must not end its worker")
    asked = caller.answer(caller.worker.send("c"))
    require(asked.value[-1] == "c", f"a worker must go on after a failure, got {asked!r}")


def _goes_round_its_ring(caller: _Caller) -> None:
    for _ in range(3):
        numbers = [caller.worker.signal(2 * i) for i in range(1, CAPACITY)]
        caller.answer(numbers[-1])
    last = caller.answer(caller.worker.send("d")).value
    wanted = [*range(2, 2 * CAPACITY, 2)] * 3 + ["d"]
    require(last[-len(wanted) :] == wanted, f"no request may be lost or served twice, got {last[-len(wanted) :]}")


def _closes_twice(worker: Worker, marker: Path) -> None:
    worker.stop()
    worker.close(SECONDS)
    worker.close(SECONDS)
    worker.kill()
    closed = marker.read_text().count("closed") if marker.exists() else 0
    require(closed == 1, f"closing a worker must close its service once, it was closed {closed} times")
    require(worker.pid is None or not worker.alive(), "a closed worker must not live on")
