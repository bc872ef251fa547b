"""What worlds and policies are to Stretto: protocols, and the records that pass between its parts."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from gymnasium import spaces

AgentId = str
EpisodeKey = Hashable
Action = Any
Observation = Any
WorldStatistics = Mapping[str, float | Mapping[AgentId, float]]
"""Numbers that describe an episode, by name: of the world, or of each agent."""


@dataclass(slots=True)
class TurnEnd:
    """What a turn gave, by agent: a reward, whether its episode ended (and how), and an info.

    Agents that were alive when the turn began are in all four; those that ended are not in `agents` any more.
    """

    rewards: dict[AgentId, float]
    terminated: dict[AgentId, bool]
    truncated: dict[AgentId, bool]
    infos: dict[AgentId, dict[str, Any]]


@runtime_checkable
class TurnWorld(Protocol):
    """A game in which one agent's move may change what the next one sees.

    A turn is `begin_turn`, then for each agent in the order of `agents`, if it `can_act`, `observe` and `act`, and then
    `end_turn`. Whether all observe before the first acts is up to whoever runs it (see `AgentWorld`). For one seed,
    everything is a function of the actions. A game may also offer `statistics()`: numbers that describe the episode so
    far, by name, or by name and agent; and `save_replay(path)`, which writes the episode to a file of its own kind.

    Two more make sequential turns faster. `observe_many(agents)` returns what `observe` returns for each of them, as a
    list. `changed(agent)` says whether an agent that has not acted yet may see something else than when the turn began,
    just after `begin_turn`; it may say yes in doubt.
    """

    possible_agents: Sequence[AgentId]
    agents: list[AgentId]
    metadata: dict[str, Any]
    render_mode: str | None

    def observation_space(self, agent: AgentId) -> spaces.Space[Any]:
        """The space of what an agent observes; always the same object for one agent."""

    def action_space(self, agent: AgentId) -> spaces.Space[Any]:
        """The space of what an agent may do; always the same object for one agent."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin an episode; without a seed, go on with the stream of the one before."""

    def begin_turn(self) -> None:
        """Let everything move that is no agent."""

    def can_act(self, agent: AgentId) -> bool:
        """Whether an agent may act in this turn."""

    def observe(self, agent: AgentId) -> Observation:
        """Return what an agent sees now: a fresh array. Changes nothing, and draws no random numbers."""

    def act(self, agent: AgentId, action: Action) -> None:
        """Let an agent act at once."""

    def end_turn(self) -> TurnEnd:
        """Close the turn, and say what it gave to whom."""

    def render(self) -> Any:
        """Return an RGB image of the world, or `None` where `render_mode` is not `"rgb_array"`."""

    def close(self) -> None:
        """Let go of everything; may be called twice."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """What a policy may know of the world before it plays: who acts in it, what they see, what they can do."""

    agents: tuple[AgentId, ...]
    observation_spaces: Mapping[AgentId, spaces.Space[Any]]
    action_spaces: Mapping[AgentId, spaces.Space[Any]]
    action_names: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AgentKind:
    """Agents with equal spaces, in the order of `possible_agents`."""

    agents: tuple[AgentId, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]


def kinds_of(spec: WorldSpec) -> list[AgentKind]:
    """Group the agents that a world may ever have by their spaces."""
    found: list[tuple[spaces.Space[Any], spaces.Space[Any], list[AgentId]]] = []
    for agent in spec.agents:
        seen, acted = spec.observation_spaces[agent], spec.action_spaces[agent]
        for observation_space, action_space, members in found:
            if seen == observation_space and acted == action_space:
                members.append(agent)
                break
        else:
            found.append((seen, acted, [agent]))
    return [AgentKind(tuple(members), seen, acted) for seen, acted, members in found]


SIMULTANEOUS, SEQUENTIAL = TURNS = ("simultaneous", "sequential")
"""The turn modes of a `TurnWorld`: all observe before the first acts, or each after the one before it has acted."""

SPECULATIVE, AUTO = "speculative", "auto"
WAYS_TO_PLAY_TURNS = (*TURNS, SPECULATIVE, AUTO)
"""How whoever has policies plays a `TurnWorld`. The last two have the result of sequential turns, and compute it in another
way: agents choose before it is their turn, and again if they see something else by then; or in whichever way is faster."""


def turns_of(way: str) -> str:
    """Return the turn mode whose result a way to play turns has; `AUTO` plays other worlds as they are."""
    return SIMULTANEOUS if way == SIMULTANEOUS else SEQUENTIAL


@dataclass(slots=True)
class Outcome:
    """What a reset or a step gave, by agent.

    Observed are all who are left, and for the last time those whose episode ended in this step. Rewards, ends and infos
    are of all who were there when the step began. `acting` are those who can act next, in the order in which they act:
    nobody, if the episode is over. Observations may be looked at only until the next step: ask for those you need.

    In sequential turns, an outcome with which a turn begins says who else could act in it, if nothing changed before it is
    their turn: `ahead`, in their order. It is `None` in the middle of a turn, and in simultaneous turns.
    """

    observations: Mapping[AgentId, Observation]
    rewards: dict[AgentId, float]
    terminated: dict[AgentId, bool]
    truncated: dict[AgentId, bool]
    infos: dict[AgentId, dict[str, Any]]
    acting: tuple[AgentId, ...]
    ahead: tuple[AgentId, ...] | None = None


class AgentWorld(Protocol):
    """Any world by agent: what evaluations and vector environments step, whoever made it.

    A step lets those act who are `acting`. Turns in which nobody can act are no steps of their own: they are skipped, and
    the step before them has their rewards, ends and infos, added to its own. (Before the first step, it is the first
    step that has them, or the reset, if nobody can ever act.)

    In simultaneous turns all observe, and then all act in their order; who can no longer act when it is their turn is
    passed over. In sequential turns each observes after the one before has acted: a step lets just one agent act, and
    the one of the last agent has what the turn gave.
    """

    native: Any
    """The world as its user made it, with all wrappers."""

    np_random: np.random.Generator | None
    """The stream that the world draws from, if it shows one; whoever restores a world reads and sets it."""

    def spec(self) -> WorldSpec:
        """Say who acts, what they see and what they can do."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        """Begin an episode; without a seed, go on with the stream of the one before."""

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        """Let those act who can: each must have an action. Actions of others are ignored."""

    def statistics(self) -> WorldStatistics:
        """Return the numbers by which the world describes its episode, if it has any."""

    def save_replay(self, path: str) -> str | None:
        """Let the world write its episode to a file of its own kind; return which, or `None` if it does not do that."""

    def render(self) -> Any:
        """Return what the world's own `render` returns."""

    def close(self) -> None:
        """Let go of the world."""


class AgentWorlds(Protocol):
    """Worlds by slot that are played together: in this process, or behind workers.

    A reset or a step of some slots gives an outcome for each of them, or what its world raised.
    """

    count: int

    @property
    def spec(self) -> WorldSpec:
        """Who acts in each of them, what they see and what they can do."""

    def reset(self, episodes: Mapping[int, NextEpisode]) -> Mapping[int, Outcome | BaseException]:
        """Begin episodes in some slots."""

    def step(self, actions: Mapping[int, Mapping[AgentId, Action]]) -> Mapping[int, Outcome | BaseException]:
        """Let those act, in some slots, who can."""

    def alone(self, slot: int) -> Callable[[Mapping[AgentId, Action]], Outcome] | None:
        """Return what steps a slot's world until its next reset, and raises what it raises; `None` where there are others."""

    def statistics(self, slot: int) -> WorldStatistics:
        """Return the numbers by which a slot's world describes its episode, if it has any."""

    def render(self, slot: int) -> Any:
        """Return what the world's own `render` returns."""

    def close(self) -> None:
        """Let go of the worlds; may be called twice."""


_SAME_FOR_ALL = frozenset(
    {int, float, str, np.int64, np.float32, np.float64}
)  # asked first: it takes a third of the time
_IMMUTABLE = (int, float, complex, str, bytes, type(None), np.number, np.bool_)


def own_copy(value: Any) -> Any:
    """Return an observation or an action for somebody who may keep it and change it: its arrays are copies.

    These are always in C order: the last bits of what is computed from an array may depend on its layout.
    """
    kind = type(value)
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind in _SAME_FOR_ALL or isinstance(value, _IMMUTABLE):
        return value
    if kind is dict:
        return {key: own_copy(part) for key, part in value.items()}
    if kind is OrderedDict:
        return kind((key, own_copy(part)) for key, part in value.items())
    if kind is tuple or kind is list:
        return kind(map(own_copy, value))
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make(map(own_copy, value))
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  what cannot be copied cannot be sent elsewhere either: everybody has the same
        return value


def is_same(one: Any, other: Any) -> bool:
    """Whether two observations are the same to the last bit; values that cannot be compared are not."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is np.ndarray:
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and (not one.dtype.hasobject) and one.tobytes() == other.tobytes())
    if isinstance(one, np.generic):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if kind is float:
        return bool(one.hex() == other.hex())
    if kind is dict or kind is OrderedDict:
        return list(one) == list(other) and all(is_same(part, other[key]) for key, part in one.items())
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, _COMPARABLE) and one == other


_COMPARABLE = (int, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class NextEpisode:
    """What a slot is to play next: how its next automatic reset is seeded, and with which options.

    Without a seed it goes on as it would have. An `idle` slot plays nothing until it is reset: its world is not stepped,
    and its rows mean nothing.
    """

    seed: int | None = None
    options: Mapping[str, Any] | None = None
    idle: bool = False


class AgentPolicy:
    """Chooses the actions of one agent in one episode. It may keep any state: nobody else ever has it.

    Subclasses define `step`. `reset` is called once, before the first step. The numbers of its generator depend only on
    the evaluation's seed, the episode and the agent.

    In speculative turns an agent may have to choose again. That is possible if its policy is `stateless`: all that a step
    changes is its `rng`. Or it offers `snapshot()`, which returns all that a step may change, beside the `rng`; and
    `restore(snapshot)`, which goes back there.
    """

    rng: np.random.Generator
    stateless: bool = False

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode."""
        self.rng = rng

    def step(self, observation: Observation) -> Action:
        """Return what to do."""
        raise NotImplementedError


class MultiAgentPolicy:
    """What the agents that follow a policy share, such as weights; built once in each worker.

    A policy that can choose for many agents at once also defines

        step_batch(self, agent_policies, observations) -> actions

    Each list has one entry for each agent. If `step_batch` is defined, it is always used. All batches have one size, and
    every agent of every episode has a fixed row in them. The last bits of many libraries depend on both. Because both are
    part of the plan, results do not depend on where agents are computed. A row that nobody needs is filled with a new
    agent policy. It sees what another agent of its kind sees, or any value of its observation space.

    `rows_interchangeable` says whether an agent's action is the same, to the last bit, in every row and beside any other
    agents. If so, an agent may be asked in any of its rows, which can save calls. If it is `None`, the policy is probed
    when a run starts. The probe says yes only if actions are floats and are not drawn.

    Results must not depend on what a policy keeps from one episode to the next: episodes are played in any order, and
    each process has a policy of its own. A policy can define

        begin_episode(self, episode)

    It is called with the number of the episode before the first of its agents is made. Policies with `step_batch` play
    several episodes at once.

    A subclass of `BlockPolicy` computes many agents in one pass, as a function of arrays. A policy that learns has
    `set_weights(self, weights)`, which is given arrays by name.
    """

    rows_interchangeable: bool | None = None

    def __init__(self, world: WorldSpec) -> None:
        self.world = world

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        """Return a fresh policy for one agent and one episode."""
        raise NotImplementedError


class PolicyStep(NamedTuple):
    """What `AgentPolicy.step` may return in place of an action: the action, and what the policy says about it by name.

    Whoever collects experience records that: a log-probability, a value, a hidden state, any arrays.
    """

    action: Action
    says: Mapping[str, Any]


class BlockAnswer(NamedTuple):
    """What `BlockPolicy.step_block` returns: actions, the states that agents have now, and what it says by name."""

    actions: Any
    states: Any = None
    says: Mapping[str, Any] = {}


class ChoiceStreams(Protocol):
    """The random numbers of one choice of many agents, each from its own stream: see `seeding.choices`."""

    def uniform(self, count: int, part: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return numbers of at least 0 and less than 1, with a last axis of `count`."""

    def normal(self, count: int, part: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return numbers of the standard normal distribution, with a last axis of `count`."""


class BlockPolicy(MultiAgentPolicy):
    """A policy that computes many agents in one pass; all that it remembers of an agent is in that agent's state.

    Arrays have two leading axes: the agents that follow the policy, in the world's order, and rows. Their sizes are fixed
    by the plan, and an episode stands in the same row in every call: so results depend neither on how many episodes are
    played at once nor on where.
    """

    def initial_state(self) -> Any:
        """Return the state in which an agent begins: arrays in any structure, or `None` if nothing is remembered."""
        return None

    def of_kind(self, agents: Sequence[AgentId]) -> BlockPolicy:
        """Return what chooses for these agents, all of one kind; by default one policy chooses for every kind."""
        return self

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        """Choose for all rows; random numbers come from `choices`, which has a stream for each place."""
        raise NotImplementedError
