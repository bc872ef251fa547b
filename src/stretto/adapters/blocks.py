"""A world with several agents as a `gymnasium.Env` with a fixed layout, which is what vector environments step.

Agents of one kind (equal spaces) lie in one block, so that a policy that batches reads them without a copy. Rewards,
both flags, who is alive and who can act lie beside the observations; whoever is not there has zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array

from stretto.adapters.agents import as_agents
from stretto.adapters.base import refuse
from stretto.adapters.gymnasium import ResetDefaults, lacks_reset_defaults
from stretto.adapters.old_gym import OldGymEnv, modern
from stretto.core import SIMULTANEOUS, AgentId, AgentKind, AgentWorld, Observation, Outcome, kinds_of
from stretto.spaces import Array, Leaf, SpaceLayout, parts, row_of

_WRONG = (KeyError, IndexError, TypeError, ValueError, OverflowError)


def as_env(env: Any, turns: str = SIMULTANEOUS) -> gymnasium.Env[Any, Any]:
    """Return any world that we know how to run as a `gymnasium.Env`; `turns` is how a `TurnWorld` is played."""
    env = modern(env)
    if isinstance(env, gymnasium.Env) and turns == SIMULTANEOUS:
        return ResetDefaults(env) if lacks_reset_defaults(env) else env
    return AgentBlocks(as_agents(env, turns))


def native(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the environment as its user knows it."""
    if isinstance(env, ResetDefaults | OldGymEnv):
        return env.env
    return env.world.native if isinstance(env, AgentBlocks) else env


class AgentBlocks(gymnasium.Env[Any, Any]):
    """A world with several agents and the face of a single one.

    Its observation is a Dict: `blocks` (one entry a kind), and for all agents, kind by kind, `reward`, `terminated`,
    `truncated`, `alive` and `acting`. The arrays in it are written over by the next step. Its action is a Tuple with one
    block a kind, or a mapping by agent; actions of those who cannot act are ignored. An episode is over when nobody can
    act any more.
    """

    def __init__(self, world: AgentWorld) -> None:
        self.world = world
        self.kinds = kinds_of(world.spec())
        self.metadata = dict(getattr(world.native, "metadata", {}))
        self.render_mode = getattr(world.native, "render_mode", None)
        self.agents = [agent for kind in self.kinds for agent in kind.agents]
        count = len(self.agents)
        flags: spaces.Space[Any] = spaces.Box(0, 1, (count,), np.bool_)
        self.observation_space = spaces.Dict(
            {
                "blocks": spaces.Tuple([batch_space(k.observation_space, len(k.agents)) for k in self.kinds]),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                **dict.fromkeys(("terminated", "truncated", "alive", "acting"), flags),
            }
        )
        self.action_space = spaces.Tuple([batch_space(kind.action_space, len(kind.agents)) for kind in self.kinds])
        self._has_parts = [parts(kind.action_space) is not None for kind in self.kinds]
        self._blocks: list[tuple[slice, _Block]] = []
        first = 0
        for kind in self.kinds:
            self._blocks.append((slice(first, first := first + len(kind.agents)), _Block(kind)))
        self._reward = np.zeros(count)
        self._terminated, self._truncated, self._alive, self._acting = (np.zeros(count, np.bool_) for _ in range(4))
        self._flagged = False  # whether a flag of the step before is set
        self._there: list[bool] = []  # who was observed in the step before
        self._last_acting: tuple[AgentId, ...] = ()
        self._ended_at_once: Outcome | None = None

    @property
    def unwrapped(self) -> AgentBlocks:
        return self

    @property
    def _np_random(self) -> Any:
        return self.world.np_random

    @_np_random.setter
    def _np_random(self, generator: Any) -> None:
        self.world.np_random = generator

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        outcome, self._ended_at_once = self.world.reset(seed, options), None
        if not outcome.acting:  # whatever an episode gives in which nobody can act, its first step tells, as always
            outcome, self._ended_at_once = Outcome({}, {}, {}, {}, {}, ()), outcome
        return self._value(outcome), _filled(outcome.infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        actions = self._by_agent(action) if isinstance(action, tuple) else action
        outcome = self._ended_at_once or self.world.step(actions)
        return self._value(outcome), 0.0, not outcome.acting, False, _filled(outcome.infos)

    def _by_agent(self, blocks: tuple[Any, ...]) -> dict[AgentId, Any]:
        actions: dict[AgentId, Any] = {}
        for kind, has_parts, block in zip(self.kinds, self._has_parts, blocks, strict=True):
            rows = block
            if has_parts:
                rows = [row_of(kind.action_space, block, j) for j in range(len(kind.agents))]
            actions.update(zip(kind.agents, rows, strict=True))
        return actions

    def _value(self, outcome: Outcome) -> dict[str, Any]:
        """Write all that an outcome has into the arrays. What seldom changes is written only when it does."""
        agents, observations, rewards = self.agents, outcome.observations, outcome.rewards
        seen = [observations.get(agent, _ABSENT) for agent in agents]
        for rows, block in self._blocks:
            block.write(list(enumerate(seen[rows])))
        self._reward[:] = [rewards.get(agent, 0.0) for agent in agents]
        terminated, truncated = outcome.terminated, outcome.truncated
        ended = True in terminated.values() or True in truncated.values()
        if ended or self._flagged:
            self._terminated[:] = [terminated.get(agent, False) for agent in agents]
            self._truncated[:] = [truncated.get(agent, False) for agent in agents]
        there = [one is not _ABSENT for one in seen]
        if ended or self._flagged or there != self._there or outcome.acting != self._last_acting:
            self._acting[:] = [agent in outcome.acting for agent in agents]
            self._alive[:] = self._acting | (np.array(there) & ~(self._terminated | self._truncated))
        self._flagged, self._there, self._last_acting = ended, there, outcome.acting
        return self._arrays()

    def _arrays(self) -> dict[str, Any]:
        """Return all arrays as they are."""
        return {
            "blocks": tuple([block.value() for _, block in self._blocks]),
            "reward": self._reward,
            "terminated": self._terminated,
            "truncated": self._truncated,
            "alive": self._alive,
            "acting": self._acting,
        }

    def check_values(self) -> None:
        """Raise `InvalidOutput` where the last reward of an agent is NaN, or what it sees is out of bounds."""
        for kind, (rows, block) in zip(self.kinds, self._blocks, strict=True):
            given = zip(kind.agents, self._there[rows], self._reward[rows], strict=True)
            for j, (agent, there, reward) in enumerate(given):
                if math.isnan(reward):
                    refuse(agent, "must have a number as reward", reward)
                if there and not kind.observation_space.contains(seen := block.row(j)):
                    refuse(agent, f"must be observed within the bounds of {kind.observation_space}", seen)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.world.native, name)

    def set_wrapper_attr(self, name: str, value: Any, **_: Any) -> bool:
        setattr(self.world.native, name, value)
        return True

    def render(self) -> Any:
        return self.world.render()

    def close(self) -> None:
        self.world.close()

    def __str__(self) -> str:
        return str(self.world.native)


def _filled(infos: Mapping[AgentId, Any]) -> dict[str, Any]:
    return {agent: info for agent, info in infos.items() if info}


# ---- blocks ----


_ABSENT = object()
"""Stands for the observation of an agent that is not there."""


class _Part(NamedTuple):
    """A part of what agents of a kind observe that is one array, with a row for each of them.

    `get` takes that part out of an observation. Values of the types `scalars` are written as they are. `flat` is all of
    the array, where it may not be NaN.
    """

    array: Array
    get: Callable[[Any], Any] | None
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    scalars: tuple[type, ...]
    flat: Array | None

    @classmethod
    def of(cls, leaf: Leaf, array: Array) -> _Part:
        kind, scalar = leaf.dtype.kind, leaf.dtype.type
        scalars = () if leaf.shape else (int, scalar) if kind in "iu" else (scalar,)
        return cls(
            array,
            # itemgetter is twice as fast as a walk along the path.
            itemgetter(leaf.path[0]) if len(leaf.path) == 1 else leaf.get if leaf.path else None,
            leaf.dtype,
            leaf.shape,
            scalars,
            array.reshape(-1) if kind == "f" and array.size else None,
        )


class _Block:
    """What the agents of a kind observe: in arrays that stay the same, and lists of what has no fixed size."""

    def __init__(self, kind: AgentKind) -> None:
        count = len(kind.agents)
        self._kind, self._layout = kind, SpaceLayout(kind.observation_space)
        self._arrays = [np.zeros(shape, dtype) for shape, dtype in self._layout.shapes(count)]
        self._parts = [_Part.of(leaf, array) for leaf, array in zip(self._layout.fixed, self._arrays, strict=True)]
        self._absent = [_zero(leaf) for leaf in self._layout.loose]
        self._objects = [[zero] * count for zero in self._absent]
        self._value: Any = self._layout.batch(self._arrays, self._objects)

    def write(self, seen: Sequence[tuple[int, Observation]]) -> None:
        """Write what agents see into their rows. One of the right type and shape costs 0.3 µs for each array."""
        j, observation = 0, None
        try:
            for array, get, dtype, shape, scalars, flat in self._parts:
                for j, observation in seen:
                    if observation is _ABSENT:
                        array[j] = 0
                        continue
                    part = observation if get is None else get(observation)
                    kind = type(part)
                    if kind in scalars or (kind is np.ndarray and part.dtype == dtype and part.shape == shape):
                        array[j] = part
                    else:
                        self._convert(array[j, ...], self._kind.agents[j], part)
                # NaN counts as the largest: so it is found five times faster than by `isnan`.
                if flat is not None and math.isnan(flat.item(flat.argmax())):
                    self._check_numbers(array, seen)
            for leaf, objects, zero in zip(self._layout.loose, self._objects, self._absent, strict=True):
                for j, observation in seen:
                    objects[j] = zero if observation is _ABSENT else leaf.get(observation)
        except _WRONG:
            refuse(self._kind.agents[j], f"must be observed as {self._kind.observation_space}", observation)

    def value(self) -> Any:
        """Return what all agents see: arrays that stay the same."""
        return self._layout.batch(self._arrays, self._objects) if self._objects else self._value

    def row(self, j: int) -> Observation:
        """Return what agent number `j` sees."""
        return self._layout.row(self._arrays, self._objects, j)

    @staticmethod
    def _convert(row: Array, agent: AgentId, part: Any) -> None:
        """Write what has another type than the space, if it can stand for it."""
        given = np.asarray(part)
        if given.shape != row.shape:
            raise ValueError("it would be repeated")
        with np.errstate(over="ignore"):
            np.copyto(row, given, casting="same_kind")
        if row.dtype.kind == "f" and (np.isinf(row) & np.isfinite(given.astype(np.float64))).any():
            refuse(agent, f"must be observed by what fits into {row.dtype}", part)

    def _check_numbers(self, array: Array, seen: Sequence[tuple[int, Observation]]) -> None:
        for j, observation in seen:
            if np.isnan(array[j]).any():
                refuse(self._kind.agents[j], "must not be observed as NaN, which no Box contains", observation)


def _zero(leaf: Leaf) -> Any:
    """Return what an agent that is not there has in a part without a fixed size."""
    batch: Any = create_empty_array(leaf.space, 1)
    return None if batch is None else batch[0]
