"""What one reads while an evaluation runs, and after it."""

from __future__ import annotations

import pytest

from stretto.cli import results
from stretto.cli.options import Format
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.report import Report


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
    assert "good and bad cannot be told apart: it is better in 75% of 12 episodes (50" in " ".join(told.split())


def test_what_is_beyond_chance_is_said_without_a_caveat(capsys):
    told = printed({"bad": [1.0] * 12, "good": [2.0] * 12, "worst": [0.0] * 12}, capsys)
    assert "good beats bad in 100% of 12 episodes (100 to 100%)\n" in told
    assert "good beats worst in 100% of 12 episodes (100 to 100%)\n" in told
    assert "bad beats" not in told


def test_a_few_episodes_prove_nothing(capsys):
    told = printed({"bad": [1.0] * 5, "good": [2.0] * 5}, capsys)
    assert "good is better than bad in 100% of 5 episodes, which are too few to tell" in told
    assert "beats" not in told


def test_one_policy_alone_is_compared_with_nobody(capsys):
    assert "beats" not in printed({"alone": [1.0, 2.0]}, capsys)


def test_where_there_is_no_terminal_lines_come_now_and_then_and_less_and_less_often(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(results.time, "monotonic", lambda: now)
    with results.progress({"m": 1000}, quiet=False) as tell:
        for i in range(100):
            now += 0.5
            tell(record("p", i, 0.0))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "10 of 1000 episodes after 5 s, about 495 s left",
        "30 of 1000 episodes after 15 s, about 485 s left",
        "70 of 1000 episodes after 35 s, about 465 s left",
    ]


def test_quiet_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(results, "_FIRST_LINE_SECONDS", 0.0)
    with results.progress({"m": 3}, quiet=True) as tell:
        tell(record("p", 0, 0.0))
    assert capsys.readouterr().err == ""
