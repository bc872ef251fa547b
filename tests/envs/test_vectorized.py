"""Worlds that are batched already: `make_vec(..., vectorized=True)`."""

import os
import signal

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.envs.group_worker import block_sizes
from stretto.testing.values import difference
from tests.envs.batched_worlds import Counting, CountingTogether, trajectory

CARTPOLE = "CartPole-v1"


gymnasium.register("CountingAlike-v0", Counting, vector_entry_point=CountingTogether)
gymnasium.register(
    "CountingShifted-v0", Counting, vector_entry_point=lambda **kwargs: CountingTogether(shift=1.0, **kwargs)
)


def test_one_block_is_equal_to_gymnasiums_own():
    theirs = gymnasium.make_vec(CARTPOLE, 96, vectorization_mode="vector_entry_point")
    with stretto.make_vec(CARTPOLE, 96, vectorized=True) as ours:
        assert "vectorized" in ours.choice
        assert difference(trajectory(ours, 120), [np.asarray(theirs.reset(seed=5)[0]), *_steps_of(theirs, 120)]) is None


def _steps_of(envs, steps):
    envs.action_space.seed(1)
    for _ in range(steps):
        observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        yield observations, rewards.astype(np.float64), terminated, truncated, infos


@pytest.mark.parametrize(
    "how",
    [
        {"backend": "serial"},
        {"backend": "thread", "workers": 2},
        {"backend": "process", "workers": 2},
        {"backend": "process", "workers": 3, "isolate": True},
        {"backend": "process", "workers": 2, "transport": "message"},
    ],
    ids=str,
)
def test_blocks_decide_what_is_seen_and_workers_do_not(how):
    with stretto.make_vec(CARTPOLE, 30, vectorized=3, backend="serial") as envs:
        expected = trajectory(envs)
    with stretto.make_vec(CARTPOLE, 30, vectorized=3, **how) as envs:
        assert difference(trajectory(envs), expected) is None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_step_in_two_halves_is_a_step(workers):
    with stretto.make_vec(CARTPOLE, 12, vectorized=workers, backend="process", workers=workers) as envs:
        expected = trajectory(envs)
        envs.action_space.seed(1)
        seen = [envs.reset(seed=5)[0]]
        for _ in range(40):
            envs.step_async(envs.action_space.sample())
            seen.append(tuple(envs.step_wait()))
        assert difference(seen, expected) is None


@pytest.mark.parametrize("seed", [5, None])
def test_a_killed_worker_is_replayed_and_nothing_differs(seed):
    def kill(k):
        if k in (7, 23):
            os.kill(envs.worker_pids[0], signal.SIGKILL)

    with stretto.make_vec(CARTPOLE, 12, vectorized=2, backend="process", workers=2) as envs:
        if seed is None:  # the worlds choose a seed themselves, and the one who restores them knows it
            envs.reset()
            first = envs.step(np.zeros(12, np.int64)).observations
            os.kill(envs.worker_pids[0], signal.SIGKILL)
            assert not np.array_equal(envs.step(np.ones(12, np.int64)).observations, first)
        else:
            seen = trajectory(envs, before_step=kill)
        assert envs.statistics().restarts == (1 if seed is None else 2)
        assert envs.statistics().truncations == 0
    if seed is not None:
        with stretto.make_vec(CARTPOLE, 12, vectorized=2, backend="serial") as envs:
            assert difference(trajectory(envs), seen) is None


def test_where_nothing_can_be_replayed_a_block_is_truncated_and_begins_anew():
    with stretto.make_vec(
        CARTPOLE, 6, vectorized=2, backend="process", isolate=True, workers=2, on_crash="truncate"
    ) as envs:
        envs.reset(seed=0)
        zeros = np.zeros(6, np.int64)
        last = envs.step(zeros).observations
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        with pytest.warns(stretto.SlotTruncated):
            step = envs.step(zeros)
        assert step.truncations.tolist() == [True] * 3 + [False] * 3
        assert difference(step.observations[:3], last[:3]) is None
        assert "died" in step.infos["crash"][0]
        begun = envs.step(zeros)
        assert not begun.truncations.any()
        assert (np.abs(begun.observations[:3]) <= 0.05).all()
        assert envs.statistics().truncations == 3


def test_calls_and_attributes_reach_the_vector_environment_and_are_repeated():
    with stretto.make_vec(
        CountingTogether, 4, vectorized=2, backend="process", isolate=True, env_kwargs={"shift": 2.0}
    ) as envs:
        envs.reset(seed=0)
        assert envs.get_attr("shift") == (2.0,) * 4
        envs.set_attr("shift", 5.0)
        envs.step(np.zeros(4, np.int64))
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.step(np.zeros(4, np.int64)).observations[:, 0].tolist() == [7.0] * 4
        assert [value.tolist() for value in envs.get_attr("steps")] == [2] * 4


@pytest.mark.parametrize("blocks", [1, 2])
def test_infos_come_as_the_vector_environment_gives_them(blocks):
    with stretto.make_vec(
        CountingTogether, 4, vectorized=blocks, backend="serial", env_kwargs={"with_infos": True}
    ) as envs:
        envs.reset(seed=0)
        zeros = np.zeros(4, np.int64)
        envs.step(zeros)
        infos = envs.step(zeros).infos
        assert infos["twice"].tolist() == [4] * 4
        assert infos["_twice"].all()


@pytest.mark.parametrize("blocks", [1, 2])
def test_what_a_block_raises_names_its_first_slot_and_a_reset_goes_on(blocks):
    with stretto.make_vec(CountingTogether, 4, vectorized=blocks, backend="serial", env_kwargs={"stop_at": 2}) as envs:
        for _ in range(2):
            envs.reset(seed=0)
            envs.step(np.zeros(4, np.int64))
            with pytest.raises(RuntimeError, match="stopped") as raised:
                envs.step(np.zeros(4, np.int64))
            assert [note for note in raised.value.__notes__ if "slot 0" in note and "step 2" in note]
            with pytest.raises(stretto.ResetNeeded):
                envs.step(np.zeros(4, np.int64))


def test_a_wrong_shape_is_refused_and_never_broadcast():
    class Broadcast(CountingTogether):
        def step(self, actions):
            observations, *rest = super().step(actions)
            return observations[:1], *rest

    with stretto.make_vec(Broadcast, 4, vectorized=True) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.InvalidOutput, match=r"must have shape \(4, 2\)"):
            envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("part", [1, 2, 3], ids=["rewards", "terminated", "truncated"])
def test_numbers_that_would_be_repeated_are_refused(part, blocks):
    class Repeated(CountingTogether):
        def step(self, actions):
            results = list(super().step(actions))
            results[part] = results[part][0]
            return tuple(results)

    with stretto.make_vec(Repeated, 4, vectorized=blocks, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.InvalidOutput, match=r"must have shape \(\d,\), one for each world, got shape \(\)"):
            envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize(
    ("part", "value", "words"),
    [(0, -1, "within the bounds of Box"), (1, np.nan, "a reward must be a number")],
    ids=["out of bounds", "no number"],
)
def test_with_always_values_are_checked_too_and_the_slot_is_named(part, value, words, blocks):
    class Wrong(CountingTogether):
        def step(self, actions):
            results = super().step(actions)
            results[part][1] = value
            return results

    with stretto.make_vec(Wrong, 4, vectorized=blocks, backend="serial", checks="always") as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.InvalidOutput, match=words) as refused:
            envs.step(np.zeros(4, np.int64))
        assert (refused.value.place.slot, refused.value.place.step) == (1, 1)


def test_auto_uses_a_vectorized_form_only_if_it_gives_the_same_numbers():
    with stretto.make_vec("CountingAlike-v0", 8) as envs:
        assert envs.choice.startswith("vectorized")
        seen = trajectory(envs)
    with stretto.make_vec("CountingAlike-v0", 8, vectorized=False) as envs:
        assert "vectorized" not in envs.choice
        assert difference(trajectory(envs), seen) is None
    with stretto.make_vec("CountingShifted-v0", 8) as envs:
        assert not envs.choice.startswith("vectorized")
        assert "has a vectorized form" in envs.choice


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda envs: envs.reset(options={"reset_mask": np.array([True, False, False, False])}), "some slots"),
        (lambda envs: envs.reset(seed=[5, 1, 2, 3]), "a seed for each"),
        (lambda envs: envs.send(np.zeros(4, np.int64)), "send"),
        (lambda envs: envs.map(lambda env: 0), "map"),
        (lambda envs: envs.next_episodes({0: stretto.NextEpisode(1)}), "next_episodes"),
        (lambda envs: envs.set_attr("shift", [1.0, 2.0, 3.0, 4.0]), "differ"),
    ],
)
def test_what_needs_single_worlds_is_refused_in_a_sentence(ask, named):
    with stretto.make_vec(CountingTogether, 4, vectorized=True) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.UsageError, match=named) as refused:
            ask(envs)
        assert "vectorized=False" in str(refused.value)
        envs.step(np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("source", "keywords", "named"),
    [
        ("Acrobot-v1", {}, "no vectorized form"),
        (CARTPOLE, {"tasks": [1, 2]}, "tasks"),
        (CARTPOLE, {"episode_seeds": True}, "episode_seeds"),
        (CARTPOLE, {"autoreset_mode": AutoresetMode.SAME_STEP}, "NextStep"),
        (CARTPOLE, {"vectorized": 9}, "at most"),
        (lambda num_envs: gymnasium.make(CARTPOLE), {}, "VectorEnv"),
        (lambda num_envs: CountingTogether(num_envs + 1), {}, "asked for"),
    ],
)
def test_what_cannot_be_vectorized_is_refused_in_a_sentence(source, keywords, named):
    with pytest.raises((stretto.UsageError, stretto.InvalidLayout), match=named):
        stretto.make_vec(source, 4, **{"vectorized": True, "backend": "serial", **keywords})


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (1024, [1024]), (8192, [4096] * 2), (100_000, [12_500] * 8)])
def test_blocks_are_a_rule_on_the_number_of_worlds(count, sizes):
    assert block_sizes(count) == sizes


def test_an_attribute_set_before_the_first_reset_outlives_a_death_too():
    options = {"backend": "process", "workers": 2, "isolate": True, "vectorized": 2}
    with stretto.make_vec(CountingTogether, 4, **options) as envs:
        envs.set_attr("label", "given")
        os.kill(envs.worker_pids[0], signal.SIGKILL)
        assert envs.get_attr("label") == ("given",) * 4
