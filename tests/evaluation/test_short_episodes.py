"""Short episodes: a worker takes several at a time, and nothing else changes."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace

import gymnasium
import pytest

from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.plan import Plan, PlaySettings, Task, entries_of
from stretto.evaluation.playing.scheduler import TOGETHER_SECONDS, Scheduler
from stretto.missions.resolve import find_missions
from stretto.policies.spec import PolicySpec
from stretto.workers.backends import SERIAL
from tests.evaluation.players import Faulty
from tests.worlds import CountTo


def short() -> gymnasium.Env:
    return CountTo(limit=4)


@pytest.fixture
def scheduler():
    plan = Plan(tuple(find_missions([short, "gym:CartPole-v1"])), entries_of([PolicySpec.of("noop")], mix=False), 40, 0)
    with Scheduler(plan, PlaySettings(), SERIAL, 2) as found:
        found._workers = 2
        yield found


def waiting(count, mission=0):
    return deque(Task(mission, 0, (number,)) for number in range(count))


def test_a_worker_takes_one_episode_as_long_as_nobody_knows_how_long_it_takes(scheduler):
    assert scheduler._next(waiting(40)) == Task(0, 0, (0,))


def test_several_short_episodes_are_one_task(scheduler):
    scheduler._seconds[0, 0] = TOGETHER_SECONDS / 5
    tasks = waiting(40)
    assert scheduler._next(tasks) == Task(0, 0, (0, 1, 2, 3, 4), in_turn=True)
    assert len(tasks) == 35


def test_towards_the_end_there_are_fewer_so_that_no_worker_waits_for_the_other(scheduler):
    scheduler._seconds[0, 0] = TOGETHER_SECONDS / 1000
    tasks, sizes = waiting(40), []
    while tasks:
        sizes.append(len(scheduler._next(tasks).episodes))
    assert sum(sizes) == 40
    assert sizes[0] == 10
    assert sizes[-3:] == [1, 1, 1]


@pytest.mark.parametrize("other", [Task(1, 0, (5,)), Task(0, 0, (5, 6))])
def test_only_episodes_of_one_mission_that_are_played_alone_go_together(scheduler, other):
    scheduler._seconds[0, 0] = TOGETHER_SECONDS / 1000
    assert scheduler._next(deque([Task(0, 0, (0,)), other, *waiting(40)])) == Task(0, 0, (0,))


def test_an_episode_that_is_tried_again_is_played_by_itself(scheduler):
    scheduler._seconds[0, 0] = TOGETHER_SECONDS / 1000
    tried = Task(0, 0, (5,))
    scheduler._attempts[tried] = 1
    assert scheduler._next(deque([tried, *waiting(40)])) == tried
    assert scheduler._next(deque([Task(0, 0, (0,)), tried, *waiting(40)])) == Task(0, 0, (0,))


def results(records):
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in records]


def test_the_result_is_the_same_and_whoever_dies_in_one_of_them_fails_alone():
    dying, raising = (PolicySpec("faulty", Faulty, {"how": how, "share": 0.05, "at": 2}) for how in ("die", "raise"))
    here = evaluate(short, raising, episodes=20, jobs=0, seed=1).records
    there = evaluate(short, dying, episodes=20, jobs=1, seed=1).records
    (raised,), (lost,) = ([record for record in records if record.failure] for records in (here, there))
    assert (lost.episode, lost.failure.kind, lost.failure.step) == (raised.episode, "PolicyLost", raised.failure.step)
    assert results(record for record in here if not record.failure) == results(r for r in there if not r.failure)
