"""Strategies by name: one for each policy, several in one episode, or whichever turns out to be the fastest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from stretto.core import AgentId, BlockAnswer, EpisodeKey, WorldSpec
from stretto.errors import PolicyError, RunsHere, user_stacklevel
from stretto.policies.adaptive import IN_PLACE, Adaptive
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.processes import ActorsFactory, Processes
from stretto.policies.questions import AgentEpisode, Block, Decision, Question, Runner, Weights
from stretto.policies.runners import InPlace, Threads
from stretto.workers.mail import unsendable

T = TypeVar("T")

MOST_THREADS = 32


def make_runner(
    plans: Sequence[PolicyPlan],
    world: WorldSpec,
    strategies: Sequence[str],
    cores: int,
    *,
    takes_part: bool = False,
    timed: bool = False,
) -> Runner:
    """Return a runner in which policy number *i* has strategy *i*, with threads or processes for so many cores.

    With `takes_part` the caller's process is one of those that `processes` uses. Where agents are `timed`, adaptive does not
    use threads: they would pay for waiting for each other.
    """
    # Those with rows are asked at once anyway.
    free = [name == "adaptive" and not plan.rows for plan, name in zip(plans, strategies, strict=True)]
    fixed = [IN_PLACE if name == "adaptive" else name for name in strategies]

    def at(place: str) -> Runner:
        chosen = [place if moves else name for moves, name in zip(free, fixed, strict=True)]
        return _fixed(plans, world, chosen, cores, takes_part)

    if len(world.agents) == 1 or not any(free):
        return at(IN_PLACE)
    stuck = unsendable((plans, world))
    others = [*([] if timed else ["threads"]), *(["processes"] if cores > 1 and stuck is None else [])]
    return Adaptive(others, at, why_not="" if stuck is None else f"it cannot be in another process: {stuck}")


def _fixed(
    plans: Sequence[PolicyPlan], world: WorldSpec, strategies: Sequence[str], cores: int, takes_part: bool
) -> Runner:
    if len(set(strategies)) == 1:
        return _plain(plans, world, strategies[0], cores, takes_part=takes_part)
    return Mixed(plans, world, strategies, cores)


def _plain(
    plans: Sequence[PolicyPlan], world: WorldSpec, strategy: str, cores: int, *, takes_part: bool = False
) -> Runner:
    wide = max(1, min(cores, len(world.agents)))
    match strategy:
        case "sequential":
            return InPlace(plans, world, batched=False)
        case "batched":
            return InPlace(plans, world, batched=True)
        case "threads":
            return Threads(plans, world, threads=max(wide, min(MOST_THREADS, len(world.agents))))
        case "processes":
            if (reason := unsendable(ActorsFactory(plans, world))) is not None:
                warning = RunsHere(f"agents choose in this process and not in others: {reason}")
                warnings.warn(warning, stacklevel=user_stacklevel())
                return InPlace(plans, world, batched=False)
            return Processes(plans, world, processes=wide, takes_part=takes_part)
        case _:
            raise AssertionError(f"no such strategy: {strategy}")


class Mixed:
    """Several runners at once: those elsewhere are asked first, and work while the caller does its part."""

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec, strategies: Sequence[str], cores: int) -> None:
        # Those in place come last: nobody waits for them before all others are at work.
        order = sorted(set(strategies), key=lambda name: (name in ("sequential", "batched"), name))
        self._members = [[i for i, name in enumerate(strategies) if name == one] for one in order]
        self._runners = [
            _plain([plans[i] for i in members], world, one, cores)
            for one, members in zip(order, self._members, strict=True)
        ]
        # Of each policy among all: which runner has it, and which number it has there.
        self._places = {policy: (r, i) for r, members in enumerate(self._members) for i, policy in enumerate(members)}
        self._asked: list[dict[int, Question]] = []
        self._questions: Sequence[Question] = ()

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        shares: list[list[AgentEpisode]] = [[] for _ in self._runners]
        for who in agents:
            r, policy = self._places[who.policy]
            shares[r].append(replace(who, policy=policy))
        for r, share in enumerate(shares):
            if share:
                self._attributed(r, partial(self._runners[r].begin, share))

    def choosers(self, episode: EpisodeKey) -> None:
        return None

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> None:
        return None

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._asked = [{} for _ in self._runners]
        for i, question in enumerate(questions):
            r, policy = self._places[question.policy]
            self._asked[r][i] = question._replace(policy=policy)
        for runner, asked in zip(self._runners, self._asked, strict=True):
            if asked:
                runner.ask(list(asked.values()), limit_seconds)

    def replies(self) -> list[Decision]:
        found: dict[int, Decision] = {}
        errors: list[Exception] = []
        for r in reversed(range(len(self._runners))):  # the caller's own part first: the others are at work
            if self._asked[r]:
                try:
                    replies = self._attributed(r, self._runners[r].replies)
                    found.update(zip(self._asked[r], replies, strict=True))
                except Exception as error:  # noqa: BLE001  the others have to be heard all the same
                    errors.append(error)
        if errors:
            order = {question.agent: i for i, question in enumerate(self._questions)}
            raise min(errors, key=lambda error: order.get(getattr(error, "agent", None) or "", -1))
        return [found[i] for i in range(len(self._questions))]

    def take_back(self, questions: Sequence[Question]) -> None:
        for r, runner in enumerate(self._runners):
            mine = [(self._places[question.policy], question) for question in questions]
            runner.take_back([question._replace(policy=policy) for (home, policy), question in mine if home == r])

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        r, policy = self._places[block.policy]
        return self._attributed(r, partial(self._runners[r].act_block, block._replace(policy=policy), limit_seconds))

    def publish(self, version: int, weights: Weights) -> None:
        for r, runner in enumerate(self._runners):
            inner = {i: weights[policy] for i, policy in enumerate(self._members[r]) if policy in weights}
            self._attributed(r, partial(runner.publish, version, inner))

    def _attributed(self, r: int, function: Callable[[], T]) -> T:
        """Call something of a runner; what it raises has the policy's number among all."""
        try:
            return function()
        except PolicyError as error:
            error.policy = self._members[r][error.policy]
            raise

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        return frozenset().union(*(runner.end(episode) for runner in self._runners))

    def close(self) -> None:
        for runner in self._runners:
            runner.close()
