"""What makes the worlds of a collection: with their tasks, a limit of steps, and what policies see of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium

from stretto.adapters.agents import as_agents
from stretto.adapters.trial_views import TaskForm, TrialView
from stretto.adapters.trials import Renewal, TrialAgents, TrialEnv, told_task
from stretto.adapters.wrapped import give_tasks, limit_steps, takes_tasks
from stretto.core import AgentWorld
from stretto.envs.arguments import with_render_mode
from stretto.missions.makers import Maker, with_argument
from stretto.missions.resolve import makers

__calls_user_code__ = True

OWN_TRIALS = ("episodes_per_task", "max_rollouts_per_task")
"""What tells how many episodes a task has in a world whose own episodes are whole trials, as in VariBAD's wrapper."""


@dataclass(frozen=True, slots=True)
class TrialMaker:
    """Makes a world in which trials are played, in whichever process; `task` is that of a first one, if it is known.

    A world is given tasks by its constructor if that has a parameter `task`, and it takes them in no other way. Of one
    whose own episodes are trials nothing but `own_view` is shown, if that is given.
    """

    make: Maker
    as_agents: Callable[[Any], AgentWorld]
    has_tasks: bool = False
    task: Any = ...
    fresh: bool = False
    view: TrialView | None = None
    own_view: TrialView | None = None

    def __call__(self) -> Any:
        world = self._made(self.task, by_task=self.has_tasks)
        by_task = self.has_tasks and with_argument(self.make, "task", None) is not None and not takes_tasks(world)
        view = self.own_view if self.own_view is not None and own_trials(world) is not None else self.view
        if not (self.fresh or by_task or view):
            return world
        if view is not None and view.asks_world:
            view = replace(view, form=TaskForm(told_task(world)))
        renewal = Renewal(partial(self._anew, by_task=by_task), self.task, fresh=self.fresh, by_task=by_task)
        if isinstance(world, gymnasium.Env):
            return TrialEnv(world, renewal, view)
        return TrialAgents(self.as_agents(world), renewal, view)

    def _made(self, task: Any, *, by_task: bool) -> Any:
        make = with_argument(self.make, "task", task) if by_task and task is not ... else None
        return (make or self.make)()

    def _anew(self, task: Any, *, by_task: bool) -> Any:
        world = self._made(task, by_task=by_task)
        return world if isinstance(world, gymnasium.Env) else self.as_agents(world)


def own_trials(world: Any) -> int | None:
    """Return how many episodes a trial has in a world whose own episodes are trials; `None` for other worlds."""
    if not isinstance(world, gymnasium.Env):
        return None
    for name in OWN_TRIALS:
        if world.has_wrapper_attr(name):
            return int(world.get_wrapper_attr(name))
    return None


def world_maker(world: Any, turns: str, max_steps: int | None, options: dict[str, Any]) -> Maker:
    """Return what makes a world that is given tasks and has a limit of steps; takes what it needs out of `options`."""
    agents = partial(as_agents, turns=turns)
    wrappers = [*(options.pop("wrappers", None) or ()), partial(give_tasks, as_agents=agents)]
    if max_steps is not None:
        wrappers.append(partial(limit_steps, as_agents=agents, max_steps=max_steps))
    kwargs = with_render_mode(options.pop("env_kwargs", None), options.pop("render_mode", None))
    (make,) = makers(world, 1, kwargs, wrappers, options.pop("variants", ()), turns)
    return make
