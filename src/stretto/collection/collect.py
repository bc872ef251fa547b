"""collect: rollouts of a policy in a world, by index, the same set however wide it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stretto.adapters.agents import as_agents
from stretto.adapters.wrapped import give_tasks, limit_steps
from stretto.budget import CpuBudget
from stretto.collection.collector import Collector, Trials
from stretto.collection.look import plans_for
from stretto.collection.reuse import FRESH, FreshMaker, carries_over
from stretto.collection.rollouts import Rollout, Rollouts
from stretto.collection.tasks import task_source
from stretto.collection.worlds import BlockWorlds, ReadyFirstWorlds
from stretto.core import SIMULTANEOUS, AgentId, WorldSpec
from stretto.envs.arguments import with_render_mode
from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError, WorldCarriesOver, user_stacklevel
from stretto.missions.resolve import makers
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner

ACT_ROWS = 32
"""How many rows a call of a policy that batches has for each agent. It decides last bits, so it is part of the plan."""

MOST_ENVS = 64

WAYS_TO_WAIT = {"lockstep": BlockWorlds, "ready-first": ReadyFirstWorlds}


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
    wait: str = "lockstep",
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
            `options={"task": task}` of its reset, and through its `reset_task` or `set_task` if it has one of them.
        episodes_per_task: how many episodes of one task follow each other in a rollout, through which agents keep their
            memory.
        seed: of everything random.
        max_steps: the most steps of an episode.
        turns: how a `TurnWorld` is played.
        act_rows: how many rows a call of a policy that batches has for each agent. Another number may change last bits.
        strategy: where agents choose their actions; this never changes a result.
        wait: `"lockstep"` steps all environments together, which is cheapest for fast, even worlds; with `"ready-first"`
            none waits for a slow one, and policies choose for some while others are stepped.
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
    source, worlds_of = task_source(tasks), WAYS_TO_WAIT[wait]
    if isinstance(world, (VectorEnv, MultiAgentVectorEnv)):
        if make_options or max_steps is not None or fresh_worlds:
            given = {**make_options, "max_steps": max_steps, "fresh_worlds": fresh_worlds or None}
            names = ", ".join(name for name, value in given.items() if value is not None)
            raise UsageError(f"a vector environment is used as it is, got {names} beside it; pass these to make_vec")
        trials = Trials(seed, source, episodes_per_task)
        return _collect(worlds_of(world), policy, num_rollouts, trials, seed, act_rows, strategy, on_rollout)
    trials = Trials(seed, source, episodes_per_task, {FRESH: True} if fresh_worlds else {})
    make = _maker(world, turns, max_steps, make_options)
    if fresh_worlds:
        make = FreshMaker(make, partial(as_agents, turns=turns))
    elif check_reuse:
        _say_what_carries_over(make, trials)
    count = min(num_rollouts, MOST_ENVS) if num_envs is None else num_envs
    with make_vec(make, count, turns=turns, copy=False, budget=budget, **make_options) as envs:
        return _collect(worlds_of(envs), policy, num_rollouts, trials, seed, act_rows, strategy, on_rollout)


def _maker(world: Any, turns: str, max_steps: int | None, options: dict[str, Any]) -> Callable[[], Any]:
    """Return what makes a world that is given tasks and has a limit of steps; takes what it needs out of `options`."""
    agents = partial(as_agents, turns=turns)
    wrappers = [*(options.pop("wrappers", None) or ()), partial(give_tasks, as_agents=agents)]
    if max_steps is not None:
        wrappers.append(partial(limit_steps, as_agents=agents, max_steps=max_steps))
    kwargs = with_render_mode(options.pop("env_kwargs", None), options.pop("render_mode", None))
    (make,) = makers(world, 1, kwargs, wrappers, options.pop("variants", ()))
    return make


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


def _collect(  # noqa: PLR0913, PLR0917
    worlds: BlockWorlds,
    policy: Any,
    count: int,
    trials: Trials,
    seed: int,
    act_rows: int,
    strategy: str,
    on_rollout: Callable[[Rollout], None],
) -> Rollouts:
    specs, followed = policies_of(policy, worlds.spec)
    runner = make_runner(plans_for(specs, worlds.spec, act_rows, seed), worlds.spec, [strategy] * len(specs), 1)
    found = []
    try:
        for rollout in Collector(worlds, runner, followed).rollouts(count, trials):
            found.append(rollout)
            on_rollout(rollout)
    finally:
        runner.close()
    return Rollouts(found)


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
