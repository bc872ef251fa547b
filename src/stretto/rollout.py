"""The loop that brings worlds and policies together: one episode, or several in lockstep."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.core import AgentId, AgentWorld, Observation, Outcome, own_copy
from stretto.errors import (
    InvalidAction,
    PolicyError,
    PolicyFailed,
    PolicyLost,
    PolicyOverdue,
    StrettoError,
    WorkerDied,
    WorldHung,
    users_traceback,
)
from stretto.policies.actors import AgentEpisode, Question
from stretto.policies.legal import complaint
from stretto.policies.runners import Runner
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree

__calls_user_code__ = True

GRACE_SECONDS = 10.0
"""For how long an answer is waited for after the deadline: transport is not charged, and a busy machine is slow."""


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode before it is played: its number, its seed, and which policy each agent follows."""

    episode: int
    seed: int
    policies: Mapping[AgentId, int]

    @property
    def tree(self) -> SeedTree:
        """The root of all random numbers in it."""
        return SeedTree(self.seed)


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long an agent may take for a step, and for how long it may exceed that in an episode, all in all.

    Only time that its policy computes is charged. Where that is used up the mission's `default_action` is taken, and
    without one the episode is forfeited. A policy in another process that takes `hang_seconds` for a step is ended.
    """

    action_seconds: float | None = None
    overage_seconds: float = 0.0
    default_action: Any = None
    has_default: bool = False
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


@dataclass(slots=True)
class Trouble:
    """Why an episode has no result; `lost`: a process died or hung, so that it is worth another attempt."""

    kind: str
    message: str
    traceback: str
    policy: int | None = None
    agent: AgentId | None = None
    step: int | None = None
    lost: bool = False


@dataclass(slots=True)
class Played:
    """What an episode gave.

    `moments` are there if they were asked for: for each step and agent, digests of what it saw and did, and its reward.
    `drawn` are the global generators that policies in other processes drew from, although nobody knew that they would.
    """

    steps: int = 0
    rewards: dict[AgentId, float] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    overdue: dict[AgentId, int] = field(default_factory=dict)
    world_seconds: float = 0.0
    policy_seconds: float = 0.0
    strategy: str = ""
    moments: list[dict[AgentId, tuple[int, int, float]]] = field(default_factory=list)
    trouble: Trouble | None = None
    drawn: frozenset[str] = frozenset()


class _Game:
    """One episode under way."""

    def __init__(self, world: AgentWorld, plan: EpisodePlan, overage_seconds: float, *, guarded: bool) -> None:
        self.world, self.plan = world, plan
        self.spaces = world.spec().action_spaces
        always = GLOBAL_GENERATORS if guarded else ()
        self.guard = PrivateGenerators(plan.tree.child("world"), drawn=always)
        self.observations: dict[AgentId, Observation] = {}
        self.played = Played()
        self.left = dict.fromkeys(plan.policies, overage_seconds)

    def call(self, function: Callable[..., Any], *args: Any, repeatable: bool = False) -> Any:
        """Let the world do something, with global generators of its own; what it raises ends the episode."""
        guarded = self.guard.run_repeatable if repeatable else self.guard.run
        began = time.perf_counter()
        try:
            return guarded(function, *args) if self.guard.needed else function(*args)
        except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a world raises is its result
            self.fail(error, "world")
            return None
        finally:
            self.played.world_seconds += time.perf_counter() - began

    def see(self, outcome: Outcome) -> None:
        """Take what those see who act next, and what everybody earned.

        Each gets arrays of its own, wherever it chooses: a world may write into its own again, or hand them to several
        agents, and a policy may keep or change what it is given.
        """
        self.observations = {agent: own_copy(outcome.observations[agent]) for agent in outcome.acting}
        for agent, reward in outcome.rewards.items():
            self.played.rewards[agent] = self.played.rewards.get(agent, 0.0) + reward

    def check(self, agent: AgentId, action: Any) -> None:
        """End the episode if what an agent does is no action of its."""
        told = complaint(self.spaces[agent], action) if self.played.trouble is None else None
        if told is not None:
            self.fail(InvalidAction(f"the action of agent {agent} {told}"), "policy", self.plan.policies[agent], agent)

    def fail(self, error: BaseException, whose: str, policy: int | None = None, agent: AgentId | None = None) -> None:
        """End the episode without a result."""
        message = str(error) if isinstance(error, StrettoError) else f"the {whose} raised {error!r}"
        kind, text = type(error).__name__, users_traceback(error)
        if isinstance(error, PolicyFailed):
            kind, text = error.raised
        self.played.trouble = Trouble(kind, message, text, policy, agent, self.played.steps)
        self.observations = {}

    def lose(self, error: BaseException, limit_seconds: float | None) -> None:
        """End the episode without a result, because a process in which policies ran died or hung."""
        policy, agent = (error.policy, error.agent) if isinstance(error, PolicyLost) else (None, None)
        whose = "a process of the policies" if agent is None else f"the process of agent {agent}'s policy"
        cause = error.__cause__ if isinstance(error, PolicyLost) and error.__cause__ is not None else error
        message, text = how_lost(whose, cause, limit_seconds)
        self.played.trouble = Trouble("PolicyLost", message, text, policy, agent, self.played.steps, lost=True)
        self.observations = {}


def how_lost(what: str, error: BaseException, limit_seconds: float | None) -> tuple[str, str]:
    """Say in a sentence how a process was lost, and all that is known of it. Neither depends on the clock."""
    if isinstance(error, WorldHung):
        within = "" if limit_seconds is None else f" for {limit_seconds:g} s"
        stack = _without_addresses(error.stack)
        return f"{what} gave no sign of life{within} and was ended", stack or "its Python stack is not known"
    ended = error.ended if isinstance(error, WorkerDied) else ""
    told = _without_addresses(ended or str(error))
    return f"{what} died: {told.partition(chr(10))[0]}", told


def _without_addresses(stack: str) -> str:
    """Return the text of a stack without what is another number in every process."""
    return re.sub(r"(?m)^((?:Current t|T)hread) 0x[0-9a-f]+", r"\1", stack)


def play(  # noqa: PLR0913  every choice has a name and a default here
    worlds: Sequence[AgentWorld],
    runner: Runner,
    plans: Sequence[EpisodePlan],
    *,
    max_steps: int | None = None,
    deadline: Deadline | None = None,
    watch: bool = False,
    on_step: Callable[[int], None] | None = None,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    guarded: bool = False,
) -> list[Played]:
    """Play an episode in each world, all in step, until the last one is over; `on_step` hears of each step.

    With `watch`, digests of every step are kept. `loading` is entered while the agents' policies are made. `guarded`:
    worlds have private generators in every call, not only if they are seen to draw from the global ones in the first.

    Raises:
        PolicyError: if a policy failed while it acted for several episodes at once, so that nobody knows for which.
    """
    limits = deadline or Deadline()
    games = [
        _Game(world, plan, limits.overage_seconds, guarded=guarded) for world, plan in zip(worlds, plans, strict=True)
    ]
    drawn: set[str] = set()
    try:
        for game in games:
            _begin(game, runner, loading, alone=len(games) == 1)
        while running := [game for game in games if game.observations]:
            _step(running, runner, limits, watch=watch)
            for game in running:
                if max_steps is not None and game.played.steps >= max_steps:
                    game.observations = {}
            if on_step is not None:
                on_step(sum(len(game.observations) for game in games))
    finally:
        for game in games:
            # A process that died has forgotten the episode already.
            with suppress(PolicyLost, WorkerDied, WorldHung):
                drawn |= runner.end(game.plan.episode)
    for game in games:
        if game.played.trouble is None:
            game.played.statistics = game.call(game.world.statistics) or {}
        game.played.drawn = frozenset(drawn)
    return [game.played for game in games]


def _begin(game: _Game, runner: Runner, loading: Callable[[], AbstractContextManager[None]], *, alone: bool) -> None:
    plan = game.plan
    roles = [
        AgentEpisode(plan.episode, agent, policy, plan.tree.child("policy", agent))
        for agent, policy in plan.policies.items()
    ]
    try:
        with loading():
            runner.begin(roles)
    except (PolicyError, WorkerDied, WorldHung) as error:
        if not alone:
            raise
        _blame(game, error, None)
        return
    started = game.call(game.world.reset, plan.seed, repeatable=True)
    if started is not None:
        game.played.rewards = dict.fromkeys(started.acting, 0.0)
        game.see(started)


def _blame(game: _Game, error: StrettoError, limit_seconds: float | None) -> None:
    """End an episode because of what its policies did."""
    if isinstance(error, PolicyError) and not isinstance(error, PolicyLost):
        game.fail(error, "policy", error.policy, error.agent)
    else:
        game.lose(error, limit_seconds)


def _step(running: list[_Game], runner: Runner, limits: Deadline, *, watch: bool) -> None:
    """Let all agents of all running games act once."""
    questions = [
        Question(game.plan.episode, agent, observation)
        for game in running
        for agent, observation in game.observations.items()
    ]
    # Before anybody acts: policies may change what they see, and worlds what they are given.
    seen = [digest(question.observation) for question in questions] if watch else []
    began = time.perf_counter()
    try:
        runner.ask(questions, limits.end_seconds)
        replies = iter(runner.replies())
    except (PolicyError, WorkerDied, WorldHung) as error:
        if len(running) > 1:
            raise
        _blame(running[0], error, limits.end_seconds)
        return
    except SystemExit as error:  # of a policy: it must not end the program that evaluates it
        if len(running) > 1:
            raise
        running[0].fail(error, "policy")
        return
    share = (time.perf_counter() - began) / len(running)
    place = 0
    for game in running:
        game.played.policy_seconds += share
        actions = {}
        for agent in game.observations:
            reply = next(replies)
            if _in_time(game, agent, reply.seconds, limits):
                actions[agent] = own_copy(reply.action)
                game.check(agent, reply.action)
            else:
                actions[agent] = own_copy(limits.default_action)
        first, place = place, place + len(actions)
        if game.played.trouble is not None:
            continue
        done = [digest(action) for action in actions.values()] if watch else []
        outcome = game.call(game.world.step, actions)
        game.played.steps += 1
        if outcome is None:
            continue
        if watch:
            game.played.moments.append(
                {
                    agent: (seen[first + i], done[i], outcome.rewards.get(agent, 0.0))
                    for i, agent in enumerate(game.observations)
                }
            )
        game.see(outcome)


def digest(value: Any) -> int:
    """Return a number that tells two observations or actions apart, to the last bit."""
    if isinstance(value, Mapping):
        return zlib.crc32(repr([(str(key), digest(value[key])) for key in sorted(value, key=str)]).encode())
    if isinstance(value, (tuple, list)):
        return zlib.crc32(repr([digest(part) for part in value]).encode())
    if isinstance(value, (np.ndarray, np.generic, int, float, bool)):
        array = np.ascontiguousarray(value)
        return zlib.crc32(array.tobytes(), zlib.crc32(str((array.dtype, array.shape)).encode()))
    return zlib.crc32(repr(value).encode())


def _in_time(game: _Game, agent: AgentId, seconds: float, limits: Deadline) -> bool:
    """Charge an agent for a step; return whether its action counts."""
    if limits.action_seconds is None or seconds <= limits.action_seconds:
        return True
    game.left[agent] -= seconds - limits.action_seconds
    if game.left[agent] >= 0:
        return True
    game.left[agent] = 0.0
    game.played.overdue[agent] = game.played.overdue.get(agent, 0) + 1
    if not limits.has_default:
        policy = game.plan.policies[agent]
        told = f"agent {agent} took longer for a step than the {limits.action_seconds:g} s that it has"
        told += f", and {limits.overage_seconds:g} s more in an episode" if limits.overage_seconds else ""
        game.fail(PolicyOverdue(told, policy, agent), "policy", policy, agent)
    return False
