"""Randomness is keyed by who draws, never by where: seeds, episode seeds, and the global generators."""

from __future__ import annotations

import importlib.util
import random
from typing import ClassVar

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.seeding import episode_seed
from stretto.testing import check_same, play, sample_actions
from tests.backends import OPTIONS, every_backend
from tests.worlds import Drift, GlobalDrift, makes


@every_backend
def test_a_seed_gives_slot_i_the_seed_plus_i(options):
    with stretto.make_vec(Drift, 4, **options) as envs:
        together, _ = envs.reset(seed=10)
        one_by_one, _ = envs.reset(seed=[10, 11, 12, 13])
        check_same(together, one_by_one, "seed=10 and seed=[10, ...]")
        assert envs.np_random_seed == (10, 11, 12, 13)
        for slot in range(4):
            world = Drift()
            assert np.array_equal(world.reset(seed=10 + slot)[0], together[slot])


@every_backend
def test_some_slots_may_be_left_unseeded(options):
    with stretto.make_vec(Drift, 3, **options) as envs:
        seeded, _ = envs.reset(seed=[1, 2, 3])
        again, _ = envs.reset(seed=[1, None, 3])
        assert np.array_equal(seeded[[0, 2]], again[[0, 2]])
        assert not np.array_equal(seeded[1], again[1])


@pytest.mark.parametrize("seed", [-1, [1, 2], "123", 1.5, [1, 2, -3], [1, 2, 3.5]], ids=str)
def test_a_seed_that_is_none_is_refused(seed):
    with stretto.make_vec(Drift, 3, backend="serial") as envs, pytest.raises(stretto.UsageError, match="seed"):
        envs.reset(seed=seed)


@every_backend
def test_a_reset_without_a_seed_goes_on_with_the_stream(options):
    with stretto.make_vec(Drift, 3, **options) as envs:
        envs.reset(seed=4)
        second, third = envs.reset()[0], envs.reset()[0]
    for slot in range(3):
        world = Drift()
        world.reset(seed=4 + slot)
        assert np.array_equal(world.reset()[0], second[slot])
        assert np.array_equal(world.reset()[0], third[slot])


@every_backend
def test_one_that_was_never_seeded_is_different_every_time(options):
    with stretto.make_vec(Drift, 3, **options) as one, stretto.make_vec(Drift, 3, **options) as other:
        first, second = one.reset()[0], other.reset()[0]
    assert len({row.tobytes() for row in (*first, *second)}) == 6


@every_backend
@pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.value)
def test_with_episode_seeds_an_episode_does_not_depend_on_the_ones_before(mode, options):
    with stretto.make_vec(makes(Drift, 4), 3, episode_seeds=True, autoreset_mode=mode, **options) as envs:
        starts = [[] for _ in range(3)]
        run = play(envs, sample_actions(envs, 30), 6)
    for moment in run.moments:
        infos = [moment[1]] if len(moment) == 3 else [moment[4], *moment[7:8]]
        for info in infos:
            for slot in np.flatnonzero(info.get("_start", ())):
                starts[slot].append(info["start"][slot])
    for slot in range(3):
        assert len(starts[slot]) > 1
        for episode, start in enumerate(starts[slot]):
            assert Drift().reset(seed=episode_seed(6 + slot, episode))[1]["start"] == start


@every_backend
def test_without_any_seed_episode_seeds_still_make_episodes_differ(options):
    with stretto.make_vec(Drift, 2, episode_seeds=True, **options) as envs:
        rows = [row.tobytes() for _ in range(3) for row in envs.reset()[0]]
    assert len(set(rows)) == 6


# ---- the global generators ----


@every_backend
@pytest.mark.parametrize("how", ["auto", "private"])
def test_a_world_that_draws_from_global_generators_has_copies_of_its_own(how, options):
    widths_agree(GlobalDrift, how, options)


needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class UsesTorch(Drift):
    """Draws from torch, which it imports just then, when it is built and in each reset, or only in those without a seed."""

    built: ClassVar[int] = 0
    closed: ClassVar[int] = 0

    def __init__(self, late: bool):
        super().__init__(4)
        type(self).built += 1
        self.late, self.extra = late, 0.0
        self.built_with = 0.0 if late else self.draw()

    def draw(self) -> float:
        import torch

        return float(torch.rand(()))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.extra = 0.0 if self.late and seed is not None else self.draw()
        return self.see(), {}

    def see(self):
        return self.state + np.float32(self.built_with + self.extra)

    def close(self):
        type(self).closed += 1

    def counts(self):
        return type(self).built, type(self).closed


@needs_torch
@pytest.mark.usefixtures("workers_without_torch")
@pytest.mark.parametrize("name", ["serial", "process-isolated"])
@pytest.mark.parametrize(
    "world",
    [makes(GlobalDrift, torch=True), makes(UsesTorch, False), makes(UsesTorch, True)],
    ids=["in its first reset", "when it is built", "in a reset without a seed"],
)
def test_a_world_that_imports_torch_when_it_first_draws_from_it_has_a_copy_too(world, name):
    widths_agree(world, "auto", OPTIONS[name])


@needs_torch
@pytest.mark.usefixtures("workers_without_torch")
def test_a_world_that_had_to_be_built_twice_for_that_is_closed_once(monkeypatch):
    for count in ("built", "closed"):
        monkeypatch.setattr(UsesTorch, count, 0)  # what other tests counted here would travel along with the class
    with stretto.make_vec(makes(UsesTorch, False), 2, backend="process", isolate=True, workers=1) as envs:
        assert envs.call("counts") == ((3, 1), (3, 1))


class DrawsFromTorchInAStep(Drift):
    def move(self, action):
        import torch

        self.state = self.state + np.float32(torch.rand(()))
        return super().move(action)


@needs_torch
@pytest.mark.usefixtures("workers_without_torch")
@pytest.mark.parametrize("how", ["auto", "private"])
def test_one_that_imports_torch_only_in_a_step_and_draws_at_once_is_told_what_to_do(how):
    with stretto.make_vec(DrawsFromTorchInAStep, 2, backend="process", isolate=True, global_rng=how) as envs:
        envs.reset(seed=0)
        with pytest.raises(stretto.StrettoError, match=r"(?s)import torch at the top of the module.*slot 0"):
            envs.step(np.zeros(2, int))


def widths_agree(world, how, options):
    with stretto.make_vec(world, 3, backend="serial", global_rng=how) as envs:
        actions = sample_actions(envs, 30)
        expected = play(envs, actions, 2)
    with stretto.make_vec(world, 5, global_rng=how, **options) as envs:
        wider = play(envs, [np.concatenate([action, [0, 0]]) for action in actions], 2)
    for one, other in zip(expected.moments, wider.moments, strict=True):
        check_same(one[0], other[0][:3], "three slots, and the same three of five")
    rows = [row.tobytes() for row in wider.moments[0][0]]
    assert len(set(rows)) == 5


@pytest.mark.parametrize("name", ["serial", "thread", "process"])
def test_the_callers_own_generators_are_left_as_they_were(name):
    torch = pytest.importorskip("torch")

    def state():
        return random.getstate(), np.random.get_state()[1].tobytes(), np.random.get_state()[2], torch.get_rng_state()

    before = state()
    with stretto.make_vec(makes(GlobalDrift, torch=True), 3, **OPTIONS[name]) as envs:
        play(envs, sample_actions(envs, 25), 0)
        envs.map(lambda env: random.random())
    after = state()
    assert before[:3] == after[:3]
    assert torch.equal(before[3], after[3])


@every_backend
def test_seeding_the_callers_generators_changes_nothing(options):
    def run(seed):
        random.seed(seed)
        np.random.seed(seed)
        with stretto.make_vec(GlobalDrift, 3, **options) as envs:
            return play(envs, sample_actions(envs, 20), 0)

    run(1).check_same(run(2), "two states of the caller's generators")


@every_backend
def test_one_that_begins_to_draw_late_is_outside_what_auto_watches_and_inside_what_private_does(options):
    with stretto.make_vec(makes(DrawsLate, 40), 2, global_rng="private", **options) as envs:
        actions = sample_actions(envs, 60)
        play(envs, actions, 1).check_same(play(envs, actions, 1), "two runs")


class DrawsLate(Drift):
    def __init__(self, at_step):
        super().__init__(10_000)
        self.at_step = at_step

    def move(self, action):
        result = super().move(action)
        if self.steps > self.at_step:
            self.state = self.state + np.float32(np.random.standard_normal())
        return result


def test_shared_lets_worlds_draw_from_the_callers_generators():
    with stretto.make_vec(GlobalDrift, 2, backend="serial", global_rng="shared") as envs:
        runs = []
        for _ in range(2):
            random.seed(3)
            np.random.seed(3)
            runs.append(play(envs, sample_actions(envs, 10), None))
        runs[0].check_same(runs[1], "two runs from the same state of the caller's generators")


def test_what_a_world_draws_while_it_is_built_is_its_own_too():
    def rows(**options):
        with stretto.make_vec(DrawsWhenBuilt, 4, **options) as envs:
            return envs.reset(seed=0)[0]

    np.random.seed(1)
    serial = rows(backend="serial")
    np.random.seed(2)
    check_same(rows(backend="process", workers=2), serial, "built in one process and in two")
    assert len(np.unique(serial[:, 0])) == 4


class DrawsWhenBuilt(Drift):
    def __init__(self):
        super().__init__()
        self.drawn = np.random.random()

    def see(self):
        return np.array([self.drawn, 0, 0], np.float32)


class DrawsOneNormal(Drift):
    """Seeds numpy's global generator, and draws one normal number a step: numpy holds every second one back."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.seed(seed)
        return super().reset(seed=seed, options=options)

    def move(self, action):
        return np.array([np.random.standard_normal(), 0.0, 0.0]), 1.0, False, False, {}


@every_backend
def test_a_normal_number_that_numpy_holds_back_for_a_world_is_not_lost(options):
    world = DrawsOneNormal()
    world.reset(seed=5)
    expected = [np.float32(world.step(0)[0][0]) for _ in range(30)]
    with stretto.make_vec(DrawsOneNormal, 3, **options) as envs:
        envs.reset(seed=5)
        assert [envs.step(np.zeros(3, int)).observations[0, 0] for _ in range(30)] == expected


def test_nor_one_that_it_holds_back_for_the_caller():
    np.random.seed(1)
    expected = np.random.standard_normal(6).tolist()
    np.random.seed(1)
    seen = []
    with stretto.make_vec(GlobalDrift, 2, backend="serial") as envs:
        envs.reset(seed=0)
        for _ in range(6):
            seen.append(np.random.standard_normal())
            envs.step(np.zeros(2, int))
    assert seen == expected
