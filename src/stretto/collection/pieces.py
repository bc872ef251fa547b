"""Pieces: the experience of a block of agents, taken out of segments and rollouts as buffers store it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stretto.collection.experience import Experience, Rollout, Segment
from stretto.errors import UsageError
from stretto.policies.states import map_state
from stretto.spaces import Array
from stretto.storage import Block, Piece


def piece_of(experience: Segment | Rollout, block: Block) -> Piece:
    """Return what a buffer of a block takes: the rows of its agents, with the `extras` that it names.

    A segment fits a block with a lane for each slot, a rollout one with a single lane. Arrays are views, unless the agents
    do not lie beside each other. What a policy says in a structure has a name for each array: `hidden/0` and `hidden/1`
    are those of a pair.

    Raises:
        UsageError: if the agents are not all of one kind, or if the policy did not say what the block names.
    """
    number = _kind_with(experience.kinds, block)
    kind = experience.kinds[number]
    columns = _columns(kind, block)
    following = None
    if isinstance(experience, Segment):
        following = map_state(lambda array: array[:, columns], experience.following[number])
        mine = kind.map(lambda array: array[:, :, columns])
    else:
        mine = kind.map(lambda array: array[:, None, columns])
    return Piece(
        mine.observations,
        mine.actions,
        mine.acted,
        mine.rewards,
        mine.terminated,
        mine.truncated,
        following,
        _extras(mine.says, block),
        isinstance(experience, Segment) and experience.provisional,
    )


def _kind_with(kinds: tuple[Experience, ...], block: Block) -> int:
    for number, kind in enumerate(kinds):
        if set(block.agents) <= set(kind.agents):
            return number
    there = "; ".join(", ".join(map(str, kind.agents)) for kind in kinds)
    raise UsageError(
        f"a block must have agents of one kind, got {', '.join(map(str, block.agents))}, where the kinds are {there}; make "
        f"a block for each kind"
    )


def _columns(kind: Experience, block: Block) -> Any:
    """Return where the block's agents stand among those of their kind: a slice if that is possible."""
    columns = [kind.agents.index(agent) for agent in block.agents]
    beside = range(columns[0], columns[0] + len(columns))
    return slice(beside.start, beside.stop) if columns == list(beside) else columns


def _extras(says: Mapping[str, Any], block: Block) -> dict[str, Array]:
    if not block.extras:
        return {}
    said = dict(_arrays(says))
    if missing := sorted(block.extras.keys() - said.keys()):
        raise UsageError(
            f"a block's extras must be what the policy says, got {', '.join(missing)}, where it says "
            f"{', '.join(said) or 'nothing'}; leave out what it does not say"
        )
    return {name: said[name] for name in block.extras}


def _arrays(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """Yield all arrays of a structure, each with a name."""
    if isinstance(value, (Mapping, tuple, list)):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in parts:
            yield from _arrays(part, f"{name}/{key}" if name else str(key))
    elif value is not None:
        yield name, value
