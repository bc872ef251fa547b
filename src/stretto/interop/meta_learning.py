"""Collecting for learners as pomdp-baselines has them: agents of three kinds, and buffers that take steps or sequences."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stretto.collection.experience import Rollout
from stretto.collection.making import own_trials, world_maker
from stretto.core import SIMULTANEOUS, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.interop.last_rewards import last_reward_of, public
from stretto.interop.meta import parallel_env as environments_of
from stretto.interop.meta import with_unit_actions
from stretto.interop.parallel_env import ParallelEnv, clipped
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.policies.states import map_state
from stretto.seeding import GLOBAL_GENERATORS, SeedTree
from stretto.spaces import Array

__calls_user_code__ = True


class AGENT_ARCHS(StrEnum):  # noqa: N801  the name that learners know it by
    """What an agent remembers while it acts, and what its buffer stores."""

    Markov = "markov"
    Memory = "memory"
    Memory_Markov = "memory-markov"


class ParallelCollection:
    """Gives a learner `collect_rollouts_parallel`, which collects with `stretto.collect`'s own collector.

    The learner has what those of pomdp-baselines have:

    - `agent` and `agent_arch`. Markov agents, and those that are Markov only while they act, have `act(obs,
      deterministic)`, which returns a tuple with the action first. Memory agents have `get_initial_info()` and
      `act(prev_internal_state, prev_action, reward, obs, deterministic)`, which returns such a tuple and the new state.
      Arguments are tensors if the agent is a torch module, else arrays, with an axis of one row; what worlds show in a
      Dict is a dict of these, also in `policy_storage`.
    - `policy_storage`: `add_sample` is called for every step of a Markov agent, `add_episode` for every trial of another.
    - `seed`, `train_env`, `train_tasks` (empty: worlds draw their own), and the counts `_n_env_steps_total` and
      `_n_rollouts_total`.
    """

    def collect_rollouts_parallel(
        self: Any, num_rollouts: int, random_actions: bool = False, parallel_env: ParallelEnv | None = None
    ) -> int:
        """Collect so many trials into `policy_storage`; return how many steps they have.

        What is stored follows from the learner's seed, its agent, and how many rollouts it has collected before; never
        from `parallel_env`: without one, it is collected one after the other in `train_env`.
        """
        arch = AGENT_ARCHS(self.agent_arch)
        seed = SeedTree(int(self.seed)).child("rollouts", int(self._n_rollouts_total)).seed()
        spec, draws = PolicySpec.of("random"), frozenset[str]()
        if not random_actions:
            spec = PolicySpec("agent", LearnersAgent, {"agent": self.agent, "arch": arch})
            draws = frozenset(GLOBAL_GENERATORS)  # so that what it draws depends on nobody else
        with nullcontext(parallel_env) if parallel_env is not None else _sequential(self) as envs:
            plan, tasks = PolicyPlan(spec, draws, seed=seed), list(self.train_tasks) or None
            rollouts = envs.collect(plan, num_rollouts, tasks, seed)
        for rollout in rollouts:
            _store(self.policy_storage, rollout, arch, envs.action_space)
            self._n_rollouts_total += 1
            self._n_env_steps_total += len(rollout)
        return int(rollouts.lengths.sum())


def _sequential(learner: Any) -> AbstractContextManager[ParallelEnv]:
    """Return the learner's only environment as one of ours, for as long as it is needed."""
    env = learner.train_env
    if isinstance(env, ParallelEnv):
        return nullcontext(env)
    episodes = own_trials(env) or int(getattr(learner, "max_rollouts_per_task", 1))
    make = world_maker(partial(_KeptOpen, env), SIMULTANEOUS, None, {"wrappers": [with_unit_actions]})
    return environments_of(make, episodes, 1, 0, options={"backend": "serial"})


class _KeptOpen(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is still somebody else's: closing this does not close it."""

    def close(self) -> None:
        pass


# ---- acting ----


class LearnersAgent(MultiAgentPolicy):
    """A learner's agent as a policy."""

    def __init__(self, world: WorldSpec, agent: Any, arch: AGENT_ARCHS) -> None:
        super().__init__(world)
        self._agent, self._arch = agent, arch

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        acts = _ActsByMemory if self._arch is AGENT_ARCHS.Memory else _Acts
        return acts(self._agent, self.world.action_spaces[agent])


class _Acts(AgentPolicy):
    """Acts by what it sees alone."""

    def __init__(self, agent: Any, space: spaces.Space[Any]) -> None:
        self._agent, self._space = agent, space
        self._row = _row_for(agent)

    def step(self, observation: Observation) -> Any:
        return self._action(_without_gradients(self._choose, observation))

    def _choose(self, observation: Observation) -> Any:
        chosen = self._agent.act(self._row(public(observation)), deterministic=False)
        return chosen[0] if isinstance(chosen, (tuple, list)) else chosen

    def _action(self, chosen: Any) -> Any:
        """Return an action of the space; one of a number of choices may also be told by a one for it among zeros."""
        array = np.asarray(chosen.detach().cpu() if hasattr(chosen, "detach") else chosen)
        if isinstance(self._space, spaces.Discrete):
            number = int(array.argmax()) if array.size > 1 else int(array.item())
            return self._space.start + number if array.size > 1 else number
        return clipped(self._space, array.reshape(self._space.shape or ()))


class _ActsByMemory(_Acts):
    """Acts by its state, its last action and its last reward, too; these live through a trial."""

    def __init__(self, agent: Any, space: spaces.Space[Any]) -> None:
        super().__init__(agent, space)
        self._last, self._reward, self._state = agent.get_initial_info()
        self._first = True

    def _choose(self, observation: Observation) -> Any:
        reward = self._reward if self._first else self._row(np.array([last_reward_of(observation)], np.float32))
        (self._last, *_), self._state = self._agent.act(
            prev_internal_state=self._state,
            prev_action=self._last,
            reward=reward,
            obs=self._row(public(observation)),
            deterministic=False,
        )
        self._first = False
        return self._last


def _row_for(agent: Any) -> Callable[[Any], Any]:
    """Return what makes rows for an agent of all arrays it is given: tensors, on its device, if it is a torch module."""
    torch = sys.modules.get("torch")

    def row(array: Any) -> Any:
        return np.asarray(array, np.float32)[None]

    if torch is None or not isinstance(agent, torch.nn.Module):
        return partial(map_state, row)
    device = next((one.device for one in agent.parameters()), "cpu")
    return partial(map_state, lambda array: torch.as_tensor(row(array), device=device))


def _without_gradients(function: Callable[..., Any], *args: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        return function(*args)
    with torch.no_grad():
        return function(*args)


# ---- storing ----


def _store(storage: Any, rollout: Rollout, arch: AGENT_ARCHS, space: spaces.Space[Any]) -> None:
    """Add a trial to a buffer. What follows an episode within it is the first observation of the next one.

    An end within the trial is no end of it, and one by a limit of steps is none at all: neither is `terminal`.
    """
    seen = public(rollout.observations)
    last = public(rollout.last_observations)
    following = map_state(lambda rows, ends: np.concatenate([rows[1:], ends[-1:]]), seen, last)
    terminals = np.zeros((len(rollout), 1))
    terminals[-1] = rollout.terminated[-1]
    actions: Array = rollout.actions.reshape(len(rollout), -1)
    if isinstance(space, spaces.Discrete):
        actions = actions - int(space.start)  # learners count from 0
    rewards = rollout.rewards[:, None]
    if arch is not AGENT_ARCHS.Markov:
        storage.add_episode(
            observations=seen, actions=actions, rewards=rewards, terminals=terminals, next_observations=following
        )
        return
    for step in range(len(rollout)):
        now: Callable[[Any], Any] = partial(map_state, itemgetter(step))
        storage.add_sample(
            observation=now(seen),
            action=actions[step],
            reward=rewards[step],
            terminal=terminals[step],
            next_observation=now(following),
        )
