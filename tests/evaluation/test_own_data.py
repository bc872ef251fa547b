"""What agents see and do is theirs: a world may write into its arrays again, and a policy into what it is given."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stretto.core import own_copy
from stretto.evaluation.evaluate import evaluate
from stretto.evaluation.films.video import watch_episode
from stretto.evaluation.plan import Plan, entries_of
from stretto.evaluation.verify import Way, verify_plan
from stretto.missions.mission import Mission

AGENTS = ("a", "b", "c")
PLACES = spaces.Box(-1e9, 1e9, (2,), np.float64)


def plan_of(mission, policies, episodes):
    return Plan((mission,), entries_of(policies, mix=False), episodes, 0)


class Thrifty:
    """A parallel world with one set of arrays for all its life: all agents are shown the same, and it keeps their actions.

    What an agent did is compared with what it did before, which the world has kept as it was given, and is then changed.
    """

    possible_agents = AGENTS

    def __init__(self):
        self.agents = []
        self.metadata = {}
        self.unwrapped = self
        self.places = np.zeros(2)
        self.map = np.arange(2.0)

    def observation_space(self, agent):
        return spaces.Dict({"places": PLACES, "others": spaces.Tuple([PLACES, PLACES])})

    def action_space(self, agent):
        return PLACES

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.agents = list(AGENTS)
        self.count, self.kept = 0, {}
        self.places[:] = self.rng.random(2)
        return self.shown(), {}

    def shown(self):
        seen = {"places": self.places, "others": (self.places, self.map)}
        return dict.fromkeys(AGENTS, seen)

    def step(self, actions):
        self.count += 1
        rewards = {}
        for agent, action in actions.items():
            before = self.kept.get(agent, 0.0)
            rewards[agent] = float(np.sum(action - before) + self.places.sum() + self.map.sum())
            self.kept[agent] = action
        for action in actions.values():
            np.multiply(action, 0.5, out=action)
        self.places += self.rng.random(2)
        over = self.count == 6
        self.agents = [] if over else self.agents
        return self.shown(), rewards, dict.fromkeys(AGENTS, over), dict.fromkeys(AGENTS, False), {}

    def close(self):
        pass


class Remembers:
    """Does what has changed since its last step, going by the very arrays that it was shown."""

    def reset(self, rng):
        self.last = None

    def step(self, seen):
        before, self.last = self.last, seen
        return np.zeros(2) if before is None else seen["places"] - before["others"][0]


class Changes:
    """Writes into what it is shown."""

    def step(self, seen):
        for array in (seen["places"], *seen["others"]):
            np.multiply(array, 0.5, out=array)
        return seen["others"][1] + seen["places"]


class Reuses:
    """Answers with one array for all its life, whatever the world does with that."""

    def __init__(self):
        self.action = np.zeros(2)

    def step(self, seen):
        self.action += seen["places"]
        return self.action


POLICIES = [Remembers, Changes, Reuses]


def results(report):
    assert not any(record.failure for record in report.records)
    return [json.dumps(replace(record, timing={}).as_json(), sort_keys=True) for record in report.records]


@pytest.fixture(scope="module")
def expected():
    return results(evaluate(Thrifty, POLICIES, episodes=3, jobs=0, strategy="processes"))


@pytest.mark.parametrize(
    ("jobs", "strategy"),
    [(0, "sequential"), (0, "batched"), (0, "threads"), (0, "adaptive"), (2, "sequential")],
)
def test_memory_that_is_used_again_makes_no_difference_wherever_agents_choose(jobs, strategy, expected):
    found = evaluate(Thrifty, POLICIES, episodes=3, jobs=jobs, strategy=strategy, parallel_policy=True)
    assert results(found) == expected


def test_an_episode_that_is_watched_is_the_one_that_was_counted(expected):
    for i, policy in enumerate(POLICIES):
        record = json.loads(expected[3 * i])
        moments = list(watch_episode(plan_of(Mission("test_own_data:Thrifty", Thrifty), [policy], 1), 0))
        for agent in AGENTS:
            assert sum(moment.rewards[agent] for moment in moments) == record["rewards"][agent]


def test_what_a_policy_does_to_its_own_data_is_no_difference_to_verify_plan():
    ways = [Way(0, "sequential"), Way(1, "processes")]
    verdict = verify_plan(plan_of(Mission("Thrifty", Thrifty), POLICIES, 2), ways)
    assert verdict.differences == ()
    assert verdict.steps == 2 * 6 * len(POLICIES)


class Inconstant(Thrifty):
    """Is never the same in its second step."""

    episodes = 0

    def reset(self, seed=None, options=None):
        Inconstant.episodes += 1
        return super().reset(seed, options)

    def shown(self):
        if self.count == 1:
            self.places[:] = Inconstant.episodes
        return super().shown()


def test_verify_names_the_step_in_which_a_world_that_uses_its_arrays_again_differs():
    ways = [Way(0, "sequential"), Way(0, "sequential")]
    (told,) = verify_plan(plan_of(Mission("Inconstant", Inconstant), [Remembers], 1), ways).differences
    assert "episode 0, step 1: agent a sees something else" in told


class Chooses(gymnasium.Env):
    """Has arrays as actions, and keeps them all: its statistics say how many it still knows apart."""

    observation_space, action_space = spaces.Discrete(1), PLACES

    def reset(self, *, seed=None, options=None):
        self.kept = []
        return 0, {}

    def step(self, action):
        self.kept.append(action)
        action += len(self.kept)
        return 0, 0.0, False, len(self.kept) == 4, {}

    def statistics(self):
        return {"different": len({tuple(one) for one in self.kept})}


def late(seen):
    time.sleep(0.002)
    return np.zeros(2)


def test_the_default_action_is_the_same_in_every_step_whatever_the_world_does_to_it():
    default = np.full(2, 10.0)
    mission = Mission("Chooses", Chooses, default_action=default, has_default_action=True)
    (record,) = evaluate(mission, late, episodes=1, jobs=0, action_timeout_ms=0.1).records
    assert (record.overdue, record.statistics) == ({"agent_0": 4}, {"different": 4})
    assert default.tolist() == [10.0, 10.0]


def test_a_copy_has_arrays_of_its_own_at_any_depth_in_one_layout_and_else_the_same_values():
    graph = spaces.GraphInstance(np.ones((2, 1)), None, None)
    value = {
        "array": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "several": (np.zeros(2), [np.ones(1, np.int8), "text", 3]),
        "graph": graph,
        "ordered": OrderedDict(x=np.zeros(1)),
        "objects": np.array([[1, 2], None], dtype=object),
    }
    own = own_copy(value)
    assert repr(own) == repr(value)
    assert own["array"].flags.c_contiguous
    assert type(own["graph"]) is spaces.GraphInstance
    own["array"][:] = own["several"][0][:] = own["several"][1][0][:] = own["ordered"]["x"][:] = 9
    own["graph"].nodes[:] = 9
    own["objects"][0].append(9)
    assert value["array"].max() == 5
    assert value["several"][0].max() == 0
    assert value["several"][1][0].max() == 1
    assert value["ordered"]["x"].max() == 0
    assert graph.nodes.max() == 1
    assert value["objects"][0] == [1, 2]
    generator = (one for one in ())
    assert own_copy(generator) is generator  # nobody could send it anywhere
