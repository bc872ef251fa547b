"""An evaluation on a cluster gives what one machine gives, also when nodes or the caller are lost in the middle."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.evaluation.journal import PARTIAL

EPISODES = 200


def records(report):
    return [dataclasses.replace(record, timing={}) for record in report.records]


def play(cluster=None, episodes=EPISODES, **options):
    how = {"jobs": 2} if cluster is None else {"cluster": cluster}
    missions = ["gym:CartPole-v1", "foundry_1"]
    return stretto.evaluate(missions, ["random"], episodes=episodes // 2, steps=60, seed=3, **how, **options)


@pytest.fixture(scope="module")
def expected():
    return records(play())


@pytest.mark.parametrize("count", [2, 3])
def test_the_records_are_those_of_one_machine_and_say_where_they_were_made(nodes, two_nodes, expected, tmp_path, count):
    nodes.ensure(count)
    report = play(two_nodes, out=tmp_path / "run", trace=True)
    assert records(report) == expected
    names = set(report.plan["timing"]["nodes"])  # a node that starts late may find nothing left to play
    assert names <= {two_nodes.name_of(node) for node in two_nodes.rooms()}
    assert sum(report.plan["timing"]["nodes"].values()) == EPISODES
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    processes = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert names <= {name.rpartition(" on node ")[2] for name in processes if " on node " in name}


@pytest.mark.parametrize("again", range(int(os.environ.get("STRETTO_LOST_NODES", "1"))))
def test_a_node_that_is_lost_at_a_random_moment_changes_no_record(nodes, two_nodes, expected, again):
    last = random.randrange(20, EPISODES - 20)
    done = []

    def lose_a_node(record):
        done.append(record)
        if len(done) == last:
            nodes.remove(random.randrange(len(nodes.workers)))

    report = play(two_nodes, on_episode=lose_a_node)
    assert len(done) == EPISODES
    assert records(report) == expected, f"a node was lost after {last} episodes"


SLOW = """
import time
import gymnasium

class Slow(gymnasium.Wrapper):
    def step(self, action):
        time.sleep(0.02)
        return self.env.step(action)

def make():
    return Slow(gymnasium.make("CartPole-v1"))

def still(observation):
    return 0
"""


def test_a_caller_that_was_killed_goes_on_from_what_had_arrived(two_nodes, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    mission, out, count = str(tmp_path / "slow.py:make"), tmp_path / "run", 80
    policy = str(tmp_path / "slow.py:still")  # it chooses for one agent at a time, so that episodes end one by one
    command = [sys.executable, "-m", "stretto", "eval", "--cluster", two_nodes.address, "--quiet"]
    two_nodes.release()
    with (tmp_path / "log").open("w") as log:
        asked = ["-m", mission, "-p", policy, "-e", str(count), "--out", str(out)]
        first = subprocess.Popen([*command, *asked], stdout=log, stderr=log)
        journal, until = out / PARTIAL, time.monotonic() + 100
        while not (journal.exists() and journal.stat().st_size):
            assert first.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)  # nothing announces that somebody else's file grows
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert 0 < len(journal.read_text().splitlines()) < count
    done = subprocess.run([*command, "--resume", str(out)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    expected = stretto.evaluate(mission, policy, episodes=count, jobs=2)
    assert records(stretto.Report.load(out)) == records(expected)


class DependsOnItsNode(gymnasium.Env):
    """Adds to what is seen on one of the nodes, as another processor might in the last bit."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, odd):
        self._value = np.float32(0.1) + (2.0**-25 if os.environ["RAY_RAYLET_PID"] == odd else 0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.array([self._value], np.float32), {}

    def step(self, action):
        self._steps += 1
        return np.array([self._value * self._steps % 1], np.float32), 1.0, self._steps == 20, False, {}


def test_a_node_that_computes_differently_is_left_out_by_name(nodes, two_nodes):
    two_nodes.release()  # what it holds would be no room for another one
    nodes.ensure(3)
    odd = nodes.workers[1]
    pid = str(odd.all_processes["raylet"][0].process.pid)
    with stretto.cluster("auto") as cluster:
        name = cluster.name_of(odd.node_id)
        with pytest.warns(stretto.NodeLeftOut, match=f"node {name} is left out: the same first steps give other"):
            report = stretto.evaluate(
                DependsOnItsNode, "random", env_kwargs={"odd": pid}, episodes=12, steps=30, cluster=cluster
            )
        assert name not in report.plan["timing"]["nodes"]
    assert not any(record.failure for record in report.records)
    nodes.remove(2)
