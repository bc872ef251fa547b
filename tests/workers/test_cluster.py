"""What a user is told who cannot have a cluster; a cluster itself is tested by `make test-cluster`."""

from __future__ import annotations

import sys

import pytest

import stretto
from tests.worlds import Drift


def test_without_ray_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        stretto.UsageError, match=r"needs Ray, which is not installed .*; run: pip install 'stretto\[ray\]'"
    ):
        stretto.cluster("local")


def test_without_a_cluster_it_says_how_to_open_one():
    with pytest.raises(stretto.UsageError, match="needs a cluster, and none is open; use it within"):
        stretto.make_vec(Drift, 2, backend="ray")


def test_an_evaluation_on_a_cluster_has_no_jobs_in_the_caller():
    with pytest.raises(stretto.UsageError, match="on a cluster nothing is played in the caller, got jobs=0"):
        stretto.evaluate("foundry_1", "random", cluster="local", jobs=0)


def test_a_collection_on_a_cluster_has_its_worlds_on_nodes():
    with pytest.raises(stretto.UsageError, match="on a cluster worlds are on its nodes, got backend='thread'"):
        stretto.open_collection(Drift, "random", cluster=object(), backend="thread")
