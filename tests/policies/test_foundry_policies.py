"""What the scripted policies for Foundry know, what they do with it, and that it pays."""

from __future__ import annotations

import copy
import math
from collections import Counter

import numpy as np
import pytest

from stretto.core import AgentPolicy, MultiAgentPolicy, WorldSpec
from stretto.games import foundry
from stretto.games.foundry import MISSIONS, VARIANTS, Foundry
from stretto.games.foundry_maps import ORES
from stretto.interop.pettingzoo import ParallelTurns
from stretto.policies.foundry import Gatherer, Planner
from stretto.policies.foundry_memory import (
    HOME,
    SIDE,
    Memory,
    Pilot,
    cells_in,
    distances,
    first_steps,
    spread,
    union,
    waves,
)

SCRIPTED = [Gatherer, Planner]


class AnythingCog(AgentPolicy):
    def step(self, observation):
        return int(self.rng.integers(len(foundry.ACTION_NAMES)))


class Anything(MultiAgentPolicy):
    """Does anything."""

    def agent_policy(self, agent):
        return AnythingCog()


def spec_of(world):
    return WorldSpec(
        tuple(world.possible_agents),
        {agent: world.observation_space(agent) for agent in world.possible_agents},
        {agent: world.action_space(agent) for agent in world.possible_agents},
        foundry.ACTION_NAMES,
    )


def minds(world, policy, seed):
    made = policy(spec_of(world))
    found = {agent: made.agent_policy(agent) for agent in world.possible_agents}
    for number, mind in enumerate(found.values()):
        mind.reset(np.random.default_rng([seed, number]))
    return found


def play(world, policy, seed=0):
    """Play an episode in turns; return the mean reward of a cog, and what the cogs did."""
    cogs = minds(world, policy, seed)
    world.reset(seed=seed)
    total, actions = 0.0, []
    while world.agents:
        world.begin_turn()
        for agent in world.agents:
            actions.append(cogs[agent].step(world.observe(agent)))
            world.act(agent, actions[-1])
        total += sum(world.end_turn().rewards.values())
    return total / len(cogs), actions


def mean_reward(policy, mission, episodes=2, **changes):
    world = Foundry(**{**MISSIONS[mission]["kwargs"], **changes})
    return np.mean([play(world, policy, seed)[0] for seed in range(episodes)])


# --- sets of cells ----------------------------------------------------------------------------------------------


def test_the_cells_beside_one_are_four():
    cell = 20 * SIDE + 30
    assert cells_in(spread(1 << cell)) == [cell - SIDE, cell - 1, cell + 1, cell + SIDE]


def test_ways_go_around_what_cannot_be_passed_and_agree_from_both_ends():
    # A corridor around a corner: (2,2) (2,3) (2,4) (3,4) (4,4).
    corridor = [row * SIDE + column for row, column in ((2, 2), (2, 3), (2, 4), (3, 4), (4, 4))]
    free = sum(1 << cell for cell in corridor)
    assert distances(corridor[0], free, free) == {cell: far for far, cell in enumerate(corridor)}
    assert first_steps(corridor[0], 1 << corridor[4], free) == (4, 1 << corridor[1])
    assert first_steps(corridor[4], 1 << corridor[0] | 1 << corridor[1], free) == (3, 1 << corridor[3])
    assert first_steps(corridor[2], 1 << corridor[2], free) == (0, 0)


def test_what_cannot_be_reached_is_infinitely_far_and_no_step_leads_there():
    assert first_steps(5 * SIDE + 5, 1 << 9 * SIDE + 9, 1 << 5 * SIDE + 5 | 1 << 9 * SIDE + 9) == (math.inf, 0)
    assert distances(5 * SIDE + 5, 1 << 9 * SIDE + 9, 1 << 5 * SIDE + 5) == {}


def test_a_flood_fills_the_part_in_which_it_begins():
    near, far = [5 * SIDE + column for column in (3, 4, 5)], [5 * SIDE + column for column in (7, 8)]
    assert cells_in(union(waves(1 << near[1], sum(1 << cell for cell in near + far)))) == near


# --- memory -----------------------------------------------------------------------------------------------------


def remembered(world, agent="cog_0"):
    memory = Memory()
    memory.take(world.observe(agent))
    return memory


def test_a_cog_remembers_where_everything_is_relative_to_its_start():
    world = Foundry(1, height=11, width=11, deposits=2, obstacles=0.0)
    world.reset(seed=3)
    memory, (row, column) = remembered(world), world._cell(world._at[0])

    def placed(cells):
        near = [(r, c) for r, c in cells if max(abs(r - row), abs(c - column)) <= foundry.REACH]
        return {(HOME + r - row) * SIDE + HOME + c - column for r, c in near}

    assert memory.here == HOME * SIDE + HOME
    assert memory.energy == foundry.FULL_ENERGY
    assert set(cells_in(memory.free)) == placed(world.map.free_cells)
    assert set(cells_in(memory.chargers)) == placed(world.map.chargers)
    assert set(cells_in(memory.forges)) == placed(world.map.forges)
    for kind in range(len(ORES)):
        expected = placed(cell for cell, found in world.map.ore_at.items() if found == kind)
        assert set(cells_in(memory.deposits[kind])) == expected
        assert all(memory.units(kind, cell) == world.richness for cell in expected)


def test_what_went_out_of_sight_stays_known_and_what_turned_out_to_be_gone_is_forgotten():
    world = Foundry(1, height=32, width=32, obstacles=0.0, renewal=0.0)
    world.reset(seed=0)
    cell = next(iter(world.map.ore_at))
    kind, number = world.map.ore_at[cell], world._number(cell)
    world._move(0, number)
    memory = remembered(world)
    here = memory.here
    assert memory.units(kind, here) == world.richness
    world._move(0, world._number((cell[0] + (8 if cell[0] < 16 else -8), cell[1])))
    memory.take(world.observe("cog_0"))
    assert memory.here != here
    assert memory.deposits[kind] >> here & 1
    assert memory.age(here) == 1
    world._flat[foundry.ORE_PLANE + kind, number] = 0
    memory.take(world.observe("cog_0"))
    assert memory.deposits[kind] >> here & 1  # it cannot know yet
    world._move(0, number + 1)
    memory.take(world.observe("cog_0"))
    assert not memory.deposits[kind] >> here & 1
    assert memory.ever_deposits[kind] >> here & 1


def test_what_is_seen_behind_a_wall_counts_once_there_is_a_way():
    planes = np.zeros((len(foundry.PLANE_NAMES), foundry.VIEW, foundry.VIEW), np.uint8)
    planes[foundry.WALL_PLANE, :, 7] = planes[foundry.FORGE_PLANE, 5, 9] = 255
    seen = {"planes": planes, "self": np.array([1, 0, 0, 0, 0, 0, 0], np.float32)}
    memory = Memory()
    memory.take(seen)
    assert memory.forges == 0
    planes[foundry.WALL_PLANE, 2, 7] = 0
    memory.take(seen)
    assert cells_in(memory.forges) == [HOME * SIDE + HOME + 4]


def test_a_cog_knows_how_many_turns_are_left_once_it_has_played_one():
    world = Foundry(1, max_steps=50)
    world.reset(seed=0)
    memory = Memory()
    for turn in range(5):
        memory.take(world.observe("cog_0"))
        assert turn == 0 or memory.turns_left == 50 - turn
        world.act("cog_0", foundry.WAIT)
        world.end_turn()


# --- walking ----------------------------------------------------------------------------------------------------


def test_a_cog_walks_around_another_one_that_stands_in_its_way():
    world = Foundry(2, height=12, width=12, obstacles=0.0, deposits=1, chargers=1, forges=1)
    world.reset(seed=0)
    world._move(0, world._number((5, 4)))
    world._move(1, world._number((5, 5)))
    memory, pilot = Memory(), Pilot(np.random.default_rng(0))
    memory.take(world.observe("cog_0"))
    goal = memory.here + 3
    for _ in range(5):
        world.act("cog_0", pilot.go(memory, 1 << goal))
        memory.take(world.observe("cog_0"))
    assert memory.here == goal


@pytest.mark.parametrize("policy", SCRIPTED)
def test_cogs_that_meet_in_a_maze_do_not_block_each_other_for_good(policy):
    env = ParallelTurns(Foundry(6, layout="maze", height=13, width=13, max_steps=100, map_seed=1))
    cogs = minds(env, policy, 0)
    seen, _ = env.reset(seed=0)
    stays = Counter()
    longest = Counter()
    while env.agents:
        before = {agent: seen[agent]["self"].copy() for agent in env.agents}
        after, *_ = env.step({agent: cogs[agent].step(seen[agent]) for agent in env.agents})
        for agent, own in before.items():
            same = np.array_equal(own[:-1], after[agent]["self"][:-1])
            stays[agent] = stays[agent] + 1 if same else 0
            longest[agent] = max(longest[agent], stays[agent])
        seen = after
    assert max(longest.values()) < 40
    assert env.statistics()["hearts"] > 0


# --- both policies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", SCRIPTED)
def test_the_same_observations_and_numbers_give_the_same_actions(policy):
    kwargs = {"cogs": 3, "layout": "crowded", "max_steps": 25}
    assert play(Foundry(**kwargs), policy, 5) == play(Foundry(**kwargs), policy, 5)


@pytest.mark.parametrize("policy", SCRIPTED)
def test_a_policy_needs_nothing_but_observations_and_leaves_them_as_they_are(policy):
    world = Foundry(1, max_steps=20)
    recorded, taken = [], []
    cog = minds(world, policy, 1)["cog_0"]
    world.reset(seed=2)
    while world.agents:
        world.begin_turn()
        seen = world.observe("cog_0")
        recorded.append(copy.deepcopy(seen))
        taken.append(cog.step(seen))
        assert all(np.array_equal(seen[name], recorded[-1][name]) for name in seen)
        world.act("cog_0", taken[-1])
        world.end_turn()
    again = policy(WorldSpec((), {}, {})).agent_policy("anyone")
    again.reset(np.random.default_rng([1, 0]))
    assert [again.step(seen) for seen in recorded] == taken


@pytest.mark.parametrize("policy", SCRIPTED)
@pytest.mark.parametrize("mission", MISSIONS)
def test_it_plays_every_mission_with_actions_of_the_space(policy, mission):
    world = Foundry(**{**MISSIONS[mission]["kwargs"], "max_steps": 4})
    _, actions = play(world, policy)
    assert all(world.action_space("cog_0").contains(action) for action in actions)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gatherer_makes_hearts_in_every_variant(variant):
    world = Foundry(**{**MISSIONS["foundry_1"]["kwargs"], **VARIANTS[variant], "max_steps": 100})
    play(world, Gatherer)
    assert world.statistics()["hearts"] >= 4


@pytest.mark.parametrize("policy", SCRIPTED)
def test_it_plays_alone_and_in_a_crowd_of_sixty_four(policy):
    assert play(Foundry(1, max_steps=60), policy)[0] > 0
    crowd = Foundry(64, layout="crowded", height=20, width=20, max_steps=30 if policy is Gatherer else 5)
    play(crowd, policy)
    assert crowd.statistics()["moves"] > 0


@pytest.mark.parametrize("policy", SCRIPTED)
def test_a_cog_hardly_ever_runs_empty_where_there_are_chargers(policy):
    world = Foundry(2, max_steps=120, map_seed=1)
    play(world, policy)
    assert world.statistics()["energy_charged"] > 0
    assert world.statistics()["empty_turns"] < 0.05 * 2 * 120


@pytest.mark.parametrize("policy", SCRIPTED)
def test_where_nothing_is_left_it_goes_on_without_hearts(policy):
    world = Foundry(2, height=8, width=8, richness=1, deposits=1, chargers=1, forges=1, renewal=0.0, max_steps=60)
    play(world, policy)
    assert world.statistics()["hearts"] <= 1


@pytest.mark.parametrize("mission", MISSIONS)
def test_a_gatherer_makes_hearts_where_chance_makes_hardly_any(mission):
    chance = mean_reward(Anything, mission, episodes=1, max_steps=100)
    assert mean_reward(Gatherer, mission, episodes=1, max_steps=100) > 10 * chance + 0.5


@pytest.mark.parametrize("mission", ["foundry_1", "foundry_2", "foundry_5"])
def test_a_planner_beats_a_gatherer_on_the_same_episodes(mission):
    few = {"cogs": 3, "max_steps": 80}
    assert mean_reward(Planner, mission, **few) > 1.1 * mean_reward(Gatherer, mission, **few)
