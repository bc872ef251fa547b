"""Episodes without a result: each is a failure that says why, the same one wherever it was played."""

from __future__ import annotations

import json

import gymnasium
import pytest
from gymnasium import spaces

from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.records import EpisodeRecord
from stretto.evaluation.report.report import Report
from stretto.evaluation.verify import Way, verify_plan
from stretto.missions.mission import Mission


class Counting(gymnasium.Env):
    """Five steps, with a reward of 1 in each."""

    observation_space = action_space = spaces.Discrete(6)

    def reset(self, *, seed=None, options=None):
        self.count, self.odd = 0, seed % 2
        return 0, {}

    def step(self, action):
        self.count += 1
        return self.count, self.reward(), False, self.count == 5, {}

    def reward(self):
        return 1.0


class Unbounded(Counting):
    """In odd episodes one reward is no number."""

    def reward(self):
        return float("nan") if self.odd and self.count == 2 else 1.0

    def statistics(self):
        return {"count": self.count, "never": float("nan"), "always": float("inf")}


def no_constants(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("jobs", [0, 2])
def test_rewards_that_add_up_to_no_number_are_a_failure_and_no_file_has_a_number_that_is_none(jobs, tmp_path):
    report = evaluate(Unbounded, "noop", episodes=6, jobs=jobs, out=tmp_path)
    odd = [record for record in report.records if record.seed % 2]
    assert 0 < len(odd) < 6
    assert [record for record in report.records if record.failure is not None] == odd
    failure = odd[0].failure
    assert (failure.kind, failure.agent, failure.lost) == ("RewardNotFinite", "agent_0", False)
    assert "must add up to a number" in failure.message
    assert (
        "got nan for agent_0 on test_no_result:Unbounded; let the world's step return finite rewards" in failure.message
    )
    assert report.summary.by_mission[0].failures == len(odd)
    assert report.summary.by_mission[0].reward == 5.0
    lines = [no_constants(line) for line in (tmp_path / "episodes.jsonl").read_text().splitlines()]
    assert [line["statistics"] for line in lines] == [{"always": None, "count": 5.0, "never": None}] * 6
    summary = no_constants((tmp_path / "summary.json").read_text())["summary"]
    assert summary["by_mission"][0]["statistics"] == {"count": {"mean": 5.0, "episodes": 6 - len(odd)}}
    assert Report.load(tmp_path).records == report.records


def test_a_record_with_a_reward_that_is_no_number_is_written_as_json_and_read_again():
    record = EpisodeRecord("m", "p", 0, 1, 2, {"a": float("inf"), "b": 1.0}, {})
    written = no_constants(json.dumps(record.as_json(), allow_nan=False))
    assert written["rewards"] == {"a": None, "b": 1.0}
    read = EpisodeRecord.from_json(written)
    assert read.reward != read.reward  # still no number, and no zero


def test_two_runs_with_the_same_reward_that_is_no_number_are_the_same():
    ways = [Way(0, "sequential"), Way(0, "batched")]
    plan = Plan((Mission("Unbounded", Unbounded),), entries_of(["noop"], mix=False), 3, 0)
    assert verify_plan(plan, ways).differences == ()


class Slamming(Counting):
    """Raises in its third step in odd episodes, and whenever it is closed."""

    def reward(self):
        if self.odd and self.count == 3:
            raise ValueError("the world's own error")
        return 1.0

    def close(self):
        raise RuntimeError("and the door is stuck")


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_world_that_cannot_be_closed_is_told_by_its_own_error(jobs):
    report = evaluate(Slamming, "noop", episodes=8, jobs=jobs)
    failures = {record.seed % 2: record.failure for record in report.records}
    assert failures[0] is None
    assert (failures[1].kind, failures[1].step) == ("ValueError", 3)
    assert "the world's own error" in failures[1].message


def test_what_was_raised_is_told_alike_with_and_without_a_trace(tmp_path):
    def told(**options):
        return [record.failure for record in evaluate(Slamming, ["noop", sulks], episodes=3, jobs=0, **options).records]

    expected = told()
    assert told(trace=tmp_path / "trace.json") == expected
    assert {failure.kind for failure in expected if failure is not None} == {"ValueError", "KeyError"}
    for failure in expected:
        if failure is not None:
            assert failure.traceback.count("File ") == failure.traceback.count("test_no_result.py")


def sulks(observation):
    raise KeyError(observation)


class Tarrying(Exception):
    """Cannot be sent to another process: it is made of two things and says that it is made of one."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Unique(Slamming):
    """Can be made only once in a process: after the first failure nothing goes on there."""

    made = 0

    def __init__(self):
        Unique.made += 1
        if Unique.made > 1:
            raise Tarrying("once", "once only")

    def close(self):
        pass


def test_a_world_that_cannot_be_made_again_is_told_alike_in_every_process():
    def told(jobs):
        Unique.made = 0
        report = evaluate(Unique, "noop", episodes=6, jobs=jobs, strategy="sequential")
        return [record.failure for record in report.records]

    here, there = told(0), told(1)
    assert here[-1].message == "Tarrying: once and once only"
    assert here == there
