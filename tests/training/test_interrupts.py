"""Ctrl-C in the middle of something that takes long: the run is saved as it was after the interval before."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import stretto
from stretto.run_checkpoints import all_checkpoints
from stretto.training import checkpoints, held_out, sets
from stretto.training.report import TrainingInterrupted
from stretto.workers import supervisor

NEVER = 10**6


class Endless:
    """Learns twice; the third time, Ctrl-C is pressed, and it does not come to an end."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int, process: int) -> None:
        self.learned, self.process = 0, process

    def act(self, observations: Any, numbers: Any) -> Any:
        return (numbers[:, 0] < 0.5).astype(int)

    def learn(self, seen: Any) -> dict[str, float]:
        self.learned += 1
        for _ in range(2 if self.learned == 3 else 0):
            os.kill(self.process, signal.SIGINT)
        while self.learned == 3:
            time.sleep(0.001)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"learned": self.learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learned = state["learned"]


def trained(out: Path, **changes: Any) -> stretto.TrainingReport:
    ppo = {"rows": 16, "batch": 32, "epochs": 1}
    config = {"preset": None, "ppo": ppo, "checkpoint": {"every": NEVER}, "evaluation": {"episodes": 1}}
    given: dict[str, Any] = {"steps": 400, "num_envs": 4, "seed": 7, "config": config, "eval_every": 150, **changes}
    return stretto.train("CartPole-v1", out=out, backend="serial", **given)


def pressed_in_call(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function in whose call of that number Ctrl-C is pressed, and nobody has the patience to wait for its end."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return function(*args, **kwargs)

    return call


def interrupted(out: Path, **changes: Any) -> int:
    """Return the steps that are saved when a run is interrupted."""
    with pytest.raises(TrainingInterrupted):
        trained(out, **changes)
    return max((int(path.name) for path in all_checkpoints(out)), default=0)


@pytest.fixture
def whole(tmp_path: Path) -> stretto.TrainingReport:
    return trained(tmp_path / "whole")


def test_an_interval_that_takes_long_is_given_up_and_the_one_before_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: stretto.TrainingReport
) -> None:
    monkeypatch.setattr(checkpoints, "LONG_SECONDS", 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(sets.LearnerSet, "finish", pressed_in_call(4, sets.LearnerSet.finish))
        steps = interrupted(tmp_path / "run")
    assert steps == whole.history[2]["steps"]
    assert trained(tmp_path / "run", resume=True).agents == whole.agents


def test_an_evaluation_is_given_up_and_played_again_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: stretto.TrainingReport
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(held_out.HeldOut, "play", pressed_in_call(1, held_out.HeldOut.play))
        steps = interrupted(tmp_path / "run")
    assert 0 < steps < 150
    resumed = trained(tmp_path / "run", resume=True)
    assert resumed.agents == whole.agents
    assert resumed.evaluations == whole.evaluations


@pytest.mark.parametrize("learner_set", ["threads", "processes"])
def test_whoever_still_learns_is_ended_at_once(
    learner_set: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(supervisor, "BUSY_SECONDS", 1e6)  # nobody waits for it
    own = {"rows": 16, "arguments": {"process": os.getpid()}}
    config = {"own": own, "learner_set": learner_set, "checkpoint": {"every": NEVER}}
    steps = interrupted(tmp_path, learner=f"{__file__}:Endless", config=config, eval_every=None)
    assert 64 < steps <= 128
    assert not [one for one in threading.enumerate() if one.name.startswith("stretto-worker")]


def test_intervals_that_are_short_or_whose_state_is_large_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = sets.LearnerSet.finish
    monkeypatch.setattr(checkpoints, "LONG_SECONDS", 1e6)
    monkeypatch.setattr(sets.LearnerSet, "finish", pressed_in_call(2, learn))
    assert interrupted(tmp_path / "short", eval_every=NEVER) == 0
    monkeypatch.setattr(checkpoints, "LONG_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "MOST_KEPT_BYTES", 100)
    monkeypatch.setattr(sets.LearnerSet, "finish", pressed_in_call(2, learn))
    assert interrupted(tmp_path / "large", eval_every=NEVER) == 0


def test_an_interval_that_ends_in_time_is_saved_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, handlers = checkpoints.write_checkpoint, []

    def slow(*args: Any) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        write(*args)

    monkeypatch.setattr(checkpoints, "write_checkpoint", slow)
    steps = interrupted(tmp_path / "run", on_interval=lambda _: signal.raise_signal(signal.SIGINT))
    assert steps > 0
    assert handlers == [signal.default_int_handler]  # and nobody waits to press it again
