"""Shares: the slots of one collection in several parts, each with worlds of its own; what they give together is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from stretto.collection.experience import COLUMNS, Experience, Segment
from stretto.policies.states import map_state
from stretto.spaces import Array


def shares_of(slots: int, shares: int) -> list[range]:
    """Return the slots of each share, as many in one as in another, or one more in the first."""
    shares = min(slots, shares)
    ends = [slots * number // shares for number in range(shares + 1)]
    return [range(first, end) for first, end in pairwise(ends)]


def joined_segments(segments: Sequence[Segment]) -> Segment:
    """Return the segments of all shares as the one of all slots."""
    first = segments[0]
    if len(segments) == 1:
        return first
    kinds = []
    for parts in zip(*(segment.kinds for segment in segments), strict=True):
        columns = {
            name: map_state(lambda *arrays: np.concatenate(arrays, axis=1), *(getattr(part, name) for part in parts))
            for name in COLUMNS
        }
        kinds.append(Experience(parts[0].agents, **columns))
    following = map_state(lambda *arrays: np.concatenate(arrays), *(segment.following for segment in segments))
    trials = np.concatenate([segment.trials for segment in segments])
    return Segment(tuple(kinds), following, trials, first.provisional)


def joined_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the `Segments` of all shares are as that of one with all slots."""
    begun = np.concatenate([state["begun"] for state in states])
    stages = [state["stage"] for state in states]
    if any(stage is None for stage in stages):  # nothing was begun anywhere
        return {"begun": begun, "stage": None}
    kept = [stage["log"]["actions"] for stage in stages if stage["log"]["actions"]]
    names = kept[0] if kept else ()
    log = {name: np.concatenate([stage["log"][name] for stage in stages]) for name in ("first", "lengths", "acted")}
    joined = {
        "steps": sum(stage["steps"] for stage in stages),
        "log": {**log, "actions": {name: np.concatenate([actions[name] for actions in kept]) for name in names}},
        "rows": {name: np.concatenate([stage["rows"][name] for stage in stages]) for name in stages[0]["rows"]},
        "memory": map_state(lambda *arrays: np.concatenate(arrays), *(stage["memory"] for stage in stages)),
    }
    for name in ("trials", "episodes"):
        joined[name] = np.concatenate([stage[name] for stage in stages])
    return {"begun": begun, "stage": joined}


def parted_states(state: Mapping[str, Any], shares: Sequence[range]) -> list[dict[str, Any]]:
    """Return what the `Segments` of each share are, given that of one with all slots."""
    return [_part(state, slots) for slots in shares]


def _part(state: Mapping[str, Any], slots: range) -> dict[str, Any]:
    mine = slice(slots.start, slots.stop)
    stage, begun = state["stage"], np.asarray(state["begun"])[mine]
    if stage is None:
        return {"begun": begun, "stage": None}
    log, playing = stage["log"], np.asarray(stage["episodes"]) >= 0
    rows = _span(np.asarray(log["lengths"]), mine)
    played = _span(playing.astype(np.int64), mine)
    actions = {name: array[rows] for name, array in log["actions"].items()} if rows.stop > rows.start else {}
    part = {
        "steps": stage["steps"] if slots.start == 0 else 0,  # of all slots together
        "log": {
            "first": log["first"][mine],
            "lengths": log["lengths"][mine],
            "acted": log["acted"][rows],
            "actions": actions,
        },
        "rows": {name: array[mine] for name, array in stage["rows"].items()},
        "memory": map_state(lambda array: array[played], stage["memory"]),
        "trials": stage["trials"][mine],
        "episodes": stage["episodes"][mine],
    }
    return {"begun": begun, "stage": part}


def _span(lengths: Array, slots: slice) -> slice:
    """Return where the items of some slots lie, if each slot has so many, behind those of the slots before."""
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return slice(int(ends[slots.start]), int(ends[slots.stop]))
