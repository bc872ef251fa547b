"""Worlds with several agents in a fixed layout: what is written into it, and what is refused."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.adapters.blocks import AgentBlocks, as_env
from stretto.errors import InvalidOutput, UsageError
from stretto.testing import check_same
from tests.worlds import Crowd, Drift, Timetable

BOX = spaces.Box(-10, 10, (2,), np.float32)


class Shows:
    """A parallel environment in which agent x sees zeros and y sees what it was told to, in every step."""

    possible_agents = ("x", "y")

    def __init__(self, space, *values, actions=None):
        self.space, self.values = space, values
        self.actions = actions or spaces.Discrete(2)
        self.agents, self.given = [], []

    def observation_space(self, agent):
        return self.space

    def action_space(self, agent):
        return self.actions

    def reset(self, seed=None, options=None):
        self.agents, self.count = ["x", "y"], 0
        return self.shown(self.values[0]), {}

    def shown(self, value):
        return {"x": zero(self.space), "y": value}

    def step(self, actions):
        self.given.append(actions)
        self.count += 1
        flags = dict.fromkeys(self.agents, False)
        return self.shown(self.values[self.count]), dict.fromkeys(self.agents, 0), flags, dict(flags), {}

    def close(self):
        pass


def zero(space):
    if isinstance(space, spaces.Dict):
        return {key: zero(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(zero, space.spaces))
    return "" if isinstance(space, spaces.Text) else np.zeros(space.shape, space.dtype)


NESTED = spaces.Dict(
    {"in": spaces.Dict({"a": spaces.Discrete(4), "b": BOX}), "t": spaces.Tuple([spaces.MultiBinary(3)])}
)

# A space, what an agent sees, and what stands in its row.
WRITTEN = {
    "as it is": (BOX, np.array([1, 2], np.float32), [1, 2]),
    "more digits": (BOX, np.array([0.1, 2]), [np.float32(0.1), 2]),
    "whole numbers": (BOX, np.array([3, 4], np.int8), [3, 4]),
    "a list": (BOX, [1.5, 2], [1.5, 2]),
    "infinite": (BOX, np.array([np.inf, -np.inf]), [np.inf, -np.inf]),
    "the largest": (BOX, np.full(2, np.finfo(np.float32).max), [np.finfo(np.float32).max] * 2),
    "a view": (BOX, np.arange(8, dtype=np.float32).reshape(2, 4)[:, 1], [1, 5]),
    "a number": (spaces.Discrete(5), 3, 3),
    "one of numpy": (spaces.Discrete(5), np.int64(3), 3),
    "one of another type": (spaces.Discrete(5), np.uint8(3), 3),
    "an array of one": (spaces.Discrete(5), np.array(3), 3),
    "a truth value": (spaces.Discrete(2), True, 1),
    "half a number": (spaces.Box(0, 1, (), np.float16), 0.5, 0.5),
    "several numbers": (spaces.MultiDiscrete([3, 4]), np.array([1, 2]), [1, 2]),
    "bits": (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
    "nothing to see": (spaces.Box(0, 1, (0,), np.float32), np.zeros(0, np.float32), []),
}


@pytest.mark.parametrize("case", WRITTEN)
def test_what_an_agent_sees_stands_in_its_row(case):
    space, value, expected = WRITTEN[case]
    env = as_env(Shows(space, value, zero(space), value))
    observation, _ = env.reset(seed=0)
    assert observation["blocks"][0].dtype == space.dtype
    assert observation["blocks"][0].tolist() == [
        np.zeros(space.shape).tolist(),
        np.array(expected, space.dtype).tolist(),
    ]
    assert not env.step((np.zeros(2, int),))[0]["blocks"][0].any()
    assert env.step((np.zeros(2, int),))[0]["blocks"][0][1].tolist() == np.array(expected, space.dtype).tolist()


def test_parts_of_a_value_are_written_one_by_one_in_place():
    seen = {"in": {"a": 3, "b": np.ones(2, np.float32)}, "t": (np.array([1, 1, 0], np.int8),)}
    env = as_env(Shows(NESTED, seen, zero(NESTED), seen))
    block = env.reset(seed=0)[0]["blocks"][0]
    assert block["in"]["a"].tolist() == [0, 3]
    assert block["in"]["b"].tolist() == [[0, 0], [1, 1]]
    assert block["t"][0].tolist() == [[0, 0, 0], [1, 1, 0]]
    again = env.step((np.zeros(2, int),))[0]["blocks"][0]
    assert np.shares_memory(block["in"]["b"], again["in"]["b"])
    assert not again["in"]["b"].any()


def test_parts_without_a_fixed_size_come_as_gymnasium_batches_them():
    space = spaces.Dict({"word": spaces.Text(5), "b": BOX})
    env = as_env(Shows(space, {"word": "abc", "b": np.ones(2, np.float32)}))
    block = env.reset(seed=0)[0]["blocks"][0]
    assert block["word"] == ("", "abc")
    assert block["b"].tolist() == [[0, 0], [1, 1]]


SMALL = spaces.Box(0, 255, (2,), np.uint8)
REFUSED = {
    "another shape": (BOX, np.zeros(3, np.float32), "must be observed as Box"),
    "one that would be repeated": (BOX, np.zeros(1, np.float32), "must be observed as Box"),
    "a number for all": (BOX, 1.0, "must be observed as Box"),
    "nothing": (BOX, None, "must be observed as Box"),
    "a text": (BOX, "ab", "must be observed as Box"),
    "a ragged list": (BOX, [[1], [1, 2]], "must be observed as Box"),
    "not a number": (BOX, np.array([0, np.nan], np.float32), "must not be observed as NaN, which no Box contains"),
    "nor one that is converted": (BOX, [0, np.nan], "must not be observed as NaN"),
    "what becomes infinite": (BOX, np.array([0, 1e300]), "must be observed by what fits into float32"),
    "fractions": (SMALL, np.array([0.5, 1]), "must be observed as Box"),
    "other whole numbers": (SMALL, np.array([1, 2]), "must be observed as Box"),
    "too large a number": (spaces.Discrete(5), 1 << 70, "must be observed as Discrete"),
    "too large for its type": (spaces.Discrete(5, dtype=np.int8), 300, "must be observed as Discrete"),
    "a fraction": (spaces.Discrete(5), 1.0, "must be observed as Discrete"),
    "a part that is missing": (NESTED, {"in": {"a": 3}, "t": (np.zeros(3, np.int8),)}, "must be observed as Dict"),
    "a part that is nothing": (spaces.Dict({"b": BOX}), {"b": None}, "must be observed as Dict"),
    "no parts": (NESTED, None, "must be observed as Dict"),
    "a part that is not a number": (
        spaces.Dict({"a": spaces.Discrete(2), "b": BOX}),
        {"a": 0, "b": np.array([np.nan, 0], np.float32)},
        "must not be observed as NaN",
    ),
    "a part without a fixed size": (
        spaces.Dict({"w": spaces.Text(3), "b": BOX}),
        {"w": "a"},
        "must be observed as Dict",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_agent_may_see_is_refused_with_its_name_at_any_step(case):
    space, value, words = REFUSED[case]
    env = as_env(Shows(space, *([zero(space)] * 12), value))
    env.reset(seed=0)
    for _ in range(11):
        env.step((np.zeros(2, int),))
    with pytest.raises(InvalidOutput, match=f"agent 'y' {words}"):
        env.step((np.zeros(2, int),))


class Wrong(Crowd):
    """Does something to what its second step returns."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def step(self, actions):
        results = super().step(actions)
        if self.steps == 2:
            self.change(self, results)
        return results


def blind(_, results):
    del results[0]["mouse_1"]


def stranger(world, results):
    world.agents.append("cat")
    results[0]["cat"] = None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (blind, "agent 'mouse_1' must be observed as long as it lives"),
        (stranger, "agent 'cat' must be one of possible"),
    ],
    ids=["not observed", "a stranger"],
)
def test_agents_must_be_observed_and_known(change, words):
    env = as_env(Wrong(change))
    env.reset(seed=1)
    actions = dict.fromkeys(env.agents, 0)
    env.step(actions)
    with pytest.raises(InvalidOutput, match=words):
        env.step(actions)


def test_whoever_is_gone_has_zeros_even_if_the_world_goes_on_to_show_them():
    class Ghosts(Crowd):
        def step(self, actions):
            seen, *rest = super().step(actions)
            return {agent: seen.get(agent) or self._see(agent) for agent in self.possible_agents}, *rest

    env = as_env(Ghosts())
    env.reset(seed=1)
    gone = set()
    for _ in range(20):
        observation, _, over, _, _ = env.step(dict.fromkeys(env.agents, 0))
        for kind, block in zip(env.kinds, observation["blocks"], strict=True):
            for agent, row in zip(kind.agents, block["observation"], strict=True):
                assert row.any() != (agent in gone)
        ended = observation["terminated"] | observation["truncated"]
        gone |= {agent for agent, one in zip(env.agents, ended, strict=True) if one}
        check_same(observation["alive"], np.array([agent not in gone for agent in env.agents]), "who is alive")
        if over:
            break
    assert gone == set(env.agents)


def test_an_action_is_a_tuple_of_blocks_or_a_mapping_by_agent():
    seen = []
    for action in ((np.array([3, 1]), np.array([[1, 1], [2, 0]])), {"lion_0": 3, "mouse_0": np.array([1, 1])}):
        env = as_env(Crowd())
        env.reset(seed=5)
        seen.append(copy.deepcopy(env.step(action)))
    check_same(*seen, "blocks and a mapping")


def test_actions_with_parts_are_taken_apart_by_agent():
    parts = spaces.Dict({"go": spaces.Discrete(3), "far": spaces.Tuple([spaces.Box(0, 1, (2,), np.float32)])})
    world = Shows(BOX, *[np.zeros(2, np.float32)] * 2, actions=parts)
    env = as_env(world)
    env.reset(seed=0)
    env.step(({"go": np.array([1, 2]), "far": (np.array([[0, 1], [2, 3]], np.float32),)},))
    check_same(
        world.given[0],
        {
            "x": {"far": (np.array([0, 1], np.float32),), "go": np.int64(1)},
            "y": {"far": (np.array([2, 3], np.float32),), "go": np.int64(2)},
        },
        "what the world was given",
    )


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (5, "a world must be a gymnasium.Env, one of PettingZoo's environments or a TurnWorld, got int"),
        (type("Half", (), {"begin_turn": None, "agents": ()})(), "a TurnWorld must have all of its members.*act, "),
        (type("Bare", (), {"possible_agents": (), "step": None})(), "must name all its possible_agents beforehand"),
    ],
    ids=["nothing of the kind", "half a game", "nobody"],
)
def test_what_is_no_world_is_refused_in_one_sentence_by_both(world, words):
    with pytest.raises(UsageError, match=words):
        stretto.make_vec(lambda: world, 2, backend="serial")
    with pytest.raises(UsageError, match=words):
        stretto.evaluate(lambda: world, "random", episodes=1, jobs=0)


@pytest.mark.parametrize(("make", "name"), [(Drift, "Drift"), (Crowd, "Crowd")], ids=["one agent", "several"])
def test_only_games_in_turns_have_sequential_ones(make, name):
    words = f"only a TurnWorld has sequential turns, got {name}; play it in simultaneous ones"
    for backend in ("serial", "auto", "process"):
        with pytest.raises(UsageError, match=words):
            stretto.make_vec(make, 2, backend=backend, turns="sequential")
    for jobs in (0, 1):
        with pytest.raises(UsageError, match=words):
            stretto.evaluate(make, "random", episodes=1, jobs=jobs, turns="sequential")


@pytest.mark.parametrize(
    "ask", [partial(stretto.make_vec, backend="serial"), partial(stretto.evaluate, policies="random")]
)
def test_there_are_two_turn_modes(ask):
    with pytest.raises(UsageError, match=r"turns must be one of .*simultaneous.*sequential.*got 'together'"):
        ask(partial(Timetable, "a-abc"), turns="together")


def test_one_environment_with_one_agent_is_left_as_it_is():
    env = Drift()
    assert as_env(env) is env
    assert isinstance(as_env(Crowd()), AgentBlocks)
