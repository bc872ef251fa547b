"""Policies that fit every world: one that draws its actions, and one that does nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation
from stretto.errors import UsageError
from stretto.policies.masks import MaskedChoices
from stretto.seeding.streams import SEED_BITS
from stretto.spaces import assemble, map_space, parts

Draw = Callable[[np.random.Generator], Any]

IDLE_NAMES = ("noop", "wait")
"""What the action that does nothing is called, the better name first; capitals do not matter."""


class Random(MultiAgentPolicy):
    """Draws every action from the agent's own generator, uniformly where the action space is bounded.

    Where observations have an action mask, it draws among the actions that are allowed.
    """

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        seen, acted = self.world.observation_spaces[agent], self.world.action_spaces[agent]
        masked = MaskedChoices.of(seen, acted)
        return _Drawing(draw_from(acted)) if masked is None else _DrawingAllowed(masked)


class _Drawing(AgentPolicy):
    stateless = True

    def __init__(self, draw: Draw) -> None:
        self._draw = draw

    def step(self, observation: Observation) -> Action:
        return self._draw(self.rng)


class _DrawingAllowed(AgentPolicy):
    def __init__(self, choices: MaskedChoices) -> None:
        self._choices = choices

    def step(self, observation: Observation) -> Action:
        allowed = self._choices.allowed(observation)
        return self._choices.action([int(mine[self.rng.integers(len(mine))]) for mine in allowed])


class Noop(MultiAgentPolicy):
    """Takes the action called noop or wait, else the first of a discrete space, else zeros (or what is nearest to them).

    Where the world names its actions, the names belong to the agents whose action space is discrete. Where an action mask
    does not allow this, it takes the first action that is allowed.
    """

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        space = self.world.action_spaces[agent]
        action = idle_action(space)
        names = [name.lower() for name in self.world.action_names]
        if isinstance(space, spaces.Discrete):
            action += next((names.index(name) for name in IDLE_NAMES if name in names[: space.n]), 0)
        masked = MaskedChoices.of(self.world.observation_spaces[agent], space)
        return _Idle(action) if masked is None else _IdleIfAllowed(masked, action)


class _Idle(AgentPolicy):
    stateless = True

    def __init__(self, action: Action) -> None:
        self._action = action

    def step(self, observation: Observation) -> Action:
        # A world may change the array that it is given.
        return copy.deepcopy(self._action)


class _IdleIfAllowed(AgentPolicy):
    def __init__(self, choices: MaskedChoices, action: Action) -> None:
        self._choices, self._action = choices, action

    def step(self, observation: Observation) -> Action:
        idle = np.ravel(self._action - self._choices.space.start).tolist()
        allowed = self._choices.allowed(observation)
        return self._choices.action([n if n in mine else int(mine[0]) for n, mine in zip(idle, allowed, strict=True)])


# --- drawing --------------------------------------------------------------------------------------------------


def draw_from(space: spaces.Space[Any]) -> Draw:
    """Return a function that draws a value of `space`, which is a function of the generator alone.

    What follows from the space is worked out here, and not at every draw. A space of another kind draws itself: a copy
    of it, seeded from the generator each time, since the space of a world may be shared with others.
    """
    # By exact type: a subclass may hold less than its parent, and knows how to draw from that itself.
    if type(space) in {spaces.Dict, spaces.Tuple}:
        draws = [draw_from(part) for part in (parts(space) or {}).values()]
        return lambda rng: assemble(space, [draw(rng) for draw in draws])
    make: Callable[[Any], Draw] = _DRAWS.get(type(space), _draw_from_copy)
    return make(space)


def _draw_discrete(space: spaces.Discrete) -> Draw:
    start, count, scalar = int(space.start), int(space.n), space.dtype.type
    return lambda rng: scalar(start + int(rng.integers(count)))


def _draw_multi_discrete(space: spaces.MultiDiscrete) -> Draw:
    return lambda rng: (space.start + rng.integers(space.nvec)).astype(space.dtype)


def _draw_multi_binary(space: spaces.MultiBinary) -> Draw:
    return lambda rng: rng.integers(0, 2, space.shape, dtype=np.int8)


def _draw_box(space: spaces.Box) -> Draw:
    """Uniform between two bounds, exponential from one, normal without any: the distributions that Gymnasium has."""
    below, above = space.bounded_below, space.bounded_above
    first, last, dtype = cast(Any, space.low), cast(Any, space.high), cast(Any, space.dtype)
    both, whole = below & above, dtype.kind != "f"
    low, high = (
        np.where(side, bound, 0).astype(np.float64) for side, bound in ((below, space.low), (above, space.high))
    )

    def draw_bounded(rng: np.random.Generator) -> NDArray[Any]:
        if whole:
            return np.asarray(rng.integers(first, last, dtype=dtype, endpoint=True))
        share = rng.random(space.shape)
        # Two weights, not a difference of bounds: that could overflow.
        return np.asarray(np.clip(low * (1 - share) + high * share, low, high)).astype(dtype)

    def draw(rng: np.random.Generator) -> NDArray[Any]:
        bounded, tail, normal = draw_bounded(rng), rng.exponential(size=space.shape), rng.normal(size=space.shape)
        open_ended = np.select([below, above], [low + tail, high - tail], normal)
        if whole:
            # An unbounded side of an integer space still ends where its type does.
            open_ended = np.clip(np.floor(open_ended), space.low, space.high)
        return np.clip(np.where(both, bounded, open_ended.astype(dtype)), space.low, space.high)

    return draw_bounded if both.all() else draw


def _draw_from_copy(space: spaces.Space[Any]) -> Draw:
    own = copy.deepcopy(space)

    def draw(rng: np.random.Generator) -> Any:
        own.seed(int(rng.integers(1 << SEED_BITS)))
        return own.sample()

    return draw


_DRAWS: dict[type, Callable[[Any], Draw]] = {
    spaces.Discrete: _draw_discrete,
    spaces.MultiDiscrete: _draw_multi_discrete,
    spaces.MultiBinary: _draw_multi_binary,
    spaces.Box: _draw_box,
}


# --- doing nothing --------------------------------------------------------------------------------------------


def idle_action(space: spaces.Space[Any]) -> Any:
    """Return the first value of a discrete space, and of others the zeros or what is nearest to them."""
    return map_space(_idle_part, space)


def _idle_part(space: spaces.Space[Any]) -> Any:
    match space:
        case spaces.Discrete():
            return space.start
        case spaces.MultiDiscrete():
            return space.start.copy()
        case spaces.MultiBinary():
            return np.zeros(space.shape, np.int8)
        case spaces.Box():
            return np.asarray(np.clip(np.zeros(space.shape, space.dtype), space.low, space.high))
        case _:
            raise UsageError(
                f"noop plays where actions are Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple, got {space}; "
                f"choose another policy"
            )
