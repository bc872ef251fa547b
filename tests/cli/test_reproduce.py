"""The command that is printed with a failure plays that episode again, and it fails in the same way."""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import stretto
from stretto.cli.app import main
from stretto.episode_steps import TimeLimits
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.playing.reproduce import reproduce
from stretto.missions.mission import Mission
from stretto.missions.resolve import find_missions
from stretto.policies.spec import PolicySpec, parse_policy

POLICIES = '''
import os
import time
from pathlib import Path


class Faulty:
    """Draws a number in each step, and fails in some of them; `how` says in which way."""

    def __init__(self, world, agent, how="raise", share=0.1, texts=()):
        self.space = world.action_spaces[agent]
        self.how, self.share, self.texts = how, share, texts

    def load(self, path):
        self.weights = Path(path).read_bytes()

    def reset(self, rng):
        self.rng = rng

    def step(self, observation):
        number = self.rng.random()
        if number < self.share:
            if self.how == "raise":
                raise ValueError(f"had enough at {number!r} of {self.texts}")
            if self.how == "die":
                os._exit(7)
            until = time.thread_time() + 0.2
            while time.thread_time() < until:
                pass
        self.space.seed(int(1e6 * number))
        return self.space.sample()
'''

WORLDS = '''
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Corridor(CartPoleEnv):
    """Fails where the pole leans to the right."""

    def step(self, action):
        seen, *rest = super().step(action)
        if seen[2] > 0.05:
            raise RuntimeError(f"leans by {seen[2]!r}")
        return seen, *rest
'''

MISSIONS = """
- {mission: foundry_1, name: small one, cogs: 2, steps: 40, variants: [rich], map_seed: 3}
- {mission: worlds.py:Corridor, name: leaning, steps: 30}
- gym:CartPole-v1
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "players.py").write_text(POLICIES)
    (tmp_path / "worlds.py").write_text(WORLDS)
    (tmp_path / "missions.yaml").write_text(MISSIONS.replace("- gym:", "- mission: gym:"))
    (tmp_path / "my weights.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict]:
    """Evaluate; return the first command that is printed as a shell would read it, and the failure that it is for."""
    assert main([*words, "--quiet", "--out", "run"]) == 1
    output = capsys.readouterr().out
    text = output.partition("  again: ")[2].partition("failed: ")[0].partition("...")[0]
    records = [json.loads(line) for line in Path("run/episodes.jsonl").read_text().splitlines()]
    command = shlex.split(text.replace("\\\n", " "))
    failed = [record for record in records if record["failure"] is not None]
    return command, next(record for record in failed if shlex.split(record["failure"]["reproduce"]) == command)


def again(command: list[str]) -> dict:
    """Run a command as it was printed; return the only episode that it plays."""
    assert command[0] == "stretto"
    words = [sys.executable, "-m", "stretto", *command[1:], "--format", "json", "--quiet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    (record,) = json.loads(done.stdout)["episodes"]
    return record


def same(record: dict, *, but: tuple[str, ...] = ()) -> dict:
    """What must be the same when an episode is played again."""
    failure = {key: record["failure"][key] for key in ("kind", "message", "policy", "agent", "step") if key not in but}
    return {key: record[key] for key in ("mission", "label", "episode", "seed", "policies")} | failure


@pytest.mark.parametrize(
    "line",
    [
        "-m gym:CartPole-v1 -p players.py:Faulty -e 3 --seed 5 --strategy threads -j 2",
        "-m worlds.py:Corridor -p random -p noop -e 3 -j 2 --device cpu",
        (
            "-m 'foundry_[12]' -v rich -v barren -c 3 --map-seed 9 -s 25 -e 2 -j 2 --mix -p random "
            "-p \"class=players:Faulty,proportion=2,strategy=processes,kw.texts=['a b','c,kw.d=1']\""
        ),
        "-m missions.yaml --allow-import -e 2 -j 2 -p 'class=players.py:Faulty,kw.share=0.3,data=my weights.safetensors'",
        "-m pz:mpe2.simple_spread_v3 -p class=players.py:Faulty,kw.how=die,kw.share=0.2 -e 1 -j 1 --hang-seconds 30",
    ],
    ids=["gym", "worlds", "games", "files", "deaths"],
)
def test_the_printed_command_shows_the_same_failure(folder, line, capsys):
    command, failed = printed(["eval", *shlex.split(line)], capsys)
    assert same(again(command)) == same(failed)


def test_one_of_several_missions_in_a_file_is_played_again_by_its_name(folder, capsys):
    words = ["eval", "-m", "missions.yaml:leaning", "--allow-import", "-p", "random", "-e", "2", "-j", "0"]
    command, failed = printed(words, capsys)
    assert failed["mission"] == "leaning"
    assert command[:5] == ["stretto", "eval", "-m", "missions.yaml:leaning", "--allow-import"]
    assert main(["eval", "-m", "missions.yaml:lening", "--allow-import", "-p", "random"]) == 2
    assert "did you mean leaning?" in capsys.readouterr().err


def test_a_deadline_that_was_struck_is_struck_again(folder, capsys):
    line = "-m gym:CartPole-v1 -p class=players.py:Faulty,kw.how=dawdle -e 1 -j 0 --action-timeout-ms 100 --overage-ms 20.5"
    command, failed = printed(["eval", *line.split()], capsys)
    assert failed["failure"]["kind"] == "PolicyOverdue"
    assert same(again(command), but=("message",)) == same(failed, but=("message",))


def test_every_choice_that_matters_is_in_the_command():
    (mission,) = find_missions(["foundry_1"], variants=["rich"], cogs=2, map_seed=3)
    spec = replace(parse_policy("class=neural,kw.seed=1"), device="cpu", deterministic=True)
    plan = Plan((mission,), entries_of([spec], mix=False), episodes=9, seed=5, max_steps=7)
    limits = TimeLimits(action_seconds=0.25, overage_seconds=1.5, hang_seconds=20.0)
    told = reproduce(plan, limits, mission, plan.entries[0], 8, apart=True)
    assert told == (
        "stretto eval -m foundry_1 --variant rich --cogs 2 --map-seed 3 -p class=neural,kw.seed=1 --seed 5 --steps 7 "
        "--action-timeout-ms 250.0 --overage-ms 1500.0 --hang-seconds 20.0 --device cpu --deterministic --jobs 1 --only 8"
    )


def test_the_command_fits_on_the_screen_and_is_one_line_in_the_records(folder, capsys):
    words = ["eval", "-m", "worlds.py:Corridor", "-p", "noop", "-e", "6", "-j", "0", "--device", "cpu", "--steps", "99"]
    assert main([*words, "--quiet", "--out", "run"]) == 1
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())
    records = [json.loads(line) for line in Path("run/episodes.jsonl").read_text().splitlines()]
    assert all("\n" not in record["failure"]["reproduce"] for record in records if record["failure"])


# --- in Python ------------------------------------------------------------------------------------------------


class Tired:
    """Has had enough at once."""

    def step(self, observation):
        raise ValueError(f"seen {float(observation[0])!r}")


def test_what_was_given_in_python_is_played_again_in_python():
    report = stretto.evaluate("gym:CartPole-v1", Tired, episodes=2, seed=3, steps=5, jobs=0)
    record = report.records[1]
    assert record.failure is not None
    call = record.failure.reproduce.removeprefix("in Python: ")
    assert call == "stretto.evaluate('gym:CartPole-v1', [Tired], seed=3, steps=5, jobs=0, episodes=2, only=[1])"
    (other,) = eval(call, {"stretto": stretto, "Tired": Tired}).records
    assert (other.failure, other.seed) == (record.failure, record.seed)


def test_what_a_program_made_itself_is_named_and_not_mistaken_for_something_else():
    (cartpole,) = find_missions(["gym:CartPole-v1"])
    named_like_ours = PolicySpec("random", Tired)
    mission = Mission("mine", cartpole.make)

    def told(missions, policies, **options):
        (record,) = stretto.evaluate(missions, policies, episodes=1, jobs=0, **options).records
        return record.failure.reproduce

    assert told(mission, Tired) == (
        "in Python: stretto.evaluate(<mission mine>, [Tired], seed=0, jobs=0, episodes=1, only=[0])"
    )
    assert "[<policy random>]" in told(cartpole, named_like_ours)
    assert "['random', <policy <lambda>>], cogs=2, mix=True" in told(
        "foundry_1", ["random", lambda _: 1 / 0], mix=True, cogs=2
    )
