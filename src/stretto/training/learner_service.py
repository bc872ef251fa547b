"""A learner at work: what it is asked and answers, in whichever process, and its states, which outlive that process."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.core import AgentId
from stretto.errors import Place
from stretto.spaces import Array
from stretto.storage.block import Piece
from stretto.storage.copies import CopiesLayout, StateCopies, packed, unpacked
from stretto.storage.memory import RingMemory
from stretto.storage.of_layout import AnyBuffer, AnyLayout, AnyRange, buffer_of, snapshot_of
from stretto.training.allocator import keep_freed_memory
from stretto.training.learners.base import Learner, Metrics
from stretto.training.learners.failures import LearnerFailure
from stretto.training.log import LOGGER
from stretto.workers.base import Port

__calls_user_code__ = True


@dataclass(frozen=True, slots=True)
class News:
    """What a learner's buffer has, for a worker that does not share its memory: all of it, or the pieces that are new."""

    replica: Mapping[str, Any] | None
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Learn:
    """Asks for an interval of a learner, after which its state has a `version`.

    It begins with the state that it has, or else with what `begins` says: a version in shared memory, or a packed state.
    `frozen` are agents that have failed before in this interval; whoever asks keeps them here. `news` is what must come into
    the buffer before.
    """

    number: int
    version: int
    taken: AnyRange
    progress: float
    learning: Array
    begins: int | bytes | None = None
    frozen: tuple[LearnerFailure, ...] = ()
    news: News | None = None


@dataclass(frozen=True, slots=True)
class Learned:
    """What an interval gave, and for how long it was computed; `state` is the packed state where no other memory has it."""

    metrics: list[Metrics]
    failures: list[LearnerFailure]
    state: bytes | None
    seconds: float


@dataclass(frozen=True, slots=True)
class LearnerPlace:
    """Where the buffer of a learner lies, and, if its learner is not the caller's, its states.

    If these are `sent`, no memory has them.
    """

    layout: AnyLayout
    offset: int
    states: CopiesLayout | None
    sent: bool = False


@dataclass(slots=True)
class _Opened:
    """A learner in a worker, the memory that it learns from, and where its states are written, if they are."""

    learner: Learner
    memory: RingMemory
    copies: StateCopies | None
    sent: bool
    buffer: AnyBuffer | None = None  # the worker's own, where it cannot see the caller's

    def take_in(self, news: News) -> None:
        """Write what is new into the worker's own buffer."""
        if self.buffer is not None:
            if news.replica is not None:
                self.buffer.become(news.replica)
            for piece in news.pieces:
                self.buffer.extend(piece)

    def keep(self, version: int) -> bytes | None:
        """Leave the learner's state where the caller finds it; return it where there is no such place."""
        if self.sent or not (self.copies is None or self.copies.write(version, self.learner.state())):
            return packed(self.learner.state())
        return None


def task_of(number: int, agents: Sequence[AgentId]) -> str:
    """Say what a learner does, and for whom."""
    whom = agents[0] if len(agents) == 1 else f"{agents[0]} to {agents[-1]}"
    return f"learning (block {number}: {whom})"


class LearnerService:
    """Learns in a worker. Its learners are those of the caller, or others that `build` has built."""

    def __init__(self, build: Callable[[int], Learner], places: Mapping[int, LearnerPlace], port: Port) -> None:
        self._build, self._places, self._port = build, places, port
        keep_freed_memory()
        self._opened: dict[int, _Opened] = {}

    def handle(self, message: Any) -> object:
        return self._learn(message) if isinstance(message, Learn) else None

    def _learn(self, message: Learn) -> Learned:
        opened = self._open(message.number)
        learner = opened.learner
        agents = learner.policy.world.agents
        doing, agent = task_of(message.number, agents), agents[0] if len(agents) == 1 else None
        # Learners that let one agent learn after the other say whose turn it is.
        self._port.place = lambda: Place(
            doing, worker=self._port.index, agent=getattr(learner, "whose_turn", None) or agent
        )
        if isinstance(message.begins, bytes):
            learner.load_state(unpacked(message.begins))
        elif message.begins is not None and opened.copies is not None:
            learner.load_state(opened.copies.read(message.begins))
        if message.news is not None:
            opened.take_in(message.news)
        seen, began = snapshot_of(opened.memory, message.taken), time.perf_counter()
        with np.errstate(over="ignore", invalid="ignore"):  # learners look for what is not finite themselves
            metrics = list(learner.learn(seen, message.progress, message.learning))
        seconds = time.perf_counter() - began
        for agent, figures in zip(agents, metrics, strict=True):
            LOGGER.debug("learned: %s", figures, extra={"agent": agent})
        return Learned(metrics, list(learner.failures), opened.keep(message.version), seconds)

    def _open(self, number: int) -> _Opened:
        if number not in self._opened:
            place, arena, learner = self._places[number], self._port.arena, self._build(number)
            if self._port.shares_memory:
                memory = RingMemory(place.layout.ring, arena, place.offset)
                copies = None if place.states is None else StateCopies(place.states, arena)
                self._opened[number] = _Opened(learner, memory, copies, place.sent)
            else:
                buffer = buffer_of(place.layout)
                self._opened[number] = _Opened(learner, buffer.memory, None, place.sent, buffer)
        return self._opened[number]

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class LearnerStates:
    """The last two states of a learner that computes elsewhere, for whoever owns their memory.

    As long as nothing was learned its state is that of the caller's `learner`. One that has no room in shared memory, as that
    of a learner of one's own which grows, is kept here; all are where no memory is shared (`copies` is `None`).
    """

    def __init__(self, learner: Learner, copies: StateCopies | None) -> None:
        self._learner, self._copies = learner, copies
        self._kept: dict[int, int | bytes] = {}

    def lend(self, version: int) -> int | bytes:
        """Return what a worker that has another state begins with."""
        if version not in self._kept:
            state = self._learner.state()
            written = self._copies is not None and self._copies.write(version, state)
            self._kept[version] = version if written else packed(state)
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
        if isinstance(kept, int):
            assert self._copies is not None
            read: Mapping[str, Any] = self._copies.read(kept)
            return read
        found: Mapping[str, Any] = unpacked(kept)
        return found

    def forget(self) -> None:
        """Begin anew with the state of the caller's learner."""
        self._kept.clear()
