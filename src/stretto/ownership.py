"""Ownership: what nobody else holds need not be copied for somebody who may keep it and change it."""

from __future__ import annotations

from collections.abc import Mapping
from sys import getrefcount
from typing import Any

import numpy as np

from stretto.core import AgentId, Observation, own_copy

_ARRAY = np.ndarray  # a name of this module is found faster than one of numpy's

_PLAIN = 0x405
"""Flags of an array in C order whose memory is its own and may be written to."""


def _references_to_one_name() -> int:
    """Return what `getrefcount` says of a value that only a local variable has: that depends on the interpreter."""
    value = np.empty(0)
    return getrefcount(value)


def _references_to_one_entry(values: Mapping[str, Any]) -> int:
    value = values[""]
    return getrefcount(value)


def _references_to_one_part(value: Mapping[str, Any]) -> int:
    for part in value.values():
        return getrefcount(part)
    raise AssertionError("there is one part")


ONE_NAME = _references_to_one_name()
_ONE_ENTRY = _references_to_one_entry({"": np.empty(0)})
_ONE_PART = _references_to_one_part({"": np.empty(0)})


def taken_over(observations: Mapping[AgentId, Observation], agent: AgentId) -> Observation:
    """Return an agent's observation for a policy, which may keep it and change it.

    It is a copy, unless nobody has it but `observations`: many worlds make a new one in each step. A copy of Foundry's takes
    1.3 to 1.7 µs, and to see that none is needed 0.5.
    """
    value = observations[agent]
    kind = type(value)
    if kind is _ARRAY:
        alone = getrefcount(value) == _ONE_ENTRY and value.flags.num & _PLAIN == _PLAIN and not value.dtype.hasobject
        return value if alone else own_copy(value)
    if kind is dict and getrefcount(value) == _ONE_ENTRY:
        for part in value.values():
            if (
                type(part) is not _ARRAY
                or getrefcount(part) != _ONE_PART
                or part.flags.num & _PLAIN != _PLAIN
                or part.dtype.hasobject
            ):
                return own_copy(value)
        return value
    return own_copy(value)
