"""One vocabulary for worlds: whatever stands for a world stands for the same one wherever worlds are run."""

from __future__ import annotations

import gymnasium
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import stretto
from stretto.bench import race
from stretto.budget import CpuBudget
from stretto.missions.resolve import find_missions, makers
from stretto.testing import check_env, play, sample_actions

GAME = """
from gymnasium.envs.classic_control import CartPoleEnv


class Pole(CartPoleEnv):
    def __init__(self, length=0.5, cogs=1, variants=(), map_seed=0):
        super().__init__()
        self.length, self.cogs, self.variants, self.map_seed = length, cogs, variants, map_seed


def make(length=0.5):
    return Pole(length)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "poles.py").write_text(GAME)
    (tmp_path / "poles.yaml").write_text("- {mission: poles.py:Pole, name: long, env_kwargs: {length: 2.0}}\n")


def make_pole():
    return CartPoleEnv()


ONE_AGENT = {
    "id": "CartPole-v1",
    "gym": "gym:CartPole-v1",
    "newest version": "Acrobot",
    "file": "poles.py:make",
    "file with settings": "poles.py:Pole,kw.length=2.0,name=long",
    "module": "poles:Pole",
    "yaml": "poles.yaml:long",
    "spec": gymnasium.spec("CartPole-v1"),
    "class": CartPoleEnv,
    "function": make_pole,
}


@pytest.mark.filterwarnings("ignore:.*latest versioned environment")
@pytest.mark.parametrize("source", ONE_AGENT.values(), ids=ONE_AGENT)
def test_what_stands_for_a_world_is_taken_by_all_who_run_worlds(source):
    with stretto.make_vec(source, 2, backend="serial") as envs:
        envs.reset(seed=0)
    with stretto.make_vec([source, source], 2, backend="serial") as envs:
        envs.reset(seed=0)
    report = stretto.evaluate(source, "random", episodes=1, steps=2, jobs=0)
    assert [record.failure for record in report.records] == [None]
    assert race(source, 2, seconds=0.01, backends=("serial",), budget=CpuBudget(1)).rows


@pytest.mark.parametrize("source", ["foundry_1", "pz:parallel_poles"])
def test_missions_with_several_agents_are_taken_too(source, tmp_path):
    (tmp_path / "parallel_poles.py").write_text(
        "from stretto.games.foundry import Foundry\n"
        "from stretto.interop.pettingzoo import ParallelTurns\n"
        "def parallel_env(cogs=2, **kwargs):\n    return ParallelTurns(Foundry(cogs=cogs, **kwargs))\n"
    )
    with stretto.make_vec(source, 2, backend="serial", env_kwargs={"cogs": 3}) as envs:
        assert len(envs.possible_agents) == 3
    report = stretto.evaluate(source, "random", episodes=1, steps=2, jobs=0, env_kwargs={"cogs": 3})
    assert len(report.records[0].rewards) == 3


def test_the_same_world_has_the_same_name_however_it_is_asked_for():
    texts = ["CartPole-v1", "gym:CartPole-v1", gymnasium.spec("CartPole-v1"), "gymnasium:CartPole-v1"]
    assert {find_missions(text)[0].name for text in texts} == {"gym:CartPole-v1"}


def test_keyword_arguments_and_variants_reach_whatever_takes_them():
    (mission,) = find_missions("poles.py:Pole", env_kwargs={"length": 2.0}, cogs=3, variants=["windy"], map_seed=7)
    pole = mission.make()
    assert (pole.length, pole.cogs, pole.variants, pole.map_seed) == (2.0, 3, ["windy"], 7)
    with stretto.make_vec("foundry_1", 1, backend="serial", variants=["sprint"]) as envs:
        assert envs.get_attr("max_steps") == (100,)
    with pytest.raises(stretto.UsageError, match=r"got cogs for make of .*poles\.py, which takes length"):
        find_missions("poles.py:make", cogs=3)[0].make()


def test_cogs_and_map_seed_are_taken_by_all_who_run_worlds():
    with stretto.make_vec("poles.py:Pole", 1, backend="serial", cogs=3, map_seed=7) as envs:
        assert (envs.get_attr("cogs"), envs.get_attr("map_seed")) == ((3,), (7,))
    assert check_env("poles.py:Pole", steps=3, cogs=3, map_seed=7)
    assert race("foundry_1", 1, seconds=0.01, backends=("serial",), cogs=3, map_seed=7).rows
    rollouts = stretto.collect("poles.py:Pole", "random", 1, cogs=3, map_seed=7, max_steps=2, backend="serial")
    assert len(rollouts) == 1
    with pytest.raises(stretto.UsageError, match="got cogs for gym:CartPole-v1"):
        stretto.make_vec("CartPole-v1", 1, cogs=3)


def test_settings_behind_a_name_are_those_of_a_mission_file():
    (mission,) = find_missions("foundry_1,name=small,cogs=2,variants=[rich],steps=5,default_action=0,kw.map_seed=4")
    assert (mission.name, mission.max_steps, mission.has_default_action, mission.default_action) == (
        "small",
        5,
        True,
        0,
    )
    assert len(mission.make().possible_agents) == 2
    assert mission.details["map_seed"] == 4
    with pytest.raises(stretto.UsageError, match=r"a mission's settings are mission, name, .*, got 'cog'"):
        find_missions("foundry_1,cog=2")


@pytest.mark.parametrize("source", ["CartPole-v1,steps=3", "foundry_1,steps=3"])
def test_a_mission_s_limit_of_steps_holds_wherever_it_is_run(source):
    with stretto.make_vec(source, 1, backend="serial") as envs:
        run = play(envs, sample_actions(envs, 8))
    assert run.episodes == 2
    assert [record.steps for record in stretto.evaluate(source, "random", episodes=1, jobs=0).records] == [3]


def test_a_limit_of_steps_counts_the_steps_of_sequential_turns():
    with stretto.make_vec("foundry_1,steps=3,cogs=2", 1, backend="serial", turns="sequential") as envs:
        envs.reset(seed=0)
        assert sum(bool(mask.any()) for mask in envs.mask.values()) == 1


def test_what_stands_for_several_missions_is_no_single_world():
    with pytest.raises(stretto.UsageError, match=r"one world is needed here, got 'foundry_\*'"):
        makers("foundry_*", 2)


def test_check_env_and_verify_take_missions():
    assert check_env("poles.py:Pole", steps=5, env_kwargs={"length": 2.0})
    with pytest.raises(stretto.UsageError, match="got cog for foundry_1"):
        stretto.verify("foundry_1", "random", env_kwargs={"cog": 3})
    assert stretto.verify("pointgoal", ["random", "noop"], episodes=1, steps=2).same
