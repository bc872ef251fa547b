"""What is kept of a run's intervals in memory."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import stretto
from stretto.training import history
from stretto.training.history import MOST_ROWS, History


def rows(count: int) -> list[dict[str, Any]]:
    return [{"interval": number} for number in range(1, count + 1)]


def test_few_intervals_are_kept_whole() -> None:
    assert History(rows(MOST_ROWS)).rows == rows(MOST_ROWS)
    assert History().rows == []


def test_of_many_intervals_some_are_kept_that_are_evenly_spread_and_the_last() -> None:
    for count in (MOST_ROWS + 1, 1_000, 5_000, 12_345):
        kept = [row["interval"] for row in History(rows(count)).rows]
        assert MOST_ROWS / 2 <= len(kept) <= MOST_ROWS + 1
        assert (kept[0], kept[-1]) == (1, count)
        assert len({later - earlier for earlier, later in pairwise(kept[:-1])}) == 1


def test_no_evaluation_is_left_out() -> None:
    given = [{**row, **({"evaluation": row["interval"]} if row["interval"] % 10 == 3 else {})} for row in rows(2_000)]
    assert History(given).evaluations == list(range(3, 2_000, 10))


def test_a_run_keeps_few_intervals_in_memory_and_all_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MOST_ROWS", 4)
    config = {"preset": None, "ppo": {"rows": 4, "batch": 16, "epochs": 1}, "evaluation": {"episodes": 1}}
    given: dict[str, Any] = {"num_envs": 4, "config": config, "backend": "serial", "out": tmp_path, "eval_every": 32}
    stretto.train("CartPole-v1", steps=150, **given)
    report = stretto.train("CartPole-v1", steps=300, resume=True, **given)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["interval"] for row in lines] == list(range(1, len(lines) + 1))
    assert [row["interval"] for row in report.history] == [row["interval"] for row in History(lines).rows]
    assert len(report.history) <= 5 < len(lines)
    assert report.history[-1] == lines[-1]
    assert report.evaluations == [row["evaluation"] for row in lines if "evaluation" in row]
