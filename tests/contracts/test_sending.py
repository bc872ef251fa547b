"""`send` and `recv`: going on with whoever is ready."""

from __future__ import annotations

import copy
import os
import signal
import threading

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.budget import CpuBudget
from stretto.testing import check_same, play, sample_actions
from tests.backends import every_backend
from tests.worlds import CountTo, Crowd, Drift, TaskWorld, makes

every_mode = pytest.mark.parametrize(
    "mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value
)


@every_backend
@every_mode
@pytest.mark.parametrize("ready", [1, 2, 5])
def test_every_slot_goes_its_own_way_whoever_is_ready_first(ready, mode, options):
    steps, count = 40, 5
    with stretto.make_vec(Drift, count, autoreset_mode=mode, **options) as envs:
        actions = sample_actions(envs, steps)
        expected = play(envs, actions, 3)
        envs.reset(seed=3)
        envs.send(actions[0])
        position = np.zeros(count, int)
        while position.min() < steps:
            got = envs.recv(min(ready, int((position < steps).sum())))
            for row, slot in enumerate(got.ids):
                position[slot] += 1
                wanted = expected.moments[position[slot]]
                check_same(
                    (got.observations[row], got.rewards[row], got.terminations[row], got.truncations[row]),
                    tuple(part[slot] for part in wanted[:4]),
                    f"slot {slot}, step {position[slot]}",
                )
                check_same(info_of(got.infos, row), info_of(wanted[4], slot), f"infos of slot {slot}")
            going_on = [slot for slot in got.ids if position[slot] < steps]
            if going_on:
                envs.send([actions[position[slot]][slot] for slot in going_on], going_on)
        assert envs.statistics().episodes == 2 * expected.episodes


def info_of(infos, row):
    return {
        key: info_of(value, row) if isinstance(value, dict) else value[row]
        for key, value in infos.items()
        if not key.startswith("_") and infos[f"_{key}"][row]
    }


@every_backend
def test_ordered_receives_in_the_order_of_sending(options):
    with stretto.make_vec(makes(CountTo, 9), 4, **options) as envs:
        envs.reset(seed=0)
        envs.send([1, 2], [3, 0])
        envs.send([3, 1], [1, 2])
        assert envs.recv(3, ordered=True).ids.tolist() == [3, 0, 1]
        last = envs.recv(ordered=True)
        assert (last.ids.tolist(), last.observations.tolist()) == ([2], [[1, 1]])


@every_backend
def test_steps_and_sent_steps_can_be_mixed(options):
    with stretto.make_vec(makes(CountTo, 9), 3, **options) as envs:
        envs.reset(seed=0)
        envs.step([0, 0, 0])
        envs.send([1, 1], [0, 2])
        envs.recv()
        assert envs.step([2, 2, 2]).observations.tolist() == [[3, 2], [2, 2], [3, 2]]
        mask = np.array([True, False, False])
        envs.send([3], [1])
        envs.recv()
        assert envs.reset(options={"reset_mask": mask})[0].tolist() == [[0, 0], [3, 3], [3, 2]]


@every_backend
def test_a_reset_takes_back_what_is_under_way(options):
    with stretto.make_vec(Drift, 3, **options) as envs:
        actions = sample_actions(envs, 6)
        expected = play(envs, actions, 1)
        envs.send(actions[0])
        play(envs, actions, 1).check_same(expected, "a run and one after a send that nobody received")


@every_backend
@every_mode
def test_tasks_reach_episodes_that_begin_between_sends(mode, options):
    def tasks(slot, episode, stream):
        return 100 * slot + episode

    with stretto.make_vec(makes(TaskWorld, 3), 3, tasks=tasks, autoreset_mode=mode, **options) as envs:
        envs.reset(seed=0)
        seen = [[0], [100], [200]]
        envs.send([0, 0, 0])
        # Not a number of steps: where the machine is busy, one worker may do all of them before the other does any.
        while min(map(len, seen)) < 3:
            got = envs.recv(1)
            slot = int(got.ids[0])
            task = got.observations[0][1]
            if task != seen[slot][-1]:
                seen[slot].append(task)
            envs.send([0], [slot])
        envs.recv()
        for slot, tasks_seen in enumerate(seen):
            assert tasks_seen == [100 * slot + episode for episode in range(len(tasks_seen))]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_the_caller_is_free_while_worlds_step_and_takes_the_ones_that_are_ready(backend, tmp_path):
    gate = tmp_path / "open"
    if backend == "thread":
        released = threading.Event()
        factories = [makes(WaitsForEvent, released), Drift, Drift]
    else:
        factories = [makes(WaitsForFile, str(gate)), Drift, Drift]
    # Threads take turns while it is open who draws from the global generators, and one of them waits here.
    with stretto.make_vec(factories, 3, backend=backend, workers=3, global_rng="shared") as envs:
        envs.reset(seed=0)
        envs.send([0, 0, 0])
        assert sorted(envs.recv(2).ids.tolist()) == [1, 2]
        for _ in range(5):
            envs.send([1, 1], [1, 2])
            assert sorted(envs.recv(2).ids.tolist()) == [1, 2]
        if backend == "thread":
            released.set()
        gate.touch()
        assert envs.recv().ids.tolist() == [0]


class WaitsForEvent(Drift):
    def __init__(self, event):
        super().__init__()
        self.event = event

    def move(self, action):
        self.event.wait()
        return super().move(action)


class WaitsForFile(Drift):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def move(self, action):
        import time
        from pathlib import Path

        while not Path(self.path).exists():
            time.sleep(0.001)  # files announce nothing
        return super().move(action)


@every_backend
@every_mode
def test_agents_too_go_on_in_whichever_world_is_ready_first(mode, options):
    steps, count = 40, 5
    with stretto.make_vec(Crowd, count, autoreset_mode=mode, **options) as envs:
        actions = sample_actions(envs, steps)
        envs.reset(seed=3)
        expected, masks = [], []
        for step in actions:
            expected.append(copy.deepcopy(envs.step(step)))
            masks.append(envs.mask.blocks[0].copy())
        envs.reset(seed=3)
        envs.send(actions[0])
        position = np.zeros(count, int)
        while position.min() < steps:
            got = envs.recv(min(2, int((position < steps).sum())))
            for row, slot in enumerate(got.ids):
                wanted = expected[position[slot]]
                for ours, theirs in zip(got[:4], wanted[:4], strict=True):
                    for agent in envs.possible_agents:
                        check_same(row_of(ours[agent], row), row_of(theirs[agent], slot), f"{agent} in slot {slot}")
                check_same(envs.mask.blocks[0][slot], masks[position[slot]][slot], f"who is alive in slot {slot}")
                position[slot] += 1
            going_on = [slot for slot in got.ids if position[slot] < steps]
            if going_on:
                rows = {a: [row_of(actions[position[slot]][a], slot) for slot in going_on] for a in actions[0]}
                envs.send({a: stacked(rows[a]) for a in rows}, going_on)


def row_of(value, row):
    if isinstance(value, dict):
        return {key: row_of(part, row) for key, part in value.items()}
    return tuple(row_of(part, row) for part in value) if isinstance(value, tuple) else value[row]


def stacked(rows):
    if isinstance(rows[0], dict):
        return {key: stacked([row[key] for row in rows]) for key in rows[0]}
    return tuple(map(stacked, zip(*rows, strict=True))) if isinstance(rows[0], tuple) else np.stack(rows)


@pytest.mark.parametrize("ids", [[1.7], np.array([True, False]), 3, ["a"], []], ids=str)
def test_ids_that_are_no_numbers_of_environments_are_refused(ids):
    with stretto.make_vec(Drift, 2, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match="ids must be"):
            envs.send(np.zeros(1, int), ids)


# ---- as Gymnasium's AsyncVectorEnv has it ----


@every_backend
@every_mode
def test_a_step_in_two_halves_is_a_step(mode, options):
    with stretto.make_vec(Drift, 5, autoreset_mode=mode, **options) as envs:
        actions = sample_actions(envs, 40)
        expected = play(envs, actions, 3)
        envs.reset(seed=3)
        for number, batch in enumerate(actions, 1):
            envs.step_async(batch)
            assert envs.in_flight == 5
            check_same(tuple(envs.step_wait()), tuple(expected.moments[number][:5]), f"step {number} in two halves")
            assert envs.in_flight == 0
        check_same(tuple(envs.step(actions[0]))[1].shape, (5,), "and a whole one after that")
        assert envs.statistics().episodes >= 2 * expected.episodes


def test_a_worker_that_dies_between_the_halves_is_replayed():
    with stretto.make_vec(Drift, 4, backend="process", workers=2, isolate=True) as envs:
        actions = sample_actions(envs, 20)
        expected = play(envs, actions, 3)
        envs.reset(seed=3)
        for number, batch in enumerate(actions, 1):
            envs.step_async(batch)
            if number in (3, 11):
                os.kill(envs.worker_pids[number % 2], signal.SIGKILL)
            check_same(envs.step_wait().observations, expected.moments[number][0], f"step {number}")
        assert envs.statistics().restarts == 2


@every_backend
def test_the_halves_of_a_step_belong_together(options):
    zeros = np.zeros(2, int)
    with stretto.make_vec(Drift, 2, **options) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match=r"call step_async\(actions\) first"):
            envs.step_wait()
        envs.step_async(zeros)
        for call in (
            lambda: envs.step_async(zeros),
            lambda: envs.step(zeros),
            lambda: envs.send(zeros),
            envs.recv,
            lambda: envs.next_episodes({}),
        ):
            with pytest.raises(stretto.UsageError, match=r"must be (finished|received)"):
                call()
        envs.step_wait()
        envs.step_async(zeros)
        first = envs.reset(seed=0)[0]  # which lets the step go
        check_same(envs.reset(seed=0)[0], first, "a reset in the middle of a step, and one after it")
        envs.step(zeros)


@pytest.mark.parametrize(("cores", "looks"), [(2, False), (3, True)])
def test_a_caller_that_steps_nothing_looks_for_answers_only_on_a_core_of_its_own(cores, looks):
    layout = {"backend": "process", "workers": 2, "budget": CpuBudget(cores)}
    with stretto.make_vec(makes(CountTo, 5), 4, **layout) as envs:
        envs.reset(seed=0)
        assert envs.engine.supervisor.spins  # it is one of the workers
        envs.send(np.zeros(4, int))
        envs.recv()
        assert envs.engine.supervisor.spins is looks
