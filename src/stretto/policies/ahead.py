"""Asking ahead: agents choose before it is their turn, and again if they see something else by then."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import add
from statistics import median
from typing import NamedTuple

from stretto.adapters.turns import Tentative
from stretto.core import AUTO, SPECULATIVE, AgentId, EpisodeKey, Observation, Outcome, own_copy
from stretto.errors import PolicyFailed
from stretto.ownership import taken_over
from stretto.policies.questions import AGAIN, AHEAD, FOR_GOOD, Decision, Question, Runner

FIRST, TRIED, CLEAR = 2, 4, 1.5
"""How often a way to play turns is measured before the other is tried for the first time, and later before it is judged; and
by how much it must be slower to be judged at once."""

STAYING, LONGEST = 25, 64
"""For how many times as long as a trial of the slower way takes the faster one is used before the next trial, and by how
much that grows while nothing changes. So trials take less than a 25th of the time."""

UNDISTURBED = 32
"""How many portions are played at most until somebody looks again whether the faster way still is the faster one."""


class FasterWay:
    """Whether agents are asked `ahead` in the turns that begin now: always, or, with `AUTO`, as long as that is faster.

    The result is the same, so this may change at any time. Both ways are measured in portions of so many actions; then the
    faster one goes on, and the other is tried again now and then. The first is to ask in order: where policies take no
    time, agents that are asked ahead take up to five times as long.
    """

    def __init__(self, way: str) -> None:
        self.ahead, self._auto = way == SPECULATIVE, way == AUTO
        self._measured: dict[bool, list[float]] = {True: [], False: []}
        self._acts, self._seconds, self._skipped = 0, 0.0, 1  # the first portion loads code
        self._trying, self._left, self._patience = True, 0.0, 1

    def settled_for(self, portion: int) -> int:
        """Return after how many actions the next look is due, at the latest: until then nothing changes."""
        if not self._auto:
            return sys.maxsize
        portions = 1 if self._trying else max(1, min(UNDISTURBED, int(self._left)))
        return max(1, portions * portion - self._acts)

    def add(self, acts: int, seconds: float, portion: int) -> None:
        """Take note of how long so many actions took; a portion of them is about a turn of all that is played."""
        if not self._auto:
            return
        self._acts, self._seconds = self._acts + acts, self._seconds + seconds
        if self._acts < portion:
            return
        found, portions, self._acts, self._seconds = self._seconds / self._acts, self._acts / portion, 0, 0.0
        if self._skipped:
            self._skipped -= 1
            return
        seen = self._measured[self.ahead]
        seen.append(found)
        del seen[:-TRIED]
        self._left -= portions
        other = self._measured[not self.ahead]
        if not self._trying:
            if self._left <= 0:
                self._try_other()
        elif not other:
            if len(seen) == FIRST:
                self._try_other()
        elif len(seen) == TRIED or not 1 / CLEAR < median(seen) / median(other) < CLEAR:
            self._decide()

    def _try_other(self) -> None:
        self.ahead, self._trying, self._skipped = not self.ahead, True, 0
        self._measured[self.ahead] = []

    def _decide(self) -> None:
        mine, other = (median(self._measured[way]) for way in (self.ahead, not self.ahead))
        changed = mine <= other
        self._patience = 1 if changed else min(LONGEST, 2 * self._patience)
        tried = len(self._measured[self.ahead]) if not changed else TRIED
        self._left = STAYING * self._patience * tried * max(mine, other) / min(mine, other)
        self._trying = False
        if not changed:
            self.ahead = not self.ahead


class Counted(NamedTuple):
    """How agents were asked: in how many turns and rounds, and how many had to be asked again (conflicts)."""

    turns: int = 0
    rounds: int = 0
    conflicts: int = 0


NOT_COUNTED = Counted()


class Playing(NamedTuple):
    """An episode that is played: which policies its agents follow, and what its last step gave."""

    episode: EpisodeKey
    policies: Mapping[AgentId, int]
    outcome: Outcome

    def questions(self) -> list[Question]:
        """Ask all who act, each with an observation of its own.

        A world may write into its own again, or hand it to several agents, and a policy may keep or change what it is given.
        """
        seen, policies = self.outcome.observations, self.policies
        return [
            Question(self.episode, agent, policies[agent], taken_over(seen, agent)) for agent in self.outcome.acting
        ]


class _Turn:
    """A turn of an episode: how it began, whether agents are asked ahead in it, and what they have chosen."""

    __slots__ = ("asks", "began", "counted", "tentative")

    def __init__(self) -> None:
        self.began: Outcome | None = None
        self.asks = False
        self.tentative: Tentative[Decision] = Tentative()
        self.counted = NOT_COUNTED


class AheadOfTurn:
    """Asks agents in sequential turns, those of some `policies` before it is their turn. Others are asked when it is.

    An episode goes on as long as its agents see what they saw when they were asked. One that sees something else is asked
    again, as if it had not been asked before, in one call with those of other episodes. Of policies that choose for several
    agents `together` in the time of one, so are all others of the episode who see something else by then: they need not be
    asked again later, if nothing more changes for them.
    """

    def __init__(
        self, runner: Runner, policies: frozenset[int], way: FasterWay, together: frozenset[int] = frozenset()
    ) -> None:
        self._runner, self._policies, self.way, self._together = runner, policies, way, together
        self._turns: dict[EpisodeKey, _Turn] = {}

    def decide(self, playing: Sequence[Playing], limit_seconds: float | None) -> tuple[list[int], list[Decision]]:
        """Return which of the episodes go on now, by their places, and what those decide in them who act next.

        Raises:
            PolicyError: as the runner does, for agents whose turn it is.
        """
        for one in playing:
            self._begin_turn(one)
        ready = [i for i, one in enumerate(playing) if self._stands(one)]
        if not ready:
            self._ask(playing, limit_seconds)
            ready = list(range(len(playing)))
        return ready, [
            self._turns[playing[i].episode].tentative.take(agent) for i in ready for agent in playing[i].outcome.acting
        ]

    @property
    def active(self) -> bool:
        """Whether anybody is asked ahead now, or was. If not, whoever has to act can be asked as if there were only that."""
        return self.way.ahead or any(turn.tentative for turn in self._turns.values())

    def asked_in_order(self, episode: EpisodeKey, turns: int, rounds: int) -> None:
        """Take note that agents were asked so many times without this, because it was not `active`, while turns began."""
        turn = self._turns.setdefault(episode, _Turn())
        turn.counted = turn.counted._replace(turns=turn.counted.turns + turns, rounds=turn.counted.rounds + rounds)

    def end(self, episode: EpisodeKey) -> Counted:
        """Forget an episode; return how agents were asked in it."""
        turn = self._turns.pop(episode, None)
        return NOT_COUNTED if turn is None else turn.counted

    def _begin_turn(self, one: Playing) -> None:
        turn = self._turns.setdefault(one.episode, _Turn())
        if one.outcome.ahead is None or turn.began is one.outcome:
            return
        if left := turn.tentative.end():
            self._runner.take_back([_Asked(one, agent, AHEAD).question() for agent in left])
        turn.began, turn.asks = one.outcome, self.way.ahead
        turn.counted = turn.counted._replace(turns=turn.counted.turns + 1)

    def _stands(self, one: Playing) -> bool:
        tentative, seen = self._turns[one.episode].tentative, one.outcome.observations
        return all(tentative.stands(agent, seen[agent]) for agent in one.outcome.acting)

    def _ask(self, playing: Sequence[Playing], limit_seconds: float | None) -> None:
        """Ask whoever has to act, and others ahead of their turn: all where one begins, then those who see something else."""
        asked: list[_Asked] = []
        for one in playing:
            turn = self._turns[one.episode]
            acting, fallen = one.outcome.acting, turn.tentative.fallen(one.outcome.observations)
            now = [_Asked(one, agent, AGAIN if agent in fallen else FOR_GOOD) for agent in acting]
            others = [agent for agent in fallen if agent not in acting and one.policies[agent] in self._together]
            now += [_Asked(one, agent, AGAIN) for agent in others]
            turn.counted = Counted(*map(add, turn.counted, (0, 1, sum(each.asking == AGAIN for each in now))))
            if turn.asks and turn.began is one.outcome:
                ahead = [agent for agent in one.outcome.ahead or () if one.policies[agent] in self._policies]
                now += [_Asked(one, agent, AHEAD) for agent in ahead]
            asked += now
        if any(not each.counts for each in asked):
            self._ask_with_others(asked, limit_seconds)
        else:
            self._keep(asked, limit_seconds)

    def _ask_with_others(self, asked: Sequence[_Asked], limit_seconds: float | None) -> None:
        """Ask agents some of which are asked ahead: one of these may fail on what no agent sees when it acts."""
        fixed = [each for each in asked if each.asking == FOR_GOOD and each.policy not in self._policies]
        self._keep(fixed, limit_seconds)  # they could not be asked once more
        others = [
            each._replace(asking=AHEAD) if each.asking == FOR_GOOD else each for each in asked if each not in fixed
        ]
        try:
            self._keep(others, limit_seconds)
        except PolicyFailed:
            self._runner.take_back([each.question() for each in others])
            for each in others:
                self._turns[each.playing.episode].tentative.drop([each.agent])
            acting = [each._replace(asking=FOR_GOOD) for each in others if each.counts]
            self._keep(acting, limit_seconds)

    def _keep(self, asked: Sequence[_Asked], limit_seconds: float | None) -> None:
        """Ask agents, and take note of what they choose."""
        if not asked:
            return
        seen = [each.playing.outcome.observations[each.agent] for each in asked]
        # Each gets an observation of its own, which it may keep or change.
        questions = [each.question(own_copy(one)) for each, one in zip(asked, seen, strict=True)]
        self._runner.ask(questions, limit_seconds)
        for each, one, decision in zip(asked, seen, self._runner.replies(), strict=True):
            self._turns[each.playing.episode].tentative.keep(each.agent, one, decision)


class _Asked(NamedTuple):
    """An agent that is asked, and how: see `questions.FOR_GOOD`."""

    playing: Playing
    agent: AgentId
    asking: int

    @property
    def policy(self) -> int:
        return self.playing.policies[self.agent]

    @property
    def counts(self) -> bool:
        """Whether it acts next, on what it sees now."""
        return self.agent in self.playing.outcome.acting

    def question(self, observation: Observation = None) -> Question:
        return Question(self.playing.episode, self.agent, self.policy, observation, self.asking)
