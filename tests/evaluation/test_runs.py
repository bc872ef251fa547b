"""Evaluations in folders: going on with one, damage, a full disk, a report built again, and several side by side."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys

import pytest

from stretto.errors import ResourceError, UsageError
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.report.report import Report
from stretto.evaluation.runs import compare, rebuild

GAME = """
import gymnasium
import numpy as np
from coin import reward

class Coins(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.left -= 1
        seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return seen, reward(action, self.np_random), self.left == 0, False, {}

class Made(Coins):
    def __init__(self, thing, size):
        super().__init__()

def broken():
    raise RuntimeError("there are no coins")
"""
COIN = "def reward(action, rng):\n    return float(action * rng.random())\n"
AGENT = "def act(observation):\n    return int(observation[0] > 0)\n"
OTHER = "def act(observation):\n    return int(observation[0] > -0.5)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a game and a policy, which is the current one."""
    monkeypatch.chdir(tmp_path)
    # Here, with jobs=0, the game is imported by this process, and so is the neighbour of another test's.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "coin", raising=False)
    for name, text in {"game.py": GAME, "coin.py": COIN, "agent.py": AGENT}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def play(out, missions="game.py:Coins", policies="agent.py:act", **options):
    return evaluate(missions, policies, out=out, **{"episodes": 3, "jobs": 0, **options})


def untimed(report):
    return [{**record.as_json(), "timing": None} for record in report.records]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---- going on ----


def test_a_finished_run_is_extended_and_its_earlier_episodes_stay_as_they_are(folder):
    first = play("run")
    more = play("run", episodes=7, resume=True)
    assert more.records[:3] == first.records
    assert untimed(more) == untimed(play("whole", episodes=7))
    assert more.plan["episodes"] == 7
    assert json.loads((folder / "run/plan.json").read_text())["episodes"] == 7
    with pytest.raises(UsageError, match="episodes was 7 in run and is 3 now; ask for as many or more"):
        play("run", resume=True)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("agent.py", r"of the policy agent\.py:act, the file agent\.py was \w+ and is \w+"),
        ("coin.py", r"of the mission game:Coins, the file coin\.py was \w+ and is \w+"),
    ],
)
def test_a_run_is_not_gone_on_with_by_other_code_unless_that_is_accepted_which_the_report_says(folder, file, told):
    play("run", only=[0])
    before = contents(folder / "run")
    (folder / file).write_text((folder / file).read_text() + "# edited\n")
    with pytest.raises(UsageError, match=f"since run was begun, {told}; undo that, .*--accept-changes"):
        play("run", resume=True)
    assert contents(folder / "run") == before
    report = play("run", resume=True, accept_changes=True)
    (change,) = report.plan["accepted_changes"]
    assert change["episodes"] == 1
    assert file in change["changes"][0]
    page = (folder / "run/report.html").read_text()
    assert "Not all episodes were played by the same code" in page
    # What was accepted once need not be accepted again, and stays on record.
    assert play("run", episodes=4, resume=True).plan["accepted_changes"] == [change]


def test_the_summary_and_the_page_say_what_produced_a_result(folder):
    play("run", ["game.py:Coins", "gym:CartPole-v1"], steps=5)
    identity = json.loads((folder / "run/summary.json").read_text())["plan"]["identity"]
    assert identity["missions"]["game:Coins"]["files"].keys() == {"game.py", "coin.py"}
    assert identity["missions"]["gym:CartPole-v1"]["packages"].keys() == {"gymnasium"}
    assert identity["policies"]["agent.py:act"]["files"].keys() == {"agent.py"}
    assert identity["installation"].keys() >= {"stretto", "python", "numpy", "gymnasium", "cpu"}
    page = (folder / "run/report.html").read_text()
    assert identity["policies"]["agent.py:act"]["files"]["agent.py"] in page
    assert identity["installation"]["cpu"] in page


# ---- what is refused ----


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize(
    ("mission", "policy", "raised"),
    [
        ("game.py:broken", "random", "there are no coins"),
        ("game.py:Coinz", "random", r"'Coinz', .*; did you mean Coins\? \(for game:Coinz with random\)"),
        ("game.py:Coins", "random,kw.size=3", r"\(for game:Coins with "),
    ],
)
def test_a_refused_evaluation_names_the_mission_and_leaves_no_folder(folder, mission, policy, raised, jobs):
    policy = policy if "," not in policy else f"class={policy}"
    with pytest.raises(Exception, match=raised):
        play("run", mission, policy, jobs=jobs)
    assert not (folder / "run").exists()
    assert len(play("run").records) == 3


def test_a_folder_of_others_is_left_as_it_is_when_an_evaluation_is_refused(folder):
    (folder / "run").mkdir()
    with pytest.raises(RuntimeError):
        play("run", "game.py:broken")
    assert contents(folder / "run") == {}


# ---- damage ----

DAMAGES = {
    "random bytes": lambda line: random.Random(0).randbytes(60).replace(b"\n", b"x"),
    "a cut line": lambda line: line[: len(line) // 2],
    "nothing": lambda line: b"",
    "no mapping": lambda line: b"[1, 2]",
    "a wrong type": lambda line: line.replace(b'"episode": 1', b'"episode": "one"'),
    "a wrong type inside": lambda line: line.replace(b'"rewards": {', b'"rewards": {"x": "y", '),
    "a key too few": lambda line: line.replace(b'"seed": ', b'"sea": '),
    "very deep": lambda line: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("finished", [True, False])
def test_a_line_that_is_damaged_is_told_with_its_file_and_its_number_and_nothing_is_lost(folder, finished, damage):
    whole = play("run")
    path = folder / "run/episodes.jsonl"
    lines = path.read_bytes().split(b"\n")
    if not finished:
        path.unlink()
        path = folder / "run/episodes.partial.jsonl"
    path.write_bytes(b"\n".join([lines[0], damage(lines[1]), *lines[2:]]))
    before = contents(folder / "run")
    readers = [lambda: play("run", resume=True), lambda: rebuild("run"), lambda: compare(["run", "run/../run2"])]
    play("run2")
    for read in [*readers, *([lambda: Report.load("run")] if finished else [])]:
        with pytest.raises(
            UsageError, match=rf"{path.name} must be .*, but line 2 is damaged: .*remove that line"
        ) as told:
            read()
        assert "\n" not in str(told.value)
    assert contents(folder / "run") == before
    path.write_bytes(b"\n".join([lines[0], *lines[2:]]))
    assert untimed(play("run", resume=True)) == untimed(whole)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"summary": 3, "plan": {}}', b"\xff\xfe\x00", b"[" * 100_000])
def test_a_damaged_summary_is_told_and_built_again(folder, content):
    whole = play("run")
    (folder / "run/summary.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"summary\.json must be .* build it again with stretto report run"):
        Report.load("run")
    assert rebuild("run").records == whole.records
    assert Report.load("run").records == whole.records


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe\x00", b'{"timing": 3}', b'{"timing": {"invocations": 3}}'])
def test_a_damaged_plan_is_told(folder, content):
    play("run")
    (folder / "run/plan.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"an evaluation has a readable plan\.json, and run has none; put it back"):
        play("run", resume=True)


# ---- a full disk ----


@pytest.fixture
def small_files():
    """Let no file of this process be larger than so many bytes: the file system says no in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_stops_a_run_with_a_sentence_and_what_was_written_stays_good(folder, small_files):
    whole = play("whole", episodes=20)
    heard = []

    def hear(record):
        heard.append(record)
        if len(heard) == 5:
            small_files((folder / "run/episodes.partial.jsonl").stat().st_size + 100)

    with pytest.raises(ResourceError, match=r"episode 5 of agent\.py:act .* into run: File too large; .*--resume run"):
        play("run", episodes=20, on_episode=hear)
    kept = (folder / "run/episodes.partial.jsonl").read_bytes()
    assert kept.count(b"\n") == 5
    assert kept.endswith(b"\n")
    small_files(-1)
    assert untimed(play("run", episodes=20, resume=True)) == untimed(whole)


def test_a_disk_that_is_full_when_the_report_is_written_loses_no_episode(folder, small_files):
    whole = play("whole", episodes=20)
    heard = []

    def hear(record):
        heard.append(record)
        if len(heard) == 20:
            small_files((folder / "run/episodes.partial.jsonl").stat().st_size // 2)

    with pytest.raises(
        ResourceError, match=r"the report could not be written into run: File too large; .*--resume run"
    ):
        play("run", episodes=20, on_episode=hear)
    small_files(-1)
    assert untimed(play("run", episodes=20, resume=True)) == untimed(whole)
    assert not [name for name in contents(folder / "run") if name.endswith(".draft")]


def test_a_run_that_is_killed_while_it_is_extended_goes_on(folder):
    first = play("run")
    words = [sys.executable, "-m", "stretto", "eval", "--resume", "run", "-e", "5000", "--jobs", "0"]
    (folder / "run/arguments.json").write_text(
        json.dumps({"mission": ["game.py:Coins"], "policy": ["agent.py:act"], "episodes": 3})
    )
    running = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    while not (path := folder / "run/episodes.partial.jsonl").exists() or path.read_bytes().count(b"\n") < 10:
        assert running.poll() is None, running.stderr.read()
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    kept = path.read_bytes().count(b"\n")
    assert json.loads((folder / "run/arguments.json").read_text())["episodes"] == 5000
    more = play("run", episodes=5000, only=range(kept + 2), resume=True)
    assert more.records[:3] == first.records
    assert untimed(more) == untimed(play("whole", episodes=kept + 2))


# ---- a report built again ----


def test_a_report_is_built_again_from_its_episodes_to_the_byte(folder):
    play("run")
    files = contents(folder / "run")
    for name in ("report.html", "summary.json", "episodes.csv"):
        (folder / "run" / name).write_text("")
    rebuild("run")
    for name in ("episodes.csv", "episodes.jsonl"):
        assert contents(folder / "run")[name] == files[name]
    assert "Timing" in (folder / "run/report.html").read_text()


def test_a_report_of_what_is_not_finished_leaves_it_unfinished(folder):
    whole = play("run")
    path = folder / "run/episodes.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.unlink()
    (folder / "run/episodes.partial.jsonl").write_text(lines[0])
    assert rebuild("run").records == whole.records[:1]
    assert untimed(play("run", resume=True)) == untimed(whole)


# ---- side by side ----


def test_runs_are_compared_on_the_episodes_that_they_share(folder):
    one = play("one", episodes=4)
    (folder / "agent.py").write_text(OTHER)
    two = play("two", policies=["agent.py:act", "random"], episodes=6)
    report = compare(["one", "two"])
    assert report.summary.labels == ("agent.py:act (one)", "agent.py:act (two)", "random")
    assert [record.episode for record in report.records] == [0, 1, 2, 3] * 3
    difference = next(row for row in report.summary.comparisons if row.mission is None)
    gained = [a.reward - b.reward for a, b in zip(one.records, two.records, strict=False)]
    assert difference.difference == pytest.approx(sum(gained) / 4)
    files = [report.plan["identity"]["policies"][f"agent.py:act ({run})"]["files"] for run in ("one", "two")]
    assert files[0] != files[1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": 1}, "seed is 0 in one and 1 in two"),
        ({"steps": 3}, "steps is None in one and 3 in two"),
        ({"missions": "gym:CartPole-v1"}, "game:Coins is left out: two did not play it"),
        ({"only": [2]}, "their episodes have other numbers or seeds"),
    ],
)
def test_what_cannot_be_compared_is_refused_and_told_why(folder, options, told):
    play("one", only=[0, 1])
    play("two", **options)
    with pytest.raises(UsageError, match=told):
        compare(["one", "two"])


def test_a_mission_that_has_changed_is_left_out_unless_that_is_accepted(folder):
    play("one", ["game.py:Coins", "gym:CartPole-v1"], steps=4)
    (folder / "coin.py").write_text(COIN + "# edited\n")
    play("two", ["game.py:Coins", "gym:CartPole-v1"], steps=4)
    report = compare(["one", "two"])
    assert report.summary.missions == ("gym:CartPole-v1",)
    (note,) = report.plan["notes"]
    assert "game:Coins is left out, unless --accept-changes, since it is not the same: the file coin.py was" in note
    accepted = compare(["one", "two"], accept_changes=True)
    assert accepted.summary.missions == ("game:Coins", "gym:CartPole-v1")
    assert "game:Coins is not the same: the file coin.py was" in accepted.plan["notes"][0]


@pytest.mark.parametrize("folders", [[], ["one"], ["one", "one"], ["one", "./one"]])
def test_fewer_than_two_runs_are_not_compared(folder, folders):
    play("one")
    with pytest.raises(UsageError, match="two or more different evaluations are compared"):
        compare(folders)


def test_what_a_policy_draws_while_it_is_loaded_depends_on_no_label_and_no_path(folder):
    (folder / "drawn.py").write_text(
        "import random\n\nclass Agent:\n    def __init__(self):\n        self.weight = random.random()\n\n"
        "    def step(self, observation):\n        return int(observation[0] > 2 * self.weight - 1)\n"
    )
    texts = ["drawn.py:Agent", "./drawn.py:Agent", "drawn.py:Agent,name=mine"]
    rewards = [[record.reward for record in play(None, policies=text, episodes=8).records] for text in texts]
    assert rewards[0] == rewards[1] == rewards[2]


def test_a_world_that_is_given_an_object_is_kept_by_its_digest(folder):
    report = play("run", "game.py:Made", env_kwargs={"thing": print, "size": 3})
    assert report.plan["worlds"]["game:Made"]["size"] == 3
    assert report.plan["worlds"]["game:Made"]["thing"].startswith("builtin_function_or_method ")
