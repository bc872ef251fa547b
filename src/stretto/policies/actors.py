"""Actors: policies of one process, and the agents that follow them. How an action is computed exists here alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stretto.core import Action, AgentId, MultiAgentPolicy, Observation, WorldSpec, own_copy
from stretto.errors import PolicyFailed
from stretto.policies.loading import load_policy, reset_policy
from stretto.policies.spec import PolicySpec
from stretto.seeding import PrivateGenerators, SeedTree

__calls_user_code__ = True

EpisodeKey = Hashable


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """What the plan fixes about one policy: which global generators it draws from, and the rows of its batches.

    `rows` is 0 where the policy has no `step_batch`. `seed` is for what it draws while it is loaded, such as weights:
    it is loaded in several processes, and must be the same in each.
    """

    spec: PolicySpec
    draws: frozenset[str] = frozenset()
    rows: int = 0
    seed: int = 0

    def load(self, world: WorldSpec) -> MultiAgentPolicy:
        """Build the policy; it may draw from the spaces in `world`, which therefore must be nobody else's."""
        tree = SeedTree(self.seed).child("load", self.spec.name)
        return PrivateGenerators(tree, probation=1 << 62).run_repeatable(load_policy, self.spec, world)


@dataclass(frozen=True, slots=True)
class AgentEpisode:
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
class Decision:
    """What it does, how long choosing that took, and for how much of that time it computed."""

    action: Action
    seconds: float
    busy_seconds: float


@dataclass(slots=True)
class _Player:
    role: AgentEpisode
    policy: Any
    guard: PrivateGenerators | None


@dataclass(slots=True)
class _Loaded:
    casting: PolicyPlan
    world: WorldSpec
    policy: MultiAgentPolicy
    spare: list[np.random.Generator] = field(default_factory=list)  # for agents that only fill up a batch


class Actors:
    """Loads each policy once, and makes a fresh agent policy for every role."""

    def __init__(self, castings: Sequence[PolicyPlan], world: WorldSpec) -> None:
        self._world = world
        self._loaded = [_loaded(casting, own_spaces(world)) for casting in castings]
        self._players: dict[tuple[EpisodeKey, AgentId], _Player] = {}

    def begin(self, roles: Iterable[AgentEpisode]) -> None:
        """Make the agent policies of an episode, or of some agents in it."""
        for role in roles:
            loaded = self._loaded[role.policy]
            guard = None
            if loaded.casting.draws:
                guard = PrivateGenerators(role.tree.child("global"), probation=0, drawn=loaded.casting.draws)
            self._players[role.episode, role.agent] = self._player(loaded, role, guard)

    def _player(self, loaded: _Loaded, role: AgentEpisode, guard: PrivateGenerators | None) -> _Player:
        def make() -> Any:
            # Policies like to sample their actions from the space: these numbers too are the agent's own.
            loaded.world.action_spaces[role.agent].seed(role.tree.child("space").seed())
            policy = loaded.policy.agent_policy(role.agent)
            reset_policy(policy, role.tree.generator())
            return policy

        return _Player(role, _attributed(role, make if guard is None else lambda: guard.run_repeatable(make)), guard)

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""
        self._players = {key: player for key, player in self._players.items() if key[0] != episode}

    @property
    def idle(self) -> bool:
        """Whether no episode is under way."""
        return not self._players

    def keep(self, episodes: Container[EpisodeKey]) -> None:
        """Forget all episodes but these."""
        self._players = {key: player for key, player in self._players.items() if key[0] in episodes}

    def act(self, questions: Sequence[Question]) -> list[Decision]:
        """Return what each agent does, asked in this order. Those that follow a policy with `step_batch` are together."""
        replies: dict[int, Decision] = {}
        groups: dict[Hashable, list[int]] = {}
        for i, question in enumerate(questions):
            policy = self._players[question.episode, question.agent].role.policy
            casting = self._loaded[policy].casting
            # One that draws from global generators acts for one agent at a time: they are that agent's then.
            groups.setdefault(("batch", policy) if casting.rows and not casting.draws else i, []).append(i)
        for group in groups.values():
            first = self._players[questions[group[0]].episode, questions[group[0]].agent]
            rows = self._loaded[first.role.policy].casting.rows
            if not rows:
                replies[group[0]] = self._act_alone(first, questions[group[0]].observation)
                continue
            for start in range(0, len(group), rows):
                chunk = group[start : start + rows]
                answers = self._act_together(self._loaded[first.role.policy], [questions[i] for i in chunk])
                replies.update(zip(chunk, answers, strict=True))
        return [replies[i] for i in range(len(questions))]

    def _act_alone(self, player: _Player, observation: Observation) -> Decision:
        def step() -> Decision:  # timed inside: waiting for one's turn with the global generators is not computing
            began, busy = time.perf_counter(), time.thread_time()
            action = player.policy.step(observation)
            seconds, computed = time.perf_counter() - began, time.thread_time() - busy
            return Decision(own_copy(action), seconds, computed)  # its next may be the same array

        reply: Decision = (
            _attributed(player.role, step) if player.guard is None else _attributed(player.role, player.guard.run, step)
        )
        return reply

    def _act_together(self, loaded: _Loaded, questions: list[Question]) -> list[Decision]:
        """Ask a policy for a whole batch, always of the same number of rows: their last bits depend on it."""
        players = [self._players[question.episode, question.agent] for question in questions]
        count, missing = len(players), loaded.casting.rows - len(players)

        def step() -> list[Decision]:
            policies = [player.policy for player in players]
            observations = [question.observation for question in questions]
            if missing:
                policies += [self._extra(loaded, questions[0].agent, number) for number in range(missing)]
                observations += [copy.deepcopy(observations[0])] * missing
            began, busy = time.perf_counter(), time.thread_time()
            step_batch: Any = loaded.policy.step_batch  # type: ignore[attr-defined]  # only where there is one
            actions = list(step_batch(policies, observations))
            if len(actions) != len(policies):
                raise ValueError(
                    f"step_batch must return an action for each of {len(policies)} agents, got {len(actions)}"
                )
            seconds, computed = (time.perf_counter() - began) / count, (time.thread_time() - busy) / count
            return [Decision(own_copy(action), seconds, computed) for action in actions[:count]]

        guard = players[0].guard
        replies: list[Decision] = _attributed(players[0].role, step if guard is None else lambda: guard.run(step))
        return replies

    def _extra(self, loaded: _Loaded, agent: AgentId, number: int) -> Any:
        """Return an agent that fills up a batch: a new one each time, so that nothing can come of what it saw before."""
        if number == len(loaded.spare):
            loaded.spare.append(SeedTree(0).child("extra", number).generator())
        extra = loaded.policy.agent_policy(agent)
        reset_policy(extra, loaded.spare[number])
        return extra


def own_spaces(world: WorldSpec) -> WorldSpec:
    """Return a world's description whose spaces, with their generators, belong to whoever gets it, one for each agent."""
    return replace(
        world,
        observation_spaces={agent: copy.deepcopy(space) for agent, space in world.observation_spaces.items()},
        action_spaces={agent: copy.deepcopy(space) for agent, space in world.action_spaces.items()},
    )


def _loaded(casting: PolicyPlan, world: WorldSpec) -> _Loaded:
    return _Loaded(casting, world, casting.load(world))


def _attributed(role: AgentEpisode, function: Callable[..., Any], *args: Any) -> Any:
    """Call a policy's code; what it raises says whose it was."""
    try:
        return function(*args)
    except (Exception, SystemExit) as error:  # one that calls sys.exit() has failed, and must not end the program
        error.add_note(f"in the policy of agent {role.agent}")
        raise PolicyFailed(f"the policy of agent {role.agent} raised {error!r}", role.policy, role.agent) from error
