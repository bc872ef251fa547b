"""The rules of Foundry, one by one; and any game in turns, played at once."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

import stretto
from stretto.core import TurnWorld
from stretto.errors import InvalidAction, ResetNeeded, UsageError
from stretto.games import foundry
from stretto.games.foundry import MISSIONS, VARIANTS, Foundry
from stretto.games.foundry_maps import LAYOUTS, ORES
from stretto.interop.pettingzoo import ParallelTurns
from stretto.testing import check_same

FIRST, SECOND = "cog_0", "cog_1"
MIDDLE = foundry.REACH, foundry.REACH


def begun(seed=0, **kwargs):
    world = Foundry(**{"cogs": 2, "obstacles": 0.0, "renewal": 0.0, **kwargs})
    world.reset(seed=seed)
    world.begin_turn()
    return world


def put(world, agent, cell):
    """Put a cog on a cell, as if it had walked there."""
    world._move(world._cog_of[agent], world._number(cell))
    assert where(world, agent) == cell


def where(world, agent):
    return world._cell(world._at[world._cog_of[agent]])


def deposit(world, kind):
    return next(cell for cell, found in world.map.ore_at.items() if found == kind)


def own(world, agent, name):
    return float(world.observe(agent)["self"][foundry.SELF_NAMES.index(name)])


def energy(world, agent=FIRST):
    return own(world, agent, "energy") * foundry.FULL_ENERGY


def carried(world, agent=FIRST):
    return [own(world, agent, ore) * foundry.CARGO for ore in ORES]


def bare_pair(world):
    """Two free cells, one east of the other, on which nothing is built."""
    free = {world._cell(number) for number in world._starts} - {where(world, agent) for agent in world.agents}
    return next(((row, column), (row, column + 1)) for row, column in sorted(free) if (row, column + 1) in free)


def gather(world, agent=FIRST, recipe=foundry.RECIPE):
    """Mine what a heart takes."""
    for kind, units in enumerate(recipe):
        put(world, agent, deposit(world, kind))
        for _ in range(units):
            world.act(agent, foundry.MINE)


def play(world, seed, turns, action_seed=0):
    """Play at random, and return all that was seen and given."""
    draw = np.random.default_rng(action_seed)
    world.reset(seed=seed)
    moments = []
    for _ in range(turns):
        world.begin_turn()
        for agent in world.agents:
            moments.append(world.observe(agent))
            world.act(agent, draw.integers(len(foundry.ACTION_NAMES)))
        end = world.end_turn()
        moments.append((end.rewards, end.truncated))
    return moments


def test_foundry_is_a_game_in_turns():
    assert isinstance(Foundry(), TurnWorld)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"cogs": 0}, "cogs must be a whole number from 1 to 64, got 0"),
        ({"cogs": 65}, "cogs must be a whole number from 1 to 64, got 65"),
        ({"cogs": 2.5}, "cogs must be a whole number"),
        ({"cogs": True}, "cogs must be a whole number"),
        ({"height": 7}, "height must be a whole number from 8 to 64"),
        ({"width": 65}, "width must be a whole number from 8 to 64"),
        ({"layout": "swamp"}, "layout must be one of 'open', .* got 'swamp'"),
        ({"map_seed": -1}, "map_seed must be a whole number of at least 0"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1"),
        ({"render_mode": "human"}, "render_mode must be one of None, 'rgb_array', 'ansi', got 'human'"),
        ({"richness": 52}, "richness must be a whole number from 1 to 51"),
        ({"deposits": 0}, "deposits must be"),
        ({"chargers": "two"}, "chargers must be"),
        ({"forges": -1}, "forges must be"),
        ({"obstacles": 0.95}, "obstacles must be a share from 0 to 0.9, got 0.95"),
        ({"renewal": float("nan")}, "renewal must be a share from 0 to 1, got nan"),
        ({"deposits": 100}, "free cell for each deposit, charger and forge"),
        ({"cogs": 60, "height": 8, "width": 8}, "each cog must have a free cell to start on"),
    ],
)
def test_arguments_that_cannot_be_are_refused_with_the_rule_the_value_and_a_remedy(arguments, said):
    with pytest.raises(UsageError, match=said) as refused:
        Foundry(**arguments)
    assert ";" in str(refused.value)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_map_depends_on_the_arguments_and_not_on_the_episode(layout):
    worlds = [Foundry(layout=layout, map_seed=seed) for seed in (5, 5, 6)]
    for seed, world in enumerate(worlds):
        world.reset(seed=seed)
    one, same, other = (world.map for world in worlds)
    check_same(one.walls, same.walls, "walls")
    assert (one.ore_at, one.chargers, one.forges) == (same.ore_at, same.chargers, same.forges)
    assert (one.forges, one.ore_at) != (other.forges, other.ore_at)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("map_seed", range(4))
def test_every_free_cell_can_be_reached_from_every_other(layout, map_seed):
    found = Foundry(layout=layout, height=21, width=25, map_seed=map_seed).map
    free = set(found.free_cells)
    assert len(reachable(free, next(iter(free)))) == len(free)
    assert len(free) > 100


def reachable(free, start):
    seen, waiting = {start}, [start]
    while waiting:
        row, column = waiting.pop()
        beside = {(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)} & free - seen
        seen |= beside
        waiting += beside
    return seen


@pytest.mark.parametrize("mission", MISSIONS)
@pytest.mark.parametrize("variant", [None, *VARIANTS])
def test_every_mission_and_variant_builds_and_can_be_solved(mission, variant):
    world = Foundry(**{**MISSIONS[mission]["kwargs"], **VARIANTS.get(variant, {})})
    world.reset(seed=0)
    assert MISSIONS[mission]["summary"]
    cogs = {where(world, agent) for agent in world.agents}
    found = reachable(set(world.map.free_cells), world.map.forges[0])
    assert found >= {*cogs, *world.map.chargers, *world.map.forges, *world.map.ore_at}
    kinds = list(world.map.ore_at.values())
    hearts = min(kinds.count(kind) * world.richness // need for kind, need in enumerate(foundry.RECIPE))
    assert hearts >= len(world.agents) // 4


def test_where_cogs_start_depends_on_the_seed_of_the_episode():
    world = Foundry(8)
    starts = []
    for seed in (1, 2, 1):
        world.reset(seed=seed)
        starts.append([where(world, agent) for agent in world.agents])
    assert starts[0] == starts[2] != starts[1]
    assert len(set(starts[0])) == 8


def test_without_a_seed_a_reset_goes_on_with_the_stream():
    def starts():
        world = Foundry(4)
        found = []
        for seed in (3, None, None):
            world.reset(seed=seed)
            found.append(tuple(where(world, agent) for agent in world.agents))
        return found

    assert starts() == starts()
    assert len(set(starts())) == 3


@pytest.mark.parametrize("mission", MISSIONS)
def test_the_same_seed_and_actions_give_the_same_episode(mission):
    kwargs = MISSIONS[mission]["kwargs"]
    used = Foundry(**kwargs)
    play(used, seed=4, turns=9, action_seed=9)
    check_same(play(used, seed=7, turns=25), play(Foundry(**kwargs), seed=7, turns=25), "episodes")


def test_what_is_observed_lies_in_the_space_and_the_spaces_stay_the_same_objects():
    world = Foundry(6, layout="crowded")
    for moment in play(world, seed=0, turns=30):
        if isinstance(moment, dict):
            assert world.observation_space(FIRST).contains(moment)
    assert world.observation_space(FIRST) is world.observation_space(FIRST)
    assert world.action_space(FIRST) is world.action_space(FIRST)
    assert world.action_space(FIRST).n == len(foundry.ACTION_NAMES)


def test_to_observe_changes_nothing_and_gives_arrays_of_ones_own():
    watched, other = begun(renewal=1.0), begun(renewal=1.0)
    for turn in range(10):
        for agent in watched.agents:
            seen = watched.observe(agent)
            check_same(seen, watched.observe(agent), "a second look")
            for part in seen.values():
                part[...] = 0
            watched.act(agent, 1 + turn % 4)
            other.act(agent, 1 + turn % 4)
        watched.end_turn(), other.end_turn()
        watched.begin_turn(), other.begin_turn()
    check_same(watched.observe(FIRST), other.observe(FIRST), "what is seen in the end")
    assert watched._np_random.bit_generator.state == other._np_random.bit_generator.state


def test_a_cog_moves_by_one_cell_for_one_of_energy_and_knows_how_far_it_is_from_its_start():
    world = begun()
    put(world, FIRST, (8, 8))
    south, east = (round(own(world, FIRST, name) * foundry.MAX_SIDE) for name in ("south", "east"))
    for action, cell in ((foundry.NORTH, (7, 8)), (foundry.EAST, (7, 9)), (foundry.SOUTH, (8, 9))):
        world.act(FIRST, action)
        assert where(world, FIRST) == cell
    assert energy(world) == foundry.FULL_ENERGY - 3
    assert own(world, FIRST, "south") * foundry.MAX_SIDE == south
    assert own(world, FIRST, "east") * foundry.MAX_SIDE == east + 1
    world.act(FIRST, foundry.WEST)
    assert where(world, FIRST) == (8, 8)


def test_the_edge_of_the_map_is_a_wall_and_to_run_into_it_costs_energy_all_the_same():
    world = begun()
    put(world, FIRST, (0, 3))
    world.act(FIRST, foundry.NORTH)
    assert where(world, FIRST) == (0, 3)
    assert energy(world) == foundry.FULL_ENERGY - 1
    assert world.statistics()["moves_blocked"] == 1
    assert world.observe(FIRST)["planes"][foundry.WALL_PLANE, : foundry.REACH].min() == 255


def test_no_cog_enters_a_cell_that_another_is_on_and_any_may_once_it_has_left():
    world = begun()
    left, right = bare_pair(world)
    put(world, FIRST, right)
    put(world, SECOND, left)
    world.act(SECOND, foundry.EAST)
    assert where(world, SECOND) == left
    world.act(FIRST, foundry.EAST if right[1] < 15 else foundry.SOUTH)
    world.act(SECOND, foundry.EAST)
    assert where(world, SECOND) == right


def test_a_cog_sees_another_at_once_and_itself_never():
    world = begun()
    left, right = bare_pair(world)
    put(world, FIRST, left)
    put(world, SECOND, right)
    cogs = world.observe(FIRST)["planes"][foundry.COG_PLANE]
    assert cogs[MIDDLE] == 0
    assert cogs[MIDDLE[0], MIDDLE[1] + 1] == 255
    assert np.count_nonzero(cogs) == 1


def test_what_one_cog_mines_is_gone_for_the_other():
    world = begun(richness=1)
    cell = deposit(world, 1)
    put(world, FIRST, cell)
    world.act(FIRST, foundry.MINE)
    assert carried(world) == [0, 1, 0]
    put(world, FIRST, next(world._cell(n) for n in world._starts if not world._blocked[n]))
    put(world, SECOND, cell)
    world.act(SECOND, foundry.MINE)
    assert carried(world, SECOND) == [0, 0, 0]
    assert energy(world, SECOND) == foundry.FULL_ENERGY - 2


def test_a_deposit_fades_as_it_depletes_and_is_whole_again_after_a_reset():
    world = begun(richness=3)
    cell = deposit(world, 2)
    put(world, FIRST, cell)
    shades = []
    for _ in range(4):
        shades.append(int(world.observe(FIRST)["planes"][foundry.ORE_PLANE + 2][MIDDLE]))
        world.act(FIRST, foundry.MINE)
    assert shades == [15, 10, 5, 0]
    assert world.statistics()["quartz_mined"] == 3
    world.reset()
    put(world, FIRST, cell)
    assert world.observe(FIRST)["planes"][foundry.ORE_PLANE + 2][MIDDLE] == 15


def test_a_deposit_grows_back_to_what_it_began_with_and_no_further():
    world = begun(deposits=1, richness=2, renewal=1.0)
    put(world, FIRST, deposit(world, 0))
    world.act(FIRST, foundry.MINE)
    world.act(FIRST, foundry.MINE)
    for _ in range(100):
        world.end_turn()
        world.begin_turn()
    assert world.observe(FIRST)["planes"][foundry.ORE_PLANE][MIDDLE] == 2 * foundry.ORE_SHADE
    assert world.statistics()["ore_renewed"] == 2


def test_a_cog_carries_eight_units_at_most():
    world = begun()
    put(world, FIRST, deposit(world, 0))
    for _ in range(10):
        world.act(FIRST, foundry.MINE)
    assert carried(world) == [foundry.CARGO, 0, 0]


def test_a_heart_takes_the_whole_recipe_and_a_forge():
    world = begun()
    gather(world)
    world.act(FIRST, foundry.CRAFT)
    assert world.statistics()["hearts"] == 0  # this is no forge
    put(world, FIRST, world.map.forges[0])
    world.act(FIRST, foundry.CRAFT)
    world.act(FIRST, foundry.CRAFT)
    assert world.statistics()["hearts"] == 1  # there was ore for one
    assert carried(world) == [0, 0, 0]


@pytest.mark.parametrize("lacking", range(len(ORES)))
def test_without_one_unit_of_the_recipe_there_is_no_heart(lacking):
    world = begun()
    gather(world, recipe=[need - (kind == lacking) for kind, need in enumerate(foundry.RECIPE)])
    before = carried(world)
    put(world, FIRST, world.map.forges[0])
    world.act(FIRST, foundry.CRAFT)
    assert carried(world) == before
    assert world.end_turn().rewards[FIRST] < foundry.HEART_REWARD


def test_the_cog_that_crafts_is_rewarded_and_a_little_for_each_unit_that_its_heart_lacked():
    world = begun()
    gather(world)
    rewards = world.end_turn().rewards
    assert rewards == {FIRST: pytest.approx(4 * foundry.ORE_REWARD), SECOND: 0.0}
    world.begin_turn()
    put(world, FIRST, deposit(world, 2))
    world.act(FIRST, foundry.MINE)
    assert world.end_turn().rewards[FIRST] == 0.0  # a second quartz, and the recipe takes one
    world.begin_turn()
    put(world, FIRST, world.map.forges[0])
    world.act(FIRST, foundry.CRAFT)
    assert world.end_turn().rewards == {FIRST: foundry.HEART_REWARD, SECOND: 0.0}
    world.begin_turn()
    assert world.end_turn().rewards == {FIRST: 0.0, SECOND: 0.0}


def test_a_cog_without_energy_can_only_wait_which_gives_it_some():
    world = begun()
    put(world, FIRST, (0, 0))
    for _ in range(foundry.FULL_ENERGY):
        world.act(FIRST, foundry.NORTH)
    assert energy(world) == 0
    world.act(FIRST, foundry.SOUTH)
    assert where(world, FIRST) == (0, 0)
    assert energy(world) == 1
    assert world.statistics()["empty_turns"] == 1
    world.act(FIRST, foundry.MINE)  # takes 2
    assert energy(world) == 2
    world.act(FIRST, foundry.SOUTH)
    assert where(world, FIRST) == (1, 0)
    assert energy(world) == 1


def test_a_charger_fills_a_cog_up_and_no_other_cell_does():
    world = begun()
    put(world, FIRST, (0, 0))
    for _ in range(30):
        world.act(FIRST, foundry.NORTH)
    world.act(FIRST, foundry.CHARGE)
    assert energy(world) == foundry.FULL_ENERGY - 30
    put(world, FIRST, world.map.chargers[0])
    seen = []
    for _ in range(3):
        world.act(FIRST, foundry.CHARGE)
        seen.append(energy(world))
    assert seen == [foundry.FULL_ENERGY - 14, foundry.FULL_ENERGY, foundry.FULL_ENERGY]
    assert world.statistics()["energy_charged"] == 30
    assert world.statistics()["energy_spent"] == 30


def test_all_cogs_are_truncated_after_the_last_turn_and_may_still_look():
    world = begun(max_steps=2)
    end = world.end_turn()
    assert (end.truncated, world.agents) == ({FIRST: False, SECOND: False}, [FIRST, SECOND])
    world.begin_turn()
    end = world.end_turn()
    assert (end.truncated, world.agents) == ({FIRST: True, SECOND: True}, [])
    assert end.terminated == {FIRST: False, SECOND: False}
    assert not world.can_act(FIRST)
    assert own(world, FIRST, "step") == 1.0
    with pytest.raises(ResetNeeded, match="reset first"):
        world.act(FIRST, foundry.WAIT)


@pytest.mark.parametrize("action", [-1, 8])
def test_an_action_beyond_the_space_is_refused(action):
    with pytest.raises(InvalidAction, match="from 0 to 7"):
        begun().act(FIRST, action)


def test_statistics_are_floats_of_this_episode():
    world = Foundry(6)
    play(world, seed=0, turns=40)
    found = world.statistics()
    assert all(isinstance(value, float) for value in found.values())
    assert found["energy_spent"] > 0
    assert {f"{ore}_mined" for ore in ORES} < set(found)
    world.reset()
    assert world.statistics()["energy_spent"] == 0


def test_the_image_shows_what_changes_and_is_not_kept():
    world = begun(render_mode="rgb_array", height=10, width=12)
    before = world.render()
    assert before.shape == (10 * 12, 12 * 12, 3)
    assert before.dtype == np.uint8
    check_same(before, world.render(), "a second image")
    put(world, FIRST, deposit(world, 0))
    world.act(FIRST, foundry.MINE)
    assert (world.render() != before).any()


def test_a_deposit_fades_in_the_image():
    world = begun(render_mode="rgb_array")
    row, column = deposit(world, 0)
    middle = row * 12 + 6, column * 12 + 6
    shades = []
    for left in (world.richness, world.richness // 2, 0):
        world._left[world._number((row, column))] = left
        shades.append(int(world.render()[middle].sum()))
    assert shades == sorted(shades, reverse=True)
    assert len(set(shades)) == 3


def test_text_shows_every_cog_and_without_a_mode_there_is_nothing():
    text = begun(cogs=64, render_mode="ansi").render()
    rows = text.splitlines()[:16]
    assert all(len(row) == 16 for row in rows)
    assert len(set("".join(rows)) - set(".,#ciq+*")) == 64
    assert begun().render() is None


def test_an_image_can_be_had_before_the_first_reset():
    assert Foundry(render_mode="rgb_array").render().shape == (192, 192, 3)


@pytest.mark.parametrize("mission", MISSIONS)
def test_as_a_parallel_environment_it_passes_the_test_of_pettingzoo(mission):
    parallel_api_test(ParallelTurns(Foundry(**{**MISSIONS[mission]["kwargs"], "max_steps": 40})), num_cycles=60)


def test_in_parallel_all_observe_before_the_first_acts():
    env = ParallelTurns(Foundry(2, obstacles=0.0, renewal=0.0))
    env.reset(seed=0)
    world = env.turn_world
    left, right = bare_pair(world)
    put(world, FIRST, right)
    put(world, SECOND, left)
    seen = world.observe(SECOND)["planes"][foundry.COG_PLANE]
    assert seen[MIDDLE[0], MIDDLE[1] + 1] == 255
    away = foundry.EAST if right[1] < 15 else foundry.SOUTH
    env.step({FIRST: away, SECOND: foundry.EAST})
    assert where(world, SECOND) == right  # free by the time that the second one acts


def test_in_parallel_an_episode_is_the_one_that_the_game_plays_in_turns():
    draw = np.random.default_rng(0)
    turns = draw.integers(8, size=(30, 4)).tolist()
    world, env = Foundry(4, max_steps=30), ParallelTurns(Foundry(4, max_steps=30))
    world.reset(seed=5)
    seen, infos = env.reset(seed=5)
    assert infos == {agent: {} for agent in env.possible_agents}
    for actions in turns:
        world.begin_turn()
        check_same(seen, {agent: world.observe(agent) for agent in world.agents}, "observations")
        for agent, action in zip(world.possible_agents, actions, strict=True):
            world.act(agent, action)
        end = world.end_turn()
        seen, *rest = env.step(dict(zip(env.possible_agents, actions, strict=True)))
        assert rest == [end.rewards, end.terminated, end.truncated, end.infos]
    assert set(seen) == set(env.possible_agents)  # they saw how it ended
    assert env.agents == []
    assert env.statistics() == world.statistics()


def test_in_parallel_every_agent_that_can_act_must_have_an_action():
    env = ParallelTurns(Foundry(2))
    env.reset(seed=0)
    with pytest.raises(UsageError, match="got none for 'cog_1'"):
        env.step({FIRST: 0})


def test_the_stream_of_the_game_can_be_read_and_set_through_the_parallel_environment():
    env = ParallelTurns(Foundry(2))
    env.np_random = np.random.default_rng(3)
    assert env.np_random is env.turn_world._np_random
    first, _ = env.reset()
    again, _ = ParallelTurns(Foundry(2)).reset(seed=3)
    check_same(first, again, "observations")


def small_foundry():
    return ParallelTurns(Foundry(3, layout="maze", height=9, width=9, max_steps=6))


@pytest.mark.parametrize(
    "options", [{"backend": "serial"}, {"backend": "process", "workers": 2}], ids=lambda options: options["backend"]
)
def test_many_run_at_once_and_each_gives_what_it_gives_alone(options):
    turns = np.random.default_rng(0).integers(8, size=(6, 3, 4))
    with stretto.make_vec(small_foundry, 4, **options) as envs:
        envs.reset(seed=[11, 12, 13, 14])
        results = [envs.step(dict(zip(envs.possible_agents, actions, strict=True))) for actions in turns]
    for slot in range(4):
        alone = small_foundry()
        alone.reset(seed=11 + slot)
        for actions, result in zip(turns, results, strict=True):
            seen, rewards, _, truncated, _ = alone.step(
                dict(zip(alone.possible_agents, actions[:, slot].tolist(), strict=True))
            )
            for agent in alone.possible_agents:
                check_same({k: v[slot] for k, v in result.observations[agent].items()}, seen[agent], f"slot {slot}")
                assert result.rewards[agent][slot] == rewards[agent]
                assert result.truncations[agent][slot] == truncated[agent]


def test_as_many_as_one_likes_are_stepped_together():
    with stretto.make_vec(Foundry, 3, env_kwargs={"cogs": 2, "max_steps": 5}, backend="process") as envs:
        observations, _ = envs.reset(seed=0)
        assert observations["cog_0"]["planes"].shape[0] == 3
        for _ in range(7):
            step = envs.step({agent: np.zeros(3, int) for agent in envs.possible_agents})
        assert envs.statistics().episodes == 3
        assert set(step.rewards) == {"cog_0", "cog_1"}
