"""Independent PPO of other libraries, one policy an agent, in the same world with the same settings.

Each is run by the Python of an environment in which it is installed; Stretto itself need only be importable there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv
from worlds import foundry_1, simple_spread

from stretto.interop.pettingzoo import ParallelTurns


class FlatFoundry(ParallelEnv):  # type: ignore[misc]  # PettingZoo publishes no types
    """Foundry with what a cog sees as one row of numbers between -1 and 1."""

    render_mode = None

    def __init__(self, cogs: int) -> None:
        self.metadata = {"name": "flat_foundry", "is_parallelizable": True}
        self._env = ParallelTurns(foundry_1(cogs))
        self.possible_agents = self._env.possible_agents
        parts = self._env.observation_space(self.possible_agents[0])
        self._pixels = int(np.prod(parts["planes"].shape))
        self._space = spaces.Box(-1.0, 1.0, (self._pixels + parts["self"].shape[0],), np.float32)

    @property
    def agents(self) -> list[str]:
        return self._env.agents

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._env.action_space(agent)

    def _flat(self, seen: dict[str, Any]) -> dict[str, Any]:
        return {agent: self._row(one) for agent, one in seen.items()}

    def _row(self, seen: Any) -> Any:
        row = np.empty(self._space.shape, np.float32)
        np.multiply(seen["planes"].reshape(-1), np.float32(1 / 255), out=row[: self._pixels])
        row[self._pixels :] = seen["self"]
        return row

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seen, infos = self._env.reset(seed, options)
        return self._flat(seen), infos

    def step(self, actions: dict[str, Any]) -> Any:
        seen, *rest = self._env.step(actions)
        return self._flat(seen), *rest


def world_of(settings: Any, agents: int) -> Any:
    """Return the world as peers take it."""
    return FlatFoundry(agents) if settings.world == "foundry_1" else simple_spread(agents)


def rllib(agents: int, settings: Any, after_epoch: Callable[[int], None]) -> None:
    """RLlib's PPO: environments and learners in the caller's process, as many environments as the others have."""
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    torch.set_num_threads(settings.threads)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    register_env("world", lambda _: ParallelPettingZooEnv(world_of(settings, agents)))
    names = world_of(settings, agents).possible_agents
    hidden = [settings.hidden, settings.hidden]
    model = DefaultModelConfig(fcnet_hiddens=hidden, fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("world")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=settings.envs,
            rollout_fragment_length=settings.rows,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .multi_agent(policies=set(names), policy_mapping_fn=lambda agent, *_, **__: agent)
        .rl_module(model_config=model)
        .training(
            train_batch_size_per_learner=settings.envs * settings.rows,
            minibatch_size=settings.batch,
            num_epochs=settings.epochs,
            lr=settings.learning_rate,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            vf_loss_coeff=0.5,
            entropy_coeff=settings.entropy,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .debugging(log_level="ERROR", seed=settings.seed)
    )
    algorithm = config.build_algo()
    for _ in range(settings.intervals):
        found = algorithm.train()
        after_epoch(int(found["num_env_steps_sampled_lifetime"]))
    algorithm.stop()
    ray.shutdown()


def tianshou(agents: int, settings: Any, after_epoch: Callable[[int], None]) -> None:
    """Tianshou's multi-agent PPO; it takes the world turn by turn, so an environment's step is a turn of all agents."""
    import torch
    from pettingzoo.utils.conversions import parallel_to_aec
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.multiagent.marl import MultiAgentOnPolicyAlgorithm
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.env.pettingzoo_env import PettingZooEnv
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from tianshou.utils.torch_utils import policy_within_training_step

    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)

    class SeenNet(Net):
        """Takes what is seen out of what tianshou's worlds tell beside it. All actions are allowed at all times."""

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            return super().forward(obs.obs, state, info)

    def make() -> Any:
        return PettingZooEnv(parallel_to_aec(world_of(settings, agents)))

    def learner(env: Any) -> Any:
        space, actions = env.observation_space, env.action_space
        bodies = [
            SeenNet(state_shape=space.shape, hidden_sizes=(settings.hidden,) * 2, activation=torch.nn.Tanh)
            for _ in range(2)
        ]
        actor = DiscreteActor(preprocess_net=bodies[0], action_shape=actions.n, softmax_output=False)
        policy = ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
            action_space=actions,
            action_scaling=False,
            action_bound_method=None,
        )
        return PPO(
            policy=policy,
            critic=DiscreteCritic(preprocess_net=bodies[1]),
            optim=AdamOptimizerFactory(lr=settings.learning_rate),
            ent_coef=settings.entropy,
            max_grad_norm=0.5,
            gae_lambda=0.95,
            gamma=0.99,
        )

    env = make()
    algorithm = MultiAgentOnPolicyAlgorithm(algorithms=[learner(env) for _ in range(agents)], env=env)
    envs = DummyVectorEnv([make] * settings.envs)
    turns = settings.envs * settings.rows * agents
    collector = Collector(algorithm, envs, VectorReplayBuffer(turns, settings.envs))
    collector.reset()
    steps = 0
    for _ in range(settings.intervals):
        with torch.no_grad():
            steps += collector.collect(n_step=turns).n_collected_steps // agents
        with policy_within_training_step(algorithm.policy):
            algorithm.update(buffer=collector.buffer, batch_size=settings.batch, repeat=settings.epochs)
        collector.reset_buffer(keep_statistics=True)
        after_epoch(steps)
