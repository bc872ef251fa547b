"""Films show episodes that were played, in the caller's own process: none that could end or stop it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from stretto.errors import UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.films.film_files import film_format, film_path, write_film
from stretto.evaluation.films.video import films, unfilmable
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.playing.rendering import rgb
from stretto.missions.mission import Mission
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


def test_an_episode_in_which_a_process_died_is_passed_over_and_named(tmp_path):
    # In its very first step, and so also where it is looked at before anything is filmed.
    policy = PolicySpec("deadly", Deadly, {"caller": os.getpid(), "folder": str(tmp_path), "at": 1})
    report = evaluate("foundry_1", policy, cogs=1, episodes=EPISODES, steps=STEPS, jobs=2, strategy="sequential")
    lost = {record.episode for record in report.records if record.failure is not None}
    assert 0 in lost or 1 in lost  # or the first two would be those that are filmed anyway
    assert all(record.failure.lost for record in report.records if record.failure is not None)
    well = [episode for episode in range(EPISODES) if episode not in lost][:2]
    found = filmed(report, policy, 2, tmp_path)
    assert [one.path.stem for one in found if one.path] == [f"foundry_1-deadly-{one}" for one in well]
    assert {one.key[2] for one in found if one.path is None} == {one for one in lost if one < well[1]}
    assert {one.why for one in found if one.path is None} == {"its process died or hung, and would take this one along"}
    assert not (tmp_path / "was here").exists()


def test_of_episodes_that_were_chosen_the_first_are_filmed_and_only_until_they_failed(tmp_path):
    policy = PolicySpec("tired", Deadly, {"caller": os.getpid(), "folder": str(tmp_path), "at": 3, "how": "raise"})
    report = evaluate("foundry_1", policy, cogs=1, episodes=EPISODES, steps=STEPS, jobs=1, only=[1, 2, 3, 4])
    assert {record.failure is None for record in report.records[:3]} == {True, False}
    found = filmed(report, policy, 3, tmp_path)
    assert [one.path.stem for one in found] == [f"foundry_1-tired-{episode}" for episode in (1, 2, 3)]
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
    [only] = filmed(report, policy, 1, tmp_path)
    assert (only.path, only.why) == (None, "it failed before there was anything to see")


def noisy(shape, count=6):
    return list(np.random.default_rng(0).integers(256, size=(count, *shape), dtype=np.uint8))


@pytest.mark.parametrize(("suffix", "begins"), [(".gif", b"GIF8"), (".mp4", b"ftyp")])
def test_the_same_pictures_give_the_same_film(suffix, begins, tmp_path):
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg")
    # An odd size, which videos have to be filled up for.
    first, second = (write_film(noisy((33, 47, 3)), tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
    assert begins in first[:12]
    assert first == second


def test_without_anything_that_makes_films_the_remedy_is_named(monkeypatch):
    found = {"imageio_ffmpeg", "PIL"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in found else None)
    assert film_format() == ".mp4"
    found.remove("imageio_ffmpeg")
    assert film_format() == ".gif"
    found.clear()
    with pytest.raises(UsageError, match=r"pip install 'stretto\[video\]'"):
        film_format()


def test_names_that_look_the_same_as_files_have_films_of_their_own(tmp_path):
    paths = {film_path(tmp_path, (mission, "p", 0), ".gif") for mission in ("a/b", "a_b", "a:b")}
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("shown", "shape"),
    [
        (np.zeros((4, 5, 3), np.uint8), (4, 5, 3)),
        (np.zeros((4, 5, 4), np.uint8), (4, 5, 3)),
        (np.zeros((4, 5, 1), np.uint8), (4, 5, 3)),
        (np.zeros((4, 5)), None),
        ("text", None),
        (None, None),
        ([], None),
    ],
    ids=str,
)
def test_a_picture_has_three_colours(shown, shape):
    picture = rgb(shown)
    assert (picture is None) == (shape is None)
    assert picture is None or (picture.shape == shape and picture.dtype == np.uint8)


class Blind(gymnasium.Env):
    """Says that it can be seen, and cannot."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium has it
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shows="nothing"):
        self.shows = shows

    def reset(self, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 1.0, False, False, {}

    def render(self):
        if self.shows == "error":
            raise RuntimeError("no screen")
        if self.shows == "death":
            os._exit(3)
        return np.zeros((4, 4, 3), np.uint8) if self.shows == "picture" else None


def test_what_cannot_be_filmed_is_known_before_anything_is_played():
    kinds = ("nothing", "error", "death", "picture")
    missions = [Mission(kind, partial(Blind, kind)) for kind in kinds]
    plan = Plan((*missions, *find_missions(["gym:FrozenLake-v1"])), entries_of(["random"], mix=False), 1, 0, 3)
    assert unfilmable(plan) == {
        "nothing": "its render() gives no RGB array, but NoneType",
        "error": "its render() raises RuntimeError('no screen')",
        "death": "a process that draws it died: it exited with code 3",
    }


def test_what_can_be_filmed_is_filmed_beside_what_cannot(tmp_path):
    missions = [Mission(kind, partial(Blind, kind)) for kind in ("nothing", "picture")]
    plan = Plan(tuple(missions), entries_of(["random"], mix=False), 1, 0, 3)
    report = evaluate(missions, "random", episodes=1, steps=3, jobs=0)
    found = list(films(plan, report.records, 1, tmp_path, {"nothing"}))
    assert [one.path.stem for one in found] == ["picture-random-0"]


LATE = """
import sys
from pathlib import Path
from stretto.evaluation.films import video
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


video.write_film = lambda pictures, path: len(pictures)
missions, entries = find_missions(["foundry_1"], cogs=1), entries_of([PolicySpec("late", Late)], mix=False)
records = [EpisodeRecord("foundry_1", "late", episode, 0, 8, {}, {}) for episode in range(2)]
films = video.films(Plan(tuple(missions), entries, 2, 0, 8), records, 2, Path())
assert "torch" not in sys.modules
assert [one.path for one in films] == [9] * 2
"""


def test_one_that_imports_torch_in_the_midst_of_an_episode_is_filmed_to_the_end():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
