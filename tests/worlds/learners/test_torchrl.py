"""Our environments under TorchRL: its checks, its collector and its PPO."""

from __future__ import annotations

import importlib.util
import warnings

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if importlib.util.find_spec("torchrl") is None:
    pytest.skip("torchrl is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about parts of itself
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs.utils import check_env_specs
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

import stretto  # noqa: E402
from stretto.errors import UsageError  # noqa: E402
from stretto.interop.torchrl import TorchrlEnv  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def actor_of(outputs=2):
    scores = TensorDictModule(MLP(in_features=4, out_features=outputs, num_cells=[16]), ["observation"], ["logits"])
    return ProbabilisticActor(
        scores,
        in_keys=["logits"],
        out_keys=["action"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )


@pytest.mark.parametrize("world", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_its_own_check_finds_nothing(world):
    if world == "Blackjack-v1":
        with pytest.raises(UsageError, match="Discrete, MultiDiscrete, MultiBinary and Box spaces here"):
            TorchrlEnv(world, 2, backend="serial")
        return
    env = TorchrlEnv(world, 3, backend="serial")
    check_env_specs(env)
    env.close()
    env.close()


def test_a_rollout_is_that_of_a_plain_loop_with_resets_where_episodes_end():
    env = TorchrlEnv("CartPole-v1", 2, backend="process", workers=2, categorical_action_encoding=True)
    env.set_seed(4)
    alternating = iter(range(1000))

    try:
        found = env.rollout(60, lambda seen: torch.full((2,), next(alternating) % 2), break_when_any_done=False)
    finally:
        env.close()
    plain = gymnasium.make("CartPole-v1").unwrapped
    observation, _ = plain.reset(seed=4)
    for t in range(60):
        assert np.array_equal(found["observation"][0, t], observation)
        observation, reward, terminated, truncated, _ = plain.step(t % 2)
        assert found["next", "reward"][0, t].item() == reward
        assert found["next", "terminated"][0, t].item() == terminated
        if terminated or truncated:
            break
    assert terminated


def test_its_collector_and_its_ppo_run():
    torch.manual_seed(0)
    env = TorchrlEnv("CartPole-v1", 4, backend="serial", categorical_action_encoding=True)
    actor, critic = actor_of(), ValueOperator(MLP(in_features=4, out_features=1, num_cells=[16]), ["observation"])
    advantage, loss = GAE(gamma=0.99, lmbda=0.95, value_network=critic), ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    before = [one.detach().clone() for one in actor.parameters()]
    collector = Collector(env, actor, frames_per_batch=64, total_frames=192)
    batches = 0
    for data in collector:
        assert data.batch_size == (4, 16)
        advantage(data)
        losses = loss(data.reshape(-1))
        total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        assert torch.isfinite(total)
        batches += 1
    collector.shutdown()
    env.close()
    assert batches == 3
    assert any(not torch.equal(one, other) for one, other in zip(before, actor.parameters(), strict=True))


def test_its_actor_is_a_policy_for_us():
    report = stretto.evaluate("CartPole-v1", actor_of(), episodes=3, jobs=0)
    assert not any(record.failure for record in report.records)
    again = stretto.evaluate("CartPole-v1", "noop", episodes=1, jobs=0)
    assert len(again.records) == 1


def test_worlds_with_several_agents_are_refused_in_a_sentence():
    with pytest.raises(UsageError, match="has one agent here"):
        TorchrlEnv("foundry_1", 2, backend="serial")
