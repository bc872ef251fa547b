"""What engines propose."""

from __future__ import annotations

import math

import pytest

from stretto.errors import UsageError
from stretto.sweeps.engines import OPTUNA, Engine, engine_of, settled_engine
from stretto.sweeps.space import Point, Space, Span, Values

SPACE: Space = {"rate": Span(1e-4, 1e-1, log=True), "rows": Span(8, 64, whole=True), "memory": Values((None, "gru"))}


def score(point: Point) -> float:
    return -abs(math.log10(point["rate"]) + 2) - (0.0 if point["memory"] == "gru" else 0.5)


def all_points(engine: Engine, rounds: int, size: int = 4) -> list[Point]:
    found: list[Point] = []
    for first in range(0, rounds * size, size):
        points = engine.propose(range(first, first + size))
        engine.hear({first + place: score(point) for place, point in enumerate(points)})
        found += points
    return found


def test_a_grid_has_all_combinations_and_the_last_setting_changes_first() -> None:
    space: Space = {"a": Values((1, 2)), "b": Values(("x", "y", "z"))}
    name, count = settled_engine(None, space, None)
    assert (name, count) == ("grid", 6)
    points = engine_of(name, space, 0).propose(range(count))
    assert points[:4] == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 1, "b": "z"}, {"a": 2, "b": "x"}]


def test_more_random_candidates_change_none_of_the_others() -> None:
    some = engine_of("random", SPACE, 3).propose(range(4))
    more = engine_of("random", SPACE, 3).propose(range(9))
    assert more[:4] == some
    assert engine_of("random", SPACE, 4).propose(range(4)) != some


def test_optuna_proposes_the_same_for_the_same_seed_and_scores_and_comes_closer_to_the_best() -> None:
    pytest.importorskip("optuna")
    first, again = (all_points(engine_of(OPTUNA, SPACE, 0), 10) for _ in range(2))
    assert first == again
    scores = list(map(score, first))
    assert sum(scores[-12:]) / 12 > sum(scores[:12]) / 12 + 0.2


def test_optuna_goes_on_after_candidates_that_failed() -> None:
    pytest.importorskip("optuna")
    engine = engine_of(OPTUNA, SPACE, 0)
    engine.propose(range(2))
    engine.hear({0: None, 1: math.nan})
    assert len(engine.propose(range(2, 4))) == 2


def test_a_span_has_random_candidates_and_their_number_is_needed() -> None:
    assert settled_engine(None, SPACE, 5) == ("random", 5)
    with pytest.raises(UsageError, match="how many candidates to try, got None"):
        settled_engine(None, SPACE, None)
    with pytest.raises(UsageError, match="rate and rows has a span; list its values"):
        settled_engine("grid", SPACE, None)
    with pytest.raises(UsageError, match="all combinations, 4 of them, got 3 candidates"):
        settled_engine("grid", {"a": Values((1, 2)), "b": Values((1, 2))}, 3)
    with pytest.raises(UsageError, match="one of grid, random, optuna, got 'best'"):
        settled_engine("best", SPACE, 3)
