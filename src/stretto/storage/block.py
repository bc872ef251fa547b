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
    """

    agents: tuple[AgentId, ...]
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]
    lanes: int = 1
    extras: Mapping[str, tuple[tuple[int, ...], Any]] = field(default_factory=dict)

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
        flags = (Column(name, (), np.dtype(np.bool_)) for name in ("terminated", "truncated", "acted"))
        return (Column("reward", (), np.dtype(np.float32)), *flags)

    def rows(self, piece: Piece) -> Rows:
        """Take a piece apart into columns.

        Raises:
            UsageError: if a part of it is missing, or has another shape or type than this block has.
        """
        count = len(piece.rewards)
        grid = (count, self.lanes, len(self.agents))
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
        following = None
        if piece.next_observations is not None:
            following = _apart(self.observation_columns, self.observations, piece.next_observations, grid[1:])
        rows = Rows(
            columns=columns,
            rewards=_checked("rewards", piece.rewards, grid, np.float32),
            terminated=_checked("terminated", piece.terminated, grid, np.bool_),
            truncated=_checked("truncated", piece.truncated, grid, np.bool_),
            acted=_checked("acted", piece.acted, grid, np.bool_),
            following=following,
        )
        _check_ends(rows)
        return rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive rows of experience, as a collector writes them: a segment of all lanes, or a whole rollout in one lane.

    All arrays but `next_observations` have the axes `(rows, lanes, agents)` in front. What follows a row is always the next
    one: the last observation of an episode has a row of its own, in which its agent did not act. An agent ends in the row
    that brought its end, whether or not it `acted` in it. `next_observations` `(lanes, agents, ...)` follow the last row;
    `None` says that nothing does, because every agent has ended before it. They may be `provisional`: agents
    whose turn it is not yet may see something else when they act.
    """

    observations: Any
    actions: Any
    acted: Array
    rewards: Array
    terminated: Array
    truncated: Array
    next_observations: Any = None
    extras: Mapping[str, Array] = field(default_factory=dict)
    provisional: bool = False


@dataclass(frozen=True)
class Rows:
    """A piece in columns."""

    columns: dict[str, Array]
    rewards: Array
    terminated: Array
    truncated: Array
    acted: Array
    following: dict[str, Array] | None

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.rewards)

    @cached_property
    def ended(self) -> Array:
        """Which agents ended in which rows."""
        return self.terminated | self.truncated

    def lane(self, lane: int) -> Rows:
        """Return the rows of a single lane."""
        mine = slice(lane, lane + 1)
        return Rows(
            columns={name: values[:, mine] for name, values in self.columns.items()},
            rewards=self.rewards[:, mine],
            terminated=self.terminated[:, mine],
            truncated=self.truncated[:, mine],
            acted=self.acted[:, mine],
            following=None if self.following is None else {name: one[mine] for name, one in self.following.items()},
        )

    @property
    def outcome(self) -> dict[str, Array]:
        """The columns of what each row gave."""
        flags = {"terminated": self.terminated, "truncated": self.truncated, "acted": self.acted}
        return {"reward": self.rewards, **flags}


def _check_ends(rows: Rows) -> None:
    """Refuse rows whose last observations are not where they should be."""
    if (rows.ended[:-1] & rows.acted[1:]).any():
        raise UsageError(
            "the row after an agent's end must hold its last observation, got an agent that acted in it; give last "
            "observations a row of their own, in which acted is False"
        )
    if rows.following is None and (rows.ended[-1] | (_last_row(rows.acted) > _last_row(rows.ended))).any():
        raise UsageError(
            "a piece that nothing follows must end with a row of last observations, got an agent that had not ended "
            "before it; give next_observations, or mark the end of an episode that was given up as truncated"
        )


def _last_row(flags: Array) -> Array:
    """Return the last row in which each agent of each lane has a flag; -1 where there is none."""
    last: Array = np.where(flags, np.arange(len(flags))[:, None, None], -1).max(axis=0)
    return last


def _leaf_columns(name: str, layout: SpaceLayout) -> tuple[Column, ...]:
    return tuple(Column(f"{name}{leaf.name}", leaf.shape, leaf.dtype) for leaf in layout.fixed)


def _apart(columns: Sequence[Column], layout: SpaceLayout, value: Any, axes: tuple[int, ...]) -> dict[str, Array]:
    return {
        column.name: _checked(column.name, leaf.get(value), (*axes, *column.shape), column.dtype)
        for column, leaf in zip(columns, layout.fixed, strict=True)
    }


def _checked(name: str, value: Any, shape: tuple[int, ...], dtype: Any) -> Array:
    array = np.asarray(value)
    if array.shape != shape or not np.can_cast(array.dtype, dtype, "same_kind"):
        raise UsageError(
            f"{name} of a piece must be {np.dtype(dtype)} of shape {shape}, got {array.dtype} of {array.shape}; give "
            f"arrays with the axes (rows, lanes, agents) in front"
        )
    return array
