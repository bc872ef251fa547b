"""How far an evaluation is: what is left costs what its own mission and policy cost."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path

import gymnasium
import pytest

from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.progress import Progress, RunningTask
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.missions.mission import Mission


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def record(mission, label, episode=0, seconds=1.0, steps=10, **others):
    return EpisodeRecord(mission, label, episode, 0, steps, {"x": 1.0}, {}, timing={"seconds": seconds}, **others)


def begun(totals, limits=None):
    clock = Clock()
    progress = Progress(clock)
    progress.begin(totals, {mission: (limits or {}).get(mission) for mission, _ in totals})
    return progress, clock


def test_the_time_left_knows_that_policies_differ_in_cost():
    progress, clock = begun({("m", "fast"): 10, ("m", "slow"): 10})
    for episode in range(9):
        progress.add(record("m", "fast", episode, seconds=0.1))
    progress.add(record("m", "slow", 0, seconds=10.0))
    clock.now = 10.9
    left = progress.time_left()
    assert left.seconds == pytest.approx(0.1 + 9 * 10.0)
    assert not left.at_least


def test_two_workers_take_half_as_long():
    progress, clock = begun({("m", "p"): 20})
    for episode in range(10):
        progress.add(record("m", "p", episode, seconds=2.0))
    clock.now = 10.0
    assert progress.time_left().seconds == pytest.approx(10.0)


def test_a_policy_costs_on_a_new_mission_what_it_cost_on_others():
    progress, clock = begun({("a", "fast"): 1, ("a", "slow"): 1, ("b", "fast"): 1, ("b", "slow"): 1})
    progress.add(record("a", "fast", seconds=1.0))
    progress.add(record("a", "slow", seconds=50.0))
    clock.now = 51.0
    assert progress.time_left().seconds == pytest.approx(51.0)


def test_what_is_left_is_at_least_that_as_long_as_a_policy_is_unknown():
    progress, clock = begun({("m", "fast"): 2, ("m", "slow"): 2})
    assert progress.time_left() is None
    progress.add(record("m", "fast", seconds=1.0))
    clock.now = 1.0
    assert progress.time_left().at_least
    assert progress.time_left().seconds == pytest.approx(3.0)


def test_what_is_played_now_is_partly_done():
    progress, clock = begun({("m", "p"): 2})
    progress.add(record("m", "p", 0, seconds=10.0))
    clock.now = 10.0
    task = RunningTask("m", "p", (1,), 5, 4.0)
    with progress.playing(lambda: [task]):
        clock.now += 14.0
        assert progress.time_left().seconds == pytest.approx(6.0)
        assert progress.steps == 15
    assert progress.steps == 10


def test_episodes_of_an_earlier_run_are_done_but_took_no_time_in_this_one():
    progress, clock = begun({("m", "p"): 4})
    progress.add(record("m", "p", 0), now=False)
    progress.add(record("m", "p", 1), now=False)
    assert progress.episodes == (2, 4)
    assert progress.time_left() is None
    progress.add(record("m", "p", 2, seconds=3.0))
    clock.now = 3.0
    assert progress.time_left().seconds == pytest.approx(3.0)


def test_rewards_so_far_are_those_of_episodes_with_a_result():
    progress, _ = begun({("m", "p"): 4})
    progress.add(record("m", "p", 0))
    progress.add(record("m", "p", 1, failure=EpisodeFailure("ValueError", "no")))
    pair = progress.pairs["m", "p"]
    assert (pair.done, pair.failed, pair.reward) == (2, 1, 1.0)


@pytest.mark.parametrize(
    ("steps", "seconds", "limit", "endless"),
    [
        (50_000, 40.0, None, True),
        (50_000, 40.0, 10**9, False),
        (50_000, 10.0, None, False),
        (9_000, 40.0, None, False),
    ],
)
def test_an_episode_seems_endless_without_a_limit_after_long_and_far_beyond_others(steps, seconds, limit, endless):
    progress, _ = begun({("m", "p"): 4}, {"m": limit})
    progress.add(record("m", "p", steps=2_000))
    with progress.playing(lambda: [RunningTask("m", "p", (1,), steps, seconds)]):
        assert bool(progress.endless()) == endless
        progress.add(record("m", "p", 2, steps=10_000))
        assert not progress.endless()


class Gated(gymnasium.Env):
    """Five steps; in the fourth, which is beyond what is looked at beforehand, it waits until somebody opens the gate."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, gate):
        self.gate = Path(gate)

    def reset(self, seed=None, options=None):
        self.count = 0
        return 0, {}

    def step(self, action):
        self.count += 1
        if self.count == 4:
            self.gate.read_text()
        return 0, 1.0, self.count == 5, False, {}


@pytest.mark.parametrize("jobs", [0, 1], ids=["here", "elsewhere"])
def test_steps_of_an_episode_are_seen_while_it_is_played(jobs, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    progress, seen = Progress(), []

    def look():
        # Opening blocks until the world is in its fourth step, which goes on when this is closed.
        with gate.open("w"):
            seen.extend(progress.running)

    thread = threading.Thread(target=look)
    thread.start()
    report = evaluate(Mission("gated", partial(Gated, str(gate))), "random", episodes=1, jobs=jobs, progress=progress)
    thread.join()
    assert report.records[0].steps == 5
    assert [(task.mission, task.label, task.episodes, task.steps) for task in seen] == [("gated", "random", (0,), 3)]
    assert progress.episodes == (1, 1)
    assert progress.steps == 5
