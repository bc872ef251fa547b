"""A training on a cluster gives the weights of one machine, also when a node is lost in the middle."""

from __future__ import annotations

import json
import os
import random

import pytest

pytest.importorskip("torch")
pytest.importorskip("pydantic")

from stretto.training.train import train

INTERVALS, ROWS, ENVS, AGENTS = 20, 32, 4, 4


def weights(loop, cluster=None, **options):
    config = {"learner": "ppo", "loop": loop, "ppo": {"rows": ROWS, "epochs": 1}}
    where = {"backend": "serial"} if cluster is None else {"cluster": cluster}
    steps = INTERVALS * ROWS * ENVS
    report = train("foundry_1", cogs=AGENTS, steps=steps, num_envs=ENVS, seed=3, config=config, **where, **options)
    return {agent: result.weights for agent, result in report.agents.items()}


@pytest.fixture(scope="module")
def expected():
    found = {}

    def of(loop):
        if loop not in found:
            found[loop] = weights(loop)
        return found[loop]

    return of


@pytest.mark.parametrize(("loop", "count"), [("sync", 2), ("pipelined", 3)])
def test_the_weights_are_those_of_one_machine(nodes, two_nodes, expected, loop, count, tmp_path):
    nodes.ensure(count)
    assert weights(loop, two_nodes, out=tmp_path / "run", trace=True) == expected(loop)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    where = summary["timing"]["nodes"]
    assert set(where) <= {two_nodes.name_of(node) for node in two_nodes.rooms()}
    assert sum(one["environments"] for one in where.values()) == ENVS
    assert sum(one["agents"] for one in where.values()) == AGENTS
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    processes = {one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert any(" on node " in name for name in processes)


# With the node its room is lost: then the caller computes a learner, and says so.
@pytest.mark.filterwarnings("ignore::stretto.errors.FewerWorkers")
@pytest.mark.parametrize("loop", ["sync", "pipelined"])
@pytest.mark.parametrize("again", range(int(os.environ.get("STRETTO_LOST_NODES", "1"))))
def test_a_node_that_is_lost_after_a_random_interval_changes_no_weights(nodes, two_nodes, expected, loop, again):
    last, seen = random.randrange(2, INTERVALS - 1), []

    def lose_a_node(interval):
        seen.append(interval.number)
        if interval.number == last:
            nodes.remove(random.randrange(len(nodes.workers)))

    found = weights(loop, two_nodes, on_interval=lose_a_node)
    assert len(seen) >= INTERVALS  # rows in which an episode begins are no steps
    assert seen == list(range(1, len(seen) + 1))
    assert found == expected(loop), f"a node was lost after interval {last}"
