"""Tasks belong to a slot and an episode: at every reset, asked for or automatic, at any width."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.testing import play, sample_actions
from tests.backends import every_backend
from tests.worlds import Crowd, TaskWorld, makes

every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)


def numbered(slot, episode, stream):
    return 100 * slot + episode


def begun(run):
    """Return the tasks that each slot showed, in order."""
    seen = [[] for _ in run.moments[0][0]]
    for moment in run.moments:
        for batch in (moment[0], moment[6]) if len(moment) > 6 else (moment[0],):
            for slot, (steps, task, _) in enumerate(batch):
                if steps == 0 and (not seen[slot] or seen[slot][-1] != task):
                    seen[slot].append(task)
    return seen


@every_backend
@every_mode
def test_slots_whose_episodes_end_at_different_times_each_get_their_own_next_task(mode, options):
    lengths = (1, 2, 3, 5, 8)
    factories = [makes(TaskWorld, length) for length in lengths]
    with stretto.make_vec(factories, 5, tasks=numbered, autoreset_mode=mode, **options) as envs:
        seen = begun(play(envs, sample_actions(envs, 40), 0))
    for slot, tasks in enumerate(seen):
        assert tasks == [100 * slot + episode for episode in range(len(tasks))]
        assert len(tasks) >= 40 // (lengths[slot] + 1)


@every_backend
def test_other_options_come_along_and_a_task_of_ones_own_wins(options):
    with stretto.make_vec(TaskWorld, 2, tasks=numbered, **options) as envs:
        assert envs.reset(seed=0, options={"extra": 7})[0].tolist() == [[0, 0, 7], [0, 100, 7]]
        assert envs.reset(seed=0, options={"task": 5})[0].tolist() == [[0, 5, -1], [0, 5, -1]]
        assert envs.reset(seed=0)[0].tolist() == [[0, 0, -1], [0, 100, -1]]


@every_backend
def test_a_reset_without_a_seed_goes_on_to_the_next_task_and_one_with_a_seed_begins_anew(options):
    with stretto.make_vec(TaskWorld, 2, tasks=numbered, **options) as envs:
        assert envs.reset(seed=0)[0][:, 1].tolist() == [0, 100]
        assert envs.reset()[0][:, 1].tolist() == [1, 101]
        mask = np.array([False, True])
        assert envs.reset(options={"reset_mask": mask})[0][:, 1].tolist() == [1, 102]
        assert envs.reset(seed=0)[0][:, 1].tolist() == [0, 100]


@every_backend
def test_the_stream_of_a_task_depends_on_seed_slot_and_episode_alone(options):
    def drawn(slot, episode, stream):
        return int(stream.integers(1 << 20))

    def play_with(seed, **more):
        with stretto.make_vec(makes(TaskWorld, 2), 4, tasks=drawn, **more) as envs:
            return begun(play(envs, sample_actions(envs, 20), seed))

    assert play_with(1, **options) == play_with(1, backend="serial")
    assert play_with(1, **options) != play_with(2, **options)
    first, second = play_with([3, 4, 5, 6], **options)[:2]
    assert first != second
    assert play_with([4, 3, 5, 6], **options)[:2] == [second, first]


@every_backend
def test_a_sequence_is_drawn_from(options):
    with stretto.make_vec(makes(TaskWorld, 1), 3, tasks=[3, 5, 7], **options) as envs:
        seen = begun(play(envs, sample_actions(envs, 40), 0))
    assert {task for tasks in seen for task in tasks} == {3, 5, 7}


@every_backend
@every_mode
def test_another_source_counts_from_the_next_episode_of_every_slot(mode, options):
    factories = [makes(TaskWorld, length) for length in (2, 3, 4)]
    with stretto.make_vec(factories, 3, tasks=numbered, autoreset_mode=mode, **options) as envs:
        actions = sample_actions(envs, 12)
        before = play(envs, actions[:5], 0)
        running = [tasks[-1] for tasks in begun(before)]
        if mode is AutoresetMode.SAME_STEP:  # what a step resets is seen in its own row
            running = before.moments[-1][0][:, 1].tolist()
        envs.set_tasks(lambda slot, episode, stream: -100 * slot - episode)
        tasks = [[task] for task in running]
        for action in actions:
            step = envs.step(action)
            over = step.terminations | step.truncations
            shown = step.observations
            if mode is AutoresetMode.DISABLED and over.any():
                shown, _ = envs.reset(options={"reset_mask": over})
            for slot in range(3):
                if shown[slot][1] != tasks[slot][-1]:
                    tasks[slot].append(shown[slot][1])
    for slot in range(3):
        assert len(tasks[slot]) > 2
        episode = running[slot] - 100 * slot
        assert tasks[slot][1:] == [-100 * slot - (episode + 1 + i) for i in range(len(tasks[slot]) - 1)]


@every_backend
def test_there_must_be_tasks_to_replace(options):
    with (
        stretto.make_vec(TaskWorld, 2, **options) as envs,
        pytest.raises(stretto.UsageError, match="pass tasks"),
    ):
        envs.set_tasks(numbered)


@every_backend
def test_several_agents_get_tasks_too(options):
    with stretto.make_vec(Crowd, 3, tasks=numbered, **options) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["lion_0"]["task"].tolist() == [0, 100, 200]
        seen = [[0], [100], [200]]
        for action in sample_actions(envs, 40):
            infos = envs.step(action).infos.get("lion_0", {})
            for slot in np.flatnonzero(infos.get("_task", ())):
                seen[slot].append(int(infos["task"][slot]))
        assert all(tasks == [100 * slot + e for e in range(len(tasks))] for slot, tasks in enumerate(seen))
        assert min(map(len, seen)) > 2


@every_backend
def test_a_source_that_raises_is_the_callers_to_see(options):
    def fails(slot, episode, stream):
        raise LookupError("no more tasks")

    with (
        stretto.make_vec(TaskWorld, 2, tasks=fails, **options) as envs,
        pytest.raises(LookupError, match="no more tasks"),
    ):
        envs.reset(seed=0)


# ---- which task and which episode a slot is in ----


@every_backend
@every_mode
def test_the_task_and_the_episode_of_each_slot_are_known(mode, options):
    factories = [makes(TaskWorld, length) for length in (1, 2, 4)]
    with stretto.make_vec(factories, tasks=numbered, autoreset_mode=mode, **options) as envs:
        assert envs.tasks == (None,) * 3
        shown = envs.reset(seed=0, options=[{"task": 7}, None, None])[0]
        assert envs.tasks == (7, 100, 200)
        for number in range(12):
            if number == 5:
                envs.next_episodes({2: stretto.NextEpisode(options={"task": 55})})
            step = envs.step(np.zeros(3, int))
            shown = step.observations
            if mode is AutoresetMode.DISABLED and (over := step.terminations).any():
                shown = envs.reset(options={"reset_mask": over})[0]
            assert list(envs.tasks) == shown[:, 1].tolist()
            own = [task for task in (7, 55) if task in envs.tasks]
            assert [task % 100 for task in envs.tasks if task not in own] == [
                episode for episode, task in zip(envs.episodes, envs.tasks, strict=True) if task not in own
            ]
        assert envs.episodes.max() > 3


@every_backend
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
def test_they_are_those_of_what_was_received_where_slots_go_their_own_ways(mode, options):
    with stretto.make_vec(makes(TaskWorld, 2), 2, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=0)
        seen = set()
        for number in range(12):
            envs.send(np.zeros(2, int))
            assert envs.in_flight == 2
            envs.next_episodes({number % 2: stretto.NextEpisode(options={"task": number})})
            ready = envs.recv(ordered=True)
            assert envs.in_flight == 0
            shown = [None if task < 0 else task for task in ready.observations[:, 1]]
            assert list(envs.tasks) == shown
            seen.update(shown)
        assert len(seen) > 3


def test_a_reset_forgets_what_a_slot_was_told_also_when_its_worker_dies_then():
    with stretto.make_vec(makes(TaskWorld, 2), 1, backend="process", isolate=True) as envs:
        envs.reset(seed=0)
        envs.next_episodes({0: stretto.NextEpisode(options={"task": 3})})
        envs.reset(seed=0)
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        tasks = [envs.step([0]).observations[0, 1] for _ in range(4)]
        assert tasks == [-1] * 4
        assert envs.statistics().restarts == 1
