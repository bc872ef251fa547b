"""Worlds that need a task are evaluated with tasks: the same for all policies, at any width."""

from __future__ import annotations

import pytest

import stretto
from tests.worlds import TaskWorld


class NeedsATask(TaskWorld):
    """Has no episode without a task, which is its reward."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options={"task": options["task"]})

    def move(self, action):
        return self.see(), float(self.options["task"]), self.steps >= self.length, False, {}


def draw(slot, episode, stream):
    return 100 * episode + int(stream.integers(100))


@pytest.mark.parametrize("tasks", [[3, 5, 7], draw], ids=["drawn", "a function"])
def test_each_episode_has_its_task_the_same_for_all_policies_at_any_width(tasks):
    def played(**options):
        report = stretto.evaluate(NeedsATask, ["random", "noop"], episodes=5, tasks=tasks, **options)
        assert [record.failure for record in report.records] == [None] * 10
        return report, {(one.label, one.episode): one.reward / 3 for one in report.records}

    report, expected = played(jobs=0)
    assert played(jobs=2, reverse=True)[1] == expected
    assert [expected["random", n] for n in range(5)] == [expected["noop", n] for n in range(5)]
    if tasks is draw:
        assert [expected["noop", n] // 100 for n in range(5)] == list(range(5))
        assert report.plan["tasks"] == f"{__name__}:draw"
    else:
        assert set(expected.values()) <= set(tasks)
        assert report.plan["tasks"] == ["3", "5", "7"]


def test_a_run_with_other_tasks_is_not_gone_on_with(tmp_path):
    stretto.evaluate(NeedsATask, "noop", episodes=1, tasks=[3], jobs=0, out=tmp_path / "run")
    with pytest.raises(stretto.UsageError, match="tasks"):
        stretto.evaluate(NeedsATask, "noop", episodes=2, tasks=[4], jobs=0, out=tmp_path / "run", resume=True)


def test_a_failed_episode_with_a_task_is_played_again_from_python():
    report = stretto.evaluate(NeedsATask, "noop", episodes=1, tasks=["no number"], jobs=0)
    assert "tasks=<tasks>" in report.records[0].failure.reproduce


def test_a_world_with_tasks_is_verified_with_them():
    assert stretto.verify(NeedsATask, "random", episodes=1, tasks=[3, 5]).same
