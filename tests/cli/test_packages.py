"""Packages of other people: their missions and policies have short names, and what is broken in one harms nobody else."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap

import pytest

from stretto.cli.app import main
from stretto.errors import UsageError
from stretto.missions.registry import known_missions
from stretto.missions.resolve import find_missions

WORLDS = '''
"""Mazes, with variants, and one world by itself."""

from gymnasium.envs.classic_control import CartPoleEnv

MISSIONS = {
    "acme_maze": {"summary": "a maze of Acme's", "kwargs": {"steep": False}},
    "acme_hill": {"summary": "a hill of Acme's", "kwargs": {"steep": True}},
}
VARIANTS = {"windy": {"wind": 1.5}}


class Maze(CartPoleEnv):
    """Pays its wind in each step."""

    def __init__(self, steep=False, wind=0.5):
        super().__init__()
        self.wind = wind

    def step(self, action):
        seen, _, terminated, truncated, info = super().step(action)
        return seen, self.wind, terminated, truncated, info


def make(steep, wind=0.5):
    return Maze(steep, wind)
'''

POLICIES = '''
class Walker:
    """Walks on.

    And on.
    """

    def __init__(self, pace=0):
        self.pace = pace

    def step(self, observation):
        return self.pace
'''


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package as pip leaves it behind: a folder of modules, and one that ends with .dist-info."""
    site = tmp_path / "site"
    site.mkdir()
    before = set(sys.modules)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)

    def add(name: str, modules: dict[str, str], entry_points: str) -> None:
        for module, source in modules.items():
            path = site / name / f"{module}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))

    yield add
    for module in set(sys.modules) - before:
        del sys.modules[module]


@pytest.fixture
def acme(install):
    install(
        "acme_games",
        {"__init__": WORLDS, "players": POLICIES},
        """
        [stretto.missions]
        acme = acme_games
        acme_alone = acme_games:Maze

        [stretto.policies]
        acme_walker = acme_games.players:Walker
        """,
    )


@pytest.fixture
def broken(install):
    install(
        "brittle",
        {"__init__": "raise RuntimeError('bad\\nday')"},
        """
        [stretto.missions]
        brittle_1 = brittle
        foundry_1 = gymnasium.envs.classic_control:CartPoleEnv

        [stretto.policies]
        brittle_walker = brittle:Walker
        random = stretto.policies.builtin:Noop
        """,
    )


def test_missions_and_policies_of_a_package_are_listed_and_played_in_every_process(acme, capsys):
    assert main(["missions"]) == 0
    missions = capsys.readouterr().out
    assert "a maze of Acme's" in missions
    assert "acme_alone" in missions
    assert "windy" in missions
    assert main(["policies"]) == 0
    assert "Walks on." in capsys.readouterr().out
    words = ["eval", "-m", "acme_*", "-p", "acme_walker", "-p", "class=acme_walker,kw.pace=1", "-e", "1", "-s", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "stretto", *words, "-j", "2", "--format", "json", "--quiet"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stderr) == (0, "")
    records = json.loads(done.stdout)["episodes"]
    assert {record["mission"] for record in records} == {"acme_maze", "acme_hill", "acme_alone"}
    assert {record["rewards"]["agent_0"] for record in records} == {1.0}


def test_a_package_s_variants_apply_and_what_its_missions_do_not_know_is_refused(acme):
    (mission,) = find_missions(["acme_maze"], variants=["windy"])
    assert (mission.name, mission.make().wind) == ("acme_maze+windy", 1.5)
    with pytest.raises(UsageError, match=r"no variant of acme_maze is called 'windi'; did you mean windy\?"):
        find_missions(["acme_maze"], variants=["windi"])
    with pytest.raises(UsageError, match="got cogs for acme_maze, which takes steep, wind"):
        find_missions(["acme_maze"], cogs=3)
    with pytest.raises(UsageError, match=r"did you mean acme_alone"):
        find_missions(["acme_alon"])


def test_what_is_broken_in_one_package_is_told_in_a_line_and_stops_nothing(acme, broken, capsys):
    for command, names, warnings in (
        ("missions", ("acme_maze", "foundry_1", "netdefense"), ("brittle_1", "foundry_1")),
        ("policies", ("acme_walker", "random", "neural"), ("brittle_walker", "random")),
    ):
        assert main([command]) == 0
        output = capsys.readouterr()
        assert all(name in output.out for name in names)
        assert "bad day" in output.err
        assert len(output.err.splitlines()) == len(warnings)
        assert all(name in line for name, line in zip(warnings, output.err.splitlines(), strict=True))
    for mission in ("foundry_1", "acme_maze", "foundry_[1]"):
        assert main(["eval", "-m", mission, "-p", "random", "-e", "1", "-s", "2", "-j", "0", "--quiet"]) == 0
    assert main(["eval", "-m", "brittle_1", "-p", "random"]) == 2
    told = capsys.readouterr().err
    assert "the mission 'brittle_1' cannot be used: of the package brittle: RuntimeError: bad day" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("MISSIONS = {'odd': {}}\nmake = None", "KeyError: 'summary'"),
        ("MISSIONS = 3\nmake = None", "AttributeError"),
        ("MISSIONS = {}", "AttributeError.*make"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "no function that makes a world"),
    ],
)
def test_a_package_may_be_wrong_in_any_way(install, source, told):
    install("odd_games", {"__init__": source}, "[stretto.missions]\nodd = odd_games\n")
    known = known_missions()
    assert known["foundry_1"].error is None
    with pytest.raises(UsageError, match=f"odd_games: .*{told}"):
        find_missions(["odd"])


def test_our_missions_are_played_without_importing_anybody_else_s(broken, monkeypatch):
    monkeypatch.setattr("stretto.registry.entry_points", None)
    assert [mission.name for mission in find_missions(["foundry_2", "gym:CartPole-v1"])] == [
        "foundry_2",
        "gym:CartPole-v1",
    ]


def test_pip_installs_such_a_package(tmp_path, capsys, monkeypatch):
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("nothing is downloaded for this, and no setuptools is installed")
    source = tmp_path / "source"
    (source / "acme_games").mkdir(parents=True)
    (source / "acme_games/__init__.py").write_text(WORLDS)
    (source / "pyproject.toml").write_text(
        textwrap.dedent("""
            [project]
            name = "acme-games"
            version = "1.0"

            [project.entry-points."stretto.missions"]
            acme = "acme_games"

            [build-system]
            requires = ["setuptools"]
            build-backend = "setuptools.build_meta"
            """)
    )
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-qq"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(tmp_path / "site"), str(source)]
    subprocess.run(command, check=True, timeout=100)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert main(["missions"]) == 0
    assert "a hill of Acme's" in capsys.readouterr().out
    del sys.modules["acme_games"]
