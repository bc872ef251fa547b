"""`stretto eval` and what belongs to it: the two streams, and the exit code; in another process where that may matter."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from stretto.cli.app import main

STRETTO = [sys.executable, "-m", "stretto"]
QUICK = ["-e", "3", "-s", "15"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(capsys, monkeypatch, tmp_path) -> Callable[..., Done]:
    """Run a command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run_here(*arguments: str) -> Done:
        code = main(list(arguments))
        return Done(code, *capsys.readouterr())

    return run_here


def test_the_lines_that_people_know_work_as_they_stand_and_so_does_one_without_processes(call):
    lines = [
        "eval -m foundry_1 -p random --cogs 4 --parallel-policy",
        "eval -m foundry_1 -p random --episodes 10 --jobs 4",
        "eval -m foundry_1 -p random --cogs 4 --episodes 10 --jobs 4 --parallel-policy",
        "eval -m foundry_1 -p random --jobs 0",
    ]
    done = [call(*line.split()) for line in lines]
    assert [one.returncode for one in done] == [0, 0, 0, 0], [one.stderr for one in done]
    assert "foundry_1  random  10" in done[0].stdout
    # All but the last column, the speed.
    assert len({tuple(line.rpartition(" ")[0].rstrip() for line in one.stdout.splitlines()) for one in done}) == 1


def test_json_yaml_and_csv_are_all_that_stdout_has_and_say_the_same(call):
    def printed(how):
        done = call("eval", "-m", "gym:CartPole-v1", "-p", "random", "-p", "noop", *QUICK, "--format", how)
        assert done.returncode == 0, done.stderr
        return done.stdout

    told = json.loads(printed("json"))
    assert [record["label"] for record in told["episodes"]] == ["random"] * 3 + ["noop"] * 3
    assert [r["rewards"] for r in yaml.safe_load(printed("yaml"))["episodes"]] == [
        r["rewards"] for r in told["episodes"]
    ]
    assert len(list(csv.DictReader(io.StringIO(printed("csv"))))) == 6


def test_missions_that_cannot_be_filmed_are_named_before_playing_and_if_none_can_be_nothing_is_played(call, tmp_path):
    (tmp_path / "worlds.py").write_text(
        "import gymnasium\n\n\nclass Unseen(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Discrete(2)\n\n"
        "    def reset(self, seed=None, options=None):\n        return 0, {}\n\n"
        "    def step(self, action):\n        return 0, 1.0, True, False, {}\n"
    )
    both = ("eval", "-m", "worlds.py:Unseen", "-m", "foundry_1", "-p", "random", *QUICK, "--out", "run", "--video", "1")
    done = call(*both)
    assert done.returncode == 0, done.stderr
    assert "there will be no film of" in done.stderr.splitlines()[0]
    assert "its metadata has no render mode 'rgb_array'" in done.stderr
    assert len(list(Path("run/videos").iterdir())) == 1
    none = call("eval", "-m", "worlds.py:Unseen", "-p", "random", *QUICK, "--out", "other", "--video", "1")
    assert none.returncode == 2
    assert "none of the missions can be filmed" in none.stderr
    assert not Path("other").exists()


def test_scores_pool_missions_and_what_normalizes_them_is_checked(call):
    given = ("eval", "-m", "foundry_1", "-m", "gym:CartPole-v1", "-p", "noop", "-p", "random", *QUICK)
    done = call(*given, "--normalize", "noop:random", "--format", "json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary["normalize"] == ["noop", "random"]
    wrong = call(*given, "--normalize", "noop:planner")
    assert wrong.returncode == 2
    assert "two different policies of the evaluation, got 'noop:planner'; the policies are noop, random" in wrong.stderr


def test_the_table_fits(call):
    done = call("eval", "-m", "foundry_*", "-p", "random", "-p", "gatherer", "-e", "2", "-s", "3")
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert done.stdout.partition("\n\n")[0].count(" gatherer ") == 5


def test_a_folder_has_records_summary_report_and_films(call, tmp_path):
    out = tmp_path / "run"
    done = call("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", str(out), "--video", "1")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in out.iterdir()}
    assert {"episodes.jsonl", "episodes.csv", "summary.json", "report.html", "videos"} <= names
    assert not any(name.startswith(".") or "partial" in name for name in names)
    [film] = (out / "videos").iterdir()
    assert film.name == "foundry_1-random-0.mp4"
    assert base64.b64encode(film.read_bytes()).decode() in (out / "report.html").read_text()
    assert f"<code>stretto eval -m foundry_1 -p random {' '.join(QUICK)}" in (out / "report.html").read_text()
    (tmp_path / "brief.py").write_text(
        "def act(observation):\n    return 1 if observation['self'][-1] < 0.02 else None\n"
    )
    failed = call("eval", "-m", "foundry_1", "-p", "brief.py:act", *QUICK, "--out", "failed", "--video", "1")
    assert failed.returncode == 1
    [film] = Path("failed/videos").iterdir()
    assert film.name.startswith("foundry_1-brief.py_act-0")
    again = call("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", str(out))
    assert again.returncode == 2
    assert "holds a finished evaluation, which would be overwritten; choose another folder" in again.stderr


def without_timing(path: Path) -> list[str]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [json.dumps({**line, "timing": None}, sort_keys=True) for line in lines]


SLOW = """
import os
import time
from stretto.core import AgentPolicy

class Slow(AgentPolicy):
    def step(self, observation):
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0")))
        return int(self.rng.integers(2))
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_one_that_is_ended_can_be_gone_on_with_and_gives_what_it_would_have_given(call, end, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    what = ["eval", "-m", "gym:CartPole-v1", "-p", "slow.py:Slow", "-e", "12", "-s", "20", "-j", "2", "--quiet"]
    whole = call(*what, "--out", "whole")
    assert whole.returncode == 0, whole.stderr
    slow = {**os.environ, "SECONDS_A_STEP": "0.02"}
    process = subprocess.Popen(
        [*STRETTO, *what, "--out", "cut"], env=slow, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    journal = tmp_path / "cut" / "episodes.partial.jsonl"
    while not journal.exists() or journal.read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(end)
    output, errors = process.communicate(timeout=30)
    if end is signal.SIGINT:
        assert process.returncode == 130
        assert "--resume cut" in errors
        assert len(errors.splitlines()) <= 3
        assert "slow.py:Slow" in output  # what is finished
    done = journal.read_text().count("\n")
    assert 3 <= done < 12
    resumed = call("eval", "--resume", "cut", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert without_timing(tmp_path / "cut/episodes.jsonl") == without_timing(tmp_path / "whole/episodes.jsonl")


def test_only_the_same_evaluation_can_be_gone_on_with(call, tmp_path):
    call("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--out", "run")
    done = call("eval", "-m", "foundry_1", "-p", "random", *QUICK, "--seed", "1", "--resume", "run")
    assert done.returncode == 2
    assert "seed was 0" in done.stderr
    assert call("eval", "--resume", "nowhere").returncode == 2


BUSY = """
import time

class Busy:
    def step(self, observation):
        with open("steps.txt", "a") as file:
            file.write("one\\n")
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass
        return 0
"""


def test_an_evaluation_is_gone_on_with_under_the_limits_of_time_that_it_began_with(call, tmp_path):
    (tmp_path / "busy.py").write_text(BUSY)
    limits = ["--action-timeout-ms", "50", "--overage-ms", "10", "--hang-seconds", "30"]
    begun = call(
        "eval", "-m", "gym:CartPole-v1", "-p", "busy.py:Busy", "-e", "2", "--only", "0", *limits, "--out", "run"
    )
    assert "PolicyOverdue" in Path("run/episodes.jsonl").read_text(), begun.stderr
    for option, told in [
        ("--action-timeout-ms", "action_timeout_ms was 50.0 in run and is 900.0 now"),
        ("--overage-ms", "overage_ms was 10.0"),
        ("--hang-seconds", "hang_seconds was 30.0"),
        ("--seed", "seed was 0"),
        ("--hang-seconds=60", "hang_seconds was 30.0 in run and is 60.0 now"),  # which it is where nobody asks
    ]:
        refused = call("eval", "--resume", "run", *([option] if "=" in option else [option, "900"]))
        assert refused.returncode == 2
        assert told in refused.stderr
    more = call("eval", "--resume", "run", "--only", "1", "--quiet")
    assert more.returncode == 1, more.stderr
    records = [json.loads(line) for line in Path("run/episodes.jsonl").read_text().splitlines()]
    assert [(one["episode"], one["failure"]["kind"]) for one in records] == [(0, "PolicyOverdue"), (1, "PolicyOverdue")]


def test_going_on_with_what_is_finished_plays_nothing_and_prints_it_again(call, tmp_path):
    world = "import gymnasium\n\ndef world():\n    return gymnasium.make('CartPole-v1')\n"
    (tmp_path / "busy.py").write_text(BUSY.replace("0.2", "0") + world)
    (tmp_path / "mine.yaml").write_text("mission: busy.py:world\nsteps: 4\n")
    what = ["eval", "-m", "mine.yaml", "--allow-import", "-p", "busy.py:Busy", "-e", "3", "-j", "1"]
    whole = call(*what, "--out", "run", "--quiet")
    assert whole.returncode == 0, whole.stderr
    files = {path: path.read_bytes() for path in [*Path("run").iterdir(), Path("steps.txt")]}
    again = call("eval", "--resume", "run", "--quiet")
    assert (again.returncode, again.stdout) == (0, whole.stdout), again.stderr
    assert {path: path.read_bytes() for path in [*Path("run").iterdir(), Path("steps.txt")]} == files


WORTHLESS = """
from gymnasium.envs.classic_control import CartPoleEnv

class World(CartPoleEnv):
    def step(self, action):
        seen, _, *rest = super().step(action)
        return seen, float("nan"), *rest
"""


def test_a_reward_that_is_no_number_is_listed_as_a_failure_and_the_exit_code_says_so(call, tmp_path):
    (tmp_path / "worthless.py").write_text(WORTHLESS)
    done = call("eval", "-m", "worthless.py:World", "-p", "noop", "-e", "2", "-s", "3", "-j", "0", "--quiet")
    assert done.returncode == 1
    assert "2 of 2 episodes failed" in done.stdout
    assert "failed: worthless:World, noop, episode 0: " in done.stdout


@pytest.mark.parametrize("words", [["missions"], ["describe", "foundry_1"]], ids=str)
def test_whoever_reads_no_further_is_told_nothing_more(words):
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}  # so that it is only seen when all has been printed
    with os.fdopen(writer, "w") as output:
        done = subprocess.run(
            [*STRETTO, *words], env=buffered, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_missions_policies_and_what_a_mission_is_are_listed(call):
    missions, policies = call("missions"), call("policies")
    assert all(f"foundry_{i}" in missions.stdout for i in range(1, 6))
    assert all(name in policies.stdout for name in ("random", "noop", "gatherer", "planner", "neural"))
    assert all(len(line) <= 80 for done in (missions, policies) for line in done.stdout.splitlines())
    described = call("describe", "foundry_1", "-c", "2")
    assert "cog_0, cog_1" in described.stdout
    assert "Discrete" in described.stdout


def test_an_episode_can_be_watched(call):
    done = call("play", "foundry_1", "-p", "gatherer", "-s", "3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 3: cog_0 does (wait|north|east|south|west|mine|charge|craft), cog_1", done.stdout)
    assert "step 2: agent_0 does 0" in call("play", "gym:CartPole-v1", "-p", "noop", "-s", "2").stdout


UNREPRODUCIBLE = """
import gymnasium, os, random

class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.see(0.5), {}
    def see(self, value):
        import numpy as np
        return np.array([value], np.float32)
    def step(self, action):
        self.count += 1
        value = os.urandom(1)[0] / 255 if self.count == 4 else 0.5
        return self.see(value), 0.0, False, self.count == 9, {}

class Restless:
    def __init__(self):
        self.count = 0
    def step(self, observation):
        self.count += 1
        return os.urandom(1)[0] % 2 if self.count > 5 else 0
"""


def test_worlds_and_policies_that_are_not_reproducible_are_found_and_told_apart(call, tmp_path):
    (tmp_path / "mine.py").write_text(UNREPRODUCIBLE)
    world = call("verify", "mine.py:World", "-p", "noop")
    assert world.returncode == 1
    assert "step 4" in world.stdout
    assert "the world steps differently" in world.stdout
    policy = call("verify", "gym:CartPole-v1", "-p", "mine.py:Restless", "-e", "6")
    assert policy.returncode == 1
    assert "its policy does" in policy.stdout
    good = call("verify", "foundry_1", "-p", "random", "-s", "10", "-e", "2")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "every bit" in good.stdout


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("eval -p random", "at least one mission"),
        ("eval -m foundry_1", "at least one mission"),
        ("eval -m foundy_1 -p random", "did you mean foundry_1"),
        ("eval -m foundry_1 -p gathrer", "gatherer"),
        ("eval -m foundry_1 -p random -v richh", "rich"),
        ("eval -m foundry_1 -p random --failed never", "exclude or worst"),
        ("eval -m foundry_1 -p random -j many", "whole number or 'auto'"),
        ("eval -m nothing.yaml -p random", "readable YAML"),
        ("eval -m foundry_1 -p random --out /proc/nothing", "can be written to"),
        ("eval -m foundry_1 -p random --video 2", "add --out DIR"),
        ("eval -m foundry_1 -p random --only -1", "from 0 on, got -1"),
        ("eval -m foundry_1 -p random --episode 3", "--episodes"),
        ("eval -m pz:json -p random", "a world must be in its module, got 'parallel_env', which json does not have"),
        ("play foundry_* -p random", "one mission is played"),
        ("evl", "Did you mean 'eval'? See: stretto --help"),
    ],
)
def test_bad_input_gets_one_sentence(call, line, told):
    done = call(*line.split())
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


BROKEN = """
import gymnasium

class Team:
    def __init__(self, world):
        raise RuntimeError("no weights")
    def agent_policy(self, agent): ...

class World(gymnasium.Env):
    def __init__(self):
        raise OSError("no display")
"""


@pytest.mark.parametrize("jobs", ["0", "1"])
@pytest.mark.parametrize(
    ("mission", "policy", "told", "frames"),
    [
        (
            "foundry_1",
            "broken.py:Team",
            "RuntimeError: no weights",
            'line 6, in __init__\n    raise RuntimeError("no w',
        ),
        ("broken.py:World", "random", "OSError: no display", 'line 11, in __init__\n    raise OSError("no display")'),
        ("foundry_1", "worse.py:Team", "SyntaxError: ", "line 1\n    def (\n"),
    ],
)
def test_what_users_code_raises_before_anything_is_played_is_told_without_our_frames(
    call, tmp_path, mission, policy, told, frames, jobs
):
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "worse.py").write_text("def (")
    done = call("eval", "-m", mission, "-p", policy, "-j", jobs, "--quiet")
    assert done.returncode == 1
    assert done.stderr.startswith(f"stretto: code of a mission or a policy raised {told}")
    assert frames in done.stderr
    assert "stretto/" not in done.stderr


@pytest.mark.parametrize("words", [["describe"], ["play", "-p", "random"], ["verify", "-p", "random"]], ids=str)
def test_so_it_is_by_the_other_commands(call, tmp_path, words):
    (tmp_path / "broken.py").write_text(BROKEN)
    done = call(*words, "broken.py:World")
    assert done.returncode == 1
    told = done.stderr.partition("stretto: ")[2]
    assert told.startswith("code of a mission or a policy raised OSError: no display")
    assert "stretto/" not in told


def test_missions_can_stand_in_a_file(call, tmp_path):
    (tmp_path / "missions.yaml").write_text(
        "- {mission: foundry_1, name: small, cogs: 2, steps: 4, variants: [rich]}\n- mission: gym:CartPole-v1\n"
    )
    done = call("eval", "-m", "missions.yaml", "-p", "random", "-e", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["episodes"]
    assert {record["mission"] for record in records} == {"small", "gym:CartPole-v1"}
    assert {record["steps"] for record in records if record["mission"] == "small"} == {4}
    (tmp_path / "bad.yaml").write_text("mission: mine.py:World\n")
    for words in (["eval", "-m"], ["describe"], ["play"], ["verify"]):
        done = call(*words, "bad.yaml", *([] if words == ["describe"] else ["-p", "random"]))
        assert "--allow-import" in done.stderr
        assert done.returncode == 2


SETS = """
import gymnasium
import numpy as np


class Sets(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 2000, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        first = float(list({"one", "two", "three", "four", "five", "six"}).index("one"))
        return np.zeros(1, np.float32), first, True, False, {}
"""


@pytest.mark.parametrize("seed", [None, "random", "5"])
def test_a_world_that_walks_over_a_set_of_strings_goes_the_same_way_in_the_caller_and_in_workers(seed, tmp_path):
    (tmp_path / "sets.py").write_text(SETS)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    environment |= {} if seed is None else {"PYTHONHASHSEED": seed}
    command = [*STRETTO, "eval", "-m", "sets.py:Sets", "-p", "random", "-e", "2", "--format", "json", "--quiet"]
    rewards = []
    for jobs in ("0", "1"):
        run = subprocess.run(
            [*command, "-j", jobs], capture_output=True, text=True, cwd=tmp_path, env=environment, check=True
        )
        rewards.append([episode["rewards"] for episode in json.loads(run.stdout)["episodes"]])
    assert rewards[0] == rewards[1]
    wanted = subprocess.run(
        [sys.executable, "-c", 'print(list({"one", "two", "three", "four", "five", "six"}).index("one"))'],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONHASHSEED": "5" if seed == "5" else "0"},
        check=True,
    )
    assert list(rewards[0][0].values()) == [float(wanted.stdout)]
