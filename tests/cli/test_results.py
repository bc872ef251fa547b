"""What one reads while an evaluation runs, and after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import stretto
from stretto.cli import results
from stretto.cli.options import Format
from stretto.evaluation.records import EpisodeFailure, EpisodeRecord
from stretto.evaluation.report.report import Report


def record(label: str, episode: int, reward: float) -> EpisodeRecord:
    return EpisodeRecord(
        mission="m", label=label, episode=episode, seed=episode, steps=10, rewards={"a": reward}, policies={"a": label}
    )


def printed(rewards: dict[str, list[float]], capsys: pytest.CaptureFixture[str]) -> str:
    records = [record(label, i, reward) for label, row in rewards.items() for i, reward in enumerate(row)]
    report = Report.of(records, {}, failed="exclude", seed=0, missions=["m"], labels=list(rewards))
    results.print_report(report, Format.TABLE)
    return capsys.readouterr().out


@pytest.mark.parametrize("labels", [("good", "bad"), ("bad", "good")])
def test_whether_one_policy_beats_another_is_said_whichever_was_named_first(labels, capsys):
    rewards = {"good": [5.0, 6.0, 7.0, 8.0] * 3, "bad": [1.0, 2.0, 9.0, 4.0] * 3}
    told = printed({label: rewards[label] for label in labels}, capsys)
    assert "good and bad cannot be told apart: good is better in 75% of 12 episodes (47" in " ".join(told.split())


def test_what_is_beyond_chance_is_said_without_a_caveat(capsys):
    told = printed({"bad": [1.0] * 12, "good": [2.0] * 12, "worst": [0.0] * 12}, capsys)
    told = " ".join(told.split())
    assert "good is best of 3 policies" in told
    assert "good beats bad in 100% of 12 episodes (76 to 100%), by a reward of 1.00 [1.00, 1.00] on average" in told
    assert "good beats worst in 100% of 12 episodes (76 to 100%), by a reward of 2.00 [2.00, 2.00] on average" in told
    assert "bad beats" not in told


def test_a_few_episodes_prove_nothing(capsys):
    told = printed({"bad": [1.0] * 5, "good": [2.0] * 5}, capsys)
    assert "good is better than bad in 100% of 5 episodes, which are too few to tell" in told
    assert "beats" not in told


def test_one_episode_in_common_is_an_episode_in_common(capsys):
    told = printed({"bad": [1.0], "good": [2.0]}, capsys)
    assert "good is better than bad in 100% of 1 episode, which is too few to tell" in told
    assert "in common" not in told


def test_the_winner_on_several_missions_is_who_is_better_in_more_episodes(capsys):
    rewards = {("one", "a"): 1.0, ("one", "b"): 2.0, ("two", "a"): 1000.0, ("two", "b"): 1001.0}
    records = [replace(record(label, i, reward), mission=m) for (m, label), reward in rewards.items() for i in range(6)]
    results.print_report(Report.of(records, {}), Format.TABLE)
    told = " ".join(capsys.readouterr().out.split())
    assert "b is best of 2 policies b beats a in 100% of 12 episodes (76 to 100%)" in told
    assert "on average" not in told


def test_failures_of_one_kind_are_told_once(capsys):
    place = 'Traceback\n  File "/home/me/mine.py", line 7, in step\nValueError: no'
    failures = [EpisodeFailure("ValueError", f"no {i}", "p", "a", 3, place, "stretto eval") for i in range(4)]
    records = [replace(record("p", i, 0.0), rewards={}, failure=failure) for i, failure in enumerate(failures)]
    results.print_report(Report.of([*records, record("p", 9, 1.0)], {}), Format.TABLE)
    told = capsys.readouterr().out
    assert "4 of 5 episodes failed" in told
    assert told.count("failed: ") == 1
    assert "at /home/me/mine.py:7, step 3" in told
    assert "in 4 episodes: m 0-3" in told


def test_a_failure_that_is_played_alone_shows_its_step_and_seed_and_the_user_s_frames_alone(capsys):
    calls = [("/home/me/w.py", 7), (stretto.__file__, 5), ("<string>", 1)]
    frames = "".join(f'  File "{file}", line {line} in step\n' for file, line in calls)
    stack = f"Current thread (most recent call first):\n{frames}"
    failure = EpisodeFailure("WorkerDied", "it died", None, None, 3, f"{stack}\nExtension modules: a, b (total: 2)\n")
    results.print_report(Report.of([replace(record("p", 0, 0.0), rewards={}, failure=failure)], {}), Format.TABLE)
    told = capsys.readouterr().out
    assert "  at /home/me/w.py:7, step 3, seed " in told
    assert 'File "/home/me/w.py", line 7 in step' in told
    assert "stretto" not in told.partition("seed ")[2].partition("again")[0]
    assert "<string>" not in told
    assert "Extension" not in told


def test_one_policy_alone_is_compared_with_nobody(capsys):
    assert "beats" not in printed({"alone": [1.0, 2.0]}, capsys)
