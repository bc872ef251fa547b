"""A collection on a cluster gives the set that one machine gives, also when a node is lost in the middle."""

from __future__ import annotations

import os
import random

import pytest

import stretto

ROLLOUTS = 200


def collect(cluster=None, **options):
    where = {} if cluster is None else {"cluster": cluster}
    return stretto.collect("CartPole-v1", "random", ROLLOUTS, seed=3, max_steps=200, **where, **options)


@pytest.fixture(scope="module")
def expected():
    return collect().digest()


@pytest.mark.parametrize("count", [2, 3])
def test_the_set_is_that_of_one_machine(nodes, two_nodes, expected, count):
    nodes.ensure(count)
    assert collect(two_nodes).digest() == expected


@pytest.mark.parametrize("again", range(int(os.environ.get("STRETTO_LOST_NODES", "1"))))
def test_a_node_that_is_lost_at_a_random_moment_changes_no_rollout(nodes, two_nodes, expected, tmp_path, again):
    last, done = random.randrange(20, ROLLOUTS - 20), []

    def lose_a_node(rollout):
        done.append(rollout.index)
        if len(done) == last:
            nodes.remove(random.randrange(len(nodes.workers)))

    found = collect(two_nodes, out=tmp_path / "rollouts", on_rollout=lose_a_node)
    assert sorted(done) == list(range(ROLLOUTS))
    assert found.digest() == expected, f"a node was lost after {last} rollouts"
