"""ParallelEnv: environments whose episodes are trials, behind the methods that code for meta-learning knows."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from stretto.collection.collector import Collector, Trials
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import Trial, rollout_tasks
from stretto.collection.worlds import BlockWorlds
from stretto.core import NextEpisode
from stretto.envs.vector import VectorEnv
from stretto.errors import StrettoWarning, UsageError, user_stacklevel
from stretto.interop.env_attributes import attribute_names, read_attribute
from stretto.interop.last_rewards import public, without_reward
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.strategies import make_runner
from stretto.registry import near
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array, row_of

Step = tuple[Any, float, bool, dict[str, Any]]
"""An observation, a reward, whether the trial is over, and an info: what a step gives in old Gym, too."""


@dataclass(slots=True)
class _Slot:
    """What an environment plays; nothing, if its trial is over."""

    begun: int = 0
    episode: int = 0
    trial: Trial | None = None


class ParallelEnv:
    """Environments that step at once, each with a task of its own; an episode of theirs is a trial.

    Where an episode ends within a trial, the next one has begun: the observation is its first one, and the info has the
    last one of the episode before as `final_obs`, and `done_mdp`. An environment whose trial is over waits for a reset.

    Attributes:
        vector_env: what steps the worlds; observations in it have the last reward, too.
        remotes: an object for each environment with `send` and `recv`, for code that talks to its workers itself.
    """

    def __init__(
        self, vector_env: VectorEnv, episodes_per_task: int, seed: int | None, *, episodes_are_trials: bool = False
    ) -> None:
        self.vector_env, self.episodes_per_task = vector_env, episodes_per_task
        self._episodes = 1 if episodes_are_trials else episodes_per_task
        self.num_workers = self.num_envs = vector_env.num_envs
        self.observation_space = without_reward(vector_env.single_observation_space)
        self.action_space = vector_env.single_action_space
        self.remotes = [Remote(self, i) for i in range(self.num_envs)]
        self.warned = False
        self._slots = [_Slot() for _ in self.remotes]
        self._answers: dict[int, Step] = {}
        self._seen: Any = None
        self._started = False
        self.seed(seed)

    def __len__(self) -> int:
        return self.num_envs

    def seed(self, seed: int | None = None) -> list[int]:
        """Let everything random from now on follow from this seed; return a seed of each environment."""
        root = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else int(seed)
        self._tree = SeedTree(root).child("parallel env")
        for slot in self._slots:
            slot.begun = 0
        return [self._tree.child(i).seed() for i in range(self.num_envs)]

    # ---- trials ----

    def reset_all(self, tasks: Sequence[Any] | None = None) -> Any:
        """Begin a trial everywhere, with a task for each environment; return the batch of observations."""
        tasks = [None] * self.num_envs if tasks is None else tasks
        if len(tasks) != self.num_envs:
            raise UsageError(f"reset_all needs a task for each of {self.num_envs} environments, got {len(tasks)}")
        self.begin(dict(enumerate(tasks)))
        return self._seen

    def reset(self, env_idx: int = 0, task: Any = None) -> Any:
        """Begin a trial in one environment; return its observation."""
        return self.begin({self._index(env_idx): task})[env_idx]

    def begin(self, tasks: Mapping[int, Any]) -> dict[int, Any]:
        """Begin trials with these tasks in some environments; return their observations."""
        episodes = {}
        for i, task in tasks.items():
            slot, tree = self._slots[i], self._tree.child(i, self._slots[i].begun)
            slot.trial = Trial(slot.begun, task, task is not None, self._episodes, tree, numbered=True)
            slot.begun, slot.episode = slot.begun + 1, 0
            self._answers.pop(i, None)
            episodes[i] = slot.trial.episode(0)
        return self._reset(episodes)

    def _reset(self, episodes: Mapping[int, NextEpisode]) -> dict[int, Any]:
        told = dict(episodes)
        if not self._started:  # all must be: those that play nothing begin what another one plays
            told = dict.fromkeys(range(self.num_envs), next(iter(episodes.values()))) | told
        seeds = [told[i].seed if i in told else None for i in range(self.num_envs)]
        options = [dict(told[i].options or {}) if i in told else None for i in range(self.num_envs)]
        mask = np.array([i in told for i in range(self.num_envs)])
        self._seen = public(self.vector_env.reset(seed=seeds, options=options, reset_mask=mask)[0])
        self._started = True
        return {i: self._row(self._seen, i) for i in episodes}

    def step_all(self, actions: Sequence[Any]) -> tuple[Any, Array, Array, list[dict[str, Any]]]:
        """Step all environments, but those whose action is `None`; return observations, rewards, dones and infos.

        Only an environment whose trial is over may have no action; it is `done` again, with the observation of zeros.
        """
        if len(actions) != self.num_envs:
            raise UsageError(f"step_all needs an action for each of {self.num_envs} environments, got {len(actions)}")
        for i, action in enumerate(actions):
            if action is None and self._slots[i].trial is not None:
                raise UsageError(f"environment {i} plays a trial and needs an action, got None; pass one of its space")
        asked = {i: action for i, action in enumerate(actions) if action is not None}
        self.send(asked)
        found = self.receive(asked)
        nothing = self._row(create_empty_array(self.observation_space, 1), 0)
        rows = [found.get(i, (nothing, 0.0, True, {})) for i in range(self.num_envs)]
        seen, rewards, dones, infos = zip(*rows, strict=True)
        return self._batch(self.observation_space, seen), np.array(rewards), np.array(dones, np.bool_), list(infos)

    def step(self, env_idx: int, action: Any) -> Step:
        """Step one environment."""
        self.send({self._index(env_idx): action})
        return self.receive([env_idx])[env_idx]

    def send(self, actions: Mapping[int, Any]) -> None:
        """Let some environments step, and return at once."""
        for i in actions:
            if self._slots[i].trial is None:
                raise UsageError(
                    f"environment {i} plays no trial, or one that is over; call reset({i}, task=...) first"
                )
        if actions:
            space = self.action_space
            chosen = [clipped(space, action) for action in actions.values()]
            self.vector_env.send(self._batch(space, chosen), list(actions))

    def receive(self, slots: Collection[int]) -> dict[int, Step]:
        """Wait for the steps of some environments, and return what they gave."""
        while missing := [i for i in slots if i not in self._answers]:
            found = self.vector_env.recv(len(missing))
            seen, over = public(found.observations), found.terminations | found.truncations
            for row, i in enumerate(found.ids.tolist()):
                info = _info(found.infos, row)
                info["done_mdp"] = bool(over[row])
                if found.truncations[row]:
                    info["TimeLimit.truncated"] = True
                self._answers[i] = self._row(seen, row), float(found.rewards[row]), False, info
            self._go_on([i for i, done in zip(found.ids.tolist(), over.tolist(), strict=True) if done])
        return {i: self._answers.pop(i) for i in slots}

    def _go_on(self, slots: Iterable[int]) -> None:
        """Begin the next episode of trials, where an episode is over; or end them."""
        following = {}
        for i in slots:
            slot = self._slots[i]
            assert slot.trial is not None
            slot.episode += 1
            if slot.episode < slot.trial.episodes:
                following[i] = slot.trial.episode(slot.episode)
            else:
                slot.trial = None
                seen, reward, _, info = self._answers[i]
                self._answers[i] = seen, reward, True, info
        if following:
            for i, first in self._reset(following).items():
                last, reward, done, info = self._answers[i]
                self._answers[i] = first, reward, done, {**info, "final_obs": last, "start_state": first}

    def collect(self, plan: PolicyPlan, count: int, tasks: Any, seed: int) -> Rollouts:
        """Collect rollouts in these worlds, as `stretto.collect` does; trials that were under way are given up."""
        worlds = BlockWorlds(self.vector_env)
        runner = make_runner([plan], worlds.spec, ["sequential"], 1)
        for slot in self._slots:
            slot.trial = None
        try:
            trials = Trials(seed, rollout_tasks(tasks), self._episodes, numbered=True)
            collector = Collector(worlds, runner, dict.fromkeys(worlds.spec.agents, 0))
            return Rollouts(list(collector.rollouts(count, trials)))
        finally:
            runner.close()

    # ---- worlds ----

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of every environment."""
        found = self.vector_env.map(partial(read_attribute, name=name))
        if not all(there for there, _ in found):
            offered = near(name, self.vector_env.map(attribute_names)[0])
            raise AttributeError(f"the environments have no attribute {name!r}{offered}")
        return [value for _, value in found]

    def close(self) -> None:
        """End the workers; may be called twice."""
        self.vector_env.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, env_idx: int) -> int:
        if env_idx not in range(self.num_envs):
            raise UsageError(f"env_idx must be from 0 to {self.num_envs - 1}, got {env_idx!r}")
        return env_idx

    def _row(self, batch: Any, row: int) -> Any:
        return row_of(self.observation_space, batch, row)

    @staticmethod
    def _batch(space: spaces.Space[Any], values: Sequence[Any]) -> Any:
        batch: Any = create_empty_array(space, len(values))
        return concatenate(space, values, batch)


class Remote:
    """One environment, for code that sends commands to a worker's pipe: `("reset", {"task": task})`, `("step", action)`.

    Every `send` needs a `recv`, and steps of several environments run at once in between.
    """

    def __init__(self, env: ParallelEnv, index: int) -> None:
        self._env, self.index = env, index
        self._waiting: tuple[str, Any] | None = None
        self._begun: tuple[Any] | None = None  # the observation of a reset that was done and not yet received

    @property
    def needs_reset(self) -> bool:
        """Whether it was told to reset, and has not been reset."""
        return self._waiting is not None and self._waiting[0] == "reset" and self._begun is None

    @property
    def task(self) -> Any:
        """The task that it was told to reset with."""
        return ((self._waiting or ("", None))[1] or {}).get("task")

    def begun(self, observation: Any) -> None:
        """Take the observation of a reset that was done for it."""
        self._begun = (observation,)

    def send(self, message: tuple[str, Any]) -> None:
        """Give a command."""
        if not self._env.warned:
            self._env.warned = True
            warnings.warn(
                "remotes[i].send and recv are there for code that has them; use reset_all and step_all, or "
                "stretto.collect, which keeps all environments busy",
                StrettoWarning,
                stacklevel=user_stacklevel(),
            )
        command, given = message
        if command not in ("reset", "step"):
            raise UsageError(
                f"a command must be 'reset' or 'step', got {command!r}; use the methods of the environment"
            )
        if self._waiting is not None:
            raise UsageError(f"environment {self.index} has a command that was not received; call recv() first")
        if command == "step":
            self._env.send({self.index: given})
        self._waiting = command, given

    def recv(self) -> Any:
        """Return what the last command gave: an observation, or a step."""
        if self._waiting is None:
            raise UsageError(f"environment {self.index} was sent nothing; call send() first")
        if self._waiting[0] == "step":
            self._waiting = None
            return self._env.receive([self.index])[self.index]
        if self._begun is None:  # all that wait for one are reset at once
            waiting = {one.index: one for one in self._env.remotes if one.needs_reset}
            tasks = {i: one.task for i, one in waiting.items()}
            for i, observation in self._env.begin(tasks).items():
                waiting[i].begun(observation)
        assert self._begun is not None
        (first,), self._begun, self._waiting = self._begun, None, None
        return first


def clipped(space: spaces.Space[Any], action: Any) -> Any:
    """Return an action within the bounds of its space, if that is a Box."""
    return np.clip(action, space.low, space.high) if isinstance(space, spaces.Box) else action


def _info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Return the info of one row of a batch."""
    return {
        name: _info(values, row) if isinstance(values, dict) else values[row]
        for name, values in infos.items()
        if not name.startswith("_") and infos[f"_{name}"][row]
    }
