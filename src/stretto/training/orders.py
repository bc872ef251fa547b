"""Orders: when agents learn, beside when they collect. All else of a run is in its loop, whichever of these it follows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from stretto.storage.of_layout import AnyRange
    from stretto.training.sets import LearnerSet, Learning


class Order(Protocol):
    """Lets `learners` learn from intervals. `finish` waits for them, and lets agents act by what they have learned.

    Agents collect at most so many intervals `ahead` of those that were learned from.
    """

    def learn(self, progress: float, *, last: bool) -> list[Learning]:
        """Hear of an interval that is in the buffers, the `last` one or not; return what was learned since the one before."""

    def poll(self) -> None:
        """Hear that worlds are about to do a step."""

    def settle(self) -> None:
        """Bring learners to where they can be saved."""


class InTurn:
    """Collects, learns, and begins again."""

    def __init__(self, learners: LearnerSet, finish: Callable[[], Learning]) -> None:
        self._learners, self._finish = learners, finish

    def learn(self, progress: float, *, last: bool) -> list[Learning]:
        self._learners.begin(progress)
        found = self._finish()
        self._learners.settle()
        return [found]

    def poll(self) -> None:
        pass

    def settle(self) -> None:
        pass


class Pipelined:
    """Learns from interval k while k + 1 is collected: what that gives does not depend on how long either takes."""

    def __init__(self, learners: LearnerSet, finish: Callable[[], Learning]) -> None:
        self._learners, self._finish = learners, finish

    def learn(self, progress: float, *, last: bool) -> list[Learning]:
        learners, found = self._learners, []
        if learners.is_learning:
            found.append(self._finish())
            learners.settle()
        if not learners.turns.over:
            learners.begin(progress)
            if last:  # it counts as not learned: a run that goes on is as if it had been longer from the start
                found.append(self._finish())
        return found

    def poll(self) -> None:
        pass

    def settle(self) -> None:
        pass


class Free:
    """Learns from one interval after the other as soon as it can, at most `most_lag` behind whoever collects.

    Each interval is learned from once. Agents act by what was learned as soon as it is there, in the middle of an interval.
    """

    def __init__(self, learners: LearnerSet, finish: Callable[[], Learning], most_lag: int) -> None:
        self._learners, self._finish, self._most = learners, finish, most_lag
        self._waiting: deque[tuple[float, list[AnyRange]]] = deque()
        self._found: list[Learning] = []

    def learn(self, progress: float, *, last: bool) -> list[Learning]:
        if not self._learners.turns.over:
            self._waiting.append((progress, self._learners.take()))
        self._begin_next()
        while self._behind > self._most:
            self._take_in()
        if last:
            self.settle()
        found, self._found = self._found, []
        return found

    def poll(self) -> None:
        if self._learners.is_done:
            self._take_in()

    def settle(self) -> None:
        while self._behind:
            self._take_in()

    @property
    def _behind(self) -> int:
        """How many intervals were collected and not learned from."""
        return len(self._waiting) + self._learners.is_learning

    def _take_in(self) -> None:
        self._found.append(self._finish())
        self._learners.settle()
        if self._learners.turns.over:
            self._waiting.clear()
        self._begin_next()

    def _begin_next(self) -> None:
        if self._waiting and not self._learners.is_learning:
            self._learners.begin(*self._waiting.popleft())
