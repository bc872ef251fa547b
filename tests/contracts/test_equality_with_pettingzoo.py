"""Step by step, ours give what a plain loop over PettingZoo's parallel environments gives."""

from __future__ import annotations

import contextlib
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import stretto
from stretto.testing import check_same, sample_actions
from tests.backends import every_backend
from tests.worlds import Crowd


def mpe(name, **kwargs):
    def make():
        import importlib

        return importlib.import_module(f"mpe2.{name}").parallel_env(**kwargs)

    return make


def pettingzoo(name, **kwargs):
    def make():
        import importlib

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these modules are being renamed
            return importlib.import_module(f"pettingzoo.{name}").parallel_env(**kwargs)

    return make


# Each with the number of steps after which, with random actions, agents have died and episodes have ended.
WORLDS = {
    "mpe2.simple_spread": (mpe("simple_spread_v3", max_cycles=9), 30),
    "mpe2.simple_tag": (mpe("simple_tag_v3", max_cycles=8, continuous_actions=True), 30),
    "sisl.multiwalker": (
        pettingzoo("sisl.multiwalker_v9", max_cycles=90, terminate_on_fall=False, remove_on_fall=True),
        120,
    ),
    "sisl.pursuit": (pettingzoo("sisl.pursuit_v5", max_cycles=6, n_pursuers=3), 16),
    "butterfly.knights_archers_zombies": (
        pettingzoo("butterfly.knights_archers_zombies_v11", max_cycles=50, line_death=True, spawn_delay=2),
        70,
    ),
    "butterfly.cooperative_pong": (
        pettingzoo("butterfly.cooperative_pong_v6", max_cycles=7, render_mode="rgb_array"),
        18,
    ),
    "ours.crowd": (Crowd, 60),
}


class PlainLoop:
    """What anybody would write: one environment after the other, agents that are not there get zeros."""

    def __init__(self, make, count, mode):
        self.envs = [make() for _ in range(count)]
        self.num_envs, self.mode = count, mode
        self.agents = self.envs[0].possible_agents
        self.over = [False] * count

    def reset(self, seed):
        starts = [env.reset(seed=seed + slot) for slot, env in enumerate(self.envs)]
        return self.batch([seen for seen, _ in starts]), self.infos([[info] for _, info in starts]), self.mask()

    def step(self, actions):
        rows = []
        for slot, env in enumerate(self.envs):
            if self.over[slot]:
                seen, info = env.reset()
                rows.append((seen, {}, {}, {}, [info]))
            else:
                acting = {agent: rows_of[slot] for agent, rows_of in actions.items() if agent in env.agents}
                *values, info = env.step(acting)
                rows.append((*values, [info]))
            self.over[slot] = not env.agents
            if self.over[slot] and self.mode is AutoresetMode.SAME_STEP:
                rows[-1] = self.begin_again(slot, *rows[-1])
        seen, rewards, terminated, truncated, infos = zip(*rows, strict=True)
        flags = [self.column(values, np.bool_) for values in (terminated, truncated)]
        return self.batch(seen), self.column(rewards, np.float64), *flags, self.infos(infos), self.mask()

    def begin_again(self, slot, seen, rewards, terminated, truncated, infos):
        self.over[slot] = False
        last = {agent: first_row(values) for agent, values in self.batch([seen]).items()}
        final = {"final_obs": last, "final_info": {agent: info for agent, info in infos[0].items() if info}}
        seen, info = self.envs[slot].reset()
        return seen, rewards, terminated, truncated, [final, info]

    def batch(self, rows):
        return {agent: self.stack(self.envs[0].observation_space(agent), agent, rows) for agent in self.agents}

    def stack(self, space, agent, rows):
        if isinstance(space, gymnasium.spaces.Dict):
            picked = [row.get(agent) for row in rows]
            parts = space.spaces.items()
            return {k: self.stack(part, k, [{} if p is None else p for p in picked]) for k, part in parts}
        values = [row.get(agent, np.zeros(space.shape, space.dtype)) for row in rows]
        return np.stack([np.asarray(value, space.dtype) for value in values])

    def column(self, rows, dtype):
        return {agent: np.array([row.get(agent, 0) for row in rows], dtype) for agent in self.agents}

    def infos(self, rows):
        infos = {}
        for slot, parts in enumerate(rows):
            for info in parts:
                filled = {key: one for key, one in info.items() if one or key.startswith("final")}
                infos = self._add_info(infos, filled, slot)
        return infos

    _add_info = gymnasium.vector.VectorEnv._add_info

    def mask(self):
        return {agent: np.array([agent in env.agents for env in self.envs]) for agent in self.agents}

    def close(self):
        for env in self.envs:
            env.close()


def first_row(values):
    return {key: part[0] for key, part in values.items()} if isinstance(values, dict) else values[0]


def compare(make, steps, mode, **options):
    """Play both at once; return how often an agent died while another lived on, and how many episodes ended."""
    deaths = episodes = 0
    with (
        contextlib.closing(PlainLoop(make, 3, mode)) as plain,
        stretto.make_vec(make, 3, autoreset_mode=mode, **options) as envs,
    ):
        plain.agents = envs.possible_agents  # ours has them kind by kind
        *start, mask = plain.reset(5)
        check_same(envs.reset(seed=5), tuple(start), "the reset")
        check_same(envs.mask, mask, "the masks after the reset")
        for number, actions in enumerate(sample_actions(envs, steps, 5), start=1):
            *expected, mask = plain.step(actions)
            check_same(envs.step(actions), tuple(expected), f"step {number}")
            check_same(envs.mask, mask, f"the masks after step {number}")
            alive = np.array(list(mask.values()))
            done = np.array(list(expected[2].values())) | np.array(list(expected[3].values()))
            deaths += int(np.sum(done.any(axis=0) & alive.any(axis=0)))
            episodes += int(np.sum(~alive.any(axis=0))) + len(np.flatnonzero(expected[4].get("_final_obs", ())))
    return deaths, episodes


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", WORLDS)
def test_every_step_is_the_same(name, mode):
    make, steps = WORLDS[name]
    deaths, episodes = compare(make, steps, mode, backend="process", workers=2)
    assert episodes > 0
    if name in ("sisl.multiwalker", "butterfly.knights_archers_zombies", "ours.crowd"):
        assert deaths > 0


@every_backend
def test_every_step_is_the_same_on_every_backend(options):
    compare(Crowd, 60, AutoresetMode.NEXT_STEP, **options)
    compare(Crowd, 60, AutoresetMode.SAME_STEP, **options)


@every_backend
def test_agents_of_one_kind_lie_in_one_block_that_their_arrays_are_views_of(options):
    with stretto.make_vec(Crowd, 3, copy=False, **options) as envs:
        seen, _ = envs.reset(seed=1)
        lions, mice = seen.blocks
        assert [kind.agents for kind in envs.kinds] == [("lion_0", "lion_1"), ("mouse_0", "mouse_1")]
        assert lions["observation"].shape == (3, 2, 3)
        assert mice["action_mask"].shape == (3, 2, 3)
        assert np.shares_memory(seen["lion_1"]["observation"], lions["observation"])
        assert np.array_equal(seen["lion_1"]["observation"], lions["observation"][:, 1])
        assert envs.mask.blocks[0].shape == (3, 4)


@every_backend
def test_the_global_state_and_frames_come_through(options):
    with stretto.make_vec(Crowd, 3, **options) as envs:
        envs.reset(seed=1)
        envs.step(sample_actions(envs, 1)[0])
        assert envs.state().tolist() == [[1, 4]] * 3
        assert [int(frame.max()) for frame in envs.render()] == [1, 1, 1]


@every_backend
def test_agents_that_are_nowhere_alive_may_be_left_out_and_others_may_not(options):
    with stretto.make_vec(Crowd, 3, **options) as envs:
        envs.reset(seed=1)
        actions = sample_actions(envs, 2)
        first = {agent: actions[0][agent] for agent in ("lion_0", "mouse_0")}
        with pytest.raises(stretto.InvalidAction, match="'mouse_0' can in slot 0 and has no action"):
            envs.step({"lion_0": first["lion_0"]})
        with pytest.raises(stretto.InvalidAction, match="cat"):
            envs.step({**first, "cat": [0, 0, 0]})
        with pytest.raises(stretto.InvalidAction, match="slot 2"):
            envs.step({**first, "lion_0": [0, 0, 7]})
        with pytest.raises(stretto.InvalidAction, match="slot 1"):
            envs.step({**first, "mouse_0": [[0, 0], [3, 0], [0, 0]]})
        assert not any(envs.step(first).terminations["lion_0"])
        assert envs.state()[:, 0].tolist() == [1, 1, 1]


@every_backend
def test_with_autoreset_disabled_worlds_in_which_nobody_is_left_are_reset_by_mask(options):
    from stretto.testing import play

    with stretto.make_vec(Crowd, 3, autoreset_mode=AutoresetMode.DISABLED, **options) as envs:
        run = play(envs, sample_actions(envs, 30), 2)
        assert run.episodes > 2
