"""What a turn is: the same for evaluations and for vector environments, in both turn modes."""

from __future__ import annotations

import os
import signal
from functools import partial

import numpy as np
import pytest

import stretto
from stretto.adapters.agents import as_agents
from stretto.errors import InvalidOutput, UsageError
from stretto.testing import check_env_backend, check_same, play, sample_actions
from tests.backends import every_backend
from tests.worlds import Timetable

# A table, and for each step: who acts in it, the turns that it has the rewards of, who ends with it, who is left.
SIMULTANEOUS = {
    "all at once": ("ab ab ab-abc", [("ab", "0", "", "abc"), ("ab", "1", "", "abc"), ("ab", "2", "abc", "")]),
    "one at a time": (
        "a b c-a b-bc",
        [("a", "0", "", "abc"), ("b", "1", "", "abc"), ("c", "2", "a", "bc"), ("b", "3", "bc", "")],
    ),
    "turns that nobody has": ("ab _ _ a-abc", [("ab", "012", "", "abc"), ("a", "3", "abc", "")]),
    "the end in such a turn": ("ab _-b ac _ _-ac", [("ab", "01", "b", "ac"), ("ac", "234", "ac", "")]),
    "such turns at first": ("_ _-c ab ab-ab", [("ab", "012", "c", "ab"), ("ab", "3", "ab", "")]),
    "one after the other ends": (
        "abc-c ab-b a-a",
        [("abc", "0", "c", "ab"), ("ab", "1", "b", "a"), ("a", "2", "a", "")],
    ),
    "the last turn for one alone": ("abc-ab _ _ c-c", [("abc", "012", "ab", "c"), ("c", "3", "c", "")]),
}

# Here a turn is as many steps as agents act in it: c does not, where b has acted before.
SEQUENTIAL = {
    "all at once": (
        "ab ac-abc",
        [("a", "", "", "abc"), ("b", "0", "", "abc"), ("a", "", "", "abc"), ("c", "1", "abc", "")],
    ),
    "passed over": ("abc bc-abc", [("a", "", "", "abc"), ("b", "0", "", "abc"), ("b", "1", "abc", "")]),
    "turns that nobody has": (
        "ab _ _-b ac-ac",
        [("a", "", "", "abc"), ("b", "012", "b", "ac"), ("a", "", "", "ac"), ("c", "3", "ac", "")],
    ),
    "such turns at first": ("_ _-c ab-ab", [("a", "01", "c", "ab"), ("b", "2", "ab", "")]),
}

CASES = [
    pytest.param(turns, *case, id=f"{turns}-{name}")
    for turns, cases in (("simultaneous", SIMULTANEOUS), ("sequential", SEQUENTIAL))
    for name, case in cases.items()
]
AGENTS = "abc"
every_case = pytest.mark.parametrize(("turns", "table", "steps"), CASES)


def earned(agent, turns, there_until):
    """What turns give an agent that is there until one of them ends."""
    return float(sum(2 ** int(turn) for turn in turns if int(turn) <= there_until.get(agent, 99)))


def last_turns(table):
    """In which turn each agent ends."""
    return {agent: turn for turn, row in enumerate(table.split()) for agent in row.partition("-")[2]}


@every_case
def test_by_agent_a_step_has_what_the_skipped_turns_gave(turns, table, steps):
    world = as_agents(Timetable(table), turns)
    ends = last_turns(table)
    outcome = world.reset(0)
    assert (outcome.rewards, outcome.terminated, outcome.infos) == ({}, {}, {})
    before = set(AGENTS)
    for acting, gave, ended, left in steps:
        assert outcome.acting == tuple(acting)
        outcome = world.step(dict.fromkeys(AGENTS, 0))
        assert outcome.rewards == {agent: earned(agent, gave, ends) for agent in sorted(before)}
        assert {agent for agent, end in outcome.terminated.items() if end} == set(ended)
        assert set(outcome.truncated) == set(outcome.infos) == before
        assert set(outcome.observations) == set(left) | set(ended)
        for agent in before:
            told = [f"turn {turn}" for turn in gave if int(turn) <= ends.get(agent, 99)]
            assert list(outcome.infos[agent]) == told
        for agent in ended:  # as its last turn left it
            assert outcome.observations[agent][0] == ends[agent]
        before = set(left)
    assert outcome.acting == ()


@every_case
@every_backend
def test_in_a_vector_environment_masks_and_rewards_say_the_same(turns, table, steps, options):
    ends = last_turns(table)
    with stretto.make_vec(partial(Timetable, table), 2, turns=turns, **options) as envs:
        envs.reset(seed=0)
        before = set(AGENTS) - (set("c") if table.startswith("_ _-c") else set())
        for acting, gave, ended, left in steps:
            assert {agent for agent in AGENTS if envs.mask[agent].all()} == set(acting)
            assert {agent for agent in AGENTS if envs.mask[agent].any()} == set(acting)
            assert {agent for agent in AGENTS if envs.alive[agent].all()} == before
            step = envs.step({agent: np.zeros(2, int) for agent in acting})  # the others may be left out
            there = before | set(ended)
            for agent in AGENTS:
                expected = earned(agent, gave, ends) if agent in there else 0.0
                assert step.rewards[agent].tolist() == [expected] * 2
                assert step.terminations[agent].tolist() == [agent in ended] * 2
                assert step.observations[agent].any() == (agent in left or agent in ended)
                if agent in ended:
                    assert step.observations[agent][1, 0] == ends[agent]
            before = set(left)
        assert not envs.mask.blocks[0].any()
        assert not envs.alive.blocks[0].any()


class Counts(stretto.AgentPolicy):
    """Does what it sees: how many have acted in its turn before it."""

    def step(self, observation):
        return int(observation[1])


class CountsTogether(stretto.MultiAgentPolicy):
    """The same, for many at once."""

    def agent_policy(self, agent):
        return Counts()

    def step_batch(self, agent_policies, observations):
        return [int(observation[1]) for observation in observations]


def played_as_a_vector(table, turns):
    """Return each agent's rewards in an episode, and its steps."""
    totals, steps = dict.fromkeys(AGENTS, 0.0), 0
    with stretto.make_vec(partial(Timetable, table), 1, turns=turns, backend="serial") as envs:
        seen, _ = envs.reset(seed=0)
        while envs.mask.blocks[0].any():
            step = envs.step({agent: seen[agent][:, 1].astype(int) for agent in AGENTS})
            steps += 1
            seen = step.observations
            for agent in AGENTS:
                totals[agent] += float(step.rewards[agent][0])
    return totals, steps


@every_case
def test_an_evaluation_and_a_vector_environment_play_the_same_episode(turns, table, steps):
    report = stretto.evaluate(partial(Timetable, table), Counts, turns=turns, episodes=1, jobs=0)
    (record,) = report.records
    assert (record.rewards, record.steps) == played_as_a_vector(table, turns)
    assert record.steps == len(steps)


def test_in_sequential_turns_each_sees_what_the_one_before_has_done():
    rewards = {}
    for turns in ("simultaneous", "sequential"):
        (record,) = stretto.evaluate(partial(Timetable, "ab ac-abc"), Counts, turns=turns, episodes=1, jobs=0).records
        rewards[turns] = record.rewards
    assert rewards["simultaneous"] == {"a": 3, "b": 3, "c": 3}
    assert rewards["sequential"] == {"a": 3, "b": 103, "c": 103}  # one had acted before b, and one before c


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
@pytest.mark.parametrize("policy", [Counts, CountsTogether], ids=["alone", "batched"])
@pytest.mark.parametrize(
    ("jobs", "strategy"),
    [(0, "sequential"), (0, "threads"), (2, "processes"), (2, "batched"), (1, "adaptive"), (2, "sequential")],
)
def test_wherever_agents_choose_the_turn_mode_decides(turns, policy, jobs, strategy):
    report = stretto.evaluate(
        partial(Timetable, "ab _ abc _-b ac a-ac"), policy, turns=turns, episodes=5, jobs=jobs, strategy=strategy
    )
    expected = {"a": 63, "b": 15, "c": 63} if turns == "simultaneous" else {"a": 63, "b": 215, "c": 163}
    assert [record.rewards for record in report.records] == [expected] * 5
    assert {record.steps for record in report.records} == {4 if turns == "simultaneous" else 7}


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
@every_backend
def test_both_modes_keep_the_contract_of_every_backend(turns, options):
    check_env_backend(partial(Timetable, "_ abc _-b ac a _-a c-c"), 3, steps=20, turns=turns, **options)


@pytest.mark.parametrize("jobs", [0, 2])
def test_an_episode_in_which_nobody_can_act_is_over_at_once_and_its_rewards_count(jobs):
    (record,) = stretto.evaluate(partial(Timetable, "_ _-ab _-c"), Counts, episodes=1, jobs=jobs).records
    assert (record.steps, record.rewards) == (0, {"a": 3, "b": 3, "c": 7})


def test_in_a_vector_environment_such_an_episode_ends_with_its_first_step():
    with stretto.make_vec(partial(Timetable, "_ _-ab _-c"), 2, backend="serial") as envs:
        envs.reset(seed=0)
        assert not envs.mask.blocks[0].any()
        assert not envs.alive.blocks[0].any()
        step = envs.step({})
        assert [step.rewards[agent].tolist() for agent in AGENTS] == [[3, 3], [3, 3], [7, 7]]
        assert all(step.terminations[agent].all() for agent in AGENTS)
        assert step.observations["a"][:, 0].tolist() == [1, 1]


def test_who_cannot_act_is_looked_at_only_if_somebody_asks_and_only_until_the_next_step():
    game = Timetable("a b-abc")
    outcome = as_agents(game).reset(0)
    assert game.looks == 1
    assert len(outcome.observations) == 3
    assert "d" not in outcome.observations
    assert outcome.observations["c"].tolist() == outcome.observations["c"].tolist() == [0, 0, 0]
    assert game.looks == 2
    world = as_agents(game)
    outcome = world.reset(0)
    world.step({"a": 0})
    with pytest.raises(KeyError):  # what it would see now is not what it saw then
        _ = outcome.observations["b"]


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
def test_who_acts_must_have_an_action(turns):
    world = as_agents(Timetable("ab-abc"), turns)
    world.reset(0)
    with pytest.raises(UsageError, match="each agent that can act must have an action, got none for 'a'"):
        world.step({"b": 0, "c": 0})


@every_backend
def test_only_those_who_can_act_must_have_actions_in_any_slot(options):
    with stretto.make_vec([partial(Timetable, "a a-abc"), partial(Timetable, "ab b-abc")], 2, **options) as envs:
        envs.reset(seed=0)
        assert envs.mask["b"].tolist() == [False, True]
        assert envs.alive["b"].tolist() == [True, True]
        with pytest.raises(stretto.InvalidAction, match="'b' can in slot 1 and has no action"):
            envs.step({"a": [0, 0]})
        envs.step({"a": [0, 0], "b": [0, 0]})
        assert [envs.mask[agent].tolist() for agent in AGENTS] == [[True, False], [False, True], [False, False]]


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
def test_a_crash_that_truncates_an_episode_clears_both_masks(turns):
    options = {"backend": "process", "workers": 2, "isolate": True, "on_crash": "truncate", "turns": turns}
    with stretto.make_vec(partial(Timetable, "ab a ab-abc"), 2, **options) as envs:
        envs.reset(seed=0)
        actions = {agent: np.zeros(2, int) for agent in AGENTS}
        envs.step(actions)
        os.kill(envs.worker_pids[1], signal.SIGKILL)
        with pytest.warns(stretto.SlotTruncated):
            step = envs.step(actions)
        assert step.truncations.get("c").tolist() == [False, True]
        assert [envs.mask.blocks[0][1].any(), envs.alive.blocks[0][1].any()] == [False, False]
        assert envs.mask["a"].tolist() == [True, False]
        assert envs.alive["c"].tolist() == [True, False]


@pytest.mark.parametrize("turns", ["simultaneous", "sequential"])
def test_a_killed_worker_is_restored_to_the_same_place_of_a_turn(turns):
    make = partial(Timetable, "_ abc _-b ac a _-a c-c")
    with stretto.make_vec(make, 2, turns=turns, backend="serial") as envs:
        actions = sample_actions(envs, 15)
        expected = play(envs, actions, 3)
    with stretto.make_vec(make, 2, turns=turns, backend="process", workers=2, isolate=True) as envs:

        def kill(number):
            if number in (1, 2, 5, 9):
                os.kill(envs.worker_pids[number % 2], signal.SIGKILL)

        play(envs, actions, 3, before_step=kill).check_same(expected, "a run with deaths and one without")
        assert envs.statistics().restarts == 4


def test_attributes_functions_and_the_stream_are_those_of_the_game_itself():
    with stretto.make_vec(partial(Timetable, "a a-abc"), 2, backend="serial") as envs:
        envs.reset(seed=4)
        assert envs.map(lambda env: type(env).__name__) == ("Timetable", "Timetable")
        assert envs.get_attr("turn") == (0, 0)
    world = as_agents(Timetable("a a-abc"))
    world.np_random = np.random.default_rng(5)
    assert world.native._np_random is world.np_random


class Forgetful(Timetable):
    """Ends its turns with something wrong for b."""

    def __init__(self, name, value):
        super().__init__("ab ab-abc")
        self.name, self.value = name, value

    def end_turn(self):
        end = super().end_turn()
        if self.value is None:
            del getattr(end, self.name)["b"]
        else:
            getattr(end, self.name).update(self.value)
        return end


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("rewards", None, "agent 'b' must have a reward in every step that it lives to see"),
        ("terminated", None, "agent 'b' must have a terminated in every step"),
        ("truncated", None, "agent 'b' must have a truncated in every step"),
        ("rewards", {"b": "1"}, "agent 'b' must have one number as reward, got '1'"),
        ("rewards", {"b": np.zeros(1)}, "agent 'b' must have one number as reward"),
        ("truncated", {"b": 0.5}, "agent 'b' must have one truth value as truncated, got 0.5"),
        ("rewards", {"d": 1.0}, "agent 'd' must be one of possible_agents"),
    ],
)
def test_what_a_turn_gives_is_checked_alike_for_evaluations_and_vector_environments(name, value, words):
    with stretto.make_vec(partial(Forgetful, name, value), 1, backend="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(InvalidOutput, match=words) as refused:
            envs.step({"a": [0], "b": [0]})
        assert refused.value.place.slot == 0
    (record,) = stretto.evaluate(partial(Forgetful, name, value), Counts, episodes=1, jobs=0).records
    assert record.failure.kind == "InvalidOutput"
    assert words in record.failure.message


@pytest.mark.parametrize("reward", [np.float32(0.1), np.array(3), True, 7, np.int8(-1), np.float64(0.1)], ids=repr)
def test_any_number_is_a_reward_and_the_same_one_for_both(reward):
    make = partial(Forgetful, "rewards", {"b": reward})
    world = as_agents(make())
    world.reset(0)
    outcome = world.step({"a": 0, "b": 0})
    assert type(outcome.rewards["b"]) is float
    assert outcome.rewards["b"] == float(reward)
    with stretto.make_vec(make, 1, backend="serial") as envs:
        envs.reset(seed=0)
        assert envs.step({"a": [0], "b": [0]}).rewards["b"].tolist() == [float(reward)]


def test_what_the_parallel_face_of_a_game_gives_is_the_same():
    pytest.importorskip("pettingzoo")
    from stretto.interop.pettingzoo import ParallelTurns

    table = "_ abc _-b ac a _-a c-c"
    with (
        stretto.make_vec(lambda: ParallelTurns(Timetable(table)), 2, backend="serial") as faced,
        stretto.make_vec(partial(Timetable, table), 2, backend="serial") as plain,
    ):
        actions = sample_actions(plain, 12)
        for ours, theirs in zip(play(plain, actions, 1).moments, play(faced, actions, 1).moments, strict=True):
            check_same(ours[:-1], theirs[:-1], "the game and its parallel face")  # whose mask is who is alive


class Looking(Timetable):
    """Can be looked at by several agents at once, and knows what has changed."""

    def __init__(self, table):
        super().__init__(table)
        self.many = []

    def observe_many(self, agents):
        self.many.append(tuple(agents))
        return [self.observe(agent) for agent in agents]

    def changed(self, agent):
        return bool(self.done)


def test_when_a_sequential_turn_begins_it_is_said_who_else_could_act():
    world = as_agents(Timetable("abc ac-abc"), "sequential")
    outcome = world.reset(0)
    assert (outcome.acting, outcome.ahead) == (("a",), ("b", "c"))
    outcome = world.step({"a": 0})
    assert (outcome.acting, outcome.ahead) == (("b",), None)
    outcome = world.step({"b": 0})  # after it, c cannot act
    assert (outcome.acting, outcome.ahead) == (("a",), ("c",))
    assert as_agents(Timetable("abc-abc")).reset(0).ahead is None


def test_agents_are_looked_at_together_where_the_world_can_do_that():
    game = Looking("abc-abc")
    as_agents(game).reset(0)
    assert game.many == [("a", "b", "c")]
    game = Looking("abc-abc")
    outcome = as_agents(game, "sequential").reset(0)
    assert game.many == []  # nobody looks ahead yet
    seen = outcome.observations["c"]
    assert game.many == [("b", "c")]
    assert outcome.observations["b"].tolist() == seen.tolist() == [0, 0, 0]


def test_who_sees_nothing_else_is_not_looked_at_again():
    class Still(Looking):
        def changed(self, agent):
            return False

    for make, looks in ((Looking, 4), (Still, 3)):
        game = make("ac ac-abc")
        world = as_agents(game, "sequential")
        ahead = world.reset(0).observations["c"]
        then = world.step({"a": 0}).observations["c"]
        assert (then is ahead) == (make is Still)
        assert game.looks == looks - 1
