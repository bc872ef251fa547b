"""Learning to learn: trials of a task, what is an end in them, and how well agents do in each episode."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.errors import UsageError

torch = pytest.importorskip("torch")

from stretto.adapters.trial_views import TrialView  # noqa: E402
from stretto.adapters.trials import EPISODE, Renewal, TrialEnv  # noqa: E402
from stretto.games.pointgoal import split_of  # noqa: E402
from stretto.missions.resolve import find_missions  # noqa: E402
from stretto.training.settings import TrialsSettings  # noqa: E402
from stretto.training.task_split import tasks_of  # noqa: E402

LEVERS, STEPS = 2, 2
NEVER: dict[str, Any] = {"fresh": False, "by_task": False}


class Levers(gym.Env):  # type: ignore[type-arg]
    """One of two levers gives 1, and nothing that is seen says which: the task does."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(LEVERS)

    def draw_task(self, stream: np.random.Generator, split: str) -> int:
        return int(stream.integers(LEVERS))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._good, self._steps = (options or {}).get("task", 0), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        return np.zeros(1, np.float32), float(action == self._good), False, self._steps == STEPS, {}


def config(**given: Any) -> dict[str, Any]:
    network = {"widths": [32], "memory": "gru", "memory_width": 32}
    ppo = {"rows": 18, "batch": 144, "sequence": 9, "epochs": 4, "learning_rate": 6e-3, "entropy": 0.01}
    trials = {"episodes": 3, "rewards": True, "boundaries": True, "train_tasks": 8, "eval_tasks": 4}
    return {
        "num_envs": 16,
        "ppo": {**ppo, "discount": 0.9, "network": network},
        "trials": trials,
        "evaluation": {"every": 10**9, "episodes": 40},
        **given,
    }


def test_agents_learn_to_find_out_what_the_task_is_and_to_use_it_in_later_episodes() -> None:
    report = stretto.train(Levers, "ppo", steps=5_000, seed=0, config=config())
    first, _, last = report.evaluations[-1]["by_episode"]
    # Whoever tries a lever first has it in one of two trials; from the second step on, all is known.
    assert first["return"] < 1.8
    assert last["return"] > 1.9
    assert last["low"] > first["high"]
    assert "by episode of a trial: 1." in str(report)


class Ends:
    """A learner that writes down where episodes end and what is given in each row."""

    seen: list[tuple[Any, Any, Any]] = []  # noqa: RUF012  shared with the test on purpose

    def __init__(self, observation_space: Any, action_space: Any, seed: int) -> None:
        self._space = action_space

    def act(self, observations: Any, numbers: Any) -> Any:
        return np.zeros(len(observations), np.int64)

    def learn(self, segment: Any) -> Mapping[str, float]:
        Ends.seen.append((segment.acted.copy(), segment.terminated | segment.truncated, segment.rewards.copy()))
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(("across", "every"), [(True, 3 * (STEPS + 1)), (False, STEPS + 1)])
def test_of_a_trial_only_the_last_end_is_an_end_to_learners_unless_they_are_told_otherwise(
    across: bool, every: int
) -> None:
    Ends.seen.clear()
    # Intervals of 5 rows end in the midst of trials.
    trials = {"episodes": 3, "across": across}
    stretto.train(Levers, Ends, steps=60, config={"num_envs": 2, "own": {"rows": 5}, "trials": trials})
    acted, ended, _ = (np.concatenate(parts) for parts in zip(*Ends.seen, strict=True))
    last = np.arange(len(acted)) % (STEPS + 1) == STEPS  # rows with the last observation of an episode
    assert (acted.reshape(len(acted), -1) == ~last[:, None]).all()
    expected = np.arange(len(acted)) % every == every - 2
    assert (ended.reshape(len(ended), -1) == expected[:, None]).all()


def test_a_run_of_trials_that_goes_on_from_a_checkpoint_learns_the_same_bits(tmp_path: Path) -> None:
    # An interval of 24 rows ends in the midst of a trial of 9.
    settings = config(checkpoint={"every": 300}, evaluation={"every": None})
    settings["ppo"] |= {"rows": 24, "sequence": 8}

    def weights(steps: int, **given: Any) -> Any:
        report = stretto.train(Levers, "ppo", steps=steps, seed=1, config=settings, **given)
        return [one.weights for one in report.agents.values()]

    whole = weights(1_200)
    weights(600, out=tmp_path / "run")
    assert weights(1_200, out=tmp_path / "run", resume=True) == whole


def test_a_world_gives_tasks_to_learn_from_and_holds_others_back() -> None:
    (mission,) = find_missions("pointgoal")
    found = tasks_of(mission, TrialsSettings(train_tasks=6, eval_tasks=3), seed=4)
    assert found is not None
    assert [{split_of(task) for task in tasks} for tasks in found] == [{"train"}, {"eval"}]
    assert [len(tasks) for tasks in found] == [6, 3]
    more = tasks_of(mission, TrialsSettings(train_tasks=9, eval_tasks=3), seed=4)
    assert more is not None
    assert (more[0][:6], more[1]) == found


def test_trials_of_worlds_without_tasks_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got 2 episodes and a world that draws no tasks; pass tasks"):
        stretto.train("CartPole-v1", steps=100, episodes_per_task=2)


def test_held_out_trials_are_of_tasks_that_are_given_and_depend_on_nothing_but_the_seed() -> None:
    settings = config(steps=300)
    settings["trials"] |= {"episodes": 2}
    settings["evaluation"] = {"every": 100, "episodes": 6}

    def evaluations(**given: Any) -> Any:
        seen = {"tasks": [0], "eval_tasks": [1]} | given
        return stretto.train(partial(Levers), "ppo", seed=0, config=settings, **seen).evaluations

    both = evaluations(), evaluations(backend="serial")
    assert both[0] == both[1]
    assert evaluations(eval_tasks=[0])[-1] != both[0][-1]
    assert [one["episodes"] for one in both[0]] == [12] * len(both[0])
    assert [len(one["by_episode"]) for one in both[0]] == [2] * len(both[0])


def test_a_network_sees_the_last_action_and_reward_of_its_trial_also_from_the_episode_before() -> None:
    view, renewal = TrialView(boundaries=True, rewards=True, actions=True), Renewal(lambda _: Levers(), 1, **NEVER)
    world = TrialEnv(Levers(), renewal, view)
    # What it sees: the world's own number, the boundary, the action as a one among zeros, and the reward.
    seen = [world.reset(seed=1, options={"task": 1})[0]]
    seen += [world.step(action)[0] for action in (1, 0)]
    seen += [world.reset(seed=2, options={"task": 1, EPISODE: 1})[0], world.reset(seed=3, options={"task": 0})[0]]
    assert [one.tolist() for one in seen] == [
        [0, 0, 0, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 1, 0, 0],
        [0, 1, 1, 0, 0],
        [0, 0, 0, 0, 0],
    ]
    assert all(world.observation_space.contains(one) for one in seen)


def test_agents_see_their_last_actions_in_training() -> None:
    settings = config(steps=300)
    settings["trials"] |= {"actions": True}
    report = stretto.train(Levers, "ppo", seed=0, config=settings)
    (member,) = report.policy.kwargs["members"]
    assert member.world.observation_spaces["agent_0"].shape == (5,)
    assert len(report.evaluations[-1]["by_episode"]) == 3
