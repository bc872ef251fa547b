"""collect: rollouts of a policy in a world, by index, the same set however wide it is done."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stretto.adapters.agents import as_agents
from stretto.adapters.trial_views import TaskForm, TrialView
from stretto.budget import CpuBudget, default_budget
from stretto.collection.collector import Collector, Queue, Trials
from stretto.collection.experience import Rollout
from stretto.collection.look import plans_for
from stretto.collection.making import TrialMaker, world_maker
from stretto.collection.reuse import carries_over
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import ShownTasks, TaskSource, task_source
from stretto.collection.worker_stage import TrialPlayer, WorkerStage, describe
from stretto.collection.worlds import BlockWorlds, ReadyFirstWorlds
from stretto.core import SIMULTANEOUS, AgentId, WorldSpec
from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import RunsHere, UsageError, WorldCarriesOver, user_stacklevel
from stretto.policies.actors import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.workers.mail import unsendable

ACT_ROWS = 32
"""How many rows a call of a policy that batches has for each agent. It decides last bits, so it is part of the plan."""

MOST_ENVS = 64

WAYS_TO_WAIT = ("auto", "lockstep", "ready-first", "whole")

TRIAL_SECONDS, WORTH_SECONDS = 0.2, 1.0
"""How long whole trials are played in the caller at least, and how long the rest must take for workers to be worth it."""


def collect(  # noqa: PLR0913  every choice has a name and a default here
    world: Any,
    policy: Any,
    num_rollouts: int,
    *,
    tasks: Any = None,
    episodes_per_task: int = 1,
    seed: int = 0,
    max_steps: int | None = None,
    turns: str = SIMULTANEOUS,
    act_rows: int = ACT_ROWS,
    strategy: str = "batched",
    wait: str = "auto",
    boundaries: bool = False,
    rewards: bool = False,
    oracle: bool = False,
    check_reuse: bool = True,
    fresh_worlds: bool = False,
    num_envs: int | None = None,
    budget: CpuBudget | None = None,
    on_rollout: Callable[[Rollout], None] = lambda _: None,
    **make_options: Any,
) -> Rollouts:
    """Play trials with a policy and return their rollouts: `num_rollouts`, never more or fewer.

    Rollout number *i* has its own task, seed and random streams, which follow from `seed` and *i*. The set is the same, bit
    by bit, for every backend, number of environments and workers, and after workers died.

    Args:
        world: whatever `make_vec` takes, or a vector environment, which is left open.
        policy: whatever `evaluate` takes; or a mapping from agents to policies.
        num_rollouts: how many.
        tasks: a list to draw from, a function `(index, stream)`, or a `Curriculum`. A task reaches the world as
            `options={"task": task}` of its reset, and in the first of these ways that it has: a parameter `task` of
            `reset`, a method `reset_task` or `set_task`, a parameter `task` of what makes it (then it is made anew for
            every new task).
        episodes_per_task: how many episodes of one task follow each other in a rollout, through which agents keep their
            memory.
        seed: of everything random.
        max_steps: the most steps of an episode.
        turns: how a `TurnWorld` is played.
        act_rows: how many rows a call of a policy that batches has for each agent. Another number may change last bits.
        strategy: where agents choose their actions; this never changes a result.
        wait: `"lockstep"` steps all environments together; with `"ready-first"` none waits for a slow one, and policies
            choose for some while others are stepped; with `"whole"` every worker plays a rollout at a time, with a world
            and a policy of its own. `"auto"` is `"whole"` unless the policy chooses for many agents at once.
        boundaries: show policies where an episode begins in the middle of a rollout: see `ObservationView`.
        rewards: show them the reward of their last step.
        oracle: show them the task, if tasks consist of numbers.
        check_reuse: play an episode in a used and in a fresh world first, and warn where they differ.
        fresh_worlds: make a world for every rollout, for worlds that carry something from one episode into the next.
        num_envs: how many environments are played at once.
        budget: the cores to draw on.
        on_rollout: hears of every rollout, in the order in which they end.
        make_options: as of `make_vec`: `backend`, `workers`, `isolate`, `env_kwargs`, `wrappers` and so on.
    """
    if num_rollouts < 1 or episodes_per_task < 1 or act_rows < 1:
        raise UsageError(
            f"num_rollouts, episodes_per_task and act_rows must be at least 1, got {num_rollouts}, {episodes_per_task} "
            f"and {act_rows}"
        )
    if wait not in WAYS_TO_WAIT:
        raise UsageError(f"wait must be one of {', '.join(WAYS_TO_WAIT)}, got {wait!r}")
    source = task_source(tasks)
    trials = Trials(seed, source, episodes_per_task)
    choosing = _Choosing(policy, seed, act_rows, strategy)
    if isinstance(world, (VectorEnv, MultiAgentVectorEnv)):
        given = {**make_options, "max_steps": max_steps, "fresh_worlds": fresh_worlds or None}
        given |= {"boundaries": boundaries or None, "rewards": rewards or None, "oracle": oracle or None}
        if names := ", ".join(name for name, value in given.items() if value is not None):
            raise UsageError(
                f"a vector environment is used as it is, got {names} beside it; pass its world in place of it"
            )
        found = _in_blocks(world, choosing, wait, num_rollouts, trials)
        return _kept(found, on_rollout)
    make = TrialMaker(world_maker(world, turns, max_steps, make_options), partial(as_agents, turns=turns))
    if source is not None:
        make = replace(make, has_tasks=True, task=trials.trial(0).task)
    if check_reuse and not fresh_worlds:
        _say_what_carries_over(make, trials)
    if fresh_worlds or boundaries or rewards or oracle:
        source, view = _shown(source, make.task, TrialView(boundaries, rewards), oracle)
        make = replace(make, fresh=fresh_worlds, view=view)
        trials = Trials(seed, source, episodes_per_task, numbered=True)
    budget = budget or default_budget()
    if wait in ("auto", "whole"):
        player = choosing.player(make, turns, make_options)
        if wait == "whole" or not player.batches:
            return _kept(_whole(player, num_rollouts, trials, budget, make_options), on_rollout)
    count = min(num_rollouts, MOST_ENVS) if num_envs is None else num_envs
    with make_vec(make, count, turns=turns, copy=False, budget=budget, **make_options) as envs:
        return _kept(_in_blocks(envs, choosing, wait, num_rollouts, trials), on_rollout)


def _kept(rollouts: Iterator[Rollout], on_rollout: Callable[[Rollout], None]) -> Rollouts:
    found = []
    for rollout in rollouts:
        found.append(rollout)
        on_rollout(rollout)
    return Rollouts(found)


@dataclass(frozen=True, slots=True)
class _Choosing:
    """Whom agents follow, and what the plan fixes about that."""

    policy: Any
    seed: int
    act_rows: int
    strategy: str

    def plans(self, world: WorldSpec) -> tuple[list[PolicyPlan], Mapping[AgentId, int]]:
        """Return the plans of all policies, and the number of the one that each agent follows."""
        specs, followed = policies_of(self.policy, world)
        return plans_for(specs, world, self.act_rows, self.seed), followed

    def player(self, make: Callable[[], Any], turns: str, options: Mapping[str, Any]) -> TrialPlayer:
        """Return what plays whole trials."""
        world = describe(make, turns)
        rngs = {name: options[name] for name in ("global_rng", "checks") if name in options}
        return TrialPlayer(make, *self.plans(world), world=world, turns=turns, **rngs)


def _in_blocks(
    envs: VectorEnv | MultiAgentVectorEnv, choosing: _Choosing, wait: str, count: int, trials: Trials
) -> Iterator[Rollout]:
    """Play trials in all slots of a vector environment at once, with policies in the caller."""
    worlds = ReadyFirstWorlds(envs) if wait == "ready-first" else BlockWorlds(envs)
    plans, followed = choosing.plans(worlds.spec)
    runner = make_runner(plans, worlds.spec, [choosing.strategy] * len(plans), 1)
    try:
        yield from Collector(worlds, runner, followed).rollouts(count, trials)
    finally:
        runner.close()


def _whole(
    player: TrialPlayer, count: int, trials: Trials, budget: CpuBudget, options: Mapping[str, Any]
) -> Iterator[Rollout]:
    """Play whole trials: in the caller first, and in workers where that takes so long that they pay."""
    backend, workers, isolate = options.get("backend", "auto"), options.get("workers"), options.get("isolate", False)
    workers = workers or (1 if backend == "serial" else budget.free)
    in_place = backend == "serial" or (backend == "auto" and not isolate)
    if in_place and workers > 1 and (reason := unsendable(player)) is not None:
        warnings.warn(RunsHere(f"rollouts are played in this process alone: {reason}"), stacklevel=user_stacklevel())
        workers = 1
    queue, began, played = Queue(count, trials), time.perf_counter(), 0

    def here() -> bool:
        seconds = time.perf_counter() - began
        return workers == 1 or seconds < TRIAL_SECONDS or len(queue) * seconds / max(1, played) < WORTH_SECONDS

    if in_place:
        stage = player.stage()
        try:
            for rollout in queue.play(stage, here):
                played += 1
                yield rollout
        finally:
            stage.close()
    if len(queue):
        limit = options.get("step_timeout", 60.0)
        lease = budget.lease(workers)
        elsewhere = WorkerStage(player, min(workers, len(queue)), limit_seconds=limit)
        try:
            yield from queue.play(elsewhere)
        finally:
            elsewhere.close()
            lease.release()


def _shown(
    source: TaskSource | None, first: Any, view: TrialView, oracle: bool
) -> tuple[TaskSource | None, TrialView | None]:
    """Return the tasks, all of one form if they are shown, and what policies see of a trial."""
    if not oracle:
        return source, view if view.boundaries or view.rewards else None
    if source is None:
        raise UsageError("oracle=True shows policies the task, and there are none; pass tasks, or leave oracle out")
    form = TaskForm(first)
    return ShownTasks(source, form), replace(view, form=form)


def _say_what_carries_over(make: Callable[[], Any], trials: Trials) -> None:
    trial = trials.trial(0)
    culprit = carries_over(make, [trial.episode(0), trial.episode(1)])
    if culprit is not None:
        warnings.warn(
            f"{culprit} carries something from one episode into the next, so that a rollout depends on those that were "
            f"played in its world before; pass fresh_worlds=True to make a world for every rollout",
            WorldCarriesOver,
            stacklevel=user_stacklevel(),
        )


def policies_of(policy: Any, world: WorldSpec) -> tuple[Sequence[PolicySpec], Mapping[AgentId, int]]:
    """Return the policies that a user means, and which of them each agent follows, by its number."""
    if not isinstance(policy, Mapping):
        return [PolicySpec.of(policy)], dict.fromkeys(world.agents, 0)
    if missing := [agent for agent in world.agents if agent not in policy]:
        raise UsageError(
            f"every agent must follow a policy, got none for {', '.join(missing)}; add them to the mapping"
        )
    texts = list(dict.fromkeys(policy[agent] for agent in world.agents))
    return [PolicySpec.of(one) for one in texts], {agent: texts.index(policy[agent]) for agent in world.agents}
