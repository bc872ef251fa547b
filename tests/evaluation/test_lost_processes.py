"""Processes of an evaluation that die or hang: the same result where that passes, and who it was where it does not."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gymnasium
import psutil
import pytest

from stretto import make_vec
from stretto.core import AgentPolicy, MultiAgentPolicy
from stretto.evaluation.evaluate import EvaluationInterrupted, evaluate
from stretto.evaluation.playing.tracebacks import last_place
from stretto.policies.spec import PolicySpec
from stretto.workers.launcher import launcher
from tests.evaluation.players import Faulty, Sleeping, Stateful
from tests.worlds import CountTo, makes

SLOW = PolicySpec("slow", Sleeping, {"seconds": 0.01})
SMALL = {"cogs": 2, "episodes": 6, "steps": 12, "seed": 3}


def results(report):
    """All that must not depend on how it was computed."""
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in report.records]


def failures(report):
    return {(r.label, r.episode): r.failure for r in report.records if r.failure is not None}


def workers() -> list[int]:
    """The processes that play or choose now: those that our launcher, and the launchers of these, have started."""
    found = []
    with contextlib.suppress(psutil.Error):  # some end while we look
        for worker in psutil.Process(launcher().pid).children():
            found.append(worker.pid)
            for nested in worker.children():
                found += [process.pid for process in nested.children()]
    return found


@contextlib.contextmanager
def killing(seed: int, most: int) -> Iterator[list[int]]:
    """Kill some of our workers, one after the other, at random moments, while something else is going on."""
    killed: list[int] = []
    over = threading.Event()

    def kill() -> None:
        rng = random.Random(seed)
        while len(killed) < most and not over.wait(rng.uniform(0.01, 0.2)):
            if found := workers():
                pid = rng.choice(found)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def undisturbed():
    return results(evaluate("foundry_1", [Stateful, SLOW], jobs=0, strategy="sequential", **SMALL))


@pytest.mark.parametrize(("jobs", "strategy"), [(2, "sequential"), (2, "processes"), (0, "processes")])
def test_killing_processes_at_random_moments_changes_nothing(jobs, strategy, undisturbed):
    # One less than an episode has attempts: however the kills fall, none can fail.
    with killing(seed=jobs, most=2) as killed:
        report = evaluate(
            "foundry_1",
            [Stateful, SLOW],
            jobs=jobs,
            strategy=strategy,
            parallel_policy=strategy == "processes",
            **SMALL,
        )
    assert killed
    assert results(report) == undisturbed


@pytest.mark.parametrize(("how", "strategy"), [("die", "sequential"), ("die", "processes"), ("hang", "sequential")])
def test_what_happens_once_is_tried_again_and_nothing_differs(strategy, how, tmp_path):
    calm = PolicySpec("p", Faulty, {"share": 0.0})
    wild = PolicySpec("p", Faulty, {"how": how, "share": 0.5, "folder": str(tmp_path)})
    for number in range(2):
        (tmp_path / str(number)).touch()
    expected = evaluate("gym:CartPole-v1", calm, episodes=8, steps=10, jobs=0)
    report = evaluate("gym:CartPole-v1", wild, episodes=8, steps=10, jobs=2, strategy=strategy, hang_seconds=0.4)
    assert not list(tmp_path.iterdir())
    assert results(report) == results(expected)
    assert sum(record.timing["attempts"] for record in report.records) > 8


def test_one_that_always_dies_is_named_and_others_go_on():
    def run(how):
        # One of them dies in its very first step, and so before anything is known of it.
        bad = [PolicySpec(f"bad at {at}", Faulty, {"how": how, "share": 0.15, "at": at}) for at in (1, 3)]
        return evaluate("foundry_1", [*bad, Stateful], cogs=3, episodes=3, steps=6, jobs=2, strategy="sequential")

    raised, died = run("raise"), run("die")
    assert {label for label, _ in failures(raised)} == {"bad at 1", "bad at 3"}
    assert failures(raised).keys() == failures(died).keys()
    for key, failure in failures(died).items():
        other = failures(raised)[key]
        assert (failure.policy, failure.agent, failure.step) == (other.policy, other.agent, other.step)
        assert failure.kind == "PolicyLost"
        assert "SIGKILL" in failure.message
        assert failure.message.endswith("(tried 3 times)")
    well = [line for line in results(died) if json.loads(line)["failure"] is None]
    assert well == [line for line in results(raised) if json.loads(line)["failure"] is None]


def test_one_that_always_hangs_is_named_with_its_stack_in_every_strategy():
    strategies = ["sequential", "threads", "processes", "batched"]
    bad = [PolicySpec(f"bad {name}", Faulty, {"how": "hang", "share": 0.3}, strategy=name) for name in strategies]
    # More jobs than cores: most of the time they do nothing.
    report = evaluate("foundry_1", [*bad, Stateful], cogs=2, episodes=2, steps=5, jobs=5, hang_seconds=0.4)
    found = failures(report)
    # All of them draw the same numbers, and so hang in the same places.
    places = {(episode, failure.agent, failure.step) for (_, episode), failure in found.items()}
    assert len(places) == 1
    assert {label for label, _ in found} == {spec.name for spec in bad}
    for (label, _), failure in found.items():
        assert (failure.kind, failure.policy) == ("PolicyLost", label)
        assert "0.4 s" in failure.message
        assert "in act_up" in failure.traceback


class Lengthy(gymnasium.Env):
    """Takes a number of steps that is different in every episode."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.length, self.count = 3 + seed % 40, 0
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, 1.0, False, self.count == self.length, {}


class LastOne(MultiAgentPolicy):
    """Chooses for all at once, and dies when an agent has seen step `at`: as often as there are files in a folder."""

    def __init__(self, world, at=100, folder=""):
        super().__init__(world)
        self.at, self.folder = at, folder

    def agent_policy(self, agent):
        return AgentPolicy()

    def step_batch(self, policies, observations):
        if max(observations) >= self.at and (files := list(Path(self.folder).iterdir())):
            files[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return [0] * len(observations)


def test_the_last_of_several_that_are_played_in_step_is_tried_again_too(tmp_path):
    options = {"episodes": 5, "seed": 1, "jobs": 1, "strategy": "processes", "action_timeout_ms": 60_000}
    expected = evaluate(Lengthy, PolicySpec("p", LastOne), **options)
    *_, last, longest = sorted(record.steps for record in expected.records)
    assert last < longest - 1
    (tmp_path / "once").touch()
    report = evaluate(Lengthy, PolicySpec("p", LastOne, {"at": last + 1, "folder": str(tmp_path)}), **options)
    assert not list(tmp_path.iterdir())
    assert results(report) == results(expected)


class Crashing:
    """Reads from where there is no memory, in its fourth step: after a look has gone well."""

    def reset(self, rng):
        self.count = 0

    def step(self, observation):
        self.count += 1
        return ctypes.string_at(0) if self.count == 4 else 0


def test_a_crash_is_told_in_the_same_words_wherever_it_was():
    def told(jobs, strategy):
        report = evaluate("gym:CartPole-v1", Crashing, episodes=1, steps=5, jobs=jobs, strategy=strategy)
        return [record.failure for record in report.records]

    expected = told(1, "sequential")
    assert all("SIGSEGV" in failure.message and "in step" in failure.traceback for failure in expected)
    assert told(2, "processes") == expected


class Stuck(gymnasium.Env):
    """Comes to a stop in the fourth step of every other episode."""

    observation_space = gymnasium.spaces.Discrete(100)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.odd, self.count = seed % 2, 0
        return 0, {}

    def step(self, action):
        self.count += 1
        if self.count == 4 and self.odd:
            threading.Event().wait()
        return self.count, 1.0, False, self.count == 5, {}


def test_a_world_that_hangs_is_told_from_its_policies():
    report = evaluate(Stuck, "random", episodes=2, jobs=2, strategy="sequential", hang_seconds=0.2)
    assert [record.failure is not None for record in report.records] == [record.seed % 2 for record in report.records]
    assert failures(report)
    for failure in failures(report).values():
        assert (failure.kind, failure.policy, failure.agent) == ("WorldHung", None, None)
        assert "the world's process gave no sign of life" in failure.message
        assert "test_lost_processes.py" in failure.traceback
        assert "in step" in failure.traceback


def test_a_journal_whose_last_line_is_torn_is_gone_on_with(tmp_path):
    options = {"episodes": 6, "steps": 10, "jobs": 2, "strategy": "sequential"}
    whole = evaluate("gym:CartPole-v1", [Stateful, SLOW], out=tmp_path / "whole", **options)

    def interrupt(record):
        if (record.label, record.episode) == ("slow", 2):
            raise KeyboardInterrupt

    with pytest.raises(EvaluationInterrupted) as caught:
        evaluate("gym:CartPole-v1", [Stateful, SLOW], out=tmp_path / "cut", on_episode=interrupt, **options)
    assert 0 < len(caught.value.report.records) < 12
    journal = tmp_path / "cut" / "episodes.partial.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    resumed = evaluate("gym:CartPole-v1", [Stateful, SLOW], out=tmp_path / "cut", resume=True, **options)
    assert results(resumed) == results(whole)
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("cut", "whole")]
    assert _untimed(summaries[0]) == _untimed(summaries[1])
    assert not journal.exists()


def _untimed(value):
    if isinstance(value, dict):
        return {key: _untimed(one) for key, one in value.items() if key != "timing"}
    return [_untimed(one) for one in value] if isinstance(value, list) else value


class DiesOnce(AgentPolicy):
    """Says so and takes its process along in its fourth step, after the look at it, if nobody has done so before."""

    def __init__(self, marker: str) -> None:
        self.marker, self.steps = Path(marker), 0

    def step(self, observation):
        self.steps += 1
        print(f"step {self.steps}")
        if self.steps == 4 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 0


def test_what_an_episode_printed_that_is_played_again_is_shown_once(tmp_path, capfd):
    policy = PolicySpec("dies_once", DiesOnce, {"marker": str(tmp_path / "died")})
    report = evaluate("gym:CartPole-v1", policy, episodes=1, steps=5, jobs=1, strategy="sequential")
    assert failures(report) == {}
    assert report.records[0].timing["attempts"] == 2
    told = [line for line in capfd.readouterr().out.splitlines() if "step" in line]
    assert told == [f"[gym:CartPole-v1, dies_once, episode 0] step {number}" for number in (1, 2, 3, 4, 5)]


class TellsWhatItIsAt(CountTo):
    """Prints its seed when it is reset, and what it did when it is stepped."""

    def reset(self, *, seed=None, options=None):
        print(f"seed {seed}")
        return super().reset(seed=seed, options=options)

    def move(self, action):
        print(f"step {self.steps}")
        return super().move(action)


def test_what_a_world_prints_says_in_which_episode_that_was_although_several_are_played_in_step(capfd):
    report = evaluate(makes(TellsWhatItIsAt, 2), [BatchesSeen], episodes=3, jobs=1)
    assert failures(report) == {}
    (mission,) = {record.mission for record in report.records}
    told = [line for line in capfd.readouterr().out.splitlines() if ", episode " in line]
    for record in report.records:
        mine = [line for line in told if line.startswith(f"[{mission}, BatchesSeen, episode {record.episode}] ")]
        assert [line.partition("] ")[2] for line in mine] == [f"seed {record.seed}", "step 1", "step 2"]


def test_what_is_printed_in_the_look_at_the_first_steps_is_held_back_unless_that_fails(capfd):
    def cannot_be_loaded():
        print("why it cannot be loaded")
        raise ValueError("no weights")

    class Unloadable(MultiAgentPolicy):
        def __init__(self, world):
            cannot_be_loaded()

    evaluate(makes(TellsWhatItIsAt, 2), "random", episodes=1, jobs=1)
    assert [line.rpartition("] ")[2] for line in capfd.readouterr().out.splitlines()][1:] == ["step 1", "step 2"]
    with pytest.raises(ValueError, match="no weights"):
        evaluate(makes(TellsWhatItIsAt, 2), Unloadable, episodes=1, jobs=1)
    assert "why it cannot be loaded" in capfd.readouterr().out


class BatchesSeen(MultiAgentPolicy):
    """Acts for all agents at once, so that episodes are played in step."""

    def agent_policy(self, agent):
        return AgentPolicy()

    def step_batch(self, policies, observations):
        return [0] * len(observations)


class Crashes(CountTo):
    """Ends its process at step 4: after the look at it."""

    def move(self, action):
        if self.steps == 4:
            ctypes.string_at(0)  # this line
        return super().move(action)


def test_a_crash_names_the_step_and_the_line_of_the_users_code():
    report = evaluate(makes(Crashes, 9), "random", episodes=1, jobs=1)
    failure = report.records[0].failure
    lines = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# this line"))
    assert failure.message.startswith(
        f"the world's process died at test_lost_processes.py:{line}: it was killed by signal 11"
    )
    assert last_place(failure.traceback) == f"{__file__}:{line}"
    assert failure.step == 4


def test_a_hang_names_the_step():
    report = evaluate(makes(Hangs, 9), "random", episodes=1, jobs=1, hang_seconds=0.25)
    failure = report.records[0].failure
    assert failure.step == 4
    assert failure.message.startswith("the world's process gave no sign of life for 0.25 s and was ended")


def test_the_failing_step_has_the_same_number_in_a_vector_environment_and_in_an_evaluation():
    class Raises(CountTo):
        def move(self, action):
            if self.steps == 4:
                raise ValueError("at the fourth step")
            return super().move(action)

    class NoStart(CountTo):
        def reset(self, **_):
            raise ValueError("at the reset")

    class TiresAtFour:
        steps = 0

        def step(self, observation):
            self.steps += 1
            if self.steps == 4:
                raise ValueError("at the fourth choice")
            return 0

    def steps_of(world, policy="random"):
        return [record.failure.step for record in evaluate(world, policy, episodes=1, jobs=0).records]

    with make_vec(makes(Raises, 9), 1, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(ValueError, match="fourth step") as raised:
            for _ in range(4):
                envs.step([0])
    with make_vec(makes(NoStart, 9), 1, backend="serial") as envs, pytest.raises(ValueError, match="reset") as refused:
        envs.reset(seed=0)
    assert [raised.value.place.step] == steps_of(makes(Raises, 9)) == steps_of(makes(CountTo, 9), TiresAtFour) == [4]
    assert [refused.value.place.step] == steps_of(makes(NoStart, 9)) == [None]


class Hangs(CountTo):
    def move(self, action):
        if self.steps == 4:
            threading.Event().wait()
        return super().move(action)


CRASHES_AT_ONCE = """
import ctypes

import stretto


class CrashesAtOnce(stretto.AgentPolicy):
    def step(self, observation):
        ctypes.string_at(0)


report = stretto.evaluate("gym:CartPole-v1", CrashesAtOnce, episodes=1, jobs=0, strategy="processes")
print(report.records[0].failure.kind)
"""


def test_a_policy_that_crashes_when_it_is_looked_at_does_not_end_the_caller():
    ended = subprocess.run([sys.executable, "-c", CRASHES_AT_ONCE], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "PolicyLost\n"), ended.stderr
