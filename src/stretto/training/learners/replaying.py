"""ReplayLearner: who learns from a replay buffer, and when: what is common to learners that look at old decisions again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from stretto.spaces import Array
from stretto.storage.of_layout import AnyLayout
from stretto.training.learners.base import LearnerBlock, Metrics, Remembers
from stretto.training.learners.judged import Streams
from stretto.training.learners.stacked import StackedLearner
from stretto.training.optimizer import Adam


class Experience(Remembers, Protocol):
    """What is drawn from a buffer that has a `layout`."""

    @property
    def layout(self) -> AnyLayout: ...

    def follow(self, seen: Any) -> tuple[Array, Array]:
        """Take note of what is new; return how many decisions each agent has made so far, and how many are there."""


class Pace(Protocol):
    """How much is learned from after each interval."""

    @property
    def updates(self) -> int: ...

    @property
    def buffer(self) -> int: ...

    @property
    def learning_starts(self) -> int: ...


class ReplayLearner(StackedLearner):
    """Does some updates in an interval for all agents that have acted since they learned last, and have seen enough."""

    figures: tuple[str, ...]
    """The names of what an update returns."""

    def __init__(self, block: LearnerBlock, policy: Any, pace: Pace, optimizer: Adam, experience: Experience) -> None:
        super().__init__(block, policy, "replay")
        self._pace, self._optimizer, self.layout = pace, optimizer, experience.layout
        self._source = experience
        self._learned = np.zeros(len(block.agents), np.int64)  # the decisions of each agent when it learned last

    def learn_again(self, seen: Any, updates: int) -> list[Metrics]:
        """Do so many updates, whether or not agents have acted since they learned last."""
        self._learned[:] = 0
        return self.learn(seen, 0.0, updates=updates)

    def learn(
        self, seen: Any, progress: float, learning: Array | None = None, *, updates: int | None = None
    ) -> list[Metrics]:
        """Learn from all that the buffer holds, in as many `updates` as are set."""
        updates = self._pace.updates if updates is None else updates
        self._check.begin()
        decided, there = self._source.follow(seen)
        self._explore(progress, decided)
        # Who has not acted since it learned last, or has seen too little, does not learn.
        moving = (decided >= self._pace.learning_starts) & (decided > self._learned)
        moving &= True if learning is None else learning
        self._learned[moving] = decided[moving]
        figures = []
        if moving.any():
            # Whoever does not learn draws nothing from its own stream, whoever else learns.
            unused = np.random.default_rng(0)
            streams = [stream if moves else unused for stream, moves in zip(self._streams, moving, strict=True)]
            figures = [self._update(seen, streams, moving, progress) for _ in range(updates)]
        return self._metrics(figures, there, moving)

    def _metrics(self, figures: Sequence[Tensor], there: Array, moving: Array) -> list[Metrics]:
        counts = zip(self._optimizer.steps, there.tolist(), strict=True)
        found = [self._of_agent(float(updates), min(1.0, count / self._pace.buffer)) for updates, count in counts]
        if figures:
            means = torch.stack(list(figures)).double().mean(0).T
            for agent in np.flatnonzero(moving).tolist():
                found[agent] |= dict(zip(self.figures, means[agent].tolist(), strict=True))
        return found

    def _of_agent(self, updates: float, buffer: float) -> Metrics:
        """Return the figures of an agent, whether or not it learned, given its updates and how full its buffer is."""
        return {"updates": updates, "buffer": buffer}

    def state(self) -> dict[str, Any]:
        """Return all that it needs to go on as if nothing had happened."""
        return {**super().state(), "learned": self._learned}

    def load_state(self, state: Any) -> None:
        """Become what `state` has returned."""
        super().load_state(state)
        self._learned[:] = state["learned"]

    @abstractmethod
    def _explore(self, progress: float, decided: Array) -> None:
        """Let agents explore as they do after so much of the run, and after so many decisions."""

    @abstractmethod
    def _update(self, seen: Any, streams: Streams, moving: Array, progress: float) -> Tensor:
        """Do an update for those who are `moving`; return `figures` by agent. Whose loss is not finite moves no more."""
