"""The user's code reaches the nodes, or an error says what does not."""

from __future__ import annotations

import importlib
import sys

import pytest

import stretto

SOURCE = """
from tests.worlds import Drift

class Mine(Drift):
    pass
"""


@pytest.fixture
def lost_module(tmp_path, monkeypatch, request):
    """A module that the caller has imported, and that no node can import."""
    file = tmp_path / f"only_in_{request.node.name}.py"
    file.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(file.stem)
    file.unlink()
    yield module
    del sys.modules[file.stem]


def step_one(cluster, world):
    with stretto.make_vec(world, 2, backend="ray", workers=1) as envs:
        return envs.reset(seed=1)[0].shape


def test_modules_that_are_not_on_the_nodes_travel_by_value(two_nodes, lost_module, monkeypatch):
    # Nodes with one address are taken for one machine, which has all that the caller has.
    nodes = two_nodes._living()
    others = [{**node, "NodeManagerAddress": f"10.0.0.{number}"} for number, node in enumerate(nodes)]
    monkeypatch.setattr(two_nodes, "_living", lambda: others)
    assert step_one(two_nodes, lost_module.Mine) == (2, 3)


def test_a_module_that_a_node_does_not_have_is_named(two_nodes, lost_module):
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_in_") as caught:
        step_one(two_nodes, lost_module.Mine)
    assert "node 127.0.0.1/" in caught.value.__notes__[-1]
    assert "install it there, or pass runtime_env" in caught.value.__notes__[-1]
