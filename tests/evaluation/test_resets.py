"""A policy's `reset` may be anything that can be called, and gets the agent's generator if it takes one."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

from stretto.policies.loading import reset_policy


class Bare:
    """Can neither be referred to weakly nor be given an attribute."""

    __slots__ = ()

    def __call__(self, rng):
        CALLS.append(rng)


class Alike:
    """Has no hash."""

    __hash__ = None

    def __eq__(self, other):
        return isinstance(other, Alike)

    def __call__(self):
        CALLS.append(None)


class Named:
    def __call__(self, *, rng):
        CALLS.append(rng)


CALLS: list[object] = []


@pytest.mark.parametrize(
    ("reset", "takes_one"),
    [
        (Bare(), True),
        (Alike(), False),
        (Named(), True),
        (functools.partial(CALLS.append), True),
        (CALLS.append, True),
        (lambda one: CALLS.append(one) or one, True),
        (lambda: CALLS.append(None), False),
    ],
    ids=["bare", "alike", "named", "partial", "builtin", "function", "function of nothing"],
)
def test_a_reset_is_called_whatever_it_is(reset, takes_one):
    class Policy:
        pass

    policy, rng = Policy(), np.random.default_rng(0)
    policy.reset = reset
    CALLS.clear()
    for _ in range(2):
        reset_policy(policy, rng)
    assert [rng if takes_one else None] * 2 == CALLS


def test_a_reset_that_does_not_say_what_it_takes_gets_the_generator():
    rng = np.random.default_rng(0)

    class Policy:
        reset = staticmethod(type)  # of which Python knows no signature

    with pytest.raises(ValueError, match="signature"):
        inspect.signature(Policy.reset)
    reset_policy(Policy(), rng)
