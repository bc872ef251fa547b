"""An observation is copied for a policy unless nobody else could see what the policy does to it."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.ownership import taken_over


def fresh():
    return np.arange(6, dtype=np.float32)


def taken(make):
    """Return whether what `make()` gives is handed on as it is, and what is handed on."""
    observations = {"a": make()}
    found = taken_over(observations, "a")
    return found is observations["a"], found


@pytest.mark.parametrize("make", [fresh, lambda: {"x": fresh(), "y": fresh()}, lambda: 3, lambda: "text"])
def test_what_nobody_else_has_is_handed_on_as_it_is(make):
    assert taken(make)[0]


KEPT = fresh()
KEPT_DICT = {"x": fresh()}
WATCHED = fresh()
VIEW = WATCHED[2:]


@pytest.mark.parametrize(
    "make",
    [
        lambda: KEPT,
        lambda: KEPT_DICT,
        lambda: {"x": KEPT},
        lambda: {"x": fresh(), "y": {"z": fresh()}},
        lambda: WATCHED,
        lambda: VIEW,
        lambda: fresh()[1:],
        lambda: np.asfortranarray(np.ones((3, 2))),
        lambda: np.array([[], None], object),
        lambda: (fresh(), fresh()),
    ],
    ids=[
        "kept",
        "kept dict",
        "a kept part",
        "a dict within",
        "kept by a view",
        "a view",
        "a part",
        "columns",
        "objects",
        "tuple",
    ],
)
def test_what_others_may_have_is_copied(make):
    as_it_is, found = taken(make)
    assert not as_it_is
    for one, other in zip(arrays(found), arrays(make()), strict=True):
        assert not np.shares_memory(one, other)
        assert one.tolist() == other.tolist()
        assert one.flags.c_contiguous


def arrays(value):
    if isinstance(value, np.ndarray):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [array for part in parts for array in arrays(part)]


def test_what_may_not_be_written_to_is_copied():
    locked = fresh()
    locked.flags.writeable = False
    observations = {"a": locked}
    del locked
    assert taken_over(observations, "a").flags.writeable
