"""TrialLog: what every slot did since its trial began, by which another world can be brought to the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.collection.tasks import Trial
from stretto.core import NextEpisode
from stretto.envs.messages import Past, Steps
from stretto.spaces import Array


class TrialLog:
    """Keeps the actions of each slot from the first row of its trial on, as segments are taken out of a recorder.

    In some rows of a slot nobody acts: there an episode has ended, and the next one of its trial begins.
    """

    def __init__(self, slots: int) -> None:
        self._first = np.zeros(slots, np.intp)  # the row of the next segment in which the slot's trial begins
        self._pieces: list[list[tuple[list[Array], Array]]] = [[] for _ in range(slots)]

    def begin(self, slot: int, row: int) -> None:
        """Let a trial begin in a slot with this row of the segment that is being recorded."""
        self._first[slot] = row
        self._pieces[slot] = []

    def add(self, actions: Sequence[Array], acted: Array) -> None:
        """Take in a segment: actions, one array a leaf, and whether somebody acted, each (rows, slots, ...)."""
        for slot, (first, pieces) in enumerate(zip(self._first.tolist(), self._pieces, strict=True)):
            if first < len(acted):
                pieces.append(([leaf[first:, slot].copy() for leaf in actions], acted[first:, slot].copy()))
        self._first[:] = np.maximum(0, self._first - len(acted))

    def past(self, slot: int, trial: Trial, episode: int | None) -> Past:
        """Return what was done in a slot; `episode` of its trial is played there now, or next, or none any more."""
        leaves, acted = self._rows(slot)
        events: list[Steps | NextEpisode] = []
        number, begin = 0, 0
        for end in np.flatnonzero(~acted).tolist():
            number += 1
            events += [*_steps(leaves, begin, end), trial.episode(number)]
            begin = end
        events += _steps(leaves, begin, len(acted))
        if episode is not None and episode > number:  # it was told, and begins with the next step
            events.append(trial.episode(episode))
        return Past(trial.episode(0), events)

    def _rows(self, slot: int) -> tuple[list[Array], Array]:
        """Return all actions of a slot, leaf by leaf, and in which rows somebody acted."""
        pieces = self._pieces[slot]
        if not pieces:
            return [], np.zeros(0, np.bool_)
        leaves = [np.concatenate(parts) for parts in zip(*(leaves for leaves, _ in pieces), strict=True)]
        return leaves, np.concatenate([acted for _, acted in pieces])

    def state(self) -> dict[str, Any]:
        """Return all that it keeps: rows of all slots behind each other."""
        slots = [self._rows(slot) for slot in range(len(self._pieces))]
        kept = [leaves for leaves, acted in slots if len(acted)]
        return {
            "first": self._first.copy(),
            "lengths": np.array([len(acted) for _, acted in slots], np.int64),
            "acted": np.concatenate([acted for _, acted in slots]),
            "actions": {str(k): np.concatenate(parts) for k, parts in enumerate(zip(*kept, strict=True))},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        self._first[:] = state["first"]
        ends = np.cumsum(state["lengths"])
        leaves = [state["actions"][str(k)] for k in range(len(state["actions"]))]
        for slot, (begin, end) in enumerate(zip(ends - state["lengths"], ends, strict=True)):
            mine = [leaf[begin:end] for leaf in leaves], state["acted"][begin:end]
            self._pieces[slot] = [mine] if end > begin else []


def _steps(leaves: Sequence[Array], begin: int, end: int) -> list[Steps | NextEpisode]:
    return [Steps([leaf[begin:end] for leaf in leaves])] if end > begin else []
