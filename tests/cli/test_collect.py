"""`stretto collect`: what it prints, keeps and refuses, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from rich.console import Console

import stretto
from stretto.cli.app import main
from stretto.cli.collect_progress import CollectionLines, CollectionProgress, moving_table
from tests.worlds import CountTo, makes

QUICK = ["--rollouts", "6", "-j", "0", "--quiet"]


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
    monkeypatch.delenv("NO_COLOR", raising=False)
    (tmp_path / "tasks.yaml").write_text("- 0.5\n- 1.5\n- 2.5\n")

    def run_here(*words: str) -> Done:
        code = main(["collect", *words])
        return Done(code, *capsys.readouterr())

    return run_here


def test_the_set_is_that_of_python_and_the_summary_is_printed_and_kept(call, tmp_path):
    done = call("-m", "pointgoal", "-p", "random", *QUICK, "--out", "data", "--format", "json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    wanted = stretto.collect("pointgoal", "random", 6)
    assert summary["digest"] == wanted.digest() == stretto.load_rollouts("data").digest()
    assert (summary["rollouts"], summary["steps"], summary["timing"]["rollouts"]) == (6, int(wanted.lengths.sum()), 6)
    assert summary["returns"]["mean"] == pytest.approx(wanted.returns.mean())
    assert summary["returns"]["deviation"] == pytest.approx(wanted.returns.std(ddof=1))
    assert summary["lengths"]["median"] == 20
    assert json.loads((tmp_path / "data/summary.json").read_text()) == summary
    assert done.stderr == "rollouts: data\n"


def test_with_resume_alone_a_finished_one_is_printed_again_and_with_more_rollouts_it_grows(call):
    first = call("-m", "pointgoal", "--random-actions", "--seed", "3", *QUICK, "--out", "data")
    assert first.returncode == 0, first.stderr
    assert call("--resume", "data", "--quiet") == first
    more = call("--resume", "data", "--rollouts", "9", "--format", "json", "--quiet")
    assert json.loads(more.stdout)["digest"] == stretto.collect("pointgoal", "random", 9, seed=3).digest()
    assert json.loads(more.stdout)["timing"]["rollouts"] == 3
    again = call("--resume", "data", "--format", "json", "--quiet")
    assert json.loads(again.stdout) == json.loads(more.stdout)


def test_tasks_of_a_file_are_drawn_and_summarized_one_by_one(call):
    trial = ["--tasks", "tasks.yaml", "--episodes-per-task", "2", "--boundaries", "--oracle", "--steps", "4"]
    done = call("-m", "pointgoal", "-p", "random", *QUICK, *trial, "--out", "data")
    assert done.returncode == 0, done.stderr
    kept = stretto.load_rollouts("data")
    assert {len(one.ends) for one in kept} == {2}
    assert set(kept.lengths) == {8}
    assert {one.observations.shape[1] for one in kept} == {4}
    rows = [line.split() for line in done.stdout.splitlines() if line[:3] in ("0.5", "1.5", "2.5")]
    assert sorted(float(row[0]) for row in rows) == sorted(set(kept.tasks))
    assert sum(int(row[1]) for row in rows) == 6


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("-m pointgoal -p random", "rollouts are written into a folder, got none; add --out DIR"),
        ("-m pointgoal --out data", "a mission (-m) and a policy (-p) are needed"),
        ("-m pointgoal -p noop --random-actions --out data", "got -p noop beside it; leave one of them out"),
        ("-m foundry_* -p random --out data", "rollouts are of one mission, got 'foundry_*' for"),
        ("-m pointgoal -p random --tasks nowhere.yaml --out data", "--tasks must be a readable YAML file, got nowhere"),
        ("-m pointgoal -p random --tasks one.yaml --out data", "a list of one or more tasks, got one.yaml with 5"),
        ("-m pointgoal -p random --rollouts 0 --out data", "must be at least 1, got 0"),
        ("-m pointgoal -p random --wait never --out data", "wait must be one of auto, lockstep"),
        ("-m pointgoal -p random --backend quick --out data", "backend must be one of 'auto', 'serial'"),
        ("-m pointgoal -p random -j 0 --backend process --out data", "got --backend process beside it"),
        ("-m pointgoal -p random --tasks bad.yaml --out data", "in rollout 0, with the task 'north'"),
        (
            "--resume nowhere",
            "a collection is resumed from its folder, and nowhere does not exist; name the folder of --out",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_and_leaves_no_folder(call, tmp_path, words, sentence):
    (tmp_path / "one.yaml").write_text("5")
    (tmp_path / "bad.yaml").write_text("- north")
    done = call(*words.split())
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "data").exists()


BREAKS = """
from tests.worlds import Drift

class Breaks(Drift):
    def move(self, action):
        if self.np_random.random() < 0.02:
            raise RuntimeError("the world broke")
        return super().move(action)
"""


@pytest.mark.parametrize("how", [["-j", "0"], ["-j", "2", "--backend", "process"]], ids=["here", "in workers"])
def test_what_a_world_raises_is_told_with_its_line_and_its_rollout_and_what_has_ended_is_kept(call, tmp_path, how):
    (tmp_path / "breaks.py").write_text(BREAKS)
    done = call("-m", "breaks.py:Breaks", "-p", "random", "--rollouts", "500", *how, "--out", "data", "--quiet")
    assert done.returncode == 1
    assert "raised RuntimeError: the world broke" in done.stderr
    assert "rollout " in done.stderr
    assert 'breaks.py", line 7, in move' in done.stderr
    assert "src/stretto" not in done.stderr
    assert len(stretto.load_rollouts("data")) > 0


BREAKS_LATER = """
from stretto import AgentPolicy

class BreaksLater(AgentPolicy):
    steps = 0

    def step(self, observation):
        self.steps += 1
        return self.missing if self.steps == 3 else 0
"""


@pytest.mark.parametrize("how", [["-j", "0"], ["-j", "2", "--backend", "process"], ["--wait", "lockstep", "-j", "0"]])
def test_what_a_policy_raises_is_told_with_its_line_and_its_rollout(call, tmp_path, how):
    (tmp_path / "breaks.py").write_text(BREAKS_LATER)
    done = call(
        "-m", "gym:CartPole-v1", "-p", "breaks.py:BreaksLater", "--rollouts", "3", *how, "--out", "data", "--quiet"
    )
    assert done.returncode == 1
    first, *frames = done.stderr.splitlines()
    assert "the policy of agent agent_0 raised AttributeError" in first
    assert re.search(r"rollout \d", first)
    assert ("(episode 0, step 3, seed " in first) is ("lockstep" not in how)
    assert 'breaks.py", line 9, in step' in frames[0]
    assert "src/stretto" not in done.stderr


ACTS_WRONG = """
from stretto import AgentPolicy

class ActsWrong(AgentPolicy):
    def step(self, observation):
        return 7
"""


@pytest.mark.parametrize("wait", ["whole", "lockstep"])
def test_an_action_that_is_not_allowed_is_a_failure_of_the_policy_and_no_bad_usage(call, tmp_path, wait):
    (tmp_path / "wrong.py").write_text(ACTS_WRONG)
    done = call("-m", "gym:CartPole-v1", "-p", "wrong.py:ActsWrong", *QUICK, "--wait", wait, "--out", "data")
    assert done.returncode == 1
    assert done.stderr.startswith("stretto: the action of ")
    assert "got 7; " in done.stderr
    assert "; in rollout 0" in done.stderr


SLOW = """
import os
import time
from tests.worlds import Drift

class Slow(Drift):
    def move(self, action):
        time.sleep(float(os.environ.get("SECONDS_A_STEP", "0")))
        return super().move(action)
"""


def test_after_ctrl_c_it_says_how_to_go_on_and_then_gives_what_it_would_have_given(call, tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    words = ["-m", "slow.py:Slow", "-p", "random", "--rollouts", "20", "-j", "2"]
    environment = {**os.environ, "SECONDS_A_STEP": "0.02", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(
        [sys.executable, "-m", "stretto", "collect", *words, "--out", "cut"],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "cut/plan.json").exists():  # the first rollout has ended
        assert program.poll() is None
        time.sleep(0.02)
    program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=30)
    assert program.returncode == 130
    assert output == ""
    assert "of 20 rollouts" in errors
    assert "what is finished is kept; go on with: stretto collect --resume cut" in errors
    kept = len(stretto.load_rollouts("cut"))
    assert 1 <= kept < 20
    whole, resumed = call(*words, "--out", "whole", "--format", "json"), call("--resume", "cut", "--format", "json")
    assert json.loads(resumed.stdout)["digest"] == json.loads(whole.stdout)["digest"]
    assert json.loads(resumed.stdout)["timing"]["rollouts"] == 20 - kept


@pytest.mark.parametrize("wait", ["whole", "ready-first"])
def test_a_trace_has_the_spans_of_every_process(call, tmp_path, wait):
    where = ["-j", "2", "--backend", "process", "--isolate", "--wait", wait, "--envs", "4"]
    done = call("-m", "pointgoal", "-p", "random", *QUICK, *where, "--out", "data", "--trace")
    assert done.returncode == 0, done.stderr
    assert "trace: data/trace.json" in done.stderr
    events = json.loads((tmp_path / "data/trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"caller", "worker 0", "worker 1"} <= set(names.values())
    spans = {event["name"] for event in events if event["ph"] == "X"}
    assert {"collection", "world step", "policy step"} <= spans
    assert stretto.load_rollouts("data").digest() == stretto.collect("pointgoal", "random", 6).digest()


# ---- progress ----


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_progress_tells_rollouts_steps_returns_and_the_time_left_and_no_time_of_earlier_runs(capsys):
    rollouts = stretto.collect(makes(CountTo, 5), lambda observation: 2, 20, backend="serial")
    clock = Clock()
    progress = CollectionProgress(20, clock)
    lines = CollectionLines(progress)
    for number, rollout in enumerate(rollouts):
        if number == 4:
            progress.begin()
        if number >= 4:
            clock.now += 1
        progress.add(rollout)
        lines.look()
        if number == 13:
            console = Console(width=100)
            with console.capture() as seen:
                console.print(moving_table(progress, ("m", "p")))
    assert capsys.readouterr().err.splitlines() == [
        "9 of 20 rollouts, 45 steps (5 a second) after 5 s, about 11 s left; mean return so far: 10.0",
        "19 of 20 rollouts, 95 steps (5 a second) after 15 s, about 1 s left; mean return so far: 10.0",
    ]
    first, second = seen.get().splitlines()
    assert first.split()[:2] == ["m", "p"]
    assert first.split()[-3:] == ["14/20", "return", "10.0"]
    assert second.rstrip() == "14 of 20 rollouts, 70 steps (5 a second) after 10 s, about 6 s left"


def test_a_world_that_crashes_is_kept_out_of_this_process_or_shows_its_line(tmp_path):
    (tmp_path / "crashes.py").write_text(
        "import os\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Crashes(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        os.abort()\n"
    )
    words = ["collect", "-m", "crashes.py:Crashes", "-p", "random", "--rollouts", "1", "-j", "0", "--out", "data"]
    done = subprocess.run(
        [sys.executable, "-m", "stretto", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    assert 'crashes.py", line 5 in step' in done.stderr
