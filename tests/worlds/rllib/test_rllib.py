"""RLlib's PPO on our vector environments."""

from __future__ import annotations

import importlib.util
import os
import warnings

import pytest

if importlib.util.find_spec("ray") is None or importlib.util.find_spec("lz4") is None:
    pytest.skip("RLlib is not installed", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about parts of itself
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig

from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.interop.rllib import VECTORIZE_MODE, register
from tests.docs.pages import ROOT
from tests.docs.test_code import test_the_python_of_a_page_runs_from_top_to_bottom as run_page

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of this test's own, wherever others run."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def nothing_is_left_behind():
    """Ray's own processes stay until its cluster ends."""


def test_its_ppo_steps_our_environments(cluster):
    config = (
        PPOConfig()
        .environment(register("CartPole-v1", backend="serial"))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4, gym_env_vectorize_mode=VECTORIZE_MODE)
        .training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=1)
    )
    algorithm = config.build_algo()
    try:
        ours = algorithm.env_runner.env.unwrapped
        assert isinstance(ours, VectorEnv)
        assert ours.num_envs == 4
        result = algorithm.train()
    finally:
        algorithm.stop()
    assert result["env_runners"]["num_env_steps_sampled"] >= 128
    assert result["env_runners"]["episode_return_mean"] > 5


def test_its_own_autoreset_is_not_changed():
    with pytest.raises(UsageError, match="RLlib's business"):
        register("CartPole-v1", autoreset_mode="same_step")


def test_the_recipe_runs(tmp_path):
    run_page(ROOT / "docs" / "guide" / "recipes" / "rllib.md", tmp_path)
