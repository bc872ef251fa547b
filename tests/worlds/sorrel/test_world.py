"""Sorrel's examples as worlds: the same to the bit as Sorrel's own loop, wherever they run."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

pytest.importorskip("sorrel", reason="Sorrel is not on the path; make test-worlds has it if STRETTO_WORLDS is set")

import stretto
from stretto.adapters.agents import as_agents
from stretto.adapters.sorrel import visual_field
from stretto.adapters.sorrel.entity_copies import copied
from stretto.adapters.sorrel.missions import environment, make
from stretto.adapters.sorrel.world import SorrelTurns, seed_globals
from stretto.core import AgentPolicy, MultiAgentPolicy, TurnWorld
from stretto.errors import UsageError
from stretto.testing import check_env
from tests.backends import every_backend
from tests.evaluation.test_turns import steps_of
from tests.worlds.sorrel.examples import EXAMPLES, kinds_of, own_epoch, with_its_own_eyes

TURNS = 15


def chosen(agents):
    return np.random.default_rng(3).integers(4, size=(TURNS, agents))


@pytest.mark.parametrize("example", EXAMPLES)
def test_sequential_turns_are_sorrels_own_to_the_bit(example):
    world = as_agents(make(example), "sequential")
    agents = world.spec().agents
    actions = chosen(len(agents))
    expected = own_epoch(example, 5, actions)
    world.native.reset(seed=1)  # what an earlier episode leaves behind is gone
    outcome = world.reset(seed=5)
    for turn, (heard, _, total) in enumerate(expected):
        for number, (agent, (seen, _)) in enumerate(zip(agents, heard, strict=True)):
            assert outcome.acting == (agent,)
            assert np.array_equal(outcome.observations[agent], seen)
            outcome = world.step({agent: actions[turn, number]})
            if number == len(agents) - 1 and turn < TURNS - 1:
                # The next turn has begun: its entities have moved, so only rewards can be compared here.
                assert [outcome.rewards[one] for one in agents] == [reward for _, reward in heard]
        assert world.statistics()["total_reward"] == total


@pytest.mark.parametrize("example", EXAMPLES)
def test_grids_are_sorrels_own_after_every_turn(example):
    world = make(example)
    actions = chosen(len(world.possible_agents))
    expected = own_epoch(example, 7, actions)
    world.reset(seed=7)
    for turn, (_, kinds, total) in enumerate(expected):
        world.begin_turn()
        for number, agent in enumerate(world.agents):
            world.act(agent, actions[turn, number])
        world.end_turn()
        assert kinds_of(world.env) == kinds
        assert float(world.env.world.total_reward) == total


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_agents_see_has_the_bits_of_sorrels_own_function_everywhere_on_the_grid(example):
    seed_globals(2)
    env = environment(example)
    with_its_own_eyes()
    grid, spec = env.world.map, env.agents[0].observation_spec
    own = {place: spec.observe(env.world, place) for place in list(np.ndindex(grid.shape))[::5]}
    visual_field.see_faster()
    for place, seen in own.items():
        ours = spec.observe(env.world, place)
        assert ours.dtype == seen.dtype
        assert ours.shape == seen.shape
        assert ours.tobytes() == seen.tobytes()


def test_copies_of_entities_are_those_of_deepcopy_and_share_nothing_that_can_change():
    from sorrel.examples.treasurehunt.entities import EmptyEntity
    from sorrel.worlds import gridworld

    make()
    assert gridworld.copy.deepcopy is copied
    entity = EmptyEntity()
    entity.location = (1, 2, 0)
    for pockets in (None, ["gem"]):
        if pockets:
            entity.pockets = pockets
        one, other = copied(entity), copy.deepcopy(entity)
        assert type(one) is EmptyEntity
        assert vars(one) == vars(other)
        assert one is not entity
        assert (one.sprite is entity.sprite) is (pockets is None)
    assert one.pockets is not pockets


def test_windows_that_reach_over_the_grid_are_left_to_sorrel():
    env = environment("tag", config={"agent": {"vision_radius": 4}, "world": {"height": 7, "width": 12}})
    with_its_own_eyes()
    spec = env.agents[0].observation_spec
    own = spec.observe(env.world, (3, 3, 0))
    visual_field.see_faster()
    assert np.array_equal(spec.observe(env.world, (3, 3, 0)), own)


@every_backend
def test_several_at_once_are_what_each_is_alone(options):
    actions = np.random.default_rng(0).integers(4, size=(12, 3, 2))
    seen, rewards = [], []
    with stretto.make_vec("sorrel_treasurehunt", 3, turns="sequential", **options) as envs:
        agents = envs.possible_agents
        seen.append(envs.reset(seed=4)[0])
        for turn in actions:
            for number in range(len(agents)):
                step = envs.step(dict.fromkeys(agents, turn[:, number]))
            seen.append(step.observations)
            rewards.append(np.stack([step.rewards[agent] for agent in agents], axis=1))
    for slot in range(3):
        expected = own_epoch("treasurehunt", 4 + slot, actions[:, slot])
        earned = [[reward for _, reward in heard] for heard, _, _ in expected]
        assert np.array_equal(np.stack(rewards)[:, slot], np.array(earned, np.float32))


def test_an_episode_is_an_epoch_and_begins_with_agents_as_they_were_made():
    world = make("tag", max_turns=4)
    assert isinstance(world, TurnWorld)
    runs = []
    for _ in range(2):
        world.reset(seed=11)
        run = [[agent.it for agent in world.env.agents]]
        while world.agents:
            world.begin_turn()
            for agent in world.agents:
                world.act(agent, 1)
            end = world.end_turn()
            run.append([agent.it for agent in world.env.agents])
        assert set(end.truncated.values()) == {True}
        assert world.env.turn == 4
        runs.append(run)
    assert runs[0] == runs[1]


def test_frames_are_what_sorrels_models_get_from_their_memory():
    seed_globals(0)
    env = environment("treasurehunt", agents=1)
    model, given = env.agents[0].model, []
    model.take_action = lambda state: given.append(np.float32(state).ravel()) or len(given) % 4
    seed_globals(8)
    env.reset()
    for _ in range(12):
        env.take_turn()
    world = make(agents=1, frames=5)
    world.reset(seed=8)
    for turn in range(12):
        world.begin_turn()
        world.observe("agent_0")  # twice: who looks changes nothing
        assert np.array_equal(world.observe("agent_0"), given[turn])
        world.act("agent_0", (turn + 1) % 4)
        world.end_turn()
    assert world.observation_space("agent_0").shape == (5 * 75,)
    world.reset(seed=8)
    assert not world.observe("agent_0")[:300].any()
    with pytest.raises(UsageError, match="frames must be at least 1, got 0"):
        make(frames=0)


def test_making_a_world_leaves_the_global_generators_as_they_are():
    seed_globals(3)
    before = random.random(), np.random.random()
    seed_globals(3)
    make("tag")
    assert (random.random(), np.random.random()) == before


def test_an_environment_that_stops_when_it_is_done_is_terminated():
    env = environment("treasurehunt")
    env.stop_if_done = True
    world = SorrelTurns(env)
    world.reset(seed=0)
    world.begin_turn()
    env.world.is_done = True
    end = world.end_turn()
    assert set(end.terminated.values()) == {True}
    assert not any(end.truncated.values())
    assert not world.agents


def test_a_function_a_class_and_an_object_name_the_same_world():
    from sorrel.examples.treasurehunt.entities import EmptyEntity
    from sorrel.examples.treasurehunt.env import TreasurehuntEnv
    from sorrel.examples.treasurehunt.world import TreasurehuntWorld

    config = environment("treasurehunt").config
    grid = TreasurehuntWorld(config, EmptyEntity())
    found = []
    for source, kwargs in (
        (lambda: TreasurehuntEnv(TreasurehuntWorld(config, EmptyEntity()), config), None),
        (TreasurehuntEnv, {"world": grid, "config": config}),
        (TreasurehuntEnv(TreasurehuntWorld(config, EmptyEntity()), config), None),
        ("sorrel_treasurehunt", None),
    ):
        with stretto.make_vec(source, 2, env_kwargs=kwargs, backend="serial") as envs:
            first = envs.reset(seed=6)[0]
            steps = [envs.step({agent: np.array([1, 3]) for agent in envs.possible_agents}) for _ in range(3)]
        found.append([first, *(step.observations for step in steps)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert all(np.array_equal(one[agent], two[agent]) for agent in one)


def test_it_is_reproducible_and_policies_are_evaluated_on_it_with_one_result():
    check_env("sorrel_tag", steps=30)
    runs = [
        stretto.evaluate("sorrel_treasurehunt", ["random"], episodes=3, steps=10, turns=turns, jobs=jobs)
        for turns, jobs in (("sequential", 0), ("sequential", 2), ("speculative", 0))
    ]
    rewards = [[record.rewards for record in run.records] for run in runs]
    assert rewards[0] == rewards[1] == rewards[2]
    assert not any(record.failure for run in runs for record in run.records)


class Looker(AgentPolicy):
    """Chooses by all that it sees, and by what it draws."""

    stateless = True

    def __init__(self, actions):
        self._actions = actions

    def step(self, observation):
        place = (np.arange(observation.size) * observation).sum()
        return int(place * 8 + self.rng.integers(2)) % self._actions


class Lookers(MultiAgentPolicy):
    def agent_policy(self, agent):
        return Looker(int(self.world.action_spaces[agent].n))


@pytest.mark.parametrize("mission", ["sorrel_treasurehunt,kw.agents=6", "sorrel_tag", "sorrel_cleanup,kw.agents=4"])
def test_agents_that_choose_ahead_get_the_result_of_sequential_turns(mission):
    expected = steps_of([mission], Lookers, "sequential", steps=15)
    found = steps_of([mission], Lookers, "speculative", steps=15)
    assert found[:2] == expected[:2]
    assert all(record.failure is None for record in found[1].values())
    assert any(timing["conflicts"] > 0 for timing in found[2])


def test_turns_of_ones_own_are_refused_with_what_runs_them():
    env = environment("iowa")

    class Backwards(type(env)):
        def take_turn(self):
            pass

    env.__class__ = Backwards
    with pytest.raises(UsageError, match="Backwards with a take_turn of its own"):
        SorrelTurns(env)


def test_unknown_examples_and_numbers_of_agents_that_cannot_be_chosen_are_refused():
    with pytest.raises(UsageError, match=r"example must be one of treasurehunt, .*, got 'chess'"):
        make("chess")
    with pytest.raises(UsageError, match="agents can be chosen in treasurehunt, tag, cleanup, got 3 for iowa"):
        make("iowa", agents=3)
    assert len(make("cleanup", agents=3).possible_agents) == 3
