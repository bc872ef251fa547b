"""The learner that users of pomdp-baselines know: its YAML, its methods, and what it learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.errors import UsageError

pytest.importorskip("torch")

from stretto.games.pointgoal import split_of
from stretto.interop.meta_learner import Learner

YAML = """
seed: 3
env:
  env_type: meta
  env_name: pointgoal
  max_rollouts_per_task: 2
  num_tasks: 14
  num_train_tasks: 10
  num_eval_tasks: 4
train:
  num_iters: 2
  num_init_rollouts_pool: 3
  num_rollouts_per_iter: 2
  num_updates_per_iter: 3
  buffer_size: 1e4
  batch_size: 4
  sampled_seq_len: -1
  sample_weight_baseline: 0.0
eval:
  log_interval: 2
  log_tensorboard: true
policy:
  seq_model: gru
  algo_name: sac
  action_embedding_size: 8
  rnn_hidden_size: 32
  dqn_layers: [32]
  policy_layers: [32]
  lr: 0.001
  gamma: 0.9
  tau: 0.005
  sac: {entropy_alpha: 0.2, automatic_entropy_tuning: true, alpha_lr: 0.0003}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "rnn.yml"
    path.write_text(YAML)
    return path


def test_a_file_trains_as_it_stands(config: Path) -> None:
    with Learner.from_yaml(config) as learner:
        assert learner.max_trajectory_len == 40
        assert [{split_of(task) for task in some} for some in (learner.train_tasks, learner.eval_tasks)] == [
            {"train"},
            {"eval"},
        ]
        learner.train()
        assert learner._n_env_steps_total == (3 + 2 * 2) * 40
        assert learner._n_rl_update_steps_total == 6
        assert [one["env_steps"] for one in learner.history] == [200, 280]
        assert {"critic_loss", "actor_loss", "temperature"} <= set(learner.history[0])
        assert "return_eval_episode_2" not in learner.history[0]
        returns = learner.evaluate(learner.eval_tasks)
        assert returns.shape == (4, 2)
        assert learner.history[1]["return_eval_episode_2"] == pytest.approx(returns[:, 1].mean())


def test_what_is_learned_does_not_depend_on_how_many_environments_collect(config: Path) -> None:
    def weights(workers: int) -> Any:
        config.write_text(YAML.replace("num_tasks: 14", f"num_tasks: 14\n  num_parallel_workers: {workers}", 1))
        with Learner.from_yaml(config) as learner:
            learner.train()
            return [array for arrays in learner.agent.weights() for array in arrays]

    assert all(map(np.array_equal, weights(1), weights(3)))


def test_the_last_end_of_a_trial_is_its_only_one_in_what_is_stored(config: Path) -> None:
    with Learner.from_yaml(config) as learner:
        learner.collect_rollouts_parallel(2, random_actions=True)
        with learner.policy_storage.snapshot() as seen:
            whole = seen.sample(learner.agent._streams, 3)
        assert whole.acted.sum(-1).tolist() == [[40, 40, 40]]
        ends = np.argwhere((whole.truncated | whole.terminated)[0, 0]).tolist()
        assert ends == [[40]]  # 20 steps, the last observation, 20 steps
        # Random actions are between the bounds, and none is as likely as another only near the middle.
        assert 0.4 < np.abs(whole.actions[whole.acted]).mean() < 0.6


def test_files_that_ask_for_something_else_are_refused(config: Path, tmp_path: Path) -> None:
    config.write_text(YAML.replace("algo_name: sac", "algo_name: td3"))
    with pytest.raises(UsageError, match=r"algo_name must be sac, got td3; use stretto\.train"):
        Learner.from_yaml(config)
    empty = tmp_path / "empty.yml"
    empty.write_text("env: {}")
    with pytest.raises(UsageError, match="has no train"):
        Learner.from_yaml(empty)
