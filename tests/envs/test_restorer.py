"""What it takes to bring a lost world back, and what is said where that cannot be done.

All of this runs on workers that only pretend to die. What only processes show is in tests/faults/test_restoring.py.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import stretto
from stretto.envs import single_group, slot
from stretto.envs.restoring.history import MOST_CALLS
from stretto.testing import difference, play, sample_actions
from tests.faults.worlds import Adjustable, OwnGenerator, RaisesWhenReplayed, Unrepeatable
from tests.workers.fake import kill, kill_all, make_fake_vec
from tests.worlds import CountTo, Drift, Echo, GlobalDrift, ReusesItsArray, TaskWorld

MODES = list(AutoresetMode)

EVERY = 400

modes = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)


@pytest.fixture
def frequent_points(monkeypatch):
    """Let points to restore from be recorded a few times as often as usual: every `EVERY` steps."""
    assert slot.RECORD_EVERY > EVERY
    monkeypatch.setattr(slot, "RECORD_EVERY", EVERY)


def check_kills_change_nothing(world: Any, steps: int, when: Any, count: int = 3, **options: Any) -> Any:
    """Check that a run in which all workers are killed before some steps gives what an undisturbed one gives."""
    with stretto.make_vec(world, count, backend="serial", **options) as envs:
        actions = sample_actions(envs, steps)
        expected = play(envs, actions, 5)
    with make_fake_vec(world, count, **options) as envs:
        run = play(envs, actions, 5, before_step=lambda number: kill_all(envs) if number in when else None)
        run.check_same(expected, "a run with deaths and one without")
        assert envs.statistics().truncations == 0
        assert envs.statistics().restarts == 2 * len(when)
        return envs.statistics()


@modes
@pytest.mark.parametrize("world", [Drift, GlobalDrift, OwnGenerator, ReusesItsArray], ids=lambda world: world.__name__)
def test_a_world_is_restored_whatever_it_draws_from(world, mode):
    check_kills_change_nothing(world, 40, {0, 3, 4, 5, 17, 30}, autoreset_mode=mode)


@modes
def test_a_world_is_restored_with_episode_seeds(mode):
    check_kills_change_nothing(partial(Drift, 5), 40, {3, 17, 30}, autoreset_mode=mode, episode_seeds=True)


@modes
def test_a_world_is_restored_to_its_task(mode):
    def task(slot: int, episode: int, stream: np.random.Generator) -> float:
        return 100 * slot + episode + stream.random()

    check_kills_change_nothing(TaskWorld, 30, {3, 7, 8, 20}, autoreset_mode=mode, tasks=task)


@pytest.mark.parametrize(("length", "mode"), [(7, MODES[0]), (7, MODES[1]), (EVERY - 1, MODES[2])])
def test_far_into_a_run_only_the_last_episodes_are_replayed(mode, length, frequent_points):
    # Killed right after a point was recorded, before it, and after it.
    steps = EVERY + 60
    when = {EVERY - 1, EVERY, EVERY + 1, EVERY + 9, steps - 1}
    world = partial(CountTo, length)
    statistics = check_kills_change_nothing(world, steps, when, count=2, autoreset_mode=mode)
    # Three deaths at most come before the point. Without it, each of the five would cost two slots as many steps.
    assert statistics.replayed_steps < 2 * 4 * EVERY


def test_values_of_every_sort_are_restored_and_compared():
    space = spaces.Dict(
        {
            "words": spaces.Text(8),
            "pair": spaces.Tuple([spaces.Discrete(5, start=2), spaces.Box(-1, 1, (2, 2), np.float32)]),
            "graph": spaces.Graph(spaces.Box(0, 1, (2,)), spaces.Discrete(3)),
        }
    )
    check_kills_change_nothing([partial(Echo, space) for _ in range(3)], 16, {0, 3, 9})


def test_a_multi_agent_world_is_restored():
    parallel = pytest.importorskip("mpe2.simple_spread_v3").parallel_env
    options = {"env_kwargs": {"max_cycles": 6}}
    with stretto.make_vec(parallel, 3, backend="serial", **options) as envs:
        actions = sample_actions(envs, 20)
        expected = play(envs, actions, 5)
    with make_fake_vec(parallel, 3, **options) as envs:
        kill = {3, 6, 7, 13}
        run = play(envs, actions, 5, before_step=lambda number: kill_all(envs) if number in kill else None)
        run.check_same(expected, "a run with deaths and one without")
        assert envs.statistics().restarts == 8


def test_with_episode_seeds_a_lost_episode_changes_none_of_those_after_it():
    options = {"episode_seeds": True, "autoreset_mode": AutoresetMode.SAME_STEP}
    seen = []
    for kills in (False, True):
        with make_fake_vec(CountEpisodes, 2, on_crash="truncate", **options) as envs:
            envs.reset(seed=9)
            envs.step(np.zeros(2, int))
            if kills:
                kill(envs.worker_pids[0])
                with pytest.warns(stretto.SlotTruncated):
                    envs.step(np.zeros(2, int))
            else:
                envs.step(np.zeros(2, int))
                envs.step(np.zeros(2, int))  # ends the first episode, as the death did
            seen.append([envs.step(np.zeros(2, int)).observations[0].copy() for _ in range(9)])
    assert difference(*seen) is None


class CountEpisodes(Drift):
    """Episodes of three steps whose beginning is random."""

    def move(self, action: Any) -> Any:
        observation, reward, _, _, info = super().move(action)
        return observation, reward, self.steps >= 3, False, info


# ---- resets without a seed ----


@pytest.mark.parametrize("world", [Drift, GlobalDrift, OwnGenerator], ids=lambda world: world.__name__)
def test_a_reset_without_a_seed_goes_on_where_the_world_was_also_after_a_death(world):
    runs = []
    for kills in (False, True):
        with make_fake_vec(world, 3) as envs:
            run: list[Any] = [envs.reset(seed=5)]
            for number in range(24):
                if kills and number % 4 == 1:
                    kill_all(envs)
                run.append(envs.reset() if number % 6 == 5 else envs.step(np.full(3, number % 4)))
            runs.append(run)
            assert envs.statistics().truncations == 0
            assert envs.statistics().restarts == (12 if kills else 0)
    assert difference(*runs) is None


def test_the_seed_that_a_generator_came_from_is_restored_with_it():
    runs = []
    for kills in (False, True):
        with make_fake_vec(Drift, 3) as envs:
            envs.reset(seed=5)
            run: list[Any] = [envs.reset()]
            if kills:
                kill_all(envs)
            assert envs.np_random_seed == (5, 6, 7)
            runs.append([*run, *(envs.step(np.zeros(3, int)) for _ in range(12))])
    assert difference(*runs) is None


def test_restored_worlds_are_watched_for_draws_no_longer_than_others(monkeypatch):
    watched, watch = [], single_group.watching_many
    monkeypatch.setattr(single_group, "watching_many", lambda *args: watched.append(1) or watch(*args))
    lengths = [partial(CountTo, length) for length in range(1, slot.PROBATION_CALLS + 2)]
    actions = np.zeros(len(lengths), int)
    with make_fake_vec(lengths, len(lengths)) as envs:
        envs.reset(seed=5)
        for number in range(4 * slot.PROBATION_CALLS):
            if number == 2 * slot.PROBATION_CALLS:
                envs.reset()
                kill_all(envs)
            envs.step(actions)
        assert watched
        watched.clear()
        envs.step(actions)
        assert not watched


def test_a_death_during_a_reset_without_a_seed_or_of_some_slots_changes_nothing():
    runs = []
    for kills in (False, True):
        with make_fake_vec(Drift, 4) as envs:
            run: list[Any] = [envs.reset(seed=5), envs.step(np.zeros(4, int))]
            for mask in ([True, False, False, True], [True] * 4):
                if kills:
                    kill_all(envs)
                run.append(envs.reset(options={"reset_mask": np.array(mask)}))
                run.append(envs.step(np.ones(4, int)))
            runs.append(run)
    assert difference(*runs) is None


@pytest.mark.parametrize("world", [Drift, GlobalDrift], ids=lambda world: world.__name__)
def test_a_world_that_was_never_seeded_is_restored_from_its_own_generator(world):
    with make_fake_vec(world, 2) as envs:
        envs.reset()
        before = envs.step(np.zeros(2, int))
        kill_all(envs)
        after = envs.get_attr("state")
        if not (before.terminations | before.truncations).any():
            assert np.stack(after).astype(before.observations.dtype).tobytes() == before.observations.tobytes()
        envs.step(np.zeros(2, int))
        assert envs.statistics().truncations == 0


def test_one_that_was_never_seeded_and_has_no_generator_is_truncated_and_says_so():
    with make_fake_vec(OwnGenerator, 2) as envs:
        envs.reset()
        kill(envs.worker_pids[1])
        with pytest.warns(stretto.SlotTruncated, match="slot 1 was truncated: the world does not repeat itself"):
            assert envs.step(np.zeros(2, int)).truncations.tolist() == [False, True]


# ---- calls and attributes ----


def test_calls_and_attributes_are_repeated_in_their_order():
    def go(envs: Any, kill: Any) -> list[Any]:
        seen: list[Any] = [envs.reset(seed=1)]
        seen.append(envs.step([1, 2, 3]))
        envs.set_attr("pace", [2.0, 3.0, 4.0])
        kill()
        seen.append(envs.step([1, 2, 3]))
        seen.append(envs.call("scale", 10.0))
        seen.append(envs.call("draw"))
        kill()
        seen.append(envs.step([0, 0, 0]))
        envs.set_attr("pace", 0.5)
        kill()
        seen.append(envs.get_attr("pace"))
        seen.append(envs.step([3, 2, 1]))
        seen.append(envs.reset(seed=2))  # the worlds stay as they were set
        kill()
        seen.append(envs.step([3, 2, 1]))
        seen.append(envs.get_attr("pace"))
        return seen

    with stretto.make_vec(Adjustable, 3, backend="serial") as envs:
        expected = go(envs, lambda: None)
    with make_fake_vec(Adjustable, 3) as envs:
        assert difference(go(envs, lambda: kill_all(envs)), expected) is None
        assert envs.statistics().restarts == 8
        assert envs.statistics().truncations == 0


def test_calls_that_add_up_are_all_repeated_also_those_from_before_the_last_point_to_restore_from(frequent_points):
    with make_fake_vec(partial(Adjustable, 5), 2) as envs:
        envs.call("scale", 2.0)  # before the first reset
        envs.reset(seed=1)
        for steps in (EVERY + 20, 20):
            envs.call("scale", 3.0)
            for _ in range(steps):
                envs.step(np.zeros(2, int))
        envs.set_attr("pace", [d * 10 for d in envs.get_attr("pace")])
        envs.call("scale", 0.5)
        assert envs.get_attr("pace") == (90.0, 90.0)
        for _ in range(2):
            kill_all(envs)
            assert envs.get_attr("pace") == (90.0, 90.0)
        assert envs.statistics().truncations == 0
        assert envs.statistics().replayed_steps < 2 * EVERY  # without points on the way it would be four


def test_questions_that_are_asked_at_every_step_are_not_kept_for_ever(frequent_points):
    with make_fake_vec(partial(Adjustable, 5), 2) as envs:
        envs.reset(seed=1)
        envs.set_attr("pace", 4.0)
        for _ in range(EVERY + 60):
            envs.call("see")
            envs.step(np.zeros(2, int))
        kill_all(envs)
        assert envs.get_attr("pace") == (4.0, 4.0)
        assert all(len(settled) <= MOST_CALLS for settled in envs._engine.state.history._settled)


def test_a_death_during_a_call_is_recovered_and_the_call_is_made_once():
    with make_fake_vec(Adjustable, 3) as envs:
        envs.reset(seed=1)
        kill_all(envs)
        assert envs.call("scale", 2.0) == (2.0, 2.0, 2.0)
        kill_all(envs)
        envs.set_attr("pace", 3.0)
        kill_all(envs)
        assert envs.call("scale", 2.0) == (6.0, 6.0, 6.0)


# ---- what cannot be restored ----


def test_a_world_that_does_not_repeat_itself_is_truncated_and_says_so():
    with make_fake_vec(Unrepeatable, 2) as envs:
        envs.reset(seed=0)
        for number in (1, 2):
            envs.step(np.zeros(2, int))
            before = envs.step(np.zeros(2, int))
            kill(envs.worker_pids[0])
            with pytest.warns(stretto.SlotTruncated, match="slot 0 was truncated: the world does not repeat itself"):
                result = envs.step(np.zeros(2, int))
            assert result.truncations.tolist() == [True, False]
            assert result.observations[0].tobytes() == before.observations[0].tobytes()
            assert "differs" in result.infos["crash"][0]
            assert envs.statistics().truncations == number
            envs.step(np.zeros(2, int))
            assert envs.get_attr("steps")[0] == 0


def test_a_world_that_raises_only_when_it_is_replayed_is_truncated_and_says_so(tmp_path):
    with make_fake_vec(partial(RaisesWhenReplayed, tmp_path), 1) as envs:
        envs.reset(seed=0)
        for _ in range(4):
            envs.step(np.zeros(1, int))
        kill_all(envs)
        with pytest.warns(stretto.SlotTruncated, match=r"replayed, it raised ValueError\('not again'\)"):
            assert envs.step(np.zeros(1, int)).truncations.all()
        envs.step(np.zeros(1, int))


@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: mode.value)
def test_after_a_lost_episode_the_next_ones_can_be_restored(mode):
    class NoisyAtFirst(Drift):
        """Cannot be repeated as long as its seed is a small one, as those of the test are."""

        noisy = False

        def reset(self, *, seed: int | None = None, **keywords: Any) -> Any:
            self.noisy = self.noisy if seed is None else seed < 1000
            return super().reset(seed=seed, **keywords)

        def see(self) -> Any:
            return self.state + (np.float32(int.from_bytes(os.urandom(3))) if self.noisy else np.float32(0))

    with make_fake_vec(partial(NoisyAtFirst, 1000), 2, autoreset_mode=mode) as envs:
        envs.reset(seed=0)
        envs.step(np.zeros(2, int))
        kill_all(envs)
        with pytest.warns(stretto.SlotTruncated):
            envs.step(np.zeros(2, int))
        for _ in range(3):
            envs.step(np.zeros(2, int))
        before = envs.get_attr("state")
        kill_all(envs)
        assert difference(envs.get_attr("state"), before) is None
        assert envs.statistics().truncations == 2


@pytest.mark.parametrize("by_recv", [False, True])
def test_beyond_the_limit_a_slot_is_truncated_and_says_so(by_recv):
    def step(envs: Any) -> Any:
        if not by_recv:
            return envs.step(np.zeros(2, int))
        envs.send(np.zeros(2, int))
        return envs.recv(ordered=True)

    with make_fake_vec(partial(CountTo, 10_000), 2, replay_limit=50) as envs:
        envs.reset(seed=0)
        for _ in range(50):
            step(envs)
        kill_all(envs)
        assert not step(envs).truncations.any()
        kill_all(envs)
        with pytest.warns(stretto.SlotTruncated, match="more than replay_limit steps"):
            assert step(envs).truncations.all()
        step(envs)
        assert envs.statistics().truncations == 2
        for _ in range(700):  # what is too old is thrown away
            step(envs)
        history = envs._engine.state.history
        assert len(history._entries.items) + sum(len(log.items) for log in history._own) < 1200
