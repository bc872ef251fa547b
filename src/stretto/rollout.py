"""rollout: THE loop that brings worlds and policies together, as a generator of steps."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stretto import trace
from stretto.actions import WHOLE, complaint, known_choices
from stretto.core import Action, AgentId, AgentWorlds, NextEpisode, Outcome, own_copy
from stretto.episode_steps import FORFEIT, EpisodePlan, Fault, SlotStep, TimeLimits
from stretto.errors import InvalidAction, PolicyError, PolicyFailed, PolicyLost, PolicyOverdue, WorkerDied, WorldHung
from stretto.policies.ahead import AheadOfTurn, Playing
from stretto.policies.players import act_in_turn
from stretto.policies.questions import AgentEpisode, Chooser, Decision, Runner
from stretto.policies.together import AskedTogether
from stretto.spaces import Array

__calls_user_code__ = True

P = TypeVar("P")
T = TypeVar("T")
P_contra = TypeVar("P_contra", contravariant=True)
Slots = Sequence[int] | Array

Move = Callable[[Mapping[AgentId, Action]], Outcome]
"""A step of one world by agent: it raises what the world raises."""

_ENDLESS = 1 << 62

_OF_POLICIES = (PolicyError, WorkerDied, WorldHung, SystemExit)
"""What is raised by policies, or in the processes that they run in."""


class Advance(NamedTuple, Generic[T]):
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
        begun = {slot: plan for slot in free if (plan := next_plan(slot)) is not None} if free else {}
        if not begun and len(ready) + away == 0:
            return
        away += len(begun) + len(ready)
        steps, ready, freed = stage.advance(begun, ready)
        away -= len(ready) + len(freed)
        rest = [slot for slot in free if slot not in begun] if len(begun) < len(free) else ()
        free = sorted([*rest, *freed])
        yield steps


class _Episode:
    """An episode under way."""

    __slots__ = ("banks", "choosers", "late", "move", "outcome", "plan", "slot", "step", "steps")

    def __init__(self, slot: int, plan: EpisodePlan, overage_seconds: float) -> None:
        self.slot, self.plan, self.steps = slot, plan, 0
        self.banks = dict.fromkeys(plan.policies, overage_seconds)
        self.choosers: Mapping[AgentId, Chooser] | None = None
        self.move: Move | None = None
        self.late: list[AgentId] = []  # whose time was used up in this step
        self.step = SlotStep(slot, plan, 0)  # what is not told yet
        self.outcome: Outcome

    def told(self) -> SlotStep:
        """Return what the slot did since this was asked last."""
        step, self.step = self.step, SlotStep(self.slot, self.plan, self.steps)
        return step


def rollout(  # noqa: PLR0913  every choice has a name and a default here
    worlds: AgentWorlds,
    runner: Runner,
    plans: Iterable[EpisodePlan],
    *,
    limits: TimeLimits | None = None,
    default_action: Any = FORFEIT,
    max_steps: int | None = None,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    each_step: bool = True,
    position: memoryview[int] | None = None,
    ahead: AheadOfTurn | None = None,
) -> Iterator[list[SlotStep]]:
    """Play episodes, one in each slot at a time; yield what the slots did, all that are played in step together.

    A free slot takes the next plan, until there is none. Episodes end after `max_steps`, if there is such a limit. An agent
    whose time is used up takes the `default_action`. `loading` is entered while the agents' policies are made. With `ahead`,
    which asks the same runner, agents of sequential turns are asked before it is their turn. Without `each_step`, the steps
    of an episode are yielded together when it is over. `position[0]` counts what was done: beginning episodes, and each step
    of those that are under way.

    Raises:
        PolicyError: if a policy failed while it acted for several episodes or agents at once, so that nobody knows for
            which.
    """
    stage = AgentStage(worlds, runner, limits or TimeLimits(), default_action, max_steps, loading, ahead)
    stage.each_step = each_step
    if position is not None:
        stage.position = position
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
        self._max_steps = _ENDLESS if max_steps is None else max_steps
        self._loading, self._ahead = loading, ahead
        self.count = worlds.count
        self._spaces = worlds.spec.action_spaces
        self._portion = len(self._spaces) * self.count
        self._known = {agent: frozenset(known_choices(space)) for agent, space in self._spaces.items()}
        self._known_by_all = frozenset[int]().union(*self._known.values()).intersection(*self._known.values())
        self._running: dict[int, _Episode] = {}
        # One after the other, with nothing around each choice: where none has a limit of time, or is recorded.
        self._in_turn = limits.action_seconds is None and trace.active is None
        self._together = AskedTogether(runner) if self._in_turn and ahead is None else None
        self.each_step = True
        self.position = memoryview(array("q", [0]))

    def advance(self, begun: Mapping[int, EpisodePlan], ready: Slots) -> Advance[list[SlotStep]]:
        """Begin episodes, or else let all that are under way do a step together."""
        overage = self._limits.overage_seconds
        if begun:
            steps = self._begin({slot: _Episode(slot, plan, overage) for slot, plan in begun.items()})
        else:
            steps = self._go_on([self._running[slot] for slot in ready])
        over = [step for step in steps if step.over]
        if self._ahead is not None:
            for step in over:
                step.asking = self._ahead.end(step.plan.episode)
        return Advance(steps, sorted(self._running) if begun or over else ready, [step.slot for step in over])

    def close(self) -> None:
        """Let policies forget the episodes that are under way."""
        for episode in self._running.values():
            self._end_policies(episode)

    def _begin(self, begun: dict[int, _Episode]) -> list[SlotStep]:
        alone = len(begun) + len(self._running) == 1
        self._running.update(begun)
        for episode in begun.values():
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
                self._end(episode, Fault.of_policies(error))
                return [episode.step]
            if self._in_turn:
                episode.choosers = self._runner.choosers(plan.episode)
        began = time.perf_counter()
        outcomes = self._worlds.reset(
            {slot: NextEpisode(episode.plan.seed, episode.plan.options) for slot, episode in begun.items()}
        )
        seconds = (time.perf_counter() - began) / len(begun)
        for slot, episode in begun.items():
            outcome = outcomes[slot]
            if isinstance(outcome, Outcome):
                episode.step.add(outcome)
            self._take(episode, outcome, seconds)
            episode.move = None if episode.choosers is None else self._worlds.alone(slot)
        self.position[0] += 1
        return [episode.told() for episode in begun.values()]

    def _go_on(self, episodes: list[_Episode]) -> list[SlotStep]:
        """Let episodes do a step together, or several if nobody looks at each; one that is alone may be played to its end."""
        ahead = self._ahead
        if len(episodes) > 1 or episodes[0].move is None or (ahead is not None and ahead.active):
            going = len(self._running)
            while len(self._running) == going:
                episodes = self._step(episodes)
                self.position[0] += 1
                if self.each_step or ahead is not None:
                    break
        else:
            most, began = _ENDLESS if ahead is None else ahead.way.settled_for(self._portion), time.perf_counter()
            turns, acts = self._play_on(episodes[0], 1 if self.each_step else most)
            if ahead is not None:
                ahead.asked_in_order(episodes[0].plan.episode, turns, acts)
                ahead.way.add(acts, time.perf_counter() - began, self._portion)
        return [episode.told() for episode in episodes if self.each_step or episode.step.over]

    def _play_on(self, episode: _Episode, steps: int) -> tuple[int, int]:
        """Play so many steps of an episode whose agents choose one after the other; return how many turns began, and steps.

        The hot loop: a step of CartPole takes 1.7 µs beyond the world, its adapter and the policy; one of Foundry with four
        agents 8.
        """
        step, position, clock = episode.step, self.position, time.perf_counter
        choosers, move, outcome = episode.choosers, episode.move, episode.outcome
        assert choosers is not None
        assert move is not None
        first, turns = episode.steps, 0
        last = min(first + steps, self._max_steps)
        after, taken = clock(), 0.0
        while step.steps < last and outcome.acting:
            before, turns = after, turns + (outcome.ahead is not None)
            try:
                chosen, whole = act_in_turn(choosers, outcome.acting, outcome.observations)
            except PolicyFailed as error:
                self._end(episode, Fault.of_policies(error))
                return turns, step.steps - first
            given = self._admit(episode, chosen, whole)
            step.policy_seconds += (now := clock()) - before
            if given is None:
                return turns, step.steps - first
            step.steps += 1
            try:
                outcome = move(given)
            except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a world raises is its result
                self._take(episode, error, taken + clock() - now)
                return turns, step.steps - first
            taken += (after := clock()) - now
            step.add(outcome)
            position[0] += 1
        self._take(episode, outcome, taken)
        return turns, step.steps - first

    def _step(self, episodes: list[_Episode]) -> list[_Episode]:
        """Let all agents act once, of all running episodes that can go on; return which."""
        clock, ahead = time.perf_counter, self._ahead
        began = clock()
        try:
            going, chosen = self._decide(episodes)
        except _OF_POLICIES as error:
            if len(episodes) > 1 or (isinstance(error, PolicyFailed) and error.together):
                raise
            self._end(episodes[0], Fault.of_policies(error))
            return episodes
        policy_seconds = (clock() - began) / len(going)
        given = {}
        for episode, actions in zip(going, chosen, strict=True):
            episode.step.policy_seconds += policy_seconds
            admitted = self._admit(episode, actions, WHOLE.issuperset(map(type, actions.values())))
            if admitted is not None:
                given[episode.slot] = admitted
        before = clock()
        outcomes = self._worlds.step(given)
        seconds = (clock() - before) / max(1, len(given))
        for slot in given:
            episode, outcome = self._running[slot], outcomes[slot]
            episode.step.steps += 1
            if isinstance(outcome, Outcome):
                episode.step.add(outcome)
            self._take(episode, outcome, seconds)
        if ahead is not None:
            ahead.way.add(len(given), clock() - began, self._portion)
        return going

    def _decide(self, episodes: list[_Episode]) -> tuple[list[_Episode], list[dict[AgentId, Action]]]:
        """Ask all agents together; return which of the episodes go on now, and what those do who act in them."""
        if self._together is not None:
            chosen = self._together.choose([one.plan.episode for one in episodes], [one.outcome for one in episodes])
            if chosen is not None:
                return episodes, chosen
        playing = [Playing(one.plan.episode, one.plan.policies, one.outcome) for one in episodes]
        if self._ahead is not None and self._ahead.active:
            going, decisions = self._ahead.decide(playing, self._limits.end_seconds)
            episodes = [episodes[i] for i in going]
            return episodes, self._in_time(episodes, iter(decisions))
        self._runner.ask([question for one in playing for question in one.questions()], self._limits.end_seconds)
        decisions = self._runner.replies()
        if self._ahead is not None:
            for episode in episodes:
                self._ahead.asked_in_order(episode.plan.episode, episode.outcome.ahead is not None, 1)
        return episodes, self._in_time(episodes, iter(decisions))

    def _in_time(self, episodes: list[_Episode], decisions: Iterator[Decision]) -> list[dict[AgentId, Action]]:
        """Return what agents do by episode. Whose time is used up does the default action."""
        allowed = self._limits.action_seconds
        if allowed is None:
            return [{agent: next(decisions).action for agent in one.outcome.acting} for one in episodes]
        for one in episodes:
            one.late.clear()
        return [
            {agent: self._charged(one, agent, next(decisions), allowed) for agent in one.outcome.acting}
            for one in episodes
        ]

    def _charged(self, episode: _Episode, agent: AgentId, decision: Decision, allowed: float) -> Action:
        """Charge an agent for a step; return what it does."""
        seconds = decision.seconds
        if seconds <= allowed:
            return decision.action
        episode.banks[agent] -= seconds - allowed
        if episode.banks[agent] >= 0:
            return decision.action
        episode.banks[agent] = 0.0
        episode.late.append(agent)
        episode.step.overdue.append(agent)
        return self._default_action

    def _admit(self, episode: _Episode, chosen: dict[AgentId, Action], whole: bool) -> dict[AgentId, Action] | None:
        """Return what a world is given: copies, since it may change them; `None` if the episode ends before that.

        `whole` says that all actions are of types of whole numbers.
        """
        episode.step.actions, given = chosen, chosen.copy()
        if whole and self._known_by_all.issuperset(chosen.values()):
            return given
        known, fault = self._known, None
        for agent, action in chosen.items():
            if type(action) not in WHOLE or action not in known[agent]:
                fault = fault or self._wrong(episode, agent, action)
                given[agent] = own_copy(action)
        if fault is None:
            return given
        self._end(episode, fault)
        return None

    def _wrong(self, episode: _Episode, agent: AgentId, action: Action) -> Fault | None:
        """Say what is wrong with what an agent does, if anything is; default actions are not the policy's."""
        policy = episode.plan.policies[agent]
        if agent in episode.late:
            return self._forfeited(episode, agent) if action is FORFEIT else None
        why = complaint(self._spaces[agent], action)
        return (
            None if why is None else Fault(InvalidAction(f"the action of agent {agent} {why}"), "policy", policy, agent)
        )

    def _forfeited(self, episode: _Episode, agent: AgentId) -> Fault:
        limits, policy = self._limits, episode.plan.policies[agent]
        told = f"agent {agent} took longer for a step than the {limits.action_seconds:g} s that it has"
        told += f", and {limits.overage_seconds:g} s more in an episode" if limits.overage_seconds else ""
        return Fault(PolicyOverdue(told, policy, agent), "policy", policy, agent)

    def _take(self, episode: _Episode, outcome: Outcome | BaseException, seconds: float) -> None:
        """Take in what a world gave, in so many seconds."""
        step = episode.step
        step.world_seconds += seconds
        episode.steps = step.steps
        if isinstance(outcome, BaseException):
            self._end(episode, Fault(outcome, "world"))
            return
        step.outcome = episode.outcome = outcome
        if not outcome.acting or episode.steps >= self._max_steps:
            self._end(episode, None)

    def _end(self, episode: _Episode, fault: Fault | None) -> None:
        step = episode.step
        step.over, step.fault = True, fault
        step.outcome = step.outcome if fault is None else None
        self._running.pop(episode.slot)
        step.drawn = self._end_policies(episode)

    def _end_policies(self, episode: _Episode) -> frozenset[str]:
        # A process that died has forgotten the episode already.
        with suppress(PolicyLost, WorkerDied, WorldHung):
            return self._runner.end(episode.plan.episode)
        return frozenset()
