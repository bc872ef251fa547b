"""Rollouts and segments of sequential turns: the same rows, whether agents are asked before it is their turn or not."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.collection.collector import Trials
from stretto.errors import TurnsInOrder, UsageError
from stretto.missions.resolve import find_missions
from stretto.testing import check_same
from tests.backends import every_backend
from tests.policies.recurrent import Forgotten, Recurrent, RecurrentBlock, RecurrentTogether
from tests.worlds import Timetable


class Alone(Recurrent):
    """Draws from its own generator alone: episodes that are played at once share their action spaces."""

    def __init__(self):
        super().__init__()


class ForgottenAlone(Forgotten):
    def __init__(self):
        super().__init__()


MISSIONS = [f"foundry_{number}" for number in range(1, 6)]
POLICIES = {"alone": Alone, "together": RecurrentTogether, "block": RecurrentBlock}
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


def rollouts_of(world, policy, turns, *, count=3, max_steps=40, **options):
    return stretto.collect(world, policy, count, turns=turns, seed=4, max_steps=max_steps, check_reuse=False, **options)


def same_rollouts(one, other):
    assert [rollout.index for rollout in one] == [rollout.index for rollout in other]
    for ours, theirs in zip(one, other, strict=True):
        assert ours.ends == theirs.ends
        for a, b in zip(ours.kinds, theirs.kinds, strict=True):
            for name in ("observations", "actions", "acted", "rewards", "terminated", "truncated", "says"):
                check_same(getattr(a, name), getattr(b, name), name)


@pytest.mark.parametrize("mission", MISSIONS)
@every_policy
def test_rollouts_on_every_mission_are_those_of_sequential_turns(mission, policy):
    options = {"cogs": 5, "wait": "lockstep", "num_envs": 2, "backend": "serial"}
    expected = rollouts_of(mission, policy, "sequential", **options)
    same_rollouts(rollouts_of(mission, policy, "speculative", **options), expected)


def plain_rollout(world, policy, trial):
    """Play a rollout as it is defined: each agent looks, chooses and acts, one after the other; return its rows."""
    agents = list(world.possible_agents)
    begin = trial.episode(0)
    world.reset(begin.seed, begin.options)
    players = {}
    for agent in agents:
        players[agent] = policy()
        players[agent].reset(trial.tree.child("policy", agent).generator())
    rows = []
    while world.agents:
        world.begin_turn()
        seen = {agent: world.observe(agent) for agent in agents}
        actions = {}
        for agent in agents:
            if world.can_act(agent):
                seen[agent] = world.observe(agent)
                actions[agent] = players[agent].step(seen[agent])
                world.act(agent, actions[agent])
        rows.append((seen, actions, world.end_turn().rewards))
    return rows


@pytest.mark.parametrize("turns", ["sequential", "speculative", "auto"])
def test_a_row_has_what_each_agent_saw_when_it_chose_and_what_the_turn_gave(turns):
    (mission,) = find_missions("foundry_1", cogs=4, env_kwargs={"max_steps": 12})
    for rollout in rollouts_of(mission, Alone, turns, count=2, max_steps=None):
        (kind,) = rollout.kinds
        rows = plain_rollout(mission.make(), Alone, Trials(4).trial(rollout.index))
        assert rollout.ends == (len(rows),) == (12,)
        for t, (seen, actions, rewards) in enumerate(rows):
            for j, agent in enumerate(kind.agents):
                assert kind.acted[t, j] == (agent in actions)
                assert kind.actions[t, j] == actions[agent]
                assert kind.rewards[t, j] == rewards[agent]
                for name, part in seen[agent].items():
                    assert np.array_equal(kind.observations[name][t, j], part)


@pytest.mark.parametrize("wait", ["lockstep", "ready-first", "whole"])
@pytest.mark.parametrize("turns", ["speculative", "auto"])
@every_policy
def test_however_they_are_played_rollouts_are_the_same(wait, turns, policy):
    if wait == "whole" and policy is not Alone:
        options = {"workers": 1}
    else:
        options = {"num_envs": 3, "backend": "process", "workers": 2} if wait != "whole" else {"workers": 2}
    expected = rollouts_of(
        "foundry_3", policy, "sequential", cogs=4, num_envs=1, wait="lockstep", backend="serial", count=5
    )
    found = rollouts_of("foundry_3", policy, turns, cogs=4, wait=wait, count=5, **options)
    same_rollouts(sorted(found, key=lambda one: one.index), sorted(expected, key=lambda one: one.index))


@every_backend
def test_on_every_backend_rollouts_are_the_same(options):
    expected = rollouts_of(
        "foundry_1", RecurrentBlock, "sequential", cogs=4, num_envs=1, wait="lockstep", backend="serial"
    )
    found = rollouts_of("foundry_1", RecurrentBlock, "speculative", cogs=4, num_envs=3, wait="lockstep", **options)
    same_rollouts(sorted(found, key=lambda one: one.index), sorted(expected, key=lambda one: one.index))


@pytest.mark.parametrize(
    "table", ["ab ac-abc", "abc bc-abc", "ab _ _-b ac-ac", "_ _-c ab-ab", "abc abc abc-abc", "_-abc"]
)
@every_policy
def test_who_could_act_and_cannot_when_it_is_its_turn_has_done_nothing(policy, table):
    options = {"wait": "lockstep", "num_envs": 2, "backend": "serial", "max_steps": None, "episodes_per_task": 2}
    expected = rollouts_of(partial(Timetable, table), policy, "sequential", **options)
    same_rollouts(rollouts_of(partial(Timetable, table), policy, "speculative", **options), expected)


class TwoKinds(Timetable):
    """Agent c observes more than the others."""

    def observation_space(self, agent):
        return spaces.Box(0, 1e6, (4,), np.float32) if agent == "c" else super().observation_space(agent)

    def observe(self, agent):
        seen = super().observe(agent)
        return np.append(seen, np.float32(self.turn)) if agent == "c" else seen


@every_policy
def test_agents_of_several_kinds_take_turns(policy):
    options = {"wait": "lockstep", "num_envs": 3, "backend": "serial", "max_steps": None, "count": 5}
    table = "abc ac bc abc _ ab-b ac abc-ac"
    expected = rollouts_of(partial(TwoKinds, table), policy, "sequential", **options)
    assert [len(kind.agents) for kind in expected[0].kinds] == [2, 1]
    same_rollouts(rollouts_of(partial(TwoKinds, table), policy, "speculative", **options), expected)


@pytest.mark.parametrize("turns", ["simultaneous", "sequential", "speculative", "auto"])
def test_a_game_for_one_is_played_in_any_way(turns):
    found = rollouts_of("foundry_1", Alone, turns, cogs=1, count=2, max_steps=10)
    assert [len(rollout) for rollout in found] == [10, 10]
    same_rollouts(found, rollouts_of("foundry_1", Alone, "simultaneous", cogs=1, count=2, max_steps=10))


class Fails(Recurrent):
    """Cannot choose when nobody has acted before it in its turn, which no agent but the first ever sees."""

    def __init__(self, agent=""):
        super().__init__()
        self.agent = agent

    def step(self, observation):
        chosen = super().step(observation)
        if observation[1] == 0 and self.agent != "a":
            raise ValueError("nobody has acted before me")
        return chosen


def test_a_policy_that_fails_on_what_it_does_not_see_when_it_acts_has_not_failed():
    options = {"wait": "lockstep", "num_envs": 2, "backend": "serial", "max_steps": None}
    expected = rollouts_of(partial(Timetable, "ab ab ac ab-abc"), Fails, "sequential", **options)
    same_rollouts(rollouts_of(partial(Timetable, "ab ab ac ab-abc"), Fails, "speculative", **options), expected)


def test_who_cannot_choose_again_is_asked_when_it_acts_which_is_said_once():
    options = {"cogs": 3, "wait": "lockstep", "num_envs": 2, "backend": "serial"}
    policies = {"cog_0": ForgottenAlone, "cog_1": Alone, "cog_2": ForgottenAlone}
    expected = rollouts_of("foundry_1", policies, "sequential", **options)
    with pytest.warns(TurnsInOrder) as said:
        found = rollouts_of("foundry_1", policies, "speculative", **options)
    assert len(said) == 1
    same_rollouts(found, expected)


def test_killed_workers_change_nothing():
    expected = rollouts_of("foundry_1", RecurrentBlock, "sequential", cogs=5, num_envs=2, backend="serial", count=6)
    options = {"num_envs": 4, "backend": "process", "workers": 2, "isolate": True}
    killed = []

    def kill(rollout):
        for pid in [one for one in _workers() if one not in killed][:1]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)

    found = rollouts_of(
        "foundry_1", RecurrentBlock, "speculative", cogs=5, count=6, wait="lockstep", on_rollout=kill, **options
    )
    assert killed
    same_rollouts(sorted(found, key=lambda one: one.index), sorted(expected, key=lambda one: one.index))


def _workers():
    from tests.evaluation.test_lost_processes import workers

    return workers()


def test_worlds_without_turns_are_played_as_they_are_with_auto_alone():
    options = {"num_envs": 1, "backend": "serial", "wait": "lockstep"}
    rollouts = rollouts_of("gym:CartPole-v1", "random", "auto", **options)
    same_rollouts(rollouts, rollouts_of("gym:CartPole-v1", "random", "simultaneous", **options))
    with pytest.raises(UsageError, match="only a TurnWorld has speculative turns"):
        rollouts_of("gym:CartPole-v1", "random", "speculative", **options)
    with pytest.raises(UsageError, match="turns must be one of"):
        rollouts_of("foundry_1", "random", "together", **options)
