"""Games in which agents move one after the other (PettingZoo's AEC API): what ours give is what its own loop gives."""

from __future__ import annotations

import importlib
import warnings
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.adapters.agents import as_agents
from stretto.errors import InvalidOutput
from stretto.testing import check_same, play
from tests.backends import every_backend

GAMES = {
    "tictactoe": ("classic.tictactoe_v3", {}),
    "connect_four": ("classic.connect_four_v3", {}),
    "rock_paper_scissors": ("classic.rps_v2", {}),
    "chess": ("classic.chess_v6", {}),
    "one dies before the others": ("butterfly.knights_archers_zombies_v11", {"max_cycles": 60, "spawn_delay": 2}),
}


def game(module, **kwargs):
    def make():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # these modules are being renamed
            return importlib.import_module(f"pettingzoo.{module}").env(**kwargs)

    return make


tictactoe = game("classic.tictactoe_v3")


def any_allowed(observation, space, rng):
    if isinstance(observation, dict):
        return int(rng.choice(np.flatnonzero(observation["action_mask"])))
    return int(rng.integers(space.n))


def own_loop(env, seed):
    """Play a game as PettingZoo's documentation does: each move, how each agent ended, and what it earned."""
    env.reset(seed=seed)
    rng, moves, ends, earned = np.random.default_rng(seed), [], dict[str, Any](), defaultdict(float)
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, _ = env.last()
        earned[agent] += reward
        if terminated or truncated:
            ends[agent] = len(moves), observation, bool(terminated), bool(truncated)
            env.step(None)
        else:
            action = any_allowed(observation, env.action_space(agent), rng)
            moves.append((agent, observation, action))
            env.step(action)
    return moves, sorted(ends.items()), earned


def by_agent(env, seed):
    """The same by way of ours."""
    world = as_agents(env)
    outcome = world.reset(seed)
    rng, moves, ends, earned = np.random.default_rng(seed), [], dict[str, Any](), defaultdict(float)
    while outcome.acting:
        (agent,) = outcome.acting
        observation = outcome.observations[agent]
        action = any_allowed(observation, env.action_space(agent), rng)
        moves.append((agent, observation, action))
        outcome = world.step({agent: action})
        for one, reward in outcome.rewards.items():
            earned[one] += reward
            if outcome.terminated[one] or outcome.truncated[one]:
                ends[one] = len(moves), outcome.observations[one], outcome.terminated[one], outcome.truncated[one]
    return moves, sorted(ends.items()), earned


@pytest.mark.parametrize(("module", "kwargs"), GAMES.values(), ids=GAMES)
def test_every_move_every_end_and_all_that_agents_earn_are_those_of_pettingzoos_own_loop(module, kwargs):
    if "chess" in module:
        pytest.importorskip("chess", reason="PettingZoo's chess needs the package chess")
    make = game(module, **kwargs)
    env, other = make(), make()
    for seed in range(1 if "chess" in module else 3):
        *expected, earned = own_loop(env, seed)
        *told, ours = by_agent(other, seed)
        check_same(told, expected, f"game {seed}")
        assert ours == pytest.approx(earned, abs=1e-9)
    env.close()
    other.close()


@every_backend
def test_in_a_vector_environment_the_mask_says_whose_turn_it_is(options):
    with stretto.make_vec(tictactoe, 3, checks="always", **options) as envs:
        seen, _ = envs.reset(seed=0)
        for turn in range(7):  # each takes the first free place, so the first one wins with its fourth move
            assert envs.mask["player_1"].tolist() == [turn % 2 == 0] * 3
            assert envs.mask["player_2"].tolist() == [turn % 2 == 1] * 3
            assert envs.alive["player_1"].all()
            assert seen["player_1"]["action_mask"].any() == (turn % 2 == 0)
            step = envs.step({agent: seen[agent]["action_mask"].argmax(-1) for agent in envs.possible_agents})
            seen = step.observations
        assert step.rewards["player_1"].tolist() == [1.0] * 3
        assert step.rewards["player_2"].tolist() == [-1.0] * 3
        assert step.terminations["player_2"].all()
        assert not envs.alive["player_1"].any()
        assert seen["player_2"]["observation"].sum() == 3 * 7  # the last position


@every_backend
def test_a_vector_environment_of_them_gives_the_same_on_every_backend(options):
    actions = [{"player_0": np.array([t % 7, t % 3]), "player_1": np.array([t % 5, 6])} for t in range(40)]
    make = game("classic.connect_four_v3")
    with stretto.make_vec(make, 2, **options) as envs, stretto.make_vec(make, 2, backend="serial") as plain:
        check_same(play(envs, actions, 1), play(plain, actions, 1), "40 moves")


def test_policies_meet_and_are_rated_with_the_same_result_for_any_number_of_jobs():
    policies = ["random", "noop", last_allowed]
    runs = [stretto.evaluate("pz:classic.tictactoe_v3", policies, mix=True, episodes=12, jobs=jobs) for jobs in (0, 2)]
    assert [r.rewards for r in runs[0].records] == [r.rewards for r in runs[1].records]
    assert not any(record.failure for record in runs[0].records)
    met = [frozenset(record.policies.values()) for record in runs[0].records]
    assert {pair: met.count(pair) for pair in met} == dict.fromkeys(set(met), 4)  # each pair met equally often
    assert len(set(met)) == 3
    rated = {row.policy: row.rating for row in runs[0].summary.by_policy if row.rating is not None}
    assert len(rated) == 3
    # Nobody is beaten by an illegal move: those end a game before its fifth move.
    assert min(record.steps for record in runs[0].records) >= 5


def last_allowed(observation):
    return int(np.flatnonzero(observation["action_mask"])[-1])


def test_sequential_turns_are_the_only_ones_there_are():
    for turns in ("simultaneous", "sequential"):
        outcome = as_agents(tictactoe(), turns).reset(0)
        assert outcome.acting == ("player_1",)
        assert [*outcome.observations] == ["player_1", "player_2"]


class Stays:
    """A game that goes on to ask for the move of one who is over."""

    possible_agents = ["ann"]  # noqa: RUF012
    metadata = {}  # noqa: RUF012

    def __init__(self):
        self.agents, self.agent_selection = ["ann"], "ann"
        self.rewards, self.infos = {"ann": 0.0}, {"ann": {}}
        self.terminations, self.truncations = {"ann": False}, {"ann": False}

    def agent_iter(self):
        raise NotImplementedError

    def observation_space(self, agent):
        return spaces.Discrete(2)

    action_space = observation_space

    def reset(self):
        pass

    def observe(self, agent):
        return 0

    def step(self, action):
        self.terminations["ann"] = True

    def close(self):
        pass


def test_a_game_that_never_lets_go_of_one_who_is_over_is_refused_and_does_not_hang():
    world = as_agents(Stays())
    world.reset()
    with pytest.raises(InvalidOutput, match="'ann' must be gone after its last, empty move"):
        world.step({"ann": 0})
