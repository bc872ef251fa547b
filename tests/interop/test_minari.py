"""Rollouts as datasets of Minari, and back: nothing differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import stretto
from stretto.interop.minari import read_dataset, write_dataset

minari: Any = pytest.importorskip("minari")

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is set to None:UserWarning"
)  # what Minari recommends to say of a dataset


class Seen(gymnasium.Env):
    """Shows a picture and a number, and takes two numbers; an episode has as many steps as its task says, or three."""

    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 255, (4, 4, 3), np.uint8), "count": spaces.Box(-9, 9, (1,), np.float64)}
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._left = (options or {}).get("task", 3)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._look(), float(action.sum()), False, self._left == 0, {}

    def _look(self) -> Any:
        picture = self.np_random.integers(0, 256, (4, 4, 3), np.uint8)
        return {"picture": picture, "count": np.array([self._left], np.float64)}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def test_rollouts_of_a_known_world_come_back_as_they_were_and_minari_can_make_that_world() -> None:
    rollouts = stretto.collect("CartPole-v1", "random", 5, seed=0, backend="serial")
    written = write_dataset(rollouts, "cartpole/random-v0", "CartPole-v1", about={"algorithm_name": "random"})
    assert (written.total_episodes, written.total_steps) == (5, int(rollouts.lengths.sum()))
    loaded = minari.load_dataset("cartpole/random-v0")
    env = loaded.recover_environment()
    assert env.spec.id == "CartPole-v1"
    env.close()
    assert read_dataset("cartpole/random-v0").digest() == rollouts.digest()


def test_pictures_and_numbers_beside_each_other_are_kept_exactly() -> None:
    rollouts = stretto.collect(Seen, "random", 3, seed=0, backend="serial")
    write_dataset(rollouts, "seen/random-v0", Seen)
    assert read_dataset("seen/random-v0").digest() == rollouts.digest()


def test_each_episode_of_a_trial_is_an_episode_of_the_dataset() -> None:
    rollouts = stretto.collect(Seen, "random", 2, tasks=[2, 4], episodes_per_task=3, seed=0, backend="serial")
    write_dataset(rollouts, "seen/trials-v0", Seen)
    found = read_dataset("seen/trials-v0")
    tasks = [one.task for one in rollouts for _ in range(3)]
    assert found.lengths.tolist() == tasks
    for rollout, first in zip(rollouts, (0, 3), strict=True):
        for number, steps in enumerate(rollout.episodes):
            one = found[first + number]
            assert np.array_equal(one.actions, rollout.actions[steps])
            assert np.array_equal(one.observations["picture"], rollout.observations["picture"][steps])
            assert np.array_equal(one.last_observations["count"][0], rollout.last_observations["count"][number])


def test_one_agent_of_several_is_written() -> None:
    rollouts = stretto.collect("foundry_1", "random", 1, cogs=2, max_steps=5, seed=0, backend="serial")
    with pytest.raises(stretto.UsageError, match="one agent, got None where there are cog_0, cog_1"):
        write_dataset(rollouts, "foundry/random-v0", "foundry_1", cogs=2)
    write_dataset(rollouts, "foundry/random-v0", "foundry_1", cogs=2, agent="cog_1")
    assert np.array_equal(read_dataset("foundry/random-v0")[0].actions, rollouts[0].agents["cog_1"].actions)


def test_a_dataset_that_is_not_there_is_refused_with_the_command_that_fetches_it() -> None:
    with pytest.raises(stretto.UsageError, match=r"got no/such-v0, which is not there .* minari download no/such-v0"):
        read_dataset("no/such-v0")


def test_no_rollouts_are_no_dataset_and_unknown_options_are_refused() -> None:
    with pytest.raises(stretto.UsageError, match="there are no rollouts"):
        write_dataset([], "seen/none-v0", Seen)
    with pytest.raises(stretto.UsageError, match="options must be about the world, got backend"):
        write_dataset([], "seen/none-v0", Seen, backend="serial")
