"""An evaluation on a cluster gives what one machine gives, also when a node is lost in the middle."""

from __future__ import annotations

import dataclasses
import random

import pytest

import stretto

EPISODES = 200


def records(report):
    return [dataclasses.replace(record, timing={}) for record in report.records]


def play(cluster=None, episodes=EPISODES, **options):
    how = {"jobs": 2} if cluster is None else {"cluster": cluster}
    return stretto.evaluate(
        ["gym:CartPole-v1", "foundry_1"], ["random"], episodes=episodes // 2, steps=60, seed=3, **how, **options
    )


@pytest.fixture(scope="module")
def expected():
    return records(play())


def test_the_records_are_those_of_one_machine(two_nodes, expected):
    report = play(two_nodes)
    assert records(report) == expected
    assert {record.timing["node"] for record in report.records} == {
        two_nodes.name_of(node) for node in two_nodes.rooms()
    }


def test_a_node_that_is_lost_at_a_random_moment_changes_no_record(nodes, two_nodes, expected):
    last = random.randrange(20, EPISODES - 20)
    done = []

    def lose_a_node(record):
        done.append(record)
        if len(done) == last:
            nodes.remove(random.randrange(len(nodes.workers)))

    report = play(two_nodes, on_episode=lose_a_node)
    assert len(done) == EPISODES
    assert records(report) == expected, f"a node was lost after {last} episodes"
