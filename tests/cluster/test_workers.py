"""A worker on a node keeps what every worker keeps; what it says tells where it was."""

from __future__ import annotations

import os
import signal
import warnings

import numpy as np
import psutil
import pytest

import stretto
from stretto.testing import check_env_backend, check_worker
from stretto.workers.backends import RAY
from tests.worlds import Drift, GlobalDrift


def test_it_keeps_the_contract_of_a_worker(two_nodes):
    check_worker(RAY.start, pickles=True, shares_memory=False)


@pytest.mark.parametrize("world", [Drift, GlobalDrift], ids=["drift", "global-draws"])
def test_it_keeps_the_contract_of_a_vector_environment(two_nodes, world):
    check_env_backend(world, num_envs=3, steps=12, backend="ray", workers=2)


def seats(envs):
    return envs._engine.supervisor.seats


class Talks(Drift):
    def step(self, action):
        print(f"I act: {action}")
        warnings.warn("careful", UserWarning, stacklevel=1)
        return super().step(action)


def test_what_is_printed_comes_back_with_node_worker_and_slot(two_nodes, capsys):
    with stretto.make_vec(Talks, 4, backend="ray", workers=4) as envs:
        envs.reset(seed=1)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            envs.step(envs.action_space.sample())
        places = [f"node {seat.worker.node}, worker {i}, slot {i}" for i, seat in enumerate(seats(envs))]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition("]")[0].removeprefix("[") for line in lines] == places
    assert [str(one.message) for one in caught] == [f"careful [{place}]" for place in places]


class Fails(Drift):
    def step(self, action):
        raise ValueError("no way on")


def test_an_error_has_its_remote_traceback_and_says_where_it_was(two_nodes):
    with stretto.make_vec(Fails, 2, backend="ray", workers=2) as envs:
        envs.reset(seed=1)
        with pytest.raises(ValueError, match="no way on") as caught:
            envs.step(envs.action_space.sample())
    assert 'raise ValueError("no way on")' in str(caught.value.__cause__)
    assert "slot 0, worker 0, node 127.0.0.1/" in caught.value.__notes__[0]


def test_the_first_ready_come_first(two_nodes):
    with stretto.make_vec(Drift, 4, backend="ray", workers=4) as envs:
        envs.reset(seed=1)
        envs.send(envs.action_space.sample())
        first = envs.recv(ready=2)
        rest = envs.recv(ready=2)
        assert sorted([*first.ids, *rest.ids]) == [0, 1, 2, 3]


def run(envs, act=lambda number: None):
    envs.action_space.seed(3)
    found = [envs.reset(seed=5)[0].copy()]
    for number in range(12):
        act(number)
        found.append(envs.step(envs.action_space.sample()).observations.copy())
    return np.stack(found)


def test_a_lost_node_changes_nothing_that_the_caller_sees(nodes, two_nodes):
    with stretto.make_vec(Drift, 4, backend="serial") as envs:
        expected = run(envs)

    with stretto.make_vec(Drift, 4, backend="ray", workers=2) as envs:
        name, process = seats(envs)[0].worker.node, psutil.Process(envs.worker_pids[0])

        def lose_a_node(number):
            if number == 6:
                nodes.remove_named(name)
                process.wait(60)  # it ends when it notices; until then it may go on stepping

        np.testing.assert_array_equal(run(envs, lose_a_node), expected)
        assert envs.statistics().restarts >= 1


def test_an_actor_that_is_killed_is_replaced(two_nodes):
    import ray

    with stretto.make_vec(Drift, 4, backend="serial") as envs:
        expected = run(envs)
    with stretto.make_vec(Drift, 4, backend="ray", workers=2) as envs:
        worker = seats(envs)[1].worker
        found = run(envs, lambda number: ray.kill(worker._lent.actor) if number == 6 else None)
        np.testing.assert_array_equal(found, expected)


def test_a_process_that_dies_says_of_what_and_where(two_nodes):
    with stretto.make_vec(Drift, 2, backend="ray", workers=2, on_crash="raise") as envs:
        envs.reset(seed=1)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.raises(stretto.WorkerDied, match=r"killed by signal 9 \(SIGKILL\) \(on node 127.0.0.1/"):
            envs.step(envs.action_space.sample())


def test_more_than_any_node_has_is_refused_with_what_there_is(nodes):
    with pytest.raises(
        stretto.ResourceError, match=r"a worker needs num_cpus=1, num_gpus=1, and no node has that \(.*CPU 2"
    ):
        stretto.cluster("auto", num_gpus=1)
