"""A slot can be told what to play next at any time; and slots can be reset while others are in flight."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto import NextEpisode
from stretto.testing import check_same
from tests.backends import OPTIONS, every_backend
from tests.worlds import Drift, TaskWorld, makes

AUTOMATIC = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP]


def starts(envs, steps):
    """Step all slots and return the tasks that each of them began with, in order."""
    seen = [[] for _ in range(envs.num_envs)]
    for _ in range(steps):
        for slot, (count, task, _) in enumerate(envs.step(np.zeros(envs.num_envs, int)).observations):
            if count == 0:
                seen[slot].append(task)
    return seen


@every_backend
@pytest.mark.parametrize("mode", AUTOMATIC, ids=lambda mode: mode.value)
def test_the_next_automatic_reset_is_as_told_and_the_one_after_it_as_ever(mode, options):
    with stretto.make_vec(makes(TaskWorld, 2), 3, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=0)
        envs.next_episodes({0: NextEpisode(options={"task": 7}), 2: NextEpisode(options={"task": 9})})
        assert [tasks[:2] for tasks in starts(envs, 8)] == [[7, -1], [-1, -1], [9, -1]]


@every_backend
def test_a_seed_that_is_told_gives_the_episode_that_a_reset_with_it_gives(options):
    with stretto.make_vec(makes(Drift, 4), 2, autoreset_mode="SameStep", **options) as envs:
        wanted, _ = envs.reset(seed=[41, 42])
        envs.reset(seed=0)
        envs.next_episodes({0: NextEpisode(seed=41), 1: NextEpisode(seed=42)})
        begun = {}
        while len(begun) < 2:
            step = envs.step(np.zeros(2, int))
            for slot in np.flatnonzero(step.terminations):
                begun.setdefault(slot, step.observations[slot])
        check_same(np.stack([begun[0], begun[1]]), wanted, "episodes that were told their seed, and resets with it")


@every_backend
def test_what_is_told_last_counts_and_a_reset_that_is_asked_for_drops_it(options):
    with stretto.make_vec(makes(TaskWorld, 2), 2, **options) as envs:
        envs.reset(seed=0)
        envs.next_episodes({0: NextEpisode(options={"task": 1}), 1: NextEpisode(options={"task": 1})})
        envs.next_episodes({0: NextEpisode(options={"task": 2})})
        envs.reset(options={"reset_mask": np.array([False, True])})
        assert [tasks[0] for tasks in starts(envs, 4)] == [2, -1]


@every_backend
def test_the_task_of_an_episode_comes_along_unless_another_is_told(options):
    with stretto.make_vec(makes(TaskWorld, 2), 2, tasks=lambda s, e, stream: 10 * s + e, **options) as envs:
        envs.reset(seed=0)
        envs.next_episodes({0: NextEpisode(options={"extra": 5}), 1: NextEpisode(options={"task": 99})})
        seen = [[], []]
        for _ in range(6):
            for slot, row in enumerate(envs.step(np.zeros(2, int)).observations):
                if row[0] == 0:
                    seen[slot].append(row[1:].tolist())
        assert seen == [[[1, 5], [2, -1]], [[99, -1], [12, -1]]]


@pytest.mark.parametrize("name", ["process-isolated", "process-message"])
def test_what_was_told_survives_a_kill_before_and_after_it_is_played(name):
    def run(kill_at):
        with stretto.make_vec(makes(TaskWorld, 3), 4, **OPTIONS[name]) as envs:
            moments = [envs.reset(seed=0)[0]]
            for number in range(14):
                if number in (1, 6):
                    envs.next_episodes({slot: NextEpisode(number, {"task": 10 * number + slot}) for slot in range(4)})
                if number in kill_at:
                    os.kill(envs.worker_pids[number % len(envs.worker_pids)], signal.SIGKILL)
                moments.append(envs.step(np.zeros(4, int)).observations)
            assert envs.statistics().restarts == len(kill_at)
            return moments

    undisturbed = run(())
    assert {10.0, 63.0} <= {task for moment in undisturbed for task in moment[:, 1]}
    for kill_at in ((1,), (2,), (4,), (5, 7), (9, 13)):
        check_same(run(kill_at), undisturbed, f"runs with and without kills at {kill_at}")


@every_backend
def test_a_slot_in_flight_can_be_told_what_comes_after_it(options):
    with stretto.make_vec(makes(TaskWorld, 2), 2, **options) as envs:
        envs.reset(seed=0)
        seen = [[], []]
        for number in range(6):
            envs.send(np.zeros(2, int))
            if number == 0:
                envs.next_episodes({1: NextEpisode(options={"task": 3})})
            for slot, row in enumerate(envs.recv(ordered=True).observations):
                if row[0] == 0:
                    seen[slot].append(row[1])
        assert seen == [[-1, -1], [3, -1]]


@every_backend
def test_some_slots_are_reset_while_others_are_in_flight(options):
    with stretto.make_vec(Drift, 3, **options) as envs, stretto.make_vec(Drift, 3, backend="serial") as plain:
        envs.reset(seed=0)
        plain.reset(seed=0)
        envs.send(np.zeros(2, int), ids=[0, 2])
        wanted = plain.step(np.zeros(3, int))
        fresh, _ = plain.reset(seed=[None, 77, None], options={"reset_mask": np.array([False, True, False])})
        batch, _ = envs.reset(seed=[None, 77, None], options={"reset_mask": np.array([False, True, False])})
        check_same(batch[1], fresh[1], "the row of the slot that was reset")
        got = envs.recv(ordered=True)
        check_same(got.observations, wanted.observations[[0, 2]], "what was in flight")
        check_same(
            envs.step(np.ones(3, int)).observations,
            plain.step(np.ones(3, int)).observations,
            "the step of all after it",
        )


@every_backend
def test_a_slot_in_flight_cannot_be_reset(options):
    with stretto.make_vec(Drift, 2, **options) as envs:
        envs.reset(seed=0)
        envs.send(np.zeros(1, int), ids=[1])
        with pytest.raises(stretto.UsageError, match="slot 1 was not; call recv"):
            envs.reset(options={"reset_mask": np.array([False, True])})
        envs.recv()


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ({5: NextEpisode()}, "from 0 to 1"),
        ({0: 3}, "must be a stretto.NextEpisode, got 3"),
        ({0: NextEpisode(seed=-1)}, "at least 0, or None, got -1"),
    ],
)
def test_what_makes_no_sense_is_refused(episodes, words):
    with stretto.make_vec(TaskWorld, 2, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match=words):
            envs.next_episodes(episodes)


@every_backend
@pytest.mark.parametrize("mode", AUTOMATIC, ids=lambda mode: mode.value)
def test_an_idle_slot_does_nothing_until_it_is_reset(mode, options):
    with stretto.make_vec(makes(TaskWorld, 2), 3, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=0)
        envs.next_episodes({1: NextEpisode(idle=True)})
        seen = [envs.step(np.zeros(3, int)) for _ in range(9)]
        ended = np.stack([step.terminations | step.truncations for step in seen])
        assert ended[:, 1].sum() == 1
        assert min(ended[:, 0].sum(), ended[:, 2].sum()) > 1
        envs.reset(options={"reset_mask": np.array([False, True, False])})
        assert len(starts(envs, 8)[1]) > 1


def test_an_idle_slot_survives_a_kill():
    def run(kill):
        with stretto.make_vec(makes(TaskWorld, 3), 4, **OPTIONS["process-isolated"]) as envs:
            envs.reset(seed=0)
            envs.next_episodes({0: NextEpisode(idle=True), 3: NextEpisode(seed=5)})
            seen = []
            for number in range(12):
                if number == 7 and kill:
                    for pid in envs.worker_pids:
                        os.kill(pid, signal.SIGKILL)
                seen.append(envs.step(np.zeros(4, int)))
            assert envs.statistics().restarts == (2 if kill else 0)
        return [step[:4] for step in seen]

    check_same(run(kill=True), run(kill=False), "a run with kills, and one without")
