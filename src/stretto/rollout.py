"""The loop that brings worlds and policies together: one episode, or several in lockstep."""

from __future__ import annotations

import time
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.adapters.episodes import EpisodeWorld
from stretto.core import AgentId, Observation
from stretto.errors import PolicyError, PolicyLost, PolicyOverdue, StrettoError
from stretto.policies.runners import Runner
from stretto.policies.troupe import Question, Role
from stretto.seeding import PrivateGenerators, SeedTree


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """An episode before it is played: its number, its seed, and which policy each agent follows."""

    episode: int
    seed: int
    policies: Mapping[AgentId, int]
    options: dict[str, Any] | None = None

    @property
    def tree(self) -> SeedTree:
        """The root of all random numbers in it."""
        return SeedTree(self.seed)


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long an agent may take for a step, and for how long it may exceed that in an episode, all in all.

    Only time that its policy computes is charged. Where that is used up the mission's `default_action` is taken, and
    without one the episode is forfeited.
    """

    action_seconds: float | None = None
    overage_seconds: float = 0.0
    default_action: Any = None
    has_default: bool = False


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


class _Game:
    """One episode under way."""

    def __init__(self, world: EpisodeWorld, plan: EpisodePlan, overage_seconds: float) -> None:
        self.world, self.plan = world, plan
        self.guard = PrivateGenerators(plan.tree.child("world"))
        self.observations: dict[AgentId, Observation] = {}
        self.played = Played()
        self.left = dict.fromkeys(plan.policies, overage_seconds)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Let the world do something, with global generators of its own; what it raises ends the episode."""
        began = time.perf_counter()
        try:
            return self.guard.run(function, *args) if self.guard.needed else function(*args)
        except Exception as error:  # noqa: BLE001  whatever a world raises is its result
            self.fail(error, "world")
            return None
        finally:
            self.played.world_seconds += time.perf_counter() - began

    def fail(self, error: BaseException, whose: str, policy: int | None = None, agent: AgentId | None = None) -> None:
        """End the episode without a result."""
        cause = error.__cause__ if isinstance(error, PolicyError) and error.__cause__ is not None else error
        message = str(error) if isinstance(error, StrettoError) else f"the {whose} raised {error!r}"
        text = "".join(traceback.format_exception(cause))
        lost = isinstance(error, PolicyLost)
        self.played.trouble = Trouble(type(cause).__name__, message, text, policy, agent, self.played.steps, lost)
        self.observations = {}


def play(
    worlds: Sequence[EpisodeWorld],
    runner: Runner,
    plans: Sequence[EpisodePlan],
    *,
    max_steps: int | None = None,
    deadline: Deadline | None = None,
    watch: bool = False,
    on_step: Callable[[int], None] | None = None,
) -> list[Played]:
    """Play an episode in each world, all in step, until the last one is over; `on_step` hears of each step.

    With `watch`, digests of every step are kept.

    Raises:
        PolicyError: if a policy failed while it acted for several episodes at once, so that nobody knows for which.
    """
    limits = deadline or Deadline()
    games = [_Game(world, plan, limits.overage_seconds) for world, plan in zip(worlds, plans, strict=True)]
    try:
        for game in games:
            _begin(game, runner, alone=len(games) == 1)
        while running := [game for game in games if game.observations]:
            _step(running, runner, limits, watch=watch)
            for game in running:
                if max_steps is not None and game.played.steps >= max_steps:
                    game.observations = {}
            if on_step is not None:
                on_step(sum(len(game.observations) for game in games))
    finally:
        for game in games:
            runner.end(game.plan.episode)
    for game in games:
        if game.played.trouble is None:
            game.played.statistics = game.call(game.world.statistics) or {}
    return [game.played for game in games]


def _begin(game: _Game, runner: Runner, *, alone: bool) -> None:
    plan = game.plan
    roles = [
        Role(plan.episode, agent, policy, plan.tree.child("policy", agent)) for agent, policy in plan.policies.items()
    ]
    try:
        runner.begin(roles)
    except PolicyError as error:
        if not alone:
            raise
        game.fail(error, "policy", error.policy, error.agent)
        return
    game.observations = game.call(game.world.reset, plan.seed, plan.options) or {}
    game.played.rewards = dict.fromkeys(game.observations, 0.0)


def _step(running: list[_Game], runner: Runner, limits: Deadline, *, watch: bool) -> None:
    """Let all agents of all running games act once."""
    questions = [
        Question(game.plan.episode, agent, observation)
        for game in running
        for agent, observation in game.observations.items()
    ]
    limit = limits.action_seconds
    if limit is not None:
        limit += max(max(game.left.values(), default=0.0) for game in running)
    began = time.perf_counter()
    try:
        runner.ask(questions, limit)
        replies = iter(runner.replies())
    except PolicyError as error:
        if len(running) > 1:
            raise
        running[0].fail(error, "policy", error.policy, error.agent)
        return
    share = (time.perf_counter() - began) / len(running)
    for game in running:
        game.played.policy_seconds += share
        actions = {}
        for agent in game.observations:
            reply = next(replies)
            actions[agent] = reply.action if _in_time(game, agent, reply.seconds, limits) else limits.default_action
        if game.played.trouble is not None:
            continue
        outcome = game.call(game.world.step, actions)
        game.played.steps += 1
        if outcome is None:
            continue
        if watch:
            game.played.moments.append(
                {
                    agent: (digest(observation), digest(actions[agent]), outcome.rewards.get(agent, 0.0))
                    for agent, observation in game.observations.items()
                }
            )
        game.observations = outcome.observations
        for agent, reward in outcome.rewards.items():
            game.played.rewards[agent] = game.played.rewards.get(agent, 0.0) + reward


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
        told = f"agent {agent} took {seconds:.3f} s for a step, and had {limits.action_seconds:g} s"
        game.fail(PolicyOverdue(told, policy, agent), "policy", policy, agent)
    return False
