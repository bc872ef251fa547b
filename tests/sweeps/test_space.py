"""What a sweep varies, as texts and as values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stretto.errors import UsageError
from stretto.sweeps.space import Span, Values, nested, plain_space, read_space, space_of


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ppo.batch=32,64", Values((32, 64))),
        ("ppo.learning_rate=1e-4,1e-3", Values((1e-4, 1e-3))),
        ("ppo.network.memory=gru,null", Values(("gru", None))),
        ("ppo.network.widths=[[64,64],[128]]", Values(([64, 64], [128]))),
        ("ppo.rows=16..64", Span(16, 64, whole=True)),
        ("ppo.entropy=0.0..0.03", Span(0.0, 0.03)),
        ("ppo.learning_rate=log:1e-4..1e-2", Span(1e-4, 1e-2, log=True)),
    ],
)
def test_a_text_varies_a_setting(text: str, part: Values | Span) -> None:
    key = text.partition("=")[0]
    space = space_of(read_space([text]))
    assert space == {key: part}
    assert space_of(plain_space(space)) == space


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "one setting or more, got none"),
        ({"ppo.batch": 64}, "several values of ppo.batch, got 64"),
        ({"ppo.batch": [64]}, r"two or more values of ppo.batch, all different, got \[64\]"),
        ({"ppo.batch": [64, 64]}, r"got \[64, 64\]"),
        ({"ppo.rows": {"low": 9, "high": 3}}, "numbers low and high, the lower first"),
        ({"ppo.rows": {"low": 0, "high": 3, "log": True}}, "both above 0 with log"),
        ({"ppo.rows": {"low": 1.5, "high": 3, "whole": True}}, "whole with whole"),
        ({"ppo.rows": {"from": 1, "to": 3}}, "write {low: 1e-4, high: 1e-2, log: true}"),
    ],
)
def test_what_varies_nothing_is_refused_with_its_key_and_value(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        space_of(given)


@pytest.mark.parametrize("text", ["ppo.batch", "=1,2", "ppo.batch="])
def test_a_text_without_a_key_or_values_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"KEY=VALUE,VALUE or KEY=LOW\.\.HIGH"):
        read_space([text])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_numbers_of_a_span_lie_within_it_and_reach_both_halves(log: bool, whole: bool) -> None:
    stream = np.random.default_rng(0)
    span = Span(1, 64, log=log, whole=whole)
    drawn = [span.draw(stream) for _ in range(500)]
    assert all(1 <= one <= 64 for one in drawn)
    assert all(isinstance(one, int) for one in drawn) is whole
    middle = 8 if log else 32
    assert 150 < sum(one < middle for one in drawn) < 350


def test_a_point_is_a_nested_configuration() -> None:
    assert nested({"ppo.batch": 64, "ppo.network.memory": "gru", "num_envs": 4}) == {
        "ppo": {"batch": 64, "network": {"memory": "gru"}},
        "num_envs": 4,
    }
