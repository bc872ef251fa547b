"""Which transitions a learner wants to see more often. They belong to the learner: the buffer knows nothing of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.checkpoint import Content
from stretto.safetensors import read_safetensors, safetensors
from stretto.spaces import Array
from stretto.storage.decisions import TransitionRange
from stretto.storage.memory import RingLayout
from stretto.storage.sum_tree import SumTree


class Priorities:
    """Priorities of the transitions of each agent of a buffer, by number.

    A transition is drawn in proportion to `(error + least_error) ** exponent`. New ones have the highest priority that
    their agent ever had.
    """

    def __init__(self, layout: RingLayout, exponent: float = 0.6, least_error: float = 1e-6) -> None:
        agents = len(layout.block.agents)
        self._size = layout.rows * layout.block.lanes
        self._tree = SumTree(agents, self._size)
        self._exponent, self._least_error = exponent, least_error
        self._highest = np.ones(agents)
        self._first, self._last = np.zeros(agents, np.int64), np.zeros(agents, np.int64)
        self._unfinished: tuple[tuple[int, ...], ...] = ((),) * agents

    def follow(self, taken: TransitionRange) -> None:
        """Give the highest priority to what is new in a snapshot, and none to what is no longer in it."""
        for agent, (first, last, unfinished) in enumerate(zip(taken.first, taken.last, taken.unfinished, strict=True)):
            old_first, old_last = int(self._first[agent]), int(self._last[agent])
            if (first, last, unfinished) == (old_first, old_last, self._unfinished[agent]):
                continue
            self._set(agent, np.arange(old_first, min(first, old_last)), 0.0)
            finished = np.array([number for number in self._unfinished[agent] if number >= first], np.int64)
            new = np.concatenate([finished, np.arange(max(first, old_last), last)])
            self._set(agent, np.setdiff1d(new, np.array(unfinished, np.int64)), float(self._highest[agent]))
        self._first[:], self._last[:], self._unfinished = taken.first, taken.last, taken.unfinished

    def draw(self, streams: Sequence[np.random.Generator], count: int, correction: float) -> tuple[Array, Array]:
        """Return numbers of transitions, and how much each is to count, `(agents, count)`.

        The weights make up for drawing some more often than others, wholly if `correction` is 1; the largest of an agent
        is 1. Draws are spread: one from each of `count` equal shares of an agent's priorities.
        """
        totals = self._tree.totals
        spread = np.stack([(np.arange(count) + stream.random(count)) / count for stream in streams])
        leaves = self._tree.find(spread * totals[:, None])
        first = self._first[:, None]
        numbers = first + (leaves - first) % self._size
        some = totals[:, None] > 0
        shares = np.where(some, self._tree.get(leaves), 1.0)
        weights = (shares / shares.min(axis=1, keepdims=True)) ** -correction
        return np.where(some, numbers, -1), np.where(some, weights, 0.0).astype(np.float32)

    def set(self, numbers: Array, errors: Array) -> None:
        """Say how large the errors of transitions were, `(agents, count)`; those that are gone are ignored."""
        values = (np.abs(errors).astype(np.float64) + self._least_error) ** self._exponent
        there = (numbers >= self._first[:, None]) & (numbers < self._last[:, None])
        self._highest = np.maximum(self._highest, np.where(there, values, 0.0).max(axis=1))
        agents, which = np.nonzero(there)
        self._tree.set(agents, numbers[agents, which] % self._size, values[agents, which])

    def _set(self, agent: int, numbers: Array, value: float) -> None:
        if len(numbers):
            self._tree.set(np.full(len(numbers), agent), numbers % self._size, np.full(len(numbers), value))

    # ---- saving ----

    def state(self) -> dict[str, Any]:
        """Return all that it remembers: arrays, as views, and which transitions are unfinished."""
        return {name: parts[0] for name, parts in self._arrays().items()} | {"unfinished": self._unfinished}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become what `state` has returned."""
        for name, (array,) in self._arrays().items():
            array[...] = state[name]
        self._unfinished = tuple(map(tuple, state["unfinished"]))

    def contents(self, name: str = "priorities") -> dict[str, Content]:
        """Return the files to save."""
        text = json.dumps({"unfinished": self._unfinished})
        return {f"{name}.safetensors": safetensors(self._arrays()), f"{name}.json": text}

    def restore(self, files: Mapping[str, Path], name: str = "priorities") -> None:
        """Become what `contents` gave, once it is in files.

        Raises:
            UsageError: if it was saved for a buffer of another size.
        """
        read_safetensors(files[f"{name}.safetensors"], into=self._arrays())
        saved = json.loads(files[f"{name}.json"].read_bytes())
        self._unfinished = tuple(map(tuple, saved["unfinished"]))

    def _arrays(self) -> dict[str, list[Array]]:
        levels = {f"level {number}": [level] for number, level in enumerate(self._tree.levels)}
        return {"first": [self._first], "last": [self._last], "highest": [self._highest], **levels}
