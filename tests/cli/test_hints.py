"""What somebody new gets wrong, and is told; and what they write that simply works."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto
from stretto.cli.app import main
from stretto.errors import UsageError

MINE = '''
import numpy as np
import stretto


class Needs:
    def __init__(self, p):
        self.p = p

    def step(self, observation):
        return self.p


class WithoutSuper(stretto.AgentPolicy):
    def reset(self):
        self.count = 0

    def step(self, observation):
        return int(self.rng.integers(2))


class Frozen(stretto.AgentPolicy):
    @property
    def rng(self):
        return None

    def reset(self, rng):
        self.own = rng

    def step(self, observation):
        return int(self.own.integers(2))


class Seeded:
    def reset(self, seed=None):
        self.given = seed

    def step(self, observation):
        return int(np.random.default_rng([self.given, int(1000 * abs(observation[0]))]).integers(2))


class SeededByName(Seeded):
    def reset(self, *, seed):
        assert type(seed) is int, seed
        super().reset(seed)


class Annotated:
    """Its annotation is what is written there, whatever the module that imports this file does with its own."""

    def __init__(self, w: "stretto.WorldSpec"):
        self.w = w

    def agent_policy(self, agent):
        return Failing()


class Unbuildable:
    def __init__(self, world):
        raise KeyError("weights")

    def agent_policy(self, agent): ...


class Failing:
    def step(self, observation):
        raise ValueError("no idea what to do")


class FailingLate:
    """Fails in those episodes that begin on the left."""

    def step(self, observation):
        if not hasattr(self, "first"):
            self.first = observation[0]
        if self.first < 0:
            raise ValueError("lost on the left")
        return 0
'''


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with policies and mission files, from which commands are run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "listed.yaml").write_text("- {mission: foundry_1, name: small, cogs: 2}\n")
    (tmp_path / "mapping.yaml").write_text("missions: [{mission: foundry_1}]\n")
    return tmp_path


def run(line: str) -> int:
    return main(line.split())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("-m foundry_1 -p random -e -3", "episodes must be at least 1, got -3"),
        ("-m foundry_1 -p random --overage-ms 5", "got 5 without a timeout; add --action-timeout-ms"),
        ("-m mine.py -p random", "name the function or class in the file, as in mine.py:make"),
        ("-m mapping.yaml -p random", "must be a list of entries with the key 'mission'"),
        ("-m gym:CartPole-v1 -p mine.py:Needs -j 0", "write mine.py:Needs,kw.p=..."),
        ("-m gym:CartPole-v1 -p class=mine.py:Needs,proportion=2 -j 0", "class=mine.py:Needs,proportion=2,kw.p=..."),
        (
            "-m netdefense_b_line -p gatherer -j 0",
            "gatherer plays Foundry alone, got a world in which agent_0 observes",
        ),
        ("-m gym:CartPole-v1 -p planner -j 0", "planner plays Foundry alone"),
        ("-m nosuch.module:World -p random", "'nosuch.module:World' is no registered environment: No module named"),
    ],
)
def test_a_mistake_gets_one_sentence_with_its_remedy(capsys, line, told):
    assert run(f"eval {line}") == 2
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(("mission", "name"), [("not_installed:World", "World"), ("pz:not_installed", "parallel_env")])
def test_who_names_a_file_of_this_folder_as_a_module_is_told_to_name_the_file(capsys, folder, mission, name):
    (folder / "not_installed.py").touch()
    assert run(f"eval -m {mission} -p random") == 2
    assert f"for the file not_installed.py write not_installed.py:{name}\n" in capsys.readouterr().err


def test_what_a_constructor_raises_is_told_with_mission_and_policy(capsys):
    assert run("eval -m gym:CartPole-v1 -p mine.py:Unbuildable -e 1 -j 0") == 1
    told = capsys.readouterr().err
    assert "raised KeyError: 'weights' while starting (mission gym:CartPole-v1, policy mine.py:Unbuildable)" in told


def test_the_parameter_for_the_world_is_found_by_its_annotation_in_a_file(capsys):
    assert run("eval -m gym:CartPole-v1 -p mine.py:Annotated -e 1 -j 0 --quiet") == 1
    assert "no idea what to do" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["", "eval"])
def test_help_has_a_short_option_too(capsys, command):
    assert run(f"{command} -h") == 0
    assert capsys.readouterr().out.startswith(f"Usage: stretto {command}".rstrip())


def test_the_remedy_for_a_missing_argument_works():
    assert run("eval -m gym:CartPole-v1 -p class=mine.py:Needs,kw.p=1 -j 0 -e 1 --quiet") == 0


class Half:
    def __init__(self, p):
        self.p = p

    def step(self, observation):
        return self.p


def test_an_object_in_place_of_its_class_is_refused_with_what_to_pass_instead():
    with pytest.raises(UsageError, match=r"an object of Half; pass Half itself, or the text 'class=file.py:Half,kw"):
        stretto.evaluate("gym:CartPole-v1", Half(0), jobs=0)
    with pytest.raises(UsageError, match=r"got no p for 'Half'; write 'class=file.py:Half,kw.p=...'"):
        stretto.evaluate("gym:CartPole-v1", Half, jobs=0)


@pytest.mark.parametrize("name", ["WithoutSuper", "Frozen", "Seeded", "SeededByName"])
def test_policies_have_their_numbers_however_they_write_reset(name):
    def rewards(seed):
        report = stretto.evaluate("gym:CartPole-v1", f"mine.py:{name}", episodes=8, jobs=0, seed=seed)
        assert [record.failure for record in report.records] == [None] * 8
        return [record.reward for record in report.records]

    assert rewards(3) == rewards(3)
    assert rewards(3) != rewards(4)


def test_a_mission_with_other_cogs_is_not_described_as_with_its_own(capsys):
    assert run("describe listed.yaml:small") == 0
    told = capsys.readouterr().out
    assert told.startswith("small: foundry_1 with cogs = 2\n")
    assert "Four cogs" not in told
    assert run("describe foundry_1 --cogs 4") == 0
    assert capsys.readouterr().out.startswith("foundry_1: Four cogs on an open field.\n")


def test_verify_does_not_pass_what_fails(capsys):
    assert run("verify gym:CartPole-v1 -p mine.py:Failing -e 2") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("all 2 episodes failed alike in all 7 ways; the first is gym:CartPole-v1, mine.py:Failing")
    assert "ValueError('no idea what to do')" in told
    assert "every bit" not in told


def test_verify_tells_of_the_episodes_that_fail_beside_those_that_do_not(capsys):
    assert run("verify gym:CartPole-v1 -p mine.py:FailingLate -e 6") == 1
    told = " ".join(capsys.readouterr().out.split())
    assert " of 6 episodes failed alike in all 7 ways; the first is " in told
    assert "lost on the left" in told
    assert "the same in 7 ways: 6 episodes" in told


def test_a_mix_says_how_each_policy_did_and_who_never_played(capsys):
    assert run("eval -m foundry_1 -p random -p gatherer --mix -e 3 -s 60 -j 0 --quiet") == 0
    done = capsys.readouterr()
    table, _, answer = done.out.partition("\n\n")
    assert answer.startswith("gatherer is rated highest of 2 policies")
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [row[:3] for row in rows] == [
        ["foundry_1", "random", "+"],
        ["foundry_1", "gatherer", "3"],
        ["foundry_1", "random", "3"],
    ]
    assert float(rows[1][3]) > float(rows[2][3])
    assert done.err == ""
    assert run("eval -m gym:CartPole-v1 -m foundry_1 -p random -p noop --mix -e 1 -s 5 -j 0 --quiet") == 0
    assert capsys.readouterr().err.count("no agent followed noop on gym:CartPole-v1 (1 agent); give") == 1


def test_an_option_that_has_another_name_elsewhere_is_named(capsys):
    assert main(["eval", "-m", "foundry_1", "-p", "random", "--parallel-agents"]) == 2
    assert "--parallel-agents (it is called --parallel-policy)" in capsys.readouterr().err
