"""What is asked for a whole evaluation: a trace of every process, deterministic algorithms of torch, and its device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import stretto
from stretto import trace
from stretto.cli.app import main
from stretto.errors import UsageError
from stretto.missions.resolve import find_missions

MINE = '''
import os
from pathlib import Path

import gymnasium
import numpy as np


class Paying(gymnasium.Env):
    """Pays what it is given."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), False, False, {}


class Asking:
    """Notes, for each process, whether torch and cuBLAS, which it imports late, are asked to be deterministic."""

    def step(self, observation):
        import torch

        found = torch.are_deterministic_algorithms_enabled(), "CUBLAS_WORKSPACE_CONFIG" in os.environ
        (Path("notes") / str(os.getpid())).write_text(repr(found))
        return 0


class Placed:
    """Gives 1 on the CPU, 2 on the first GPU."""

    def __init__(self, device=None):
        self.given = [None, "cpu", "cuda:0"].index(device)

    def step(self, observation):
        return self.given


class PlacedTeam:
    def __init__(self, world, *, device="cuda:0"):
        self.device = device

    def agent_policy(self, agent):
        return Placed(self.device)
'''


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def events(path: Path) -> list[dict]:
    return json.loads(path.read_text())["traceEvents"]


def named(found: list[dict], name: str) -> list[dict]:
    return [event for event in found if event["name"].startswith(name)]


# --- traces ---------------------------------------------------------------------------------------------------


def test_a_trace_has_loading_episodes_and_steps_of_every_process(mine):
    line = "eval -m foundry_1 -p random -p class=gatherer,strategy=processes -e 2 -s 6 -c 2 -j 2"
    line += " --parallel-policy --trace --out run --quiet"
    assert main(line.split()) == 0
    found = events(mine / "run/trace.json")
    spans = [event for event in found if event["ph"] == "X"]
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert names[os.getpid()] == "caller"
    assert {event["pid"] for event in spans} == set(names)
    players = {event["pid"] for event in named(spans, "episode ")}
    assert players
    assert os.getpid() not in players
    assert any(name.startswith("policies of worker") for name in names.values())
    assert sorted(event["name"] for event in named(spans, "episode ")) == [
        f"episode {i}: foundry_1, {policy}"
        for i in range(2)
        for policy in ("class=gatherer,strategy=processes", "random")
    ]
    assert {event["name"] for event in named(spans, "look: ")} == {
        "look: foundry_1, random",
        "look: foundry_1, class=gatherer,strategy=processes",
    }
    assert named(spans, "make world")
    assert named(spans, "load polic")
    assert len(named(spans, "policy step")) == 4 * 6
    assert len(named(spans, "policies: ")) >= 6
    inside = [
        one for one in named(spans, "world step") if any(_within(one, other) for other in named(spans, "episode "))
    ]
    assert len(inside) == 4 * 6
    (whole,) = named(spans, "evaluation")
    assert all(whole["ts"] <= one["ts"] and one["ts"] + one["dur"] <= whole["ts"] + whole["dur"] for one in inside)


def _within(inner: dict, outer: dict) -> bool:
    same = inner["pid"] == outer["pid"]
    return same and outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]


def test_without_processes_a_trace_is_of_this_one_and_goes_where_it_is_told(mine):
    stretto.evaluate("gym:CartPole-v1", "random", episodes=1, steps=4, jobs=0, trace="spans.json")
    found = events(mine / "spans.json")
    assert {event["pid"] for event in found} == {os.getpid()}
    assert len(named(found, "policy step")) == 4
    assert trace.active is None


def test_a_trace_is_written_though_the_evaluation_fails(mine):
    with pytest.raises(UsageError, match="must be in its module"):
        stretto.evaluate("gym:CartPole-v1", "mine.py:Missing", episodes=1, jobs=0, trace="spans.json")
    assert named(events(mine / "spans.json"), "look")
    assert trace.active is None


def test_a_trace_that_could_not_be_written_is_refused_before_anything_is_played(mine, capsys):
    for words, told in (
        (["--trace"], "written into the folder of the run, got none; name a file"),
        (["--trace", "nowhere/spans.json"], "in a folder that exists, got 'nowhere/spans.json'"),
        (["--trace", str(mine)], "written to a file"),
    ):
        assert main(["eval", "-m", "foundry_1", "-p", "random", *words]) == 2
        told_at_all = capsys.readouterr().err
        assert told in told_at_all
        assert len(told_at_all.splitlines()) == 1
    trace.start()
    try:
        with pytest.raises(UsageError, match="only one trace"):
            stretto.evaluate("foundry_1", "random", trace="spans.json")
    finally:
        trace.stop()


# --- torch ----------------------------------------------------------------------------------------------------


def notes(mine: Path, jobs: int, *, deterministic: bool) -> dict[int, str]:
    """Let four agents note what torch was asked for; return it by process."""
    (mine / "notes").mkdir()
    report = stretto.evaluate(
        "foundry_1",
        "mine.py:Asking",
        cogs=4,
        episodes=1,
        steps=2,
        jobs=jobs,
        parallel_policy=True,
        strategy="processes" if jobs else "sequential",
        deterministic=deterministic,
    )
    assert report.plan.get("deterministic", False) == deterministic
    return {int(path.name): path.read_text() for path in (mine / "notes").iterdir()}


@pytest.mark.parametrize("jobs", [0, 2])
def test_every_process_that_computes_is_asked_for_deterministic_algorithms(mine, jobs):
    torch = pytest.importorskip("torch")
    found = notes(mine, jobs, deterministic=True)
    assert set(found.values()) == {"(True, True)"}
    assert len(found) == max(1, jobs)
    assert (os.getpid() in found) == (not jobs)
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_unless_that_is_asked_for_torch_is_left_alone(mine):
    pytest.importorskip("torch")
    assert notes(mine, 0, deterministic=False) == {os.getpid(): "(False, False)"}


def test_what_cannot_be_had_is_said_once_and_policies_without_torch_play_as_ever(mine, capsys):
    line = ["eval", "-m", "foundry_1", "-p", "random", "-e", "2", "-s", "5", "-j", "0", "--quiet", "--format", "json"]
    plain, asked = [], []
    for words, results in (([], plain), (["--deterministic"], asked)):
        assert main([*line, *words]) == 0
        output = capsys.readouterr()
        results += [record["rewards"] for record in json.loads(output.out)["episodes"]]
        assert ("may still differ" in " ".join(output.err.split())) == bool(words)
        assert len(output.err.splitlines()) == len(words)
    assert plain == asked


@pytest.mark.parametrize("policy", ["Placed", "PlacedTeam"])
def test_a_device_is_given_to_policies_that_take_one_unless_they_were_given_another(mine, policy):
    def paid(text: str, device: str | None) -> float:
        (record,) = stretto.evaluate("mine.py:Paying", text, episodes=1, steps=1, jobs=0, device=device).records
        return record.reward

    assert paid(f"mine.py:{policy}", "cpu") == 1
    assert paid(f"mine.py:{policy}", None) == (0 if policy == "Placed" else 2)
    assert paid(f"class=mine.py:{policy},kw.device='cuda:0'", "cpu") == 2
    assert paid("noop", "cpu") == 0


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("tpu", "a device is cpu, cuda, cuda:NUMBER or mps, got 'tpu'"),
        ("cuda:x", "got 'cuda:x'"),
        ("cuda:999", "which are cpu.*, got 'cuda:999'; choose one of them"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_anything_is_played(mine, device, told, capsys):
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=told):
        stretto.evaluate("mine.py:Paying", "mine.py:Placed", device=device)
    assert main(["eval", "-m", "mine.py:Paying", "-p", "mine.py:Placed", "--device", device, "--out", "run"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (mine / "run").exists()


def test_a_network_computes_on_the_device_that_it_is_given():
    torch = pytest.importorskip("torch")
    from stretto.policies.neural import Neural

    world = find_missions(["gym:CartPole-v1"])[0].make()
    spec = stretto.WorldSpec(("agent_0",), {"agent_0": world.observation_space}, {"agent_0": world.action_space})
    assert Neural(spec, device="cpu").device == "cpu"
    with pytest.raises(UsageError, match="can use here"):
        Neural(spec, device=f"cuda:{torch.cuda.device_count()}")


def test_a_device_other_than_the_cpu_needs_torch_and_the_cpu_does_not():
    program = """
import sys
sys.modules["torch"] = None  # which is how Python notes that there is none
from stretto.policies.torch_settings import ask_for_determinism, check_device, determinism_note
check_device("cpu")
ask_for_determinism()
print(determinism_note())
check_device("cuda")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "torch is not installed" in done.stdout
    assert "UsageError: a device other than cpu needs torch" in done.stderr


def test_the_number_of_native_threads_is_recorded_and_taken_up_again(mine, capsys):
    words = ["eval", "-m", "pointgoal", "-p", "random", "-e", "1", "-j", "0", "--quiet", "--native-threads"]
    assert main([*words, "2", "--out", "run", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["native_threads"] == 2
    assert main(["eval", "--resume", "run", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["native_threads"] == 2
    assert main([*words, "0"]) == 2
    assert "native_threads must be a whole number of at least 1, got 0" in capsys.readouterr().err
