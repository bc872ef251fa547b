"""What cogames' own evaluation says of an episode is what ours says, to the last bit."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("cogames", reason="cogames is not installed; make test-worlds has it")

from cogames.cli.mission import resolve_mission
from cogames.game import get_game
from mettagrid.mapgen.mapgen import MapGenConfig
from mettagrid.policy.policy import PolicySpec
from mettagrid.runner.rollout import run_multi_episode_rollout

import stretto
from stretto.evaluation.evaluate import evaluate

SEEDS = [42, 43]
STEPS = 60
PLAYERS = Path(__file__).parent / "players.py"


def theirs(mission, policy, *, cogs=4, variants=(), map_seed=None):
    """Play the episodes as `cogames eval` does."""
    _, config, _ = resolve_mission(get_game("cogs_vs_clips"), mission, list(variants), cogs)
    config.game.max_steps = STEPS
    if map_seed is not None:
        assert isinstance(config.game.map_builder, MapGenConfig)
        config.game.map_builder.seed = map_seed
    sys.path.insert(0, str(PLAYERS.parent))
    try:
        result, _ = run_multi_episode_rollout(
            policy_specs=[PolicySpec(class_path=policy)],
            assignments=[0] * config.game.num_agents,
            env_cfg=config,
            episodes=len(SEEDS),
            seed=SEEDS[0],
            max_action_time_ms=10_000,
        )
    finally:
        sys.path.remove(str(PLAYERS.parent))
    return result.episodes


def ours(mission, policy, **changes):
    usual = {"episode_seeds": SEEDS, "steps": STEPS, "cogs": 4, "jobs": 0}
    report = evaluate(mission, policy, **{**usual, **changes})
    assert [record.failure for record in report.records] == [None] * len(SEEDS)
    return report.records


def assert_equal(records, episodes):
    for record, episode in zip(records, episodes, strict=True):
        agents = list(record.rewards)
        assert record.steps == episode.steps
        assert list(record.rewards.values()) == episode.rewards
        game = {f"game.{name}": value for name, value in episode.stats["game"].items()}
        mean = {f"mean.{name}": value for name, value in episode.time_averaged_game_stats.items()}
        told = {name: value for name, value in record.statistics.items() if not name.startswith("agent.")}
        assert told == game | mean
        for name, by_agent in record.agent_statistics.items():
            assert [by_agent[one] for one in agents] == [
                one.get(name.removeprefix("agent."), 0.0) for one in episode.stats["agent"]
            ]


@pytest.mark.parametrize("policy", ["starter", "noop", "miner"])
def test_a_scripted_policy_of_cogames_has_cogames_own_rewards_and_statistics(policy):
    assert_equal(ours("machina_1", policy), theirs("machina_1", policy))


@pytest.mark.parametrize("name", ["Looking", "Rows", "Vibing", "Counting"])
def test_so_has_a_policy_of_a_user(name):
    assert_equal(ours("machina_1", f"{PLAYERS}:{name}"), theirs("machina_1", f"players.{name}"))


def test_a_policy_that_keeps_its_agents_begins_every_episode_anew():
    records = ours("machina_1", f"{PLAYERS}:Counting", episode_seeds=[42, 42])
    assert records[0].statistics == records[1].statistics


def test_variants_cogs_sub_missions_and_a_maps_seed_mean_what_they_mean_there():
    assert_equal(
        ours("machina_1", "starter", variants=["no_clips"], cogs=3, map_seed=7),
        theirs("machina_1", "starter", variants=["no_clips"], cogs=3, map_seed=7),
    )
    assert_equal(ours("machina_1.clips", "starter"), theirs("machina_1.clips", "starter"))
    assert_equal(ours("arena", "starter", cogs=2), theirs("arena", "starter", cogs=2))


def test_tokens_are_those_of_mettagrid_and_made_once():
    from mettagrid.simulator.simulator import SimulationAgent, Simulator

    from stretto.adapters.cogames.missions import make
    from stretto.adapters.cogames.tokens import LazyObservation, TokenTable
    from stretto.adapters.cogames.world import with_map_seed

    world = make("machina_1", cogs=4, max_steps=STEPS)
    table = TokenTable(world.spec().facts["policy_env"].obs_features)
    outcome = world.reset(42)
    simulation = Simulator().new_simulation(with_map_seed(world.config, 42), 42)
    for step in range(20):
        for number, agent in enumerate(world.possible_agents):
            expected = SimulationAgent(simulation, number).observation
            seen = LazyObservation(number, outcome.observations[agent], table)
            assert [(one.feature, one.value, tuple(one.raw_token)) for one in expected.tokens] == [
                (one.feature, one.value, one.raw_token) for one in seen.tokens
            ]
            assert [(one.location, one.is_global, one.row()) for one in expected.tokens] == [
                (one.location, one.is_global, one.row()) for one in seen.tokens
            ]
        outcome = world.step(dict.fromkeys(world.possible_agents, step % 5))
        for number in range(simulation.num_agents):
            SimulationAgent(simulation, number).set_action(simulation.action_names[step % 5])
        simulation.step()
    assert table.read(outcome.observations["agent_0"])[0] is table.read(outcome.observations["agent_0"])[0]


def test_a_mission_is_a_vector_environment_of_mettagrids_arrays():
    with stretto.make_vec("machina_1", 2, backend="serial", cogs=4, env_kwargs={"max_steps": 20}) as envs:
        observations, _ = envs.reset(seed=42)
        assert observations["agent_3"].shape == (2, 500, 3)
        envs.step({agent: [0, 1] for agent in observations})
