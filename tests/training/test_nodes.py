"""Both sides of a run in workers that share no memory: the weights are those of one process, also when workers are lost."""

from __future__ import annotations

import functools
import json
import os
import random
import signal

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pydantic")

from stretto.collection.shares import joined_states, parted_states, shares_of
from stretto.training import train as training
from stretto.training.nodes import Nodes
from stretto.workers.backends import MESSAGE_PROCESS
from tests.worlds import GlobalDrift

STEPS, ENVS = 384, 4
PPO = {"learner": "ppo", "ppo": {"rows": 32, "epochs": 2}}
DQN = {"learner": "dqn", "dqn": {"rows": 16, "updates": 4, "learning_starts": 100}}


def far(workers, **more):
    return Nodes(MESSAGE_PROCESS, workers, **more)


def weights_of(world, options):
    options = {"steps": STEPS, "num_envs": ENVS, "seed": 3, "cogs": 3} | options
    if world != "foundry_1":
        del options["cogs"]
    report = training.train(world, **options)
    return {agent: result.weights for agent, result in report.agents.items()}


@functools.cache
def _in_one_process(config):
    return weights_of("foundry_1", {"config": json.loads(config), "backend": "serial"})


def in_one_process(config):
    """Return the weights of a run in this process, which several tests compare theirs with."""
    return _in_one_process(json.dumps(config))


@pytest.fixture
def run_on(monkeypatch):
    """Train on workers that are given in place of this process's cores."""
    run = training._Task.run

    def train(nodes, world="foundry_1", look=lambda run: None, **options):
        def given(task, cores, *, resumable):
            made = run(task, nodes or cores, resumable=resumable)
            look(made)
            return made

        if nodes is None:
            options["backend"] = "serial"
        with monkeypatch.context() as patched:  # whoever compares its weights trains in this process
            patched.setattr(training._Task, "run", given)
            return weights_of(world, options)

    return train


@pytest.mark.parametrize("loop", ["sync", "pipelined"])
@pytest.mark.parametrize("learner", [PPO, DQN], ids=["ppo", "dqn"])
def test_weights_are_those_of_one_process(run_on, learner, loop):
    config = {**learner, "loop": loop}
    assert run_on(far(4), config=config) == in_one_process(config)


def test_one_worker_collects_and_the_caller_learns(run_on):
    assert run_on(far(1), config=PPO) == in_one_process(PPO)


class Born(GlobalDrift):
    """Draws while it is made, too."""

    def __init__(self):
        super().__init__()
        self.born = random.gauss(0, 1)

    def see(self):
        return super().see() + self.born


def test_worlds_that_draw_from_global_generators_draw_what_their_slots_draw(run_on):
    assert run_on(far(4), Born, config=PPO) == run_on(None, Born, config=PPO)


def collectors(run):
    return run.loop._side._workers.pids


def learners(run):
    return run.learners.pids


@pytest.mark.filterwarnings("ignore::stretto.errors.FewerWorkers")
@pytest.mark.parametrize("loop", ["sync", "pipelined"])
@pytest.mark.parametrize("which", [collectors, learners])
@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "not-replaced"])
def test_a_lost_worker_changes_nothing(run_on, which, loop, replaced):
    runs, killed, config = [], [], {**DQN, "loop": loop}

    def kill(interval):
        if interval.number == 3:
            killed.append(which(runs[0])[0])
            os.kill(killed[0], signal.SIGKILL)

    nodes = far(4, room=lambda: replaced or not killed)
    assert run_on(nodes, config=config, look=runs.append, on_interval=kill) == in_one_process(config)
    assert killed


def test_a_run_goes_on_elsewhere_from_a_checkpoint_of_one_process(run_on, tmp_path):
    config = {**PPO, "checkpoint": {"every": 1}}
    expected = run_on(None, config=config)
    run_on(None, config=config, steps=STEPS // 2, out=tmp_path / "run")
    assert run_on(far(3), config=config, out=tmp_path / "run", resume=True) == expected


def test_a_run_goes_on_in_one_process_from_a_checkpoint_of_several(run_on, tmp_path):
    config = {**PPO, "checkpoint": {"every": 1}, "loop": "pipelined"}
    expected = run_on(None, config=config)
    run_on(far(3), config=config, steps=STEPS // 2, out=tmp_path / "run")
    assert run_on(None, config=config, out=tmp_path / "run", resume=True) == expected


def test_free_learning_keeps_its_replay_ratio_and_its_bound(run_on):
    found = []
    run_on(far(4), config={**PPO, "loop": "free", "most_lag": 2}, on_interval=found.append)
    assert all(one.overlap.lag <= 2 for one in found)
    assert found[-1].overlap.replayed == 2.0


def test_all_states_of_shares_fit_together_and_come_apart():
    assert [list(one) for one in shares_of(5, 2)] == [[0, 1], [2, 3, 4]]
    stage = {
        "steps": 7,
        "trials": np.arange(3),
        "episodes": np.array([0, -1, 2]),
        "rows": {"0": np.arange(6).reshape(3, 2)},
        "log": {
            "first": np.array([0, 1, 2]),
            "lengths": np.array([2, 0, 1]),
            "acted": np.array([True, False, True]),
            "actions": {"0": np.arange(3)},
        },
        "memory": [[[np.arange(2)]]],
    }
    whole = {"begun": np.array([1, 1, 2]), "stage": stage}
    again = joined_states(parted_states(whole, [range(1), range(1, 3)]))
    np.testing.assert_equal(again, whole)


def test_nodes_are_compared_by_what_is_played_and_by_what_is_learned_from_it(run_on):
    digests = []

    def compare(supervisor, message, limit_seconds):
        digests.append(set(supervisor.tell(lambda seat: message, "comparing", limit_seconds)))

    faster = {**PPO, "ppo": {**PPO["ppo"], "learning_rate": 1e-2}}
    for config in (PPO, faster):
        run_on(far(3, compare=compare), config=config, steps=1)
    (one,), (other,) = digests
    played, learned = zip(one.split(), other.split(), strict=True)
    assert played[0] == played[1]
    assert learned[0] != learned[1]
