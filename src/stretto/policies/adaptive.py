"""Adaptive: lets agents choose in several places, one after the other, and stays where that was fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from stretto.core import AgentId, BlockAnswer, EpisodeKey
from stretto.measure import duration
from stretto.policies.questions import AgentEpisode, Block, Chooser, Decision, Question, Runner, Team, Weights

IN_PLACE = "batched"

WORTH_SECONDS = 500e-6
"""A step in which all agents choose in less is not worth a try: to hand four of them to processes takes 70 to 570 µs more."""

WATCHED_STEPS = 16
"""How many steps of an episode are measured."""


class Adaptive:
    """Asks in place first, and in each of the other places for an episode, if there is anything to gain.

    Where agents choose never changes what they do, so real steps can be used to find out. `reason` says what was found.
    """

    def __init__(
        self,
        others: Sequence[str],
        make: Callable[[str], Runner],
        *,
        why_not: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin in place; `others` are what else can be tried, and `why_not` says why some cannot."""
        self._others, self._make, self._why_not, self._clock = list(others), make, why_not, clock
        self._seconds: dict[str, list[float]] = {}
        self._under_way: set[EpisodeKey] = set()
        self._published: tuple[int, Weights] | None = None
        self.reason = f"{IN_PLACE}: nothing was measured yet"
        self._began = 0.0
        self.chosen, self._runner = IN_PLACE, make(IN_PLACE)
        self.ask, self.replies = self._watched_ask, self._watched_replies
        self._move(IN_PLACE)

    def _move(self, place: str) -> None:
        """From now on, ask there; watch what that takes if it is not known."""
        if place != self.chosen:
            self._runner.close()
            self._runner, self.chosen = self._make(place), place
            if self._published is not None:
                self._runner.publish(*self._published)
        self.ask, self.replies = self._runner.ask, self._runner.replies
        if place not in self._seconds:
            self._seconds[place] = []
            self.ask, self.replies = self._watched_ask, self._watched_replies

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        if not self._under_way:
            self._reconsider()
        self._under_way |= {who.episode for who in agents}
        self._runner.begin(agents)

    def choosers(self, episode: EpisodeKey) -> Mapping[AgentId, Chooser] | None:
        return None if self._watches else self._runner.choosers(episode)

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> Team | None:
        return None if self._watches else self._runner.team(who)

    @property
    def _watches(self) -> bool:
        return self.replies == self._watched_replies

    def _watched_ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._began = self._clock()
        self._runner.ask(questions, limit_seconds)

    def _watched_replies(self) -> list[Decision]:
        replies = self._runner.replies()
        seconds = self._seconds[self.chosen]
        seconds.append(self._clock() - self._began)
        if len(seconds) == WATCHED_STEPS:  # from now on nothing stands in between
            self.ask, self.replies = self._runner.ask, self._runner.replies
        return replies

    def _reconsider(self) -> None:
        """Before an episode, go to the next place that is worth a try, or to the best of those that were tried."""
        took = {place: median(seconds) for place, seconds in self._seconds.items() if seconds}
        if IN_PLACE not in took:
            return
        if took[IN_PLACE] >= WORTH_SECONDS and self._others:
            self._move(self._others.pop(0))
            self.reason = f"{self.chosen}: it is tried out"
            return
        best = min(took, key=lambda place: took[place])
        self.reason = f"{best}: in a step, all agents take {duration(took[best])}"
        self.reason += "".join(f", {place} {duration(other)}" for place, other in took.items() if place != best)
        if took[IN_PLACE] < WORTH_SECONDS:
            self.reason += ", which is not worth handing over"
        elif self._why_not:
            self.reason += f"; {self._why_not}"
        self._move(best)

    def take_back(self, questions: Sequence[Question]) -> None:
        self._runner.take_back(questions)

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        return self._runner.act_block(block, limit_seconds)

    def publish(self, version: int, weights: Weights) -> None:
        self._published = version, weights
        self._runner.publish(version, weights)

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._under_way.discard(episode)
        return self._runner.end(episode)

    def close(self) -> None:
        self._runner.close()
