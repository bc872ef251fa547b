"""Learner: recurrent SAC on trials, behind the methods and the YAML file that users of pomdp-baselines know.

    from stretto.interop.meta_learner import Learner

    with Learner.from_yaml("configs/meta/cheetah_vel/rnn.yml") as learner:
        learner.train()
        returns = learner.evaluate(learner.eval_tasks)  # tasks x episodes of a trial

New code is better off with `stretto.train`, which also has checkpoints, pages and several ways to compute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from stretto.collection.description import mission_of
from stretto.collection.experience import Rollout
from stretto.collection.pieces import piece_of
from stretto.errors import UsageError
from stretto.interop.meta import make_parallel_env
from stretto.policies.policy_plan import PolicyPlan
from stretto.seeding import SeedTree
from stretto.spaces import Array
from stretto.training.log import LOGGER
from stretto.training.schedules import Schedule
from stretto.training.settings import TrialsSettings

WORLDS = {
    "AntDir-v0": "ant_dir",
    "CheetahDir-v0": "half_cheetah_dir",
    "HalfCheetahDir-v0": "half_cheetah_dir",
    "HalfCheetahVel-v0": "half_cheetah_vel",
}
"""Our missions, by the names that worlds have there."""

_HORIZONS = ("horizon", "_max_episode_steps")


class Learner:
    """Collects trials, keeps them, and learns from whole ones, as `Learner` of pomdp-baselines does with `rnn.yml`.

    Its environments are made by `make_parallel_env`. Its agent is ours: actor and critics share one memory, which the critics
    learn. Keys of the file that are about its own networks, such as the sizes of embeddings, change nothing.
    """

    def __init__(
        self,
        env_args: Mapping[str, Any],
        train_args: Mapping[str, Any],
        eval_args: Mapping[str, Any] | None = None,
        policy_args: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.seed, self.history = seed, list[dict[str, float]]()
        self._n_env_steps_total = self._n_rollouts_total = self._n_rl_update_steps_total = 0
        self.log_interval = int((eval_args or {}).get("log_interval", 1))
        self.init_env(**env_args)
        self.init_train(policy_args or {}, **train_args)

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Return the learner of a file with the sections env, train, eval and policy."""
        import yaml

        content = yaml.safe_load(Path(path).read_text())
        missing = [name for name in ("env", "train") if not isinstance(content, Mapping) or name not in content]
        if missing:
            raise UsageError(f"{path} must have the sections env and train, and has no {' and no '.join(missing)}")
        env, train, evaluation, policy = (content.get(name) for name in ("env", "train", "eval", "policy"))
        return cls(env, train, evaluation, policy, int(content.get("seed", 0)))

    def init_env(
        self,
        env_name: str,
        max_rollouts_per_task: int = 1,
        num_train_tasks: int | None = None,
        num_eval_tasks: int | None = None,
        num_parallel_workers: int | str = 1,
        env_type: str = "meta",
        num_tasks: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Make the environments, and draw the tasks to learn from and those to be evaluated on."""
        from stretto.training.task_split import tasks_of

        world, self.max_rollouts_per_task = WORLDS.get(env_name, env_name), max_rollouts_per_task
        self.train_env = make_parallel_env(world, max_rollouts_per_task, num_parallel_workers, self.seed, **kwargs)
        found = next((found for name in _HORIZONS if (found := self._of_world(name)) is not None), None)
        if found is None:
            raise UsageError(
                f"a world must say how long its episodes are, and {env_name} has no {' and no '.join(_HORIZONS)}; wrap it "
                f"in gymnasium.wrappers.TimeLimit"
            )
        self.max_trajectory_len = max_rollouts_per_task * int(found)
        counts = TrialsSettings(train_tasks=num_train_tasks or 100, eval_tasks=num_eval_tasks or 20)
        tasks = tasks_of(mission_of(world, {"env_kwargs": kwargs} if kwargs else {}), counts, self.seed)
        self.train_tasks, self.eval_tasks = ([], []) if tasks is None else tasks

    def _of_world(self, name: str) -> Any:
        try:
            return self.train_env.get_attr(name)[0]
        except AttributeError:
            return None

    def init_train(  # noqa: PLR0913, PLR0917  the keys of the section train
        self,
        policy: Mapping[str, Any],
        num_iters: int = 1,
        num_init_rollouts_pool: int = 0,
        num_rollouts_per_iter: int = 1,
        num_updates_per_iter: int = 1,
        batch_size: int = 32,
        buffer_size: float | str = 1e6,
        sampled_seq_len: int = -1,
        **_: Any,
    ) -> None:
        """Make the agent and its buffer."""
        from stretto.policies.networks.soft_actors import SoftNetworkSettings
        from stretto.storage.of_layout import buffer_of
        from stretto.training.learners.base import LearnerBlock
        from stretto.training.learners.sac import Sac
        from stretto.training.learners.sac_settings import SacSettings

        if (algorithm := policy.get("algo_name", "sac")) != "sac":
            raise UsageError(f"algo_name must be sac, got {algorithm}; use stretto.train for other learners")
        self.num_iters, self.num_init_rollouts_pool = num_iters, num_init_rollouts_pool
        self.num_rollouts_per_iter, self.num_updates_per_iter = num_rollouts_per_iter, num_updates_per_iter
        rows = self.max_trajectory_len + self.max_rollouts_per_task  # with the last observation of each episode
        chunk = rows if sampled_seq_len < 0 else min(sampled_seq_len, rows)
        sac = policy.get("sac", {})
        settings = SacSettings(
            rows=rows,
            updates=num_updates_per_iter,
            batch=batch_size * chunk,
            chunk=chunk,
            buffer=int(float(buffer_size)),
            learning_starts=1,
            learning_rate=Schedule(float(policy.get("lr", 3e-4))),
            discount=policy.get("gamma", 0.99),
            target_average=policy.get("tau", 0.005),
            temperature=1.0 if sac.get("automatic_entropy_tuning", True) else sac["entropy_alpha"],
            tune_temperature=sac.get("automatic_entropy_tuning", True),
            network=SoftNetworkSettings(
                tuple(policy.get("policy_layers", (128, 128))),
                memory=policy.get("seq_model", "gru"),
                memory_width=policy.get("rnn_hidden_size", 128),
            ),
        )
        envs = self.train_env.vector_env
        name = "agent_0"
        tree = SeedTree(self.seed).child("learner", name)
        block = LearnerBlock((name,), envs.single_observation_space, envs.single_action_space, (tree,), 1)
        self.agent = Sac(block, settings)
        self.policy_storage = buffer_of(self.agent.layout)

    def train(self) -> None:
        """Collect the initial pool with random actions, then collect and update, `num_iters` times."""
        if self.num_init_rollouts_pool:
            self.collect_rollouts_parallel(self.num_init_rollouts_pool, random_actions=True)
        for number in range(1, self.num_iters + 1):
            self.collect_rollouts_parallel(self.num_rollouts_per_iter)
            stats = self.update(self.num_updates_per_iter)
            if number % self.log_interval == 0 or number == self.num_iters:
                for episode, value in enumerate(self.evaluate(self.eval_tasks).mean(0), 1):
                    stats[f"return_eval_episode_{episode}"] = float(value)
            self.log_train_stats(stats)

    def collect_rollouts_parallel(
        self, num_rollouts: int, random_actions: bool = False, parallel_env: Any = None
    ) -> int:
        """Collect so many trials into `policy_storage`; return how many steps they have.

        What is stored follows from the seed, the weights, and how many were collected before, never from how many
        environments there are.
        """
        self.agent.policy.begun[:] = not random_actions
        seed = SeedTree(self.seed).child("rollouts", self._n_rollouts_total).seed()
        rollouts = self._play(num_rollouts, list(self.train_tasks) or None, seed, parallel_env, greedy=False)
        steps = 0
        for rollout in rollouts:
            self.policy_storage.extend(piece_of(_without_inner_ends(rollout), self.policy_storage.block))
            steps += len(rollout)
        self._n_rollouts_total += num_rollouts
        self._n_env_steps_total += steps
        return steps

    def _play(self, count: int, tasks: Any, seed: int, env: Any = None, *, greedy: bool) -> Sequence[Rollout]:
        from stretto.training.held_out import learned_policy

        envs = self.train_env if env is None else env
        plan = PolicyPlan(learned_policy([self.agent.policy], greedy=greedy), frozenset(), seed=seed)
        return sorted(envs.collect(plan, count, tasks, seed), key=lambda rollout: rollout.index)

    def update(self, num_updates: int) -> dict[str, float]:
        """Do so many updates; return the means of their figures."""
        with self.policy_storage.snapshot() as seen:
            [stats] = self.agent.learn_again(seen, num_updates)
        self._n_rl_update_steps_total += num_updates
        return stats

    def evaluate(self, tasks: Sequence[Any]) -> Array:
        """Play a trial of each task with the best actions; return the return of each episode: (tasks, episodes)."""
        chosen = list(tasks) or [None] * 20
        seed = SeedTree(self.seed).child("evaluation").seed()
        found = self._play(len(chosen), (lambda index, _: chosen[index]) if tasks else None, seed, greedy=True)
        return np.array([[rollout.rewards[episode].sum() for episode in rollout.episodes] for rollout in found])

    def log_train_stats(self, train_stats: Mapping[str, float]) -> None:
        """Keep the figures of an iteration in `history`, and log them."""
        counts = {"env_steps": self._n_env_steps_total, "rl_steps": self._n_rl_update_steps_total}
        self.history.append({**counts, **train_stats})
        LOGGER.info("%s", ", ".join(f"{name} {value:.4g}" for name, value in self.history[-1].items()))

    def close(self) -> None:
        """Close the environments; may be called twice."""
        self.train_env.close()
        self.policy_storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _without_inner_ends(rollout: Rollout) -> Rollout:
    """Return a trial of which only the last end is an end."""
    (kind,) = rollout.kinds
    last = (np.arange(len(kind.rewards)) > (rollout.ends[-2] if len(rollout.ends) > 1 else -1))[:, None]
    ends: Any = {"terminated": kind.terminated & last, "truncated": kind.truncated & last}
    return replace(rollout, kinds=(replace(kind, **ends),))
