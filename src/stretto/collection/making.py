"""What makes the worlds of a collection: with their tasks, a limit of steps, and what policies see of a trial."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium

from stretto.adapters.agents import as_agents
from stretto.adapters.trial_views import TaskForm, TrialView
from stretto.adapters.trials import Renewal, TrialAgents, TrialEnv, told_task
from stretto.adapters.turn_blocks import TurnBlocks
from stretto.adapters.wrapped import give_tasks, limit_steps, takes_tasks
from stretto.collection.collector import Trials
from stretto.collection.reuse import carries_over
from stretto.collection.tasks import RolloutTasks, ShownTasks
from stretto.core import SIMULTANEOUS, AgentWorld, TurnWorld, WorldSpec
from stretto.errors import StrettoWarning, UsageError, WorldCarriesOver, user_stacklevel
from stretto.missions.makers import Maker, with_argument, with_render_mode
from stretto.missions.resolve import makers
from stretto.workers.apart import Beat, Problem, run_apart

__calls_user_code__ = True

LOOK_SECONDS = 60.0
"""How long it may take to make a world in a process of its own, to see what it is."""

OWN_TRIALS = ("episodes_per_task", "max_rollouts_per_task")
"""What tells how many episodes a task has in a world whose own episodes are whole trials, as in VariBAD's wrapper."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What rollouts depend on beside their world, policy and tasks: the arguments of `collect` of these names."""

    seed: int
    episodes_per_task: int
    max_steps: int | None
    turns: str
    act_rows: int
    fresh_worlds: bool
    boundaries: bool
    rewards: bool
    oracle: bool
    actions: bool = False


@dataclass(frozen=True, slots=True)
class TrialMaker:
    """Makes a world in which trials are played, in whichever process; `task` is that of a first one, if it is known.

    A world is given tasks by its constructor if that has a parameter `task`, and it takes them in no other way. Of one
    whose own episodes are trials nothing but `own_view` is shown, if that is given. `apart`: another process looks at it.
    `by_turn`: a game in turns is played a turn at a time (see `TurnBlocks`).
    """

    make: Maker
    as_agents: Callable[[Any], AgentWorld]
    has_tasks: bool = False
    task: Any = ...
    fresh: bool = False
    view: TrialView | None = None
    own_view: TrialView | None = None
    apart: bool = False
    by_turn: bool = False

    def spec(self) -> WorldSpec:
        """Make a world, and say who acts in it, what they see and what they can do."""
        if not self.apart:
            return self._spec()
        found = run_apart(self._spec, "being looked at", LOOK_SECONDS)
        if isinstance(found, Problem):
            raise found.error
        return found

    def _spec(self, _: Beat | None = None) -> WorldSpec:
        world = self._layered()
        try:
            return self.as_agents(world).spec()
        finally:
            world.close()

    def __call__(self) -> Any:
        world = self._layered()
        if not self.by_turn:
            return world
        agents = self.as_agents(world)  # which refuses other worlds, unless they are to be played as they are
        return TurnBlocks(agents) if isinstance(agents.native, TurnWorld) else world

    def _layered(self) -> Any:
        """Make a world, with what stands between it and who plays trials in it."""
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
    asked = {name: options.pop(name) for name in ("variants", "cogs", "map_seed") if name in options}
    (make,) = makers(world, 1, kwargs, wrappers, turns=turns, **asked)
    return make


def worlds_and_trials(
    world: Any, source: RolloutTasks | None, settings: TrialSettings, options: dict[str, Any], *, check_reuse: bool
) -> tuple[TrialMaker, Trials]:
    """Return what makes worlds, and the trials that are played in them; takes what worlds need out of `options`."""
    trials = Trials(settings.seed, source, settings.episodes_per_task)
    made = world_maker(world, settings.turns, settings.max_steps, options)
    make = TrialMaker(made, partial(as_agents, turns=settings.turns))
    if source is not None:
        make = replace(make, has_tasks=True, task=trials.trial(0).task)
    if check_reuse and not settings.fresh_worlds:
        _check_world(make, trials, options)
    shows = settings.boundaries or settings.rewards or settings.actions
    if settings.fresh_worlds or shows or settings.oracle:
        seen = TrialView(settings.boundaries, settings.rewards, actions=settings.actions)
        source, view = _shown(source, make.task, seen, settings.oracle)
        make = replace(make, fresh=settings.fresh_worlds, view=view)
        trials = Trials(settings.seed, source, settings.episodes_per_task, numbered=True)
    return replace(make, by_turn=settings.turns != SIMULTANEOUS), trials


def _shown(
    source: RolloutTasks | None, first: Any, view: TrialView, oracle: bool
) -> tuple[RolloutTasks | None, TrialView | None]:
    """Return the tasks, all of one form if they are shown, and what policies see of a trial."""
    if not oracle:
        return source, view if view.boundaries or view.rewards or view.actions else None
    if source is None:
        raise UsageError("oracle=True shows policies the task, and there are none; pass tasks, or leave oracle out")
    form = TaskForm(first)
    return ShownTasks(source, form), replace(view, form=form)


def _check_world(make: Callable[[], Any], trials: Trials, options: dict[str, Any]) -> None:
    """Say what carries something over; keep a world that ended the process in which it was checked out of this one."""
    trial = trials.trial(0)
    found = carries_over(make, [trial.episode(0), trial.episode(1)])
    if isinstance(found, str):
        warnings.warn(
            f"{found} carries something from one episode into the next, so that a rollout depends on those that were "
            f"played in its world before; pass fresh_worlds=True to make a world for every rollout",
            WorldCarriesOver,
            stacklevel=user_stacklevel(),
        )
    elif found is not None and found.lost and options.get("backend", "auto") == "auto" and not options.get("isolate"):
        options["isolate"] = True
        warnings.warn(
            f"the world is kept out of this process (isolate=True), because it could not be checked: {found.reason}",
            StrettoWarning,
            stacklevel=user_stacklevel(),
        )
