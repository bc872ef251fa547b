"""rollout: THE loop that brings worlds and policies together, as a generator of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from stretto.actions import complaint
from stretto.core import Action, AgentId, AgentWorlds, NextEpisode, Outcome, own_copy
from stretto.errors import InvalidAction, PolicyError, PolicyFailed, PolicyLost, PolicyOverdue, WorkerDied, WorldHung
from stretto.policies.ahead import NOT_COUNTED, AheadOfTurn, Counted, Playing
from stretto.policies.questions import AgentEpisode, Decision, Question, Runner
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

__calls_user_code__ = True

P = TypeVar("P")
T = TypeVar("T")
P_contra = TypeVar("P_contra", contravariant=True)
Slots = Sequence[int] | Array

GRACE_SECONDS = 10.0
"""For how long an answer is waited for after the deadline: transport is not charged, and a busy machine is slow."""

FORFEIT = object()
"""In place of a default action: an agent whose time is used up forfeits the episode."""

_OF_POLICIES = (PolicyError, WorkerDied, WorldHung, SystemExit)
"""What is raised by policies, or in the processes that they run in."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode before it is played: its number, its seed, the options of its reset, and which policy each agent follows.

    `first_row` is the number of its first agent's row in the batches of policies that act for many agents at once; those of
    the others follow (see `AgentEpisode`).
    """

    episode: int
    seed: int
    policies: Mapping[AgentId, int]
    first_row: int = 0
    options: Mapping[str, Any] | None = None

    @property
    def tree(self) -> SeedTree:
        """The root of all random numbers in it."""
        return SeedTree(self.seed)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long an agent may take for a step, and for how long it may exceed that in an episode, all in all.

    Only time that its policy computes is charged. A step, of the world or of all agents together, that takes longer than
    `hang_seconds` counts as hung, and the process that it is in is ended.
    """

    action_seconds: float | None = None
    overage_seconds: float = 0.0
    hang_seconds: float | None = None

    @property
    def end_seconds(self) -> float | None:
        """After how long a policy is ended, where that can be done: one that is merely slow should answer by then."""
        if self.action_seconds is None:
            return self.hang_seconds
        allowed = self.action_seconds + self.overage_seconds
        if self.hang_seconds is None:
            return allowed + GRACE_SECONDS
        return max(allowed, min(self.hang_seconds, allowed + GRACE_SECONDS))

    def silence_seconds(self, agents: int) -> float | None:
        """Return for how long a worker may show no sign of life while so many agents act in a step."""
        if self.hang_seconds is None:
            return None
        allowed = 0.0 if self.action_seconds is None else agents * (self.action_seconds + self.overage_seconds)
        return max(self.hang_seconds, allowed)


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an episode ended without a result; without a policy and an agent it is the world's, or nobody knows whose."""

    error: BaseException
    whose: str
    policy: int | None = None
    agent: AgentId | None = None


@dataclass(slots=True)
class SlotStep:
    """What a slot did: begin an episode (then there are no `actions`), or a step of it.

    `outcome` is what that gave; its observations may be looked at until the generator goes on. `overdue` are agents whose
    time was used up. When the episode is `over`, `drawn` are the global generators that policies in other processes drew
    from, although nobody knew that they would, and `asking` counts how agents were asked, if some were asked ahead of their
    turn; where there is a `fault`, there is no outcome.
    """

    slot: int
    plan: EpisodePlan
    steps: int
    actions: Mapping[AgentId, Action] = field(default_factory=dict)
    outcome: Outcome | None = None
    over: bool = False
    fault: Fault | None = None
    overdue: list[AgentId] = field(default_factory=list)
    policy_seconds: float = 0.0
    world_seconds: float = 0.0
    drawn: frozenset[str] = frozenset()
    asking: Counted = NOT_COUNTED


@dataclass(frozen=True, slots=True)
class Advance(Generic[T]):
    """What a stage did: whatever it gives for its `steps`, the slots that can go on, and those that are free."""

    steps: T
    ready: Slots
    free: Slots


class Stage(Protocol[P_contra, T]):
    """Worlds and policies together, slot by slot: here a plan is played."""

    count: int

    def advance(self, begun: Mapping[int, P_contra], ready: Slots) -> Advance[T]:
        """Begin plans in some slots and let those that are `ready` do a step; wait for some of them, or for all."""


def play(stage: Stage[P, T], next_plan: Callable[[int], P | None], ready: Slots = ()) -> Iterator[T]:
    """Play plans, one in each slot at a time; yield what the stage gives for every advance.

    THE loop: `next_plan(slot)` says what a free slot plays. A slot that gets nothing stays free, and is offered again
    after each advance; when nobody plays any more, it is over. Slots that are `ready` play something already.
    """
    free: Sequence[int] = [slot for slot in range(stage.count) if slot not in ready]
    away = 0
    while True:
        begun = {slot: plan for slot in free if (plan := next_plan(slot)) is not None}
        if not begun and len(ready) + away == 0:
            return
        away += len(begun) + len(ready)
        done = stage.advance(begun, ready)
        ready = done.ready
        away -= len(ready) + len(done.free)
        free = sorted([*(slot for slot in free if slot not in begun), *done.free])
        yield done.steps


class _Episode:
    """An episode under way."""

    __slots__ = ("banks", "outcome", "plan", "slot", "steps")

    def __init__(self, slot: int, plan: EpisodePlan, overage_seconds: float) -> None:
        self.slot, self.plan, self.steps = slot, plan, 0
        self.banks = dict.fromkeys(plan.policies, overage_seconds)
        self.outcome: Outcome


def rollout(  # noqa: PLR0913  every choice has a name and a default here
    worlds: AgentWorlds,
    runner: Runner,
    plans: Iterable[EpisodePlan],
    *,
    limits: TimeLimits | None = None,
    default_action: Any = FORFEIT,
    max_steps: int | None = None,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    ahead: AheadOfTurn | None = None,
) -> Iterator[list[SlotStep]]:
    """Play episodes, one in each slot at a time; yield what the slots did, all that are played in step together.

    A free slot takes the next plan, until there is none. Episodes end after `max_steps`, if there is such a limit. An agent
    whose time is used up takes the `default_action`. `loading` is entered while the agents' policies are made. With `ahead`,
    which asks the same runner, agents of sequential turns are asked before it is their turn.

    Raises:
        PolicyError: if a policy failed while it acted for several episodes or agents at once, so that nobody knows for
            which.
    """
    stage = AgentStage(worlds, runner, limits or TimeLimits(), default_action, max_steps, loading, ahead)
    queue = iter(plans)
    try:
        yield from play(stage, lambda _: next(queue, None))
    finally:
        stage.close()


class AgentStage:
    """Plays episodes by agent: each is asked by itself, has its limits of time, and is to blame for what it does."""

    def __init__(
        self,
        worlds: AgentWorlds,
        runner: Runner,
        limits: TimeLimits,
        default_action: Any,
        max_steps: int | None,
        loading: Callable[[], AbstractContextManager[None]],
        ahead: AheadOfTurn | None = None,
    ) -> None:
        self._worlds, self._runner, self._limits, self._default_action = worlds, runner, limits, default_action
        self._max_steps, self._loading, self._ahead = max_steps, loading, ahead
        self.count = worlds.count
        self._spaces = worlds.spec.action_spaces
        self._running: dict[int, _Episode] = {}

    def advance(self, begun: Mapping[int, EpisodePlan], ready: Slots) -> Advance[list[SlotStep]]:
        """Begin episodes, or else let all that are under way do a step together."""
        overage = self._limits.overage_seconds
        if begun:
            steps = self._begin({slot: _Episode(slot, plan, overage) for slot, plan in begun.items()})
        else:
            steps = self._step([self._running[slot] for slot in ready])
        return Advance(steps, sorted(self._running), [step.slot for step in steps if step.over])

    def close(self) -> None:
        """Let policies forget the episodes that are under way."""
        for episode in self._running.values():
            self._end_policies(episode)

    def _begin(self, begun: dict[int, _Episode]) -> list[SlotStep]:
        alone = len(begun) + len(self._running) == 1
        self._running.update(begun)
        steps = {slot: SlotStep(slot, episode.plan, 0) for slot, episode in begun.items()}
        for slot, episode in begun.items():
            plan = episode.plan
            agents = [
                AgentEpisode(plan.episode, agent, policy, plan.tree.child("policy", agent), plan.first_row + i)
                for i, (agent, policy) in enumerate(plan.policies.items())
            ]
            try:
                with self._loading():
                    self._runner.begin(agents)
            except _OF_POLICIES as error:
                if not alone:
                    raise
                self._end(steps[slot], _fault_of(error))
                return list(steps.values())
        began = time.perf_counter()
        outcomes = self._worlds.reset(
            {slot: NextEpisode(episode.plan.seed, episode.plan.options) for slot, episode in begun.items()}
        )
        seconds = (time.perf_counter() - began) / len(begun)
        for slot, episode in begun.items():
            self._take(steps[slot], episode, outcomes[slot], seconds)
        return list(steps.values())

    def _step(self, episodes: list[_Episode]) -> list[SlotStep]:
        """Let all agents of all running episodes act once.

        Each gets an observation of its own, wherever it chooses: a world may write into its own again, or hand it to
        several agents, and a policy may keep or change what it is given.
        """
        clock = time.perf_counter
        began = clock()
        try:
            episodes, decisions = self._decide(episodes)
        except _OF_POLICIES as error:
            if len(episodes) > 1 or (isinstance(error, PolicyFailed) and error.together):
                raise
            step = SlotStep(episodes[0].slot, episodes[0].plan, episodes[0].steps)
            self._end(step, _fault_of(error))
            return [step]
        chosen = clock()
        steps, given = {}, {}
        for episode in episodes:
            step = steps[episode.slot] = SlotStep(episode.slot, episode.plan, episode.steps, {})
            step.policy_seconds = (chosen - began) / len(episodes)
            actions = self._actions(step, episode, decisions)
            if actions is not None:
                given[episode.slot] = actions
        before = clock()
        outcomes = self._worlds.step(given)
        seconds = (clock() - before) / max(1, len(given))
        for slot in given:
            episode = self._running[slot]
            episode.steps += 1
            steps[slot].steps = episode.steps
            self._take(steps[slot], episode, outcomes[slot], seconds)
        if self._ahead is not None:
            self._ahead.way.add(len(given), clock() - began, len(self._spaces) * self.count)
        return list(steps.values())

    def _decide(self, episodes: list[_Episode]) -> tuple[list[_Episode], Iterator[Decision]]:
        """Return which of the episodes go on now, and what those decide who act in them."""
        if self._ahead is not None and self._ahead.active:
            playing = [Playing(one.plan.episode, one.plan.policies, one.outcome) for one in episodes]
            going, decisions = self._ahead.decide(playing, self._limits.end_seconds)
            return [episodes[i] for i in going], iter(decisions)
        questions = [
            Question(
                episode.plan.episode,
                agent,
                episode.plan.policies[agent],
                own_copy(episode.outcome.observations[agent]),
            )
            for episode in episodes
            for agent in episode.outcome.acting
        ]
        self._runner.ask(questions, self._limits.end_seconds)
        decisions = self._runner.replies()
        if self._ahead is not None:
            for episode in episodes:
                self._ahead.asked_in_order(episode.plan.episode, episode.outcome)
        return episodes, iter(decisions)

    def _actions(self, step: SlotStep, episode: _Episode, decisions: Iterator[Any]) -> dict[AgentId, Action] | None:
        """Return what a world is given: copies, since it may change them; `None` if the episode ends before that."""
        given, fault, chosen = {}, None, {}
        for agent in episode.outcome.acting:
            action, seconds, *_ = next(decisions)
            if self._in_time(episode, agent, seconds):
                wrong = complaint(self._spaces[agent], action)
                if wrong is not None and fault is None:
                    error: PolicyError | InvalidAction = InvalidAction(f"the action of agent {agent} {wrong}")
                    fault = Fault(error, "policy", episode.plan.policies[agent], agent)
            else:
                step.overdue.append(agent)
                action = self._default_action
                if action is FORFEIT and fault is None:
                    fault = self._forfeited(episode, agent)
            chosen[agent], given[agent] = action, own_copy(action)
        step.actions = chosen
        if fault is None:
            return given
        self._end(step, fault)
        return None

    def _in_time(self, episode: _Episode, agent: AgentId, seconds: float) -> bool:
        """Charge an agent for a step; return whether its action counts."""
        allowed = self._limits.action_seconds
        if allowed is None or seconds <= allowed:
            return True
        episode.banks[agent] -= seconds - allowed
        if episode.banks[agent] >= 0:
            return True
        episode.banks[agent] = 0.0
        return False

    def _forfeited(self, episode: _Episode, agent: AgentId) -> Fault:
        limits, policy = self._limits, episode.plan.policies[agent]
        told = f"agent {agent} took longer for a step than the {limits.action_seconds:g} s that it has"
        told += f", and {limits.overage_seconds:g} s more in an episode" if limits.overage_seconds else ""
        return Fault(PolicyOverdue(told, policy, agent), "policy", policy, agent)

    def _take(self, step: SlotStep, episode: _Episode, outcome: Outcome | BaseException, seconds: float) -> None:
        """Take in what a world gave."""
        step.world_seconds = seconds
        if isinstance(outcome, BaseException):
            self._end(step, Fault(outcome, "world"))
            return
        step.outcome = episode.outcome = outcome
        if not outcome.acting or (self._max_steps is not None and episode.steps >= self._max_steps):
            self._end(step, None)

    def _end(self, step: SlotStep, fault: Fault | None) -> None:
        step.over, step.fault = True, fault
        episode = self._running.pop(step.slot)
        if self._ahead is not None:
            step.asking = self._ahead.end(episode.plan.episode)
        step.drawn = self._end_policies(episode)

    def _end_policies(self, episode: _Episode) -> frozenset[str]:
        # A process that died has forgotten the episode already.
        with suppress(PolicyLost, WorkerDied, WorldHung):
            return self._runner.end(episode.plan.episode)
        return frozenset()


def _fault_of(error: BaseException) -> Fault:
    """Return whose fault it is that policies could not act."""
    if isinstance(error, PolicyError):
        return Fault(error, "policy", error.policy, error.agent)
    return Fault(error, "policy")
