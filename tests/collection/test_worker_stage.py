"""Whole trials in workers: the same rollouts, also where a worker dies or hangs in the middle of one."""

from __future__ import annotations

import os
import pickle
import signal
import time
from dataclasses import replace

import numpy as np
import pytest

import stretto
from stretto.adapters.agents import as_agents
from stretto.collection.collector import Queue, Trials
from stretto.collection.making import TrialMaker
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import rollout_tasks
from stretto.collection.worker_stage import TrialPlayer, WorkerStage
from stretto.errors import FewerWorkers, PolicyFailed, ResourceError, WorkerDied, WorldHung
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.rollout import play
from stretto.workers.base import Start
from tests.collection.plain import plain_rollouts
from tests.collection.test_collector import Chance, Decides, Remembers
from tests.workers.fake import Delay, Script, fake_backend
from tests.worlds import Crowd, Drift, World, makes


def player(make, policy):
    world = TrialMaker(make, as_agents).spec()
    plans = [PolicyPlan(PolicySpec.of(policy), rows=8 * len(world.agents))]
    return TrialPlayer(make, plans, dict.fromkeys(world.agents, 0), world)


def played(make, policy, count, workers, *, on_rollout=lambda stage, found: None, **options):
    one = player(make, policy)
    stage = one.stage() if workers == 0 else WorkerStage(one, workers, **{"limit_seconds": 30.0, **options})
    found = []
    try:
        for rollout in Queue(count, Trials(0, None, 2)).play(stage):
            found.append(rollout)
            on_rollout(stage, found)
    finally:
        stage.close()
    return Rollouts(found)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_whole_trials_are_those_of_a_plain_loop(workers):
    wanted = plain_rollouts(makes(Drift, 5), Chance, 10, episodes=2)
    assert played(makes(Drift, 5), Chance, 10, workers).digest() == wanted.digest()


@pytest.mark.parametrize(("make", "policy"), [(makes(Drift, 5), Remembers), (Crowd, Decides)])
def test_policies_that_batch_and_worlds_with_several_agents_can_be_played_so_too(make, policy):
    assert played(make, policy, 6, 2).digest() == played(make, policy, 6, 0).digest()


def test_short_trials_are_handed_over_several_at_once_and_are_the_same():
    one = player(makes(Drift, 5), Chance)
    stage, queue = WorkerStage(one, 2, limit_seconds=30.0), Queue(400, Trials(0, None, 2))
    try:
        together = list(play(stage, queue.next))
    finally:
        stage.close()
    assert max(len(rollouts) for rollouts in together) > 1
    found = Rollouts([rollout for rollouts in together for rollout in rollouts])
    assert found.digest() == plain_rollouts(makes(Drift, 5), Chance, 400, episodes=2).digest()


class ShowsTask(World):
    def reset(self, *, seed=None, options=None):
        self.task = options["task"] if options else 0
        return super().reset(seed=seed)

    def see(self):
        return np.array([self.task, 0.0])

    def move(self, action):
        return self.see(), 1.0, self.steps == 2, False, {}


def fails_at_300(observation):
    if observation[0] == 300:
        raise ValueError("not this one")
    return 0


def test_trials_that_were_handed_over_with_one_that_fails_are_not_lost():
    found = []
    stage = WorkerStage(player(ShowsTask, fails_at_300), 1, limit_seconds=30.0)
    try:
        with pytest.raises(PolicyFailed, match="not this one"):
            found.extend(Queue(1000, Trials(0, rollout_tasks(lambda index, stream: index))).play(stage))
    finally:
        stage.close()
    assert [rollout.index for rollout in found[:300]] == list(range(300))


def test_a_rollout_is_pickled_whole():
    rollouts = plain_rollouts(makes(Drift, 5), Chance, 3, episodes=2)
    found = Rollouts(pickle.loads(pickle.dumps(list(rollouts))))
    assert found.digest() == rollouts.digest()
    assert found[0].rewards.flags.writeable


@pytest.mark.parametrize("together", [None, 1])
def test_a_trial_whose_worker_was_killed_is_begun_again(together):
    def kill(stage, found):
        if len(found) < 3:  # fewer than a trial may lose
            os.kill(stage.pids[0], signal.SIGKILL)

    wanted = plain_rollouts(makes(Drift, 6), Chance, 10, episodes=2)
    found = played(makes(Drift, 6), Chance, 10, 2, on_rollout=kill, started_together=together)
    assert found.digest() == wanted.digest()


def rest_of(stage, trials, first, count):
    return list(Queue(count, trials, first=first).play(stage))


def test_workers_are_added_to_those_that_are_there():
    trials = Trials(0, None, 2)
    stage = WorkerStage(player(makes(Drift, 5), Chance), 1, limit_seconds=30.0, started_together=2)
    try:
        found = rest_of(stage, trials, 0, 10)
        before = stage.pids
        stage.grow(3)
        found += rest_of(stage, trials, 10, 200)
        assert len(stage.pids) == 3
        assert stage.pids[:1] == before
    finally:
        stage.close()
    assert Rollouts(found).digest() == plain_rollouts(makes(Drift, 5), Chance, 200, episodes=2).digest()


def test_those_who_are_there_play_while_others_start():
    backend = fake_backend(Script(Delay(kind=Start, seat=1, seconds=100.0)))
    stage = WorkerStage(player(makes(Drift, 5), Chance), 4, limit_seconds=30.0, backend=backend, started_together=1)
    try:
        found = rest_of(stage, Trials(0, None, 2), 0, 60)
        assert len(stage.pids) == 2  # no more were needed, and one starts at a time
        assert backend.clock.now() < 100.0
    finally:
        stage.close()
    assert Rollouts(found).digest() == plain_rollouts(makes(Drift, 5), Chance, 60, episodes=2).digest()


def test_workers_that_start_one_after_the_other_are_as_many_as_wanted():
    stage = WorkerStage(
        player(makes(Drift, 5), Chance), 5, limit_seconds=30.0, backend=fake_backend(), started_together=2
    )
    try:
        assert len(stage.pids) == 2
        rest_of(stage, Trials(0, None, 2), 0, 100)
        assert len(stage.pids) == 5
    finally:
        stage.close()


def test_fewer_workers_play_where_no_more_can_be_started():
    fake = fake_backend()

    def start(index, *where, **how):
        if index >= 4:
            raise ResourceError("no further worker process can be started")
        return fake.start(index, *where, **how)

    stage = WorkerStage(
        player(makes(Drift, 5), Chance), 8, limit_seconds=30.0, backend=replace(fake, start=start), started_together=1
    )
    try:
        with pytest.warns(FewerWorkers, match="fake with 3 workers, because 8 cannot be had: no further worker"):
            found = rest_of(stage, Trials(0, None, 2), 0, 60)
        assert len(stage.pids) == 3
    finally:
        stage.close()
    assert Rollouts(found).digest() == plain_rollouts(makes(Drift, 5), Chance, 60, episodes=2).digest()


class Sleepy(Drift):
    def move(self, action):
        time.sleep(60)


def broken(observation):
    raise ValueError("no idea")


class Deadly(Drift):
    def move(self, action):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("options", "begun"), [({"max_restarts": 1}, 2), ({"on_crash": "raise"}, 1)])
def test_how_often_a_trial_is_begun_whose_worker_dies_is_the_choice_of_the_user(options, begun, tmp_path):
    path = tmp_path / "begun"

    class Counted(Deadly):
        def move(self, action):
            with path.open("a") as file:
                file.write("x")
            super().move(action)

    layout = {"wait": "whole", "backend": "process", "workers": 1, "check_reuse": False}
    with pytest.raises(WorkerDied):
        stretto.collect(Counted, Chance, 1, **layout, **options)
    assert len(path.read_text()) == begun


def test_a_trial_that_always_ends_its_worker_is_given_up():
    with pytest.raises(WorkerDied, match="playing rollout 0"):
        played(Deadly, Chance, 2, 1)


def test_a_world_that_hangs_is_told_with_its_rollout():
    with pytest.raises(WorldHung, match="playing rollout 0"):
        played(Sleepy, Chance, 1, 1, limit_seconds=0.3)


def test_what_a_policy_raises_is_raised_at_once_with_its_agent():
    with pytest.raises(PolicyFailed, match="the policy of agent agent_0 raised ValueError"):
        played(Drift, broken, 3, 1)
