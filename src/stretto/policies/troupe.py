"""Troupe: policies of one process, and the agents that follow them. How an action is computed exists here alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.core import Action, AgentId, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import PolicyFailed
from stretto.policies.loading import load_policy, reset_policy
from stretto.policies.spec import PolicySpec
from stretto.seeding import PrivateGenerators, SeedTree

EpisodeKey = Hashable


@dataclass(frozen=True, slots=True)
class Casting:
    """What the plan fixes about one policy: which global generators it draws from, and the rows of its batches.

    `rows` is 0 where the policy has no `step_batch`.
    """

    spec: PolicySpec
    draws: frozenset[str] = frozenset()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """One agent in one episode: which policy it follows, and the root of its random numbers."""

    episode: EpisodeKey
    agent: AgentId
    policy: int
    tree: SeedTree


@dataclass(frozen=True, slots=True)
class Question:
    """An agent has to act."""

    episode: EpisodeKey
    agent: AgentId
    observation: Observation


@dataclass(frozen=True, slots=True)
class Reply:
    """What it does, how long choosing that took, and for how much of that time it computed."""

    action: Action
    seconds: float
    busy_seconds: float


@dataclass(slots=True)
class _Player:
    role: Role
    policy: Any
    guard: PrivateGenerators | None


@dataclass(slots=True)
class _Loaded:
    casting: Casting
    policy: MultiAgentPolicy
    spare: list[np.random.Generator] = field(default_factory=list)  # for agents that only fill up a batch


class Troupe:
    """Loads each policy once, and makes a fresh agent policy for every role."""

    def __init__(self, castings: Sequence[Casting], world: WorldSpec) -> None:
        self._world = world
        self._loaded = [_Loaded(casting, load_policy(casting.spec, world)) for casting in castings]
        self._players: dict[tuple[EpisodeKey, AgentId], _Player] = {}

    def begin(self, roles: Iterable[Role]) -> None:
        """Make the agent policies of an episode, or of some agents in it."""
        for role in roles:
            loaded = self._loaded[role.policy]
            guard = None
            if loaded.casting.draws:
                guard = PrivateGenerators(role.tree.child("global"), probation=0, drawn=loaded.casting.draws)
            self._players[role.episode, role.agent] = self._player(loaded, role, guard)

    def _player(self, loaded: _Loaded, role: Role, guard: PrivateGenerators | None) -> _Player:
        def make() -> Any:
            policy = loaded.policy.agent_policy(role.agent)
            reset_policy(policy, role.tree.generator())
            return policy

        return _Player(role, _attributed(role, make if guard is None else lambda: guard.run(make)), guard)

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""
        for key in [key for key in self._players if key[0] == episode]:
            del self._players[key]

    def act(self, questions: Sequence[Question]) -> list[Reply]:
        """Return what each agent does. Those that follow a policy with `step_batch` are asked together."""
        replies: list[Reply | None] = [None] * len(questions)
        together: dict[int, list[int]] = {}
        for i, question in enumerate(questions):
            player = self._players[question.episode, question.agent]
            if self._loaded[player.role.policy].casting.rows:
                together.setdefault(player.role.policy, []).append(i)
            else:
                replies[i] = self._act_alone(player, question.observation)
        for policy, indices in together.items():
            rows = self._loaded[policy].casting.rows
            for start in range(0, len(indices), rows):
                chunk = indices[start : start + rows]
                answers = self._act_together(self._loaded[policy], [questions[i] for i in chunk])
                for i, reply in zip(chunk, answers, strict=True):
                    replies[i] = reply
        return [reply for reply in replies if reply is not None]

    def _act_alone(self, player: _Player, observation: Observation) -> Reply:
        began, busy = time.perf_counter(), time.thread_time()
        step = player.policy.step
        if player.guard is None:
            action = _attributed(player.role, step, observation)
        else:
            action = _attributed(player.role, player.guard.run, step, observation)
        return Reply(action, time.perf_counter() - began, time.thread_time() - busy)

    def _act_together(self, loaded: _Loaded, questions: list[Question]) -> list[Reply]:
        """Ask a policy for a whole batch, always of the same number of rows: their last bits depend on it."""
        players = [self._players[question.episode, question.agent] for question in questions]
        missing = loaded.casting.rows - len(players)
        policies = [player.policy for player in players]
        policies += [self._extra(loaded, questions[0].agent, number) for number in range(missing)]
        observations = [question.observation for question in questions] + [questions[0].observation] * missing
        began, busy = time.perf_counter(), time.thread_time()
        step_batch: Any = loaded.policy.step_batch  # type: ignore[attr-defined]  # only where there is one
        actions = _attributed(players[0].role, step_batch, policies, observations)
        count = len(players)
        seconds, busy = (time.perf_counter() - began) / count, (time.thread_time() - busy) / count
        return [Reply(action, seconds, busy) for action in list(actions)[:count]]

    def _extra(self, loaded: _Loaded, agent: AgentId, number: int) -> Any:
        """Return an agent that fills up a batch: a new one each time, so that nothing can come of what it saw before."""
        if number == len(loaded.spare):
            loaded.spare.append(SeedTree(0).child("extra", number).generator())
        extra = loaded.policy.agent_policy(agent)
        reset_policy(extra, loaded.spare[number])
        return extra


def _attributed(role: Role, function: Callable[..., Any], *args: Any) -> Any:
    """Call a policy's code; what it raises says whose it was."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:  # one that calls sys.exit() has failed, and must not end the program
        error.add_note(f"in the policy of agent {role.agent}")
        raise PolicyFailed(f"the policy of agent {role.agent} raised {error!r}", role.policy, role.agent) from error
