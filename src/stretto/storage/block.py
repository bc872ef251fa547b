"""What is stored of a block of agents, and a piece of its experience on the way into a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces

from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.spaces import Array, SpaceLayout


@dataclass(frozen=True, slots=True)
class Column:
    """An array of a buffer: what a value of it is."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Block:
    """Agents with equal spaces, whose experience lies together in arrays `(rows, lanes, agents, ...)`.

    A lane is a slot of a vector environment; whole rollouts, one behind the other, have a single one. One agent is a
    block of one. `extras` is what a policy says about its actions, such as a log-probability: shapes and types by name.
    If not every agent acts in every row, because some are dead or wait for their turn, `always_acts` is false, and each
    piece says who `acted`.
    """

    agents: tuple[AgentId, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    lanes: int = 1
    extras: Mapping[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)
    always_acts: bool = True

    def __post_init__(self) -> None:
        if not self.agents or self.lanes < 1:
            raise UsageError(
                f"a block must have an agent and a lane, got {len(self.agents)} and {self.lanes}; add what is missing"
            )
        for layout in (self.observations, self.actions):
            if layout.loose:
                leaf = layout.loose[0]
                raise UsageError(
                    f"only values of a fixed size can be stored, got {leaf.space}{leaf.name and f' in {leaf.name}'}; "
                    f"turn it into a Box"
                )

    @cached_property
    def observations(self) -> SpaceLayout:
        """How observations are taken apart."""
        return SpaceLayout(self.observation_space)

    @cached_property
    def actions(self) -> SpaceLayout:
        """How actions are taken apart."""
        return SpaceLayout(self.action_space)

    @cached_property
    def observation_columns(self) -> tuple[Column, ...]:
        """A column for each leaf of the observations."""
        return _leaf_columns("observation", self.observations)

    @cached_property
    def action_columns(self) -> tuple[Column, ...]:
        """A column for each leaf of the actions."""
        return _leaf_columns("action", self.actions)

    @cached_property
    def extra_columns(self) -> tuple[Column, ...]:
        """A column for each of the extras."""
        return tuple(Column(f"extra {name}", shape, np.dtype(dtype)) for name, (shape, dtype) in self.extras.items())

    @cached_property
    def outcome_columns(self) -> tuple[Column, ...]:
        """The columns of what a row gave, as it was: `Rows.outcome` fills them."""
        flags = ("terminated", "truncated") if self.always_acts else ("terminated", "truncated", "acted")
        numbers = (Column("reward", (), np.dtype(np.float32)), Column("final", (), np.dtype(np.int32)))
        return (*numbers, *(Column(name, (), np.dtype(np.bool_)) for name in flags))

    def rows(self, piece: Piece) -> Rows:
        """Take a piece apart into columns.

        Raises:
            UsageError: if a part of it is missing, or has another shape or type than this block has.
        """
        count = len(piece.rewards)
        grid = (count, self.lanes, len(self.agents))
        terminated = _checked("terminated", piece.terminated, grid, np.bool_)
        truncated = _checked("truncated", piece.truncated, grid, np.bool_)
        ended = terminated | truncated
        if self.always_acts is not (piece.acted is None):
            rule = "an agent that always acts" if self.always_acts else "agents that do not always act"
            raise UsageError(f"a piece must say who acted unless all always do, got {rule}; see Block.always_acts")
        if self.always_acts and piece.final_observations is None and ended[:-1].any():
            raise UsageError(
                "the last observations of agents that act in every row must be given, got ends and none; give them as "
                "final_observations, or make a block with always_acts=False and a row for each"
            )
        if piece.extras.keys() != self.extras.keys():
            raise UsageError(
                f"a piece must have the extras of its block, {sorted(self.extras)}, got {sorted(piece.extras)}; give "
                f"what the block names"
            )
        columns = _apart(self.observation_columns, self.observations, piece.observations, grid)
        columns |= _apart(self.action_columns, self.actions, piece.actions, grid)
        for column in self.extra_columns:
            value = piece.extras[column.name.removeprefix("extra ")]
            columns[column.name] = _checked(column.name, value, (*grid, *column.shape), column.dtype)
        following = _apart(self.observation_columns, self.observations, piece.next_observations, grid[1:])
        if piece.final_observations is None:
            finals = _next_rows(columns, following, ended)
        else:
            ends = int(np.count_nonzero(ended))
            finals = _apart(self.observation_columns, self.observations, piece.final_observations, (ends,))
        return Rows(
            count=count,
            columns=columns,
            rewards=_checked("rewards", piece.rewards, grid, np.float32),
            terminated=terminated,
            truncated=truncated,
            ended=ended,
            acted=None if piece.acted is None else _checked("acted", piece.acted, grid, np.bool_),
            following=following,
            finals=finals,
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of experience: a segment of all lanes, or a whole rollout in the single lane of its block.

    All arrays but the last two observations have the axes `(rows, lanes, agents)` in front. `next_observations`
    `(lanes, agents, ...)` is what follows the last row. `final_observations` has the last observation of each agent that
    ended, in the order of `np.nonzero(terminated | truncated)`; what follows such a row begins another episode. Without
    them, the last observation of an agent is in the row after its end, in which it did not act. An agent ends in the row
    that brought its end, whether or not it acted in it.
    """

    observations: Any
    actions: Any
    rewards: Array
    terminated: Array
    truncated: Array
    next_observations: Any
    final_observations: Any = None
    acted: Array | None = None
    extras: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rows:
    """A piece in columns."""

    count: int
    columns: dict[str, Array]
    rewards: Array
    terminated: Array
    truncated: Array
    ended: Array
    acted: Array | None
    following: dict[str, Array]
    finals: dict[str, Array]

    def outcome(self, finals: Array) -> dict[str, Array]:
        """Return the columns of what each row gave; `finals` are the places of last observations."""
        flags = {"terminated": self.terminated, "truncated": self.truncated}
        acted = {} if self.acted is None else {"acted": self.acted}
        return {"reward": self.rewards, "final": finals, **flags, **acted}


def _leaf_columns(name: str, layout: SpaceLayout) -> tuple[Column, ...]:
    return tuple(Column(f"{name}{leaf.name}", leaf.shape, leaf.dtype) for leaf in layout.fixed)


def _apart(columns: Sequence[Column], layout: SpaceLayout, value: Any, axes: tuple[int, ...]) -> dict[str, Array]:
    return {
        column.name: _checked(column.name, leaf.get(value), (*axes, *column.shape), column.dtype)
        for column, leaf in zip(columns, layout.fixed, strict=True)
    }


def _next_rows(columns: Mapping[str, Array], following: Mapping[str, Array], ended: Array) -> dict[str, Array]:
    """Return the observations in the rows after ends."""
    rows, lanes, agents = np.nonzero(ended)
    inside = rows + 1 < len(ended)
    found = {}
    for name, after in following.items():
        found[name] = columns[name][np.where(inside, rows + 1, 0), lanes, agents]
        found[name][~inside] = after[lanes[~inside], agents[~inside]]
    return found


def _checked(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    array = np.asarray(value)
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UsageError(
            f"{name} of a piece must be {np.dtype(dtype)} of shape {shape}, got {array.dtype} of {array.shape}; give "
            f"arrays with the axes (rows, lanes, agents) in front"
        )
    return array
