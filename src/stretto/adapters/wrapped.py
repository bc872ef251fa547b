"""What stands between a world and whoever plays it: a limit of steps, and the way in which the world is given its task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.wrappers import TimeLimit

from stretto.core import Action, AgentId, AgentWorld, Outcome, WorldSpec, WorldStatistics

__calls_user_code__ = True

TASK_METHODS = ("reset_task", "set_task")
"""The methods by which worlds take a task before they are reset, in the order in which they are looked for."""


class WrappedAgents:
    """A world by agent that passes everything on to another."""

    def __init__(self, world: AgentWorld) -> None:
        self._world, self.native = world, world.native

    @property
    def np_random(self) -> np.random.Generator | None:
        return self._world.np_random

    @np_random.setter
    def np_random(self, generator: np.random.Generator | None) -> None:
        self._world.np_random = generator

    def spec(self) -> WorldSpec:
        return self._world.spec()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        return self._world.reset(seed, options)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        return self._world.step(actions)

    def statistics(self) -> WorldStatistics:
        return self._world.statistics()

    def save_replay(self, path: str) -> str | None:
        return self._world.save_replay(path)

    def render(self) -> Any:
        return self._world.render()

    def close(self) -> None:
        self._world.close()


class LimitedAgents(WrappedAgents):
    """Ends every episode after so many steps: whoever is left is truncated."""

    def __init__(self, world: AgentWorld, max_steps: int) -> None:
        super().__init__(world)
        self._max_steps, self._steps = max_steps, 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        self._steps = 0
        return super().reset(seed, options)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        outcome = super().step(actions)
        self._steps += 1
        if self._steps >= self._max_steps and outcome.acting:
            cut = {agent: not outcome.terminated[agent] for agent in outcome.truncated}
            return Outcome(outcome.observations, outcome.rewards, outcome.terminated, cut, outcome.infos, acting=())
        return outcome


class TaskedAgents(WrappedAgents):
    """Gives the world its task, which comes with the options of a reset, by a method of its own."""

    def __init__(self, world: AgentWorld, give: Callable[[Any], Any]) -> None:
        super().__init__(world)
        self._give = give

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        if options is not None and "task" in options:
            self._give(options["task"])
        return super().reset(seed, options)


class TaskedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The same for a world with one agent."""

    def __init__(self, env: gymnasium.Env[Any, Any], give: Callable[[Any], Any]) -> None:
        super().__init__(env)
        self._give = give

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options is not None and "task" in options:
            self._give(options["task"])
        return super().reset(seed=seed, options=options)


class TaskedReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives a world whose `reset` has a parameter `task` the task, which comes with the options, in that way.

    Such a `reset` need not take a seed, nor options: a seed that it does not take is given to the world's `np_random`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._takes = _parameters_of_reset(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        given = {
            "seed": seed,
            "options": options,
            **({"task": options["task"]} if options and "task" in options else {}),
        }
        if seed is not None and "seed" not in self._takes:
            self.unwrapped.np_random, _ = seeding.np_random(seed)
        started: tuple[Any, dict[str, Any]] = self.env.reset(
            **{name: value for name, value in given.items() if name in self._takes}
        )
        return started


def _parameters_of_reset(env: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(env.reset).parameters
    except (TypeError, ValueError):  # compiled code need not tell
        return {}


def _with_task_in_reset(env: Any) -> Any:
    """Return a world with a `TaskedReset` around that layer of it whose `reset` has a parameter `task`, if one has."""
    if "task" in _parameters_of_reset(env):
        return TaskedReset(env)
    outer = env
    while isinstance(outer, gymnasium.Wrapper):
        if isinstance(outer, TaskedReset):
            return env
        if "task" in _parameters_of_reset(outer.env):
            outer.env = TaskedReset(outer.env)
            return env
        outer = outer.env
    return None


def task_method(env: Any) -> Callable[[Any], Any] | None:
    """Return the method by which a world takes its task, if it has one; others look at the options of their reset."""
    inside = getattr(env, "unwrapped", env)
    return next((method for name in TASK_METHODS if callable(method := getattr(inside, name, None))), None)


def limit_steps(env: Any, as_agents: Callable[[Any], AgentWorld], max_steps: int) -> Any:
    """Let a world's episodes end after so many steps."""
    if isinstance(env, gymnasium.Env):
        return TimeLimit(env, max_steps)
    return LimitedAgents(as_agents(env), max_steps)


def give_tasks(env: Any, as_agents: Callable[[Any], AgentWorld]) -> Any:
    """Let a world be given its task in the way that it has, wherever it takes it from."""
    if isinstance(env, gymnasium.Env) and (tasked := _with_task_in_reset(env)) is not None:
        return tasked
    give = task_method(env.native if isinstance(env, WrappedAgents) else env)
    if give is None:
        return env
    return TaskedEnv(env, give) if isinstance(env, gymnasium.Env) else TaskedAgents(as_agents(env), give)


def takes_tasks(env: Any) -> bool:
    """Whether a world with its wrappers takes tasks in a way of its own, so that it need not be made anew for one."""
    if isinstance(env, WrappedAgents):
        return task_method(env.native) is not None
    layer = env
    while isinstance(layer, gymnasium.Wrapper) and not isinstance(layer, TaskedReset):
        layer = layer.env
    return isinstance(layer, TaskedReset) or task_method(env) is not None
