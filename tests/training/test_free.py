"""`loop: free`: agents learn as soon as they can, are behind by no more than a bound, and learn from each row as often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import stretto
from stretto.cli.train_progress import shares_line
from stretto.training.advantages import advantages
from stretto.training.loop import Interval, Overlap
from stretto.training.orders import Free
from stretto.training.phases import AWAITING
from stretto.training.progress import TrainingProgress
from stretto.training.sets import Learning
from stretto.training.turns import LearningTurns

PPO = {"rows": 16, "batch": 32, "epochs": 2}
DQN = {"rows": 16, "updates": 4, "batch": 16, "buffer": 200, "learning_starts": 1}


class Slow:
    """Learners that are done when they are told to be."""

    def __init__(self) -> None:
        self.turns, self.begun, self.done, self.is_learning, self.is_done = LearningTurns(["a"]), [], 0, False, False

    def take(self) -> list[int]:
        return [len(self.begun)]

    def begin(self, progress: float, taken: list[int]) -> None:
        assert not self.is_learning
        self.begun.append(progress)
        self.is_learning = True

    def finish(self) -> Learning:
        assert self.is_learning
        self.is_learning = self.is_done = False
        self.done += 1
        return Learning(self.done, {})

    def settle(self) -> None:
        pass


def test_whoever_collects_waits_for_learners_that_are_too_far_behind() -> None:
    learners: Any = Slow()
    order = Free(learners, learners.finish, most_lag=2)
    assert [len(order.learn(0.0, last=False)) for _ in range(5)] == [0, 0, 1, 1, 1]
    assert learners.done == 3


def test_what_was_learned_is_taken_in_between_two_steps_and_the_next_interval_is_begun() -> None:
    learners: Any = Slow()
    order = Free(learners, learners.finish, most_lag=2)
    order.learn(0.1, last=False)
    order.learn(0.2, last=False)
    order.poll()
    assert learners.done == 0
    learners.is_done = True
    order.poll()
    assert (learners.done, learners.begun) == (1, [0.1, 0.2])


def test_each_interval_has_been_learned_from_once_at_the_end() -> None:
    learners: Any = Slow()
    order = Free(learners, learners.finish, most_lag=3)
    for number in range(6):
        order.learn(number / 5, last=number == 5)
    assert learners.begun == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert learners.done == 6


@pytest.mark.parametrize(("learner", "settings", "replays"), [("ppo", PPO, 2.0), ("dqn", DQN, 1.0)], ids=["ppo", "dqn"])
@pytest.mark.parametrize("most_lag", [1, 3])
def test_the_bound_of_lag_and_the_replay_ratio_are_kept_and_reported(
    most_lag: int, learner: str, settings: Any, replays: float, tmp_path: Path
) -> None:
    config = {"preset": None, learner: settings, "loop": "free", "most_lag": most_lag}
    given: dict[str, Any] = {"steps": 640, "num_envs": 4, "backend": "serial", "budget": stretto.CpuBudget(2)}
    report = stretto.train("CartPole-v1", learner, config=config, out=tmp_path / "run", **given)
    lags = [row["timing"]["overlap"]["lag"] for row in report.history]
    assert max(lags) <= most_lag
    overlap = json.loads((tmp_path / "run" / "summary.json").read_text())["timing"]["overlap"]
    assert overlap["replay_ratio"] == replays
    assert overlap["most_lag"] == max(lags)
    assert "replay ratio" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_goes_on_with_all_that_it_had_learned(tmp_path: Path) -> None:
    config = {"preset": None, "ppo": PPO, "loop": "free", "checkpoint": {"every": 1}}
    given: dict[str, Any] = {"num_envs": 4, "backend": "serial", "config": config, "out": tmp_path / "run"}
    stretto.train("CartPole-v1", steps=300, **given)
    report = stretto.train("CartPole-v1", steps=600, resume=True, **given)
    assert report.history[-1]["timing"]["overlap"]["replay_ratio"] == 2.0


def test_advantages_of_rows_that_are_as_likely_as_they_were_are_the_usual_ones() -> None:
    draw = np.random.default_rng(3)
    values, rewards = draw.standard_normal((9, 2, 1)), draw.standard_normal((8, 2, 1)).astype(np.float32)
    acted, ends = np.ones((8, 2, 1), np.bool_), draw.random((8, 2, 1)) < 0.1
    given = values, rewards, acted, ends, np.zeros_like(ends), 0.9, 0.8
    assert np.array_equal(advantages(*given, np.ones_like(rewards)), advantages(*given))


def test_advantages_of_stale_rows_are_those_of_v_trace() -> None:
    draw = np.random.default_rng(4)
    values, rewards = draw.standard_normal((6, 1, 1)), draw.standard_normal((5, 1, 1)).astype(np.float64)
    acted, never = np.ones((5, 1, 1), np.bool_), np.zeros((5, 1, 1), np.bool_)
    shares = draw.uniform(0.1, 1.0, (5, 1, 1))
    found = advantages(values, rewards, acted, never, never, 0.9, 0.8, shares)
    for row in range(5):  # the sum that defines it
        wanted = sum(
            (0.9 * 0.8) ** (later - row)
            * np.prod(shares[row : later + 1])
            * (rewards[later] + 0.9 * values[later + 1] - values[later])
            for later in range(row, 5)
        )
        assert np.allclose(found[row], wanted)


def test_the_line_of_shares_says_how_collecting_and_learning_go_together() -> None:
    progress = TrainingProgress()
    progress.begin(200)
    seconds = {"observing": 1.0, "waiting": 0.0, "acting": 1.0, "stepping": 1.0, AWAITING: 1.0}
    for number in (1, 2):
        overlap = Overlap(lag=number, replayed=1.5 * number, learning_seconds=3.0, seconds=4.0)
        progress.add(Interval(number, 100 * number, metrics={"a": {}}, seconds=seconds, overlap=overlap))
    assert shares_line(progress) == (
        "observing 25%, waiting 0%, acting 25%, stepping 25%, awaiting learners 25%; "
        "learners wait 25%, lag 2 (mean 1.50), replay ratio 3.00"
    )
