"""A learner at work: what it is asked and answers, in whichever process, and its states, which outlive that process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.errors import Place
from stretto.spaces import Array
from stretto.storage.copies import CopiesLayout, StateCopies, packed, unpacked
from stretto.storage.memory import RingMemory
from stretto.storage.of_layout import AnyLayout, AnyRange, snapshot_of
from stretto.training.allocator import keep_freed_memory
from stretto.training.learners.base import Learner, Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.log import LOGGER
from stretto.workers.base import Port

__calls_user_code__ = True


@dataclass(frozen=True, slots=True)
class Learn:
    """Asks for an interval of a learner, after which its state has a `version`.

    It begins with the state that it has, or else with what `begins` says: a version in shared memory, or a packed state.
    """

    number: int
    version: int
    taken: AnyRange
    progress: float
    learning: Array
    begins: int | bytes | None


@dataclass(frozen=True, slots=True)
class Learned:
    """What an interval gave, and for how long it was computed; `state` is the packed state where no other memory has it."""

    metrics: list[Metrics]
    failures: list[LearnerFailure]
    state: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True)
class LearnerPlace:
    """Where the buffer of a learner lies, and, if its learner is not the caller's, its states."""

    layout: AnyLayout
    offset: int
    states: CopiesLayout | None


class LearnerService:
    """Learns in a worker. Its learners are those of the caller, or others that `build` has built."""

    def __init__(self, build: Callable[[int], Learner], places: Mapping[int, LearnerPlace], port: Port) -> None:
        self._build, self._places, self._port = build, places, port
        keep_freed_memory()
        self._opened: dict[int, tuple[Learner, RingMemory, StateCopies | None]] = {}

    def handle(self, message: Any) -> object:
        return self._learn(message) if isinstance(message, Learn) else None

    def _learn(self, message: Learn) -> Learned:
        number = message.number
        self._port.place = lambda: Place(f"learning (block {number})", worker=self._port.index)
        learner, memory, copies = self._open(number)
        if isinstance(message.begins, bytes):
            learner.load_state(unpacked(message.begins))
        elif message.begins is not None and copies is not None:
            learner.load_state(copies.read(message.begins))
        seen, began = snapshot_of(memory, message.taken), time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):  # learners look for what is not finite themselves
            metrics = list(learner.learn(seen, message.progress, message.learning))
        seconds = time.perf_counter() - began
        for agent, figures in zip(learner.policy.world.agents, metrics, strict=True):
            LOGGER.debug("learned: %s", figures, extra={"agent": agent})
        kept = copies is None or copies.write(message.version, learner.state())
        return Learned(metrics, list(learner.failures), None if kept else packed(learner.state()), seconds)

    def _open(self, number: int) -> tuple[Learner, RingMemory, StateCopies | None]:
        if number not in self._opened:
            place, arena = self._places[number], self._port.arena
            memory = RingMemory(place.layout.ring, arena, place.offset)
            copies = None if place.states is None else StateCopies(place.states, arena)
            self._opened[number] = self._build(number), memory, copies
        return self._opened[number]

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class LearnerStates:
    """The last two states of a learner that computes elsewhere, for whoever owns their memory.

    As long as nothing was learned its state is that of the caller's `learner`. One that has no room in shared memory, as that
    of a learner of one's own which grows, is kept here.
    """

    def __init__(self, learner: Learner, copies: StateCopies) -> None:
        self._learner, self._copies = learner, copies
        self._kept: dict[int, int | bytes] = {}

    def lend(self, version: int) -> int | bytes:
        """Return what a worker that has another state begins with."""
        if version not in self._kept:
            state = self._learner.state()
            self._kept[version] = version if self._copies.write(version, state) else packed(state)
        return self._kept[version]

    def take(self, version: int, state: bytes | None) -> None:
        """Take note of a version: it is in shared memory, or it is this packed `state`."""
        self._kept[version] = version if state is None else state
        self._kept.pop(version - 2, None)

    def stay(self, version: int) -> None:
        """Let a version be the one before: nothing was learned."""
        if version - 1 in self._kept:
            self._kept[version] = self._kept[version - 1]
            self._kept.pop(version - 2, None)

    def read(self, version: int) -> Mapping[str, Any]:
        """Return one of the last two versions; most arrays are views, intact until two more are learned."""
        if version not in self._kept:
            return self._learner.state()
        kept = self._kept[version]
        found: Mapping[str, Any] = unpacked(kept) if isinstance(kept, bytes) else self._copies.read(kept)
        return found

    def forget(self) -> None:
        """Begin anew with the state of the caller's learner."""
        self._kept.clear()
