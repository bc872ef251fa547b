"""The folder that an evaluation is kept in: what is finished is never played again, and nothing else is taken for it."""

from __future__ import annotations

import pytest

from stretto.errors import UsageError
from stretto.evaluation.evaluate import EvaluationInterrupted, evaluate
from stretto.evaluation.journal import Journal

OPTIONS = {"episodes": 3, "steps": 5, "jobs": 0}


def kept(folder, **options):
    return evaluate("gym:CartPole-v1", "random", out=folder, **{**OPTIONS, **options})


def interrupted(folder, **options):
    """Evaluate, and interrupt it at the second episode that is heard of."""
    heard = []

    def hear(record):
        heard.append(record)
        if len(heard) == 2:
            raise KeyboardInterrupt

    with pytest.raises(EvaluationInterrupted):
        kept(folder, on_episode=hear, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("limit", "begun", "now"),
    [
        ("action_timeout_ms", None, 500),
        ("action_timeout_ms", 500, 400),
        ("overage_ms", 0.0, 9),
        ("hang_seconds", 60, None),
    ],
    ids=str,
)
def test_an_evaluation_is_not_gone_on_with_under_other_limits_of_time(tmp_path, limit, begun, now):
    interrupted(tmp_path, **{limit: begun})
    with pytest.raises(UsageError, match=f"{limit} was {begun} in .* and is {now} now; ask for the same"):
        kept(tmp_path, resume=True, **{limit: now})
    assert len(kept(tmp_path, resume=True, **{limit: begun}).records) == 3


def test_a_finished_evaluation_is_read_and_not_played_again(tmp_path):
    report = kept(tmp_path)
    files, heard = contents(tmp_path), []
    # Timing is read too: it would differ if anything had been played.
    assert kept(tmp_path, resume=True, on_episode=heard.append) == report
    assert tuple(heard) == report.records
    assert contents(tmp_path) == files


def test_a_finished_evaluation_can_have_more_episodes_of_the_same_plan(tmp_path):
    some = kept(tmp_path, only=[1])
    interrupted(tmp_path, resume=True)
    more = kept(tmp_path, resume=True)
    assert [record.episode for record in more.records] == [0, 1, 2]
    assert more.records[1] == some.records[0]
    assert kept(tmp_path, resume=True) == more


def test_one_that_died_before_its_report_was_whole_gets_the_whole_report(tmp_path):
    report = kept(tmp_path)
    (tmp_path / "episodes.jsonl").rename(tmp_path / "episodes.partial.jsonl")
    (tmp_path / "episodes.jsonl").write_text("")
    (tmp_path / "report.html").unlink()
    assert kept(tmp_path, resume=True).records == report.records
    assert "episodes.partial.jsonl" not in contents(tmp_path)
    assert (tmp_path / "episodes.jsonl").read_text() == report.to_jsonl()
    assert (tmp_path / "report.html").exists()


def test_a_new_evaluation_takes_no_folder_that_has_one(tmp_path):
    interrupted(tmp_path / "begun")
    with pytest.raises(UsageError, match="was begun; choose another folder, or go on with --resume"):
        kept(tmp_path / "begun")
    report = kept(tmp_path / "finished")
    report.save(tmp_path / "saved")
    for name in ("finished", "saved"):
        files = contents(tmp_path / name)
        with pytest.raises(UsageError, match="holds a finished evaluation, which would be overwritten; choose another"):
            kept(tmp_path / name)
        assert contents(tmp_path / name) == files


def test_two_programs_cannot_write_into_one_folder(tmp_path):
    with Journal(tmp_path, {"a": 1}, resume=False) as journal:
        journal.begin()
        for resume in (False, True):
            with pytest.raises(UsageError, match="another program writes into"):
                Journal(tmp_path, {"a": 1}, resume=resume)
    Journal(tmp_path, {"a": 1}, resume=True).close()
