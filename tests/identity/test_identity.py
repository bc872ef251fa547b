"""What code, weights and an installation are: what changes a digest, and what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from stretto.identity.installation import installation
from stretto.identity.record import differences, identify
from stretto.identity.source import find_module

FILES = {
    "agent.py": "import json\nimport scipy.signal\nfrom nets import net\nraise SystemExit('nobody may import this')\n",
    "nets.py": "def net():\n    from layers.dense import Dense\n    return Dense\n",
    "layers/__init__.py": "",
    "layers/dense.py": "from . import shapes\nclass Dense: ...\n",
    "layers/shapes.py": "WIDTH = 8\n",
    "other.py": "",
}


@pytest.fixture
def project(tmp_path):
    """The folder of a user: a policy, neighbours that it imports, and one that it does not."""
    folder = tmp_path / "project"
    (folder / "layers").mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def of_agent(project, data=None, **settings):
    return identify(f"{project}/agent.py:Agent", settings, data)


def test_a_file_counts_with_the_neighbours_that_it_imports_and_with_versions_of_packages(project):
    found = of_agent(project)
    assert list(found["files"]) == ["agent.py", "layers/__init__.py", "layers/dense.py", "layers/shapes.py", "nets.py"]
    assert found["packages"].keys() == {"scipy"}
    assert found["code"] == "agent.py:Agent"


@pytest.mark.parametrize("changed", ["agent.py", "nets.py", "layers/shapes.py"])
def test_a_file_that_was_edited_is_told_by_its_name(project, changed):
    before = of_agent(project)
    (project / changed).write_text(FILES[changed] + "# edited\n")
    (change,) = differences(before, of_agent(project))
    assert change.startswith(f"the file {changed} was ")


def test_a_file_that_nobody_imports_does_not_count_and_neither_does_where_a_project_lies(project):
    before = of_agent(project)
    (project / "other.py").write_text("x = 1\n")
    assert of_agent(project.rename(project.with_name("moved"))) == before


def test_a_module_of_a_package_counts_with_the_rest_of_it_that_it_imports(project, monkeypatch):
    monkeypatch.syspath_prepend(project)
    found = identify("layers.dense:Dense", {})
    assert found["files"].keys() == {"__init__.py", "dense.py", "shapes.py"}
    assert "layers" not in sys.modules


def test_of_an_installed_package_the_version_counts():
    found = identify("gymnasium.envs.classic_control.cartpole:CartPoleEnv", {})
    assert found["packages"] == {"gymnasium": gymnasium.__version__}
    assert "files" not in found


@pytest.mark.parametrize(
    ("name", "told"), [("a.safetensors", "a.safetensors"), ("b.bin", "file=b.bin"), ("weights/c.bin", "folder=weights")]
)
def test_weights_count_with_their_content_wherever_they_are_named(project, name, told):
    (project / "weights").mkdir()
    for one in ("a.safetensors", "b.bin", "weights/c.bin"):
        (project / one).write_bytes(b"1")
    named = {"file": str(project / "b.bin"), "folder": project / "weights", "text": "neither"}
    before = of_agent(project, str(project / "a.safetensors"), **named)
    (project / name).write_bytes(b"2")
    (change,) = differences(before, of_agent(project, str(project / "a.safetensors"), **named))
    assert change.startswith(f"the data {told} was ")


def test_settings_are_told_by_name(project):
    (change,) = differences(of_agent(project, x=1, y=[2]), of_agent(project, x=1, y=[3]))
    assert change == "the setting y was [2] and is [3]"


def made(weight, step=1):
    weights = np.full(3, weight)

    def act(observation):
        return int(weights @ observation) + step

    return act


class Player:
    def __init__(self, size):
        self.size = size

    def __call__(self, observation):
        return self.size


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: made(1.0), lambda: made(2.0)),
        (lambda: made(1.0), lambda: made(1.0, step=2)),
        (lambda: Player(1), lambda: Player(2)),
        (lambda: Player(1).__call__, lambda: Player(2).__call__),
        (lambda: lambda x: 1, lambda: lambda x: 2),
    ],
    ids=["closure", "closure of a number", "attribute", "method", "code"],
)
def test_an_object_counts_with_its_code_and_all_that_it_holds(one, other):
    assert identify(one(), {}) == identify(one(), {})
    assert identify(one(), {}) != identify(other(), {})


def test_code_counts_with_the_file_that_it_comes_from():
    assert "test_identity.py" in identify(made(1.0), {})["files"]


PROGRAM = """
import json, sys
import numpy as np
from stretto.identity.record import identify

WIDTH, NAMES = {width}, {{"b", "a", "c"}}
class Base:
    def scale(self): return WIDTH
class Agent(Base):
    kinds = frozenset(["x", "y", "z"])
    def step(self, observation): return self.scale() if observation in NAMES else helper()
def helper(): return {helper}
unused = {unused}
print(json.dumps(identify(Agent, {{}})))
"""


def in_a_program(hash_seed="0", width=3, helper=1, unused=0):
    text = PROGRAM.format(width=width, helper=helper, unused=unused)
    surroundings = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, env=surroundings)
    return json.loads(done.stdout)


def test_code_of_a_main_program_counts_with_the_globals_that_it_uses_and_is_the_same_in_every_process():
    first = in_a_program()
    assert in_a_program(hash_seed="7", unused=5) == first
    assert in_a_program(width=4) != first
    assert in_a_program(helper=2) != first


def test_weights_of_torch_count_bit_by_bit():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(2, 2)
    before = identify(net.forward, {})
    assert identify(net.forward, {}) == before
    with torch.no_grad():
        net.weight[0, 0] = torch.nextafter(net.weight[0, 0], torch.tensor(9.0))
    assert identify(net.forward, {}) != before


def test_what_nothing_is_known_of_is_named():
    found = identify(Player(iter([1])), {})
    assert found["not covered"] == ["builtins.list_iterator"]


def test_an_installation_has_versions_and_the_processor():
    assert {"stretto", "python", "numpy", "gymnasium", "cpu"} <= installation().keys()


def test_finding_a_module_imports_no_parent_of_it():
    assert find_module("xml.sax.expatreader") is not None
    assert find_module("xml.sax.nothing") is None
    assert find_module("nowhere.at.all") is None
