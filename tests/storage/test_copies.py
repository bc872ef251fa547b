"""Two copies of a state in memory that whoever writes them does not own: one of them is always whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stretto.storage import copies as module
from stretto.storage.copies import CopiesLayout, StateCopies, packed, packed_size, unpacked
from stretto.workers.arena import Arena

STATE = {
    "weights": np.arange(1000, dtype=np.float32).reshape(10, 100),
    "by lane": np.arange(12.0).reshape(3, 4).T,
    "nothing": np.zeros((0, 3), np.int8),
    "every other": np.arange(10)[::2],
    "streams": [np.random.default_rng(3).bit_generator.state],
    "nested": {"a": {"b": None}, "c": (1, "x", 2.5)},
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def copies_for(state: Any) -> StateCopies:
    layout, arena = CopiesLayout.of(state, 10), Arena.create(shared=False)
    arena.allocate(layout.fields[1])
    return StateCopies.new(layout, arena)


def test_what_is_packed_comes_back_to_the_bit() -> None:
    assert equal(unpacked(packed(STATE)), STATE)
    assert len(packed(STATE)) == packed_size(STATE)


def test_the_version_before_the_last_is_there_until_two_more_are_written() -> None:
    copies = copies_for(STATE)
    assert copies.write(0, STATE)
    assert copies.write(1, {"weights": np.ones(3)})
    assert equal(copies.read(0), STATE)
    assert copies.read(1)["weights"].tolist() == [1, 1, 1]
    copies.write(2, {"weights": np.zeros(3)})
    assert copies.versions.tolist() == [1, 2]
    with pytest.raises(AssertionError, match="version 0"):
        copies.read(0)


def test_a_copy_that_was_cut_short_has_no_version_and_the_other_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(memory: memoryview, parts: list[memoryview]) -> None:
        memory[:100] = bytes(range(100))
        raise InterruptedError

    copies = copies_for(STATE)
    copies.write(4, STATE)
    copies.write(5, STATE)
    monkeypatch.setattr(module, "_write", killed)
    with pytest.raises(InterruptedError):
        copies.write(6, STATE)
    assert copies.versions.tolist() == [5]
    assert equal(copies.read(5), STATE)


def test_a_state_that_has_no_room_is_not_written() -> None:
    copies = copies_for(STATE)
    copies.write(1, STATE)
    assert not copies.write(2, {"more": np.zeros(10_000)})
    assert equal(copies.read(1), STATE)
