"""Films show episodes that were played, in the caller's own process: none that could end or stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.video import films
from stretto.missions.resolve import find_missions
from stretto.policies.spec import PolicySpec

EPISODES, STEPS = 5, 4


class Deadly:
    """Ends its process, or raises, in the step `at` of about every other episode; in the `caller`, it leaves a note."""

    def __init__(self, caller: int, folder: str, at: int, how: str = "die") -> None:
        self.caller, self.folder, self.at, self.how = caller, Path(folder), at, how

    def reset(self, rng):
        self.bad, self.count = rng.random() >= 0.5, 0

    def step(self, observation):
        self.count += 1
        if self.bad and self.count == self.at:
            if os.getpid() == self.caller:
                (self.folder / "was here").touch()
            elif self.how == "raise":
                raise ValueError("this policy has had enough")
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return 0


def filmed(report, policy, count, folder):
    missions = find_missions(["foundry_1"], cogs=1)
    plan = Plan(tuple(missions), entries_of([policy], mix=False), EPISODES, 0, STEPS)
    return list(films(plan, report.records, count, folder))


def test_an_episode_in_which_a_process_died_is_passed_over(tmp_path):
    # In its very first step, and so also where it is looked at before anything is filmed.
    policy = PolicySpec("deadly", Deadly, {"caller": os.getpid(), "folder": str(tmp_path), "at": 1})
    report = evaluate("foundry_1", policy, cogs=1, episodes=EPISODES, steps=STEPS, jobs=2, strategy="sequential")
    lost = {record.episode for record in report.records if record.failure is not None}
    assert 0 in lost or 1 in lost  # or the first two would be those that are filmed anyway
    assert all(record.failure.lost for record in report.records if record.failure is not None)
    well = [episode for episode in range(EPISODES) if episode not in lost][:2]
    assert [path.stem for path in filmed(report, policy, 2, tmp_path)] == [f"foundry_1-deadly-{one}" for one in well]
    assert not (tmp_path / "was here").exists()


def test_of_episodes_that_were_chosen_the_first_are_filmed_and_only_until_they_failed(tmp_path):
    policy = PolicySpec("tired", Deadly, {"caller": os.getpid(), "folder": str(tmp_path), "at": 3, "how": "raise"})
    report = evaluate("foundry_1", policy, cogs=1, episodes=EPISODES, steps=STEPS, jobs=1, only=[1, 2, 3, 4])
    assert {record.failure is None for record in report.records[:3]} == {True, False}
    paths = filmed(report, policy, 3, tmp_path)
    assert [path.stem for path in paths] == [f"foundry_1-tired-{episode}" for episode in (1, 2, 3)]
    assert not (tmp_path / "was here").exists()  # a film ends before the step that failed


class Immature:
    """Cannot be made for any agent."""

    def reset(self, rng):
        raise ValueError("not today")

    def step(self, observation):
        return 0


def test_an_episode_that_failed_before_there_was_anything_to_see_has_no_film(tmp_path):
    policy = PolicySpec("immature", Immature)
    report = evaluate("foundry_1", policy, cogs=1, episodes=1, steps=STEPS, jobs=0)
    assert report.records[0].failure.kind == "ValueError"
    assert filmed(report, policy, 1, tmp_path) == []


LATE = """
import sys
from pathlib import Path
from stretto.evaluation import video
from stretto.missions.resolve import find_missions
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.records import EpisodeRecord
from stretto.policies.spec import PolicySpec


class Late:
    def reset(self, rng):
        self.count = 0

    def step(self, observation):
        self.count += 1
        if self.count >= 5:  # nobody looks for so long beforehand
            import torch
            torch.rand(())
        return 0


video.film = lambda moments, path: [moment.step for moment in moments]
missions, entries = find_missions(["foundry_1"], cogs=1), entries_of([PolicySpec("late", Late)], mix=False)
records = [EpisodeRecord("foundry_1", "late", episode, 0, 8, {}, {}) for episode in range(2)]
films = video.films(Plan(tuple(missions), entries, 2, 0, 8), records, 2, Path())
assert "torch" not in sys.modules
assert list(films) == [list(range(9))] * 2
"""


def test_one_that_imports_torch_in_the_midst_of_an_episode_is_filmed_to_the_end():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
