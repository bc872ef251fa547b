"""A real Ray cluster of three nodes on this machine: the caller's, which has no cores for workers, and two with two each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

import stretto
from stretto.budget import default_budget
from stretto.workers.cluster import Cluster
from stretto.workers.ray_start import loopback_alone

ray = pytest.importorskip("ray")


def pytest_collection_modifyitems(items):
    """Give Ray time: it starts a dozen processes for a cluster, and a busy machine is slow at that."""
    for item in items:
        if "cluster" in item.path.parts[-2:]:
            item.add_marker(pytest.mark.timeout(600))


STORE_BYTES = 80 << 20


class Nodes:
    """A cluster whose nodes are added, and removed without grace."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.workers = []

    def add(self, count=1, **resources):
        """Start nodes with two cores each."""
        for _ in range(count):
            node = self.cluster.add_node(
                num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False, resources=resources or None
            )
            self.workers.append(node)

    def remove(self, number):
        """Kill all processes of a node, and with them whatever runs there."""
        self.cluster.remove_node(self.workers.pop(number), allow_graceful=False)

    def remove_named(self, name):
        """Kill the node that a cluster calls so."""
        ids = [one["NodeID"] for one in ray.nodes() if name.endswith(one["NodeID"][:6])]
        self.remove([one.node_id for one in self.workers].index(ids[0]))

    def ensure(self, count):
        """Let there be so many nodes that have workers, and Ray know of those that there are: it notices a death late."""
        self.add(count - len(self.workers))
        deadline = time.monotonic() + 60
        while sum(bool(one["Alive"] and one["Resources"].get("CPU")) for one in ray.nodes()) != len(self.workers):
            assert time.monotonic() < deadline, "Ray does not know which nodes there are"
            time.sleep(0.1)


@pytest.fixture(scope="session")
def nodes(tmp_path_factory) -> Iterator[Nodes]:
    home = os.environ.get("HOME")
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))  # Ray writes into it
    with loopback_alone():
        from ray.cluster_utils import Cluster as RayCluster

        started = RayCluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False},
        )
        found = Nodes(started)
        found.add(2)
        ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
        yield found
        ray.shutdown()
        started.shutdown()
    if home is not None:
        os.environ["HOME"] = home


@pytest.fixture(scope="session")
def connection(nodes) -> Iterator[Cluster]:
    with stretto.cluster("auto") as cluster:
        yield cluster


@pytest.fixture
def two_nodes(nodes, connection) -> Cluster:
    """A connection to a cluster in which two nodes have room for two workers each."""
    nodes.ensure(2)
    return connection


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Ray has processes, threads and descriptors of its own, and keeps them: here, cores alone are counted."""
    before = default_budget().free
    yield
    assert default_budget().free == before
