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
    """Makes a world in which trials are played, in whichever process; `task` is that of a first one, if there are any.

    A world is given tasks by its constructor if that has a parameter `task`, and it takes them in no other way. With
    `unless_own_trials`, one whose own episodes are trials is left as it is.
    """

    make: Maker
    as_agents: Callable[[Any], AgentWorld]
    has_task: bool = False
    task: Any = None
    fresh: bool = False
    view: TrialView | None = None
    unless_own_trials: bool = False

    def __call__(self) -> Any:
        taking = with_argument(self.make, "task", self.task) if self.has_task else None
        world = (taking or self.make)()
        if self.unless_own_trials and own_trials(world) is not None:
            return world
        by_task = taking is not None and not takes_tasks(world)
        if not (self.fresh or by_task or self.view):
            return world
        view = self.view
        if view is not None and view.asks_world:
            view = replace(view, form=TaskForm(told_task(world)))
        renewal = Renewal(partial(self._anew, by_task=by_task), self.task, fresh=self.fresh, by_task=by_task)
        if isinstance(world, gymnasium.Env):
            return TrialEnv(world, renewal, view)
        return TrialAgents(self.as_agents(world), renewal, view)

    def _anew(self, task: Any, *, by_task: bool) -> Any:
        make = with_argument(self.make, "task", task) if by_task else self.make
        world = (make or self.make)()
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
    (make,) = makers(world, 1, kwargs, wrappers, options.pop("variants", ()))
    return make
