"""Actors: policies of one process, and the agents that follow them. How an action is computed exists here alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from stretto.core import (
    Action,
    AgentId,
    BlockAnswer,
    BlockPolicy,
    MultiAgentPolicy,
    Observation,
    PolicyStep,
    WorldSpec,
    own_copy,
)
from stretto.errors import PolicyFailed, UsageError
from stretto.policies.batches import Batches, Call, probe_rows
from stretto.policies.block_actors import BlockActors
from stretto.policies.identity import loading_name
from stretto.policies.loading import FunctionPolicy, load_policy, reset_policy
from stretto.policies.spec import PolicySpec
from stretto.policies.states import map_state
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import Array, SpaceLayout, map_space

__calls_user_code__ = True

EpisodeKey = Hashable


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """What the plan fixes about one policy: which global generators it draws from, and the rows of its batches.

    `draws` is `None` where that has to be found out. `rows` does not matter where the policy has no `step_batch`; nor do the
    planned rows of agents where they are `interchangeable`. `seed` is for what it draws while it is loaded, such as
    weights: it is loaded in several processes, and must be the same in each. `blocks`: its agents are asked by blocks, which
    one process computes as a whole. In whichever process, it computes with `native_threads`: their number can change the
    last bits. In the first `measured` steps of an agent it is also measured for how long it computes: to ask for that takes
    0.3 µs on some machines, 20 on others.
    """

    spec: PolicySpec
    draws: frozenset[str] | None = frozenset()
    rows: int = 0
    seed: int = 0
    blocks: bool = False
    native_threads: int = 1
    measured: int = 0
    interchangeable: bool = False

    def load(self, world: WorldSpec) -> MultiAgentPolicy:
        """Build the policy; it may draw from the spaces in `world`, which therefore must be nobody else's."""
        tree = SeedTree(self.seed).child("load", loading_name(self.spec))
        return PrivateGenerators(tree, probation=1 << 62).run_repeatable(load_policy, self.spec, world)


@dataclass(frozen=True, slots=True)
class AgentEpisode:
    """One agent in one episode: which policy it follows, the root of its random numbers, and its row.

    `row` is the number of its row in the batches of a policy that acts for many at once. It decides last bits, so it must
    follow from who this is (the number of the episode, and of the agent in it), never from who else is there. Numbers go on
    and on: the rows of an episode's agents follow each other, and those of the next episode follow them.
    """

    episode: EpisodeKey
    agent: AgentId
    policy: int
    tree: SeedTree
    row: int = 0


class Question(NamedTuple):
    """An agent, which follows the policy with this number, has to act."""

    episode: EpisodeKey
    agent: AgentId
    policy: int
    observation: Observation


class Block(NamedTuple):
    """Agents that follow one policy have to act, in several slots at once.

    `observations` is a batch of the agents' space with two leading axes, slots and agents, and is not taken apart for a
    `BlockPolicy`; `acting` says by slot and agent who acts, and `episodes` in which episode each slot is.
    """

    policy: int
    episodes: Sequence[EpisodeKey]
    agents: Sequence[AgentId]
    observations: Any
    acting: Array


class Decision(NamedTuple):
    """What it does, how long choosing that took, for how much of that time it computed, and what it says about it.

    The third is 0 where it is not measured.
    """

    action: Action
    seconds: float
    busy_seconds: float = 0.0
    says: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Player:
    """An agent in an episode; `step` is its policy's, and `measured` how many more of its steps are measured."""

    who: AgentEpisode
    agent: AgentId
    row: int
    policy: Any
    step: Callable[[Observation], Action]
    guard: PrivateGenerators | None
    measured: int


class _Loaded:
    """A policy that is there. It has `batches` unless it acts for one agent at a time."""

    def __init__(self, plan: PolicyPlan, world: WorldSpec) -> None:
        self.plan, self.world = plan, own_spaces(world)
        self.policy = plan.load(self.world)
        self.can_batch = isinstance(self.policy, BlockPolicy) or callable(getattr(self.policy, "step_batch", None))
        self.batches: Batches | None = None
        self.block: BlockActors | None = None
        if isinstance(self.policy, BlockPolicy):
            self.block = BlockActors(self.policy, self.world, plan.rows, interchangeable=plan.interchangeable)
        elif plan.rows and self.can_batch:
            self.batches = Batches(self.policy, self.world, plan.rows, interchangeable=plan.interchangeable)
        self.drawn: set[str] = set()
        self._layouts: dict[AgentId, SpaceLayout] = {}

    def action_layout(self, agent: AgentId) -> SpaceLayout:
        """Return how an agent's actions lie in arrays."""
        if agent not in self._layouts:
            self._layouts[agent] = SpaceLayout(self.world.action_spaces[agent])
        return self._layouts[agent]


class Actors:
    """Loads each policy once, and makes a fresh agent policy for every agent of an episode."""

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec) -> None:
        self._loaded = [_Loaded(plan, world) for plan in plans]
        self._players: dict[tuple[EpisodeKey, AgentId], _Player] = {}
        self._agents_of: dict[EpisodeKey, set[AgentId]] = {}
        self._one_by_one = not any(loaded.batches or loaded.block for loaded in self._loaded)
        self._begun: set[tuple[EpisodeKey, int]] = set()  # episodes that policies were told of
        self.version = 0

    def drawn(self, policy: int) -> frozenset[str]:
        """Return which global generators a policy has drawn from, of those that are watched."""
        return frozenset(self._loaded[policy].drawn)

    def batches(self, policy: int) -> bool:
        """Whether a policy can act for many agents at once."""
        return self._loaded[policy].can_batch

    def probe_rows(self, policy: int, rows: int, on_call: Callable[[], None]) -> bool:
        """Whether it is the same for a policy in which of so many rows an agent stands; `on_call` after each call of it."""
        loaded = self._loaded[policy]
        return probe_rows(loaded.policy, loaded.world, rows, on_call)

    def publish(self, version: int, weights: Mapping[int, Mapping[str, Array]]) -> None:
        """Let policies, given by their numbers, act with other weights from now on."""
        for policy, arrays in weights.items():
            loaded = self._loaded[policy]
            set_weights = getattr(loaded.policy, "set_weights", None)
            if set_weights is None:
                raise UsageError(f"weights are for a policy with set_weights, got some for {loaded.plan.spec.name!r}")
            set_weights(arrays)
        self.version = version

    def begin(self, agents: Iterable[AgentEpisode]) -> None:
        """Make the agent policies of an episode, or of some agents in it."""
        for who in agents:
            loaded = self._loaded[who.policy]
            self._agents_of.setdefault(who.episode, set()).add(who.agent)
            self._tell_of_episode(loaded.policy, who)
            if loaded.block is not None:
                loaded.block.begin(who.episode, who.agent, who.row, who.tree)
                self._players[who.episode, who.agent] = _Player(
                    who, who.agent, who.row, loaded.policy, _asked_by_block, None, 0
                )
                continue
            guard, draws = None, loaded.plan.draws
            if draws is None or draws:
                probation = 1 << 62 if draws is None else 0
                guard = PrivateGenerators(who.tree.child("global"), probation, draws or ())
            self._players[who.episode, who.agent] = self._player(loaded, who, guard)

    def _tell_of_episode(self, policy: Any, who: AgentEpisode) -> None:
        """Let a policy that wants to know that an episode begins hear of it before its first agent is made."""
        begin_episode = getattr(policy, "begin_episode", None)
        if begin_episode is None or (who.episode, who.policy) in self._begun:
            return
        self._begun.add((who.episode, who.policy))
        try:
            begin_episode(who.episode)
        except (Exception, SystemExit) as error:
            raise _failed(who, error) from error

    def _player(self, loaded: _Loaded, who: AgentEpisode, guard: PrivateGenerators | None) -> _Player:
        def make() -> Any:
            if isinstance(loaded.policy, FunctionPolicy):  # two generators that nobody draws from would take 20 µs
                return loaded.policy.agent_policy(who.agent)
            # Policies like to sample their actions from the space: these numbers too are the agent's own.
            loaded.world.action_spaces[who.agent].seed(who.tree.child("space").seed())
            policy = loaded.policy.agent_policy(who.agent)
            reset_policy(policy, who.tree.generator())
            return policy

        try:
            policy = make() if guard is None else guard.run_repeatable(make)
            return _Player(who, who.agent, who.row, policy, policy.step, guard, loaded.plan.measured)
        except (Exception, SystemExit) as error:
            raise _failed(who, error) from error

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""
        self._forget([(episode, agent) for agent in self._agents_of.pop(episode, ())])

    @property
    def idle(self) -> bool:
        """Whether no episode is under way."""
        return not self._players

    def keep(self, episodes: Container[EpisodeKey]) -> None:
        """Forget all episodes but these."""
        for episode in [one for one in self._agents_of if one not in episodes]:
            self.end(episode)

    def _forget(self, keys: Iterable[tuple[EpisodeKey, AgentId]]) -> None:
        for key in keys:
            player = self._players.pop(key, None)
            if player is None:  # it could not be made
                continue
            if (block := self._loaded[player.who.policy].block) is not None:
                block.end(key[0])
            self._begun.discard((key[0], player.who.policy))
            if player.guard is not None:
                self._loaded[player.who.policy].drawn |= player.guard.drawn

    def groups(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return which questions are answered together, by their indices: those for a policy with `step_batch`."""
        groups: dict[Hashable, list[int]] = {}
        for i, (episode, agent, policy, _) in enumerate(questions):
            # One that draws from global generators acts for one agent at a time: they are that agent's then.
            loaded = self._loaded[policy]
            together = (loaded.batches or loaded.block) and self._players[episode, agent].guard is None
            groups.setdefault(("batch", policy) if together else i, []).append(i)
        return list(groups.values())

    def act(self, questions: Sequence[Question]) -> list[Decision]:
        """Return what each agent does, asked in this order. Those that follow a policy with `step_batch` are together."""
        players = [self._players[question[:2]] for question in questions]
        if self._one_by_one:
            return [_act(player, question[3]) for player, question in zip(players, questions, strict=True)]
        decisions: dict[int, Decision] = {}
        for group in self.groups(questions):
            loaded = self._loaded[questions[group[0]].policy]
            if loaded.block is not None:
                answers = _act_by_block(loaded.block, [players[i] for i in group], [questions[i] for i in group])
                decisions.update(zip(group, answers, strict=True))
                continue
            if loaded.batches is None:
                decisions[group[0]] = _act(players[group[0]], questions[group[0]].observation)
                continue
            asked, seen = [players[i] for i in group], [questions[i].observation for i in group]
            for call in loaded.batches.calls(asked):
                answers = _act_together(loaded, call, asked, seen)
                if len(answers) == len(questions):  # all of them, and in their order
                    return answers
                decisions.update(zip([group[k] for k in call.places.values()], answers, strict=True))
        return [decisions[i] for i in range(len(questions))]

    def chooser(
        self, episode: EpisodeKey, agent: AgentId
    ) -> tuple[Callable[[Observation], Any], Callable[[BaseException], PolicyFailed]]:
        """Return what chooses for one agent of an episode, with nothing around it, and what says who failed if it raises."""
        player = self._players[episode, agent]
        step = player.step if player.guard is None else partial(player.guard.run, player.step)
        return step, partial(_failed, player.who)

    def act_block(self, block: Block) -> BlockAnswer:
        """Return what the agents of a block do: batches with the same leading axes. Whoever does not act has zeros."""
        loaded = self._loaded[block.policy]
        if loaded.block is None:
            return self._act_rows(loaded, block)
        try:
            return loaded.block.act(block.episodes, block.agents, block.observations, block.acting)
        except (Exception, SystemExit) as error:
            s, j = np.argwhere(block.acting)[0]
            raise _failed(self._players[block.episodes[s], block.agents[j]].who, error, together=True) from error

    def _act_rows(self, loaded: _Loaded, block: Block) -> BlockAnswer:
        """Take a block apart for a policy that does not take it as it is."""
        first = block.agents[0]
        seen, layout = loaded.world.observation_spaces[first], loaded.action_layout(first)
        whom = [(s, j) for s, row in enumerate(block.acting.tolist()) for j, on in enumerate(row) if on]
        if isinstance(block.observations, np.ndarray):
            views = [block.observations[place].copy() for place in whom]
        else:
            views = [
                map_space(lambda _, part, s=s, j=j: own_copy(part[s][j]), seen, block.observations) for s, j in whom
            ]
        questions = [
            Question(block.episodes[s], block.agents[j], block.policy, view)
            for (s, j), view in zip(whom, views, strict=True)
        ]
        decisions = self.act(questions)
        size = len(block.episodes), len(block.agents)
        arrays = [np.zeros((*size, *leaf.shape), leaf.dtype) for leaf in layout.fixed]
        objects = [[[None] * size[1] for _ in range(size[0])] for _ in layout.loose]
        for place, decision in zip(whom, decisions, strict=True):
            for array, leaf in zip(arrays, layout.fixed, strict=True):
                array[place] = leaf.get(decision.action)
            for values, leaf in zip(objects, layout.loose, strict=True):
                values[place[0]][place[1]] = leaf.get(decision.action)
        return BlockAnswer(layout.batch(arrays, objects), None, _said(whom, decisions, size))


def _said(whom: Sequence[tuple[int, int]], decisions: Sequence[Decision], size: tuple[int, int]) -> dict[str, Any]:
    """Put together what policies said about their actions; whoever did not act has zeros."""
    if not decisions or decisions[0].says is None:
        return {}

    def column(*parts: Any) -> Array:
        first = np.asarray(parts[0])
        array = np.zeros((*size, *first.shape), first.dtype)
        for place, part in zip(whom, parts, strict=True):
            array[place] = part
        return array

    said: dict[str, Any] = map_state(column, *(dict(decision.says or {}) for decision in decisions))
    return said


def _act(player: _Player, observation: Observation) -> Decision:
    """Let one agent choose."""
    try:
        if player.guard is None and not player.measured:  # the common case, with nothing around it
            began = time.perf_counter()
            action = player.step(observation)
            seconds = time.perf_counter() - began
            if type(action) is PolicyStep:
                return Decision(own_copy(action.action), seconds, says=own_copy(dict(action.says)))
            return Decision(own_copy(action), seconds)  # its next may be the same array
        return (
            _measure(player, observation) if player.guard is None else player.guard.run(_measure, player, observation)
        )
    except (Exception, SystemExit) as error:
        raise _failed(player.who, error) from error


def _measure(player: _Player, observation: Observation) -> Decision:
    """Let one agent choose, and measure it: within, as waiting for one's turn with the global generators is no computing."""
    player.measured = max(0, player.measured - 1)
    began, busy = time.perf_counter(), time.thread_time() if player.measured else 0.0
    action = player.step(observation)
    seconds, computed = time.perf_counter() - began, time.thread_time() - busy if player.measured else 0.0
    action, says = action if isinstance(action, PolicyStep) else (action, None)
    return Decision(own_copy(action), seconds, computed, None if says is None else own_copy(dict(says)))


def _act_together(
    loaded: _Loaded, call: Call, players: Sequence[_Player], observations: Sequence[Observation]
) -> list[Decision]:
    """Ask a policy for a whole batch; return what those do who have a place in the call."""
    batches, step_batch = cast(Batches, loaded.batches), cast(Any, loaded.policy).step_batch
    first = players[next(iter(call.places.values()))]

    def step() -> list[Decision]:
        policies, seen = batches.fill(call, players, observations)
        began = time.perf_counter()
        actions = list(step_batch(policies, seen))
        if len(actions) != len(policies):
            raise ValueError(f"step_batch must return an action for each of {len(policies)} agents, got {len(actions)}")
        seconds = (time.perf_counter() - began) / len(call.places)
        return [Decision(own_copy(actions[place]), seconds) for place in call.places]

    try:
        return step() if first.guard is None else first.guard.run(step)
    except (Exception, SystemExit) as error:
        raise _failed(first.who, error, together=len(call.places) > 1) from error


def _act_by_block(block: BlockActors, players: Sequence[_Player], questions: Sequence[Question]) -> list[Decision]:
    """Ask a policy that takes blocks for agents who are asked one by one."""
    began = time.perf_counter()
    try:
        actions = block.answer([(one.episode, one.agent, one.observation) for one in questions])
    except (Exception, SystemExit) as error:
        raise _failed(players[0].who, error, together=len(players) > 1) from error
    seconds = (time.perf_counter() - began) / len(players)
    return [Decision(own_copy(action), seconds) for action in actions]


def _asked_by_block(_: Observation) -> Action:
    raise AssertionError("agents of a policy that takes blocks are asked together")


def own_spaces(world: WorldSpec) -> WorldSpec:
    """Return a world's description whose spaces, with their generators, belong to whoever gets it, one for each agent."""
    return replace(
        world,
        observation_spaces={agent: copy.deepcopy(space) for agent, space in world.observation_spaces.items()},
        action_spaces={agent: copy.deepcopy(space) for agent, space in world.action_spaces.items()},
    )


def _failed(who: AgentEpisode, error: BaseException, *, together: bool = False) -> PolicyFailed:
    """Say whose policy raised. One that calls sys.exit() has failed, too, and must not end the program."""
    error.add_note(f"in the policy of agent {who.agent}")
    failed = PolicyFailed(f"the policy of agent {who.agent} raised {error!r}", who.policy, who.agent)
    failed.together = together
    return failed
