"""collect: rollouts of a policy in a world, by index, the same set however wide it is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget, default_budget
from stretto.collection.block_way import BlockWay
from stretto.collection.collector import Queue, Trials
from stretto.collection.description import describe_collection
from stretto.collection.experience import Rollout
from stretto.collection.files import check_writable
from stretto.collection.look import Choosing, tell_who_is_in_order
from stretto.collection.making import TrialMaker, TrialSettings, worlds_and_trials
from stretto.collection.opened import Collection, CollectionInterrupted, Way
from stretto.collection.rollout_folder import RolloutFolder
from stretto.collection.rollouts import Rollouts
from stretto.collection.tasks import rollout_tasks
from stretto.collection.whole import WholeWay, player_of
from stretto.collection.whole_options import check_options, whole_options
from stretto.core import SIMULTANEOUS, WAYS_TO_PLAY_TURNS
from stretto.envs.arguments import check_words
from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.workers.cluster import Cluster, current_cluster, opened
from stretto.workers.launcher import launcher

ACT_ROWS = 32
"""How many rows a call of a policy that batches has for each agent. It decides last bits, so it is part of the plan."""

MOST_ENVS = 64

WAYS_TO_WAIT = ("auto", "lockstep", "ready-first", "whole")


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
    cluster: Cluster | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    on_begin: Callable[[], None] = lambda: None,
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
            `options={"task": task}` of its reset. It also reaches it in the first of these ways that it has: a parameter
            `task` of `reset`, a method `reset_task` or `set_task`, a parameter `task` of what makes it. In the last
            case, a world is made for every new task.
        episodes_per_task: how many episodes of one task follow each other in a rollout, through which agents keep their
            memory.
        seed: of everything random.
        max_steps: the most steps of an episode.
        turns: how a `TurnWorld` is played, as of `evaluate`. In sequential turns a step of a rollout is a turn: it has what
            each agent saw when it chose.
        act_rows: how many rows a call of a policy that batches has for each agent. Another number may change last bits.
        strategy: where agents choose their actions; this never changes a result.
        wait: `"lockstep"` steps all environments together; with `"ready-first"` none waits for a slow one, and policies
            choose for some while others are stepped; with `"whole"` every worker plays a rollout at a time, with a world
            and a policy of its own. `"auto"` is mostly `"whole"`. If the policy chooses for many agents at once, or if an
            option asks for what whole rollouts do not have, such as `backend="thread"`, the other two are tried for a
            moment. The faster one goes on.
        boundaries: show policies where an episode begins in the middle of a rollout: see `ObservationView`.
        rewards: show them the reward of their last step.
        oracle: show them the task, if tasks consist of numbers.
        check_reuse: play an episode in a used and in a fresh world first, and warn where they differ.
        fresh_worlds: make a world for every rollout, for worlds that carry something from one episode into the next.
        num_envs: how many environments are played at once.
        budget: the cores to draw on.
        cluster: play on the nodes of a Ray cluster: one that `stretto.cluster` has opened, or its address, "auto" or
            "local". Whole rollouts are played there. Nodes that give other numbers than most are left out, with a warning.
        out: a folder for the rollouts, as they come, for which there need not be memory: those that are returned are read
            when they are looked at.
        resume: go on with what was begun in that folder, or, with a larger `num_rollouts`, with what is finished there. It
            is refused if anything is asked for otherwise, or if code, weights or versions have changed since.
        accept_changes: go on all the same if code, weights or versions have changed; the plan in the folder says so.
        on_begin: is called when the first rollout has ended and is about to be kept in the folder.
        on_rollout: hears of every rollout, in the order in which they end, those that were in the folder first.
        make_options: as of `make_vec`: `backend`, `workers`, `isolate`, `env_kwargs`, `wrappers` and so on. `native_threads`
            is for policies, too. A whole rollout has the longest of the limits that are given.

    Raises:
        CollectionInterrupted: at Ctrl-C, with the rollouts that were finished.
    """
    if num_rollouts < 1:
        raise UsageError(f"num_rollouts must be at least 1, got {num_rollouts}")
    if resume and out is None:
        raise UsageError("resume=True goes on with a collection in a folder, got none; pass the folder as out")
    if isinstance(world, (VectorEnv, MultiAgentVectorEnv)):
        _check_unused({"out": out})
    views = {"boundaries": boundaries, "rewards": rewards, "oracle": oracle}
    settings = TrialSettings(seed, episodes_per_task, max_steps, turns, act_rows, fresh_worlds, **views)
    with ExitStack() as stack:
        nodes = stack.enter_context(opened(cluster))
        folder = None
        if out is not None:
            _check_asked(wait, episodes_per_task, act_rows, make_options)
            rollout_tasks(tasks)  # which refuses what are none, before there is a folder
            plan = {"rollouts": num_rollouts, **describe_collection(world, policy, tasks, settings, make_options)}
            going_on: dict[str, Any] = {"resume": resume, "accept_changes": accept_changes, "on_begin": on_begin}
            folder = stack.enter_context(RolloutFolder(Path(out), plan, **going_on))
        collection = stack.enter_context(
            open_collection(
                world,
                policy,
                tasks=tasks,
                episodes_per_task=episodes_per_task,
                seed=seed,
                max_steps=max_steps,
                turns=turns,
                act_rows=act_rows,
                strategy=strategy,
                wait=wait,
                check_reuse=check_reuse,
                fresh_worlds=fresh_worlds,
                num_envs=num_envs,
                budget=budget,
                cluster=nodes,
                **views,
                **make_options,
            )
        )
        if folder is None:
            return collection.collect(num_rollouts, on_rollout)
        return _kept(collection, folder, num_rollouts, on_rollout)


def _kept(
    collection: Collection, folder: RolloutFolder, num_rollouts: int, on_rollout: Callable[[Rollout], None]
) -> Rollouts:
    """Play what a folder lacks, and return all of it, to be read from there."""
    make, trials = collection.make, collection.trials
    assert make is not None
    check_writable(make.spec(), make.task if make.has_tasks else None)
    for rollout in folder.earlier():
        trials.add(rollout)
        on_rollout(rollout)
    interrupted = False
    try:
        with closing(collection.play(Queue(num_rollouts, trials, folder.done))) as found:
            for rollout in found:
                folder.add(rollout)
                on_rollout(rollout)
    except KeyboardInterrupt:
        interrupted = True
    folder.write()
    rollouts = Rollouts(folder.rollouts())
    if interrupted:
        raise CollectionInterrupted(rollouts)
    return rollouts


def open_collection(  # noqa: PLR0913  every choice has a name and a default here
    world: Any,
    policy: Any,
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
    cluster: Cluster | None = None,
    **make_options: Any,
) -> Collection:
    """Return a `Collection`, which keeps worlds, policies and workers between collections; all is as of `collect`.

    The first call of `Collection.collect` starts them. Policies keep the weights that they were loaded with. A `cluster` must
    stay open meanwhile.
    """
    _check_asked(wait, episodes_per_task, act_rows, make_options)
    views = {"boundaries": boundaries, "rewards": rewards, "oracle": oracle}
    settings = TrialSettings(seed, episodes_per_task, max_steps, turns, act_rows, fresh_worlds, **views)
    check_words(turns=(turns, WAYS_TO_PLAY_TURNS))
    choosing = Choosing(policy, seed, act_rows, strategy, make_options.get("native_threads", 1), turns)
    source = rollout_tasks(tasks)
    if isinstance(world, (VectorEnv, MultiAgentVectorEnv)):
        given = {**make_options, "max_steps": max_steps, "fresh_worlds": fresh_worlds or None}
        given |= {name: value or None for name, value in views.items()}
        _check_unused(given)
        trials = Trials(seed, source, episodes_per_task)
        return Collection(lambda _: BlockWay(world, choosing, wait, owns_envs=False), trials)
    if cluster is not None:
        if (backend := make_options.get("backend", "auto")) not in ("auto", "ray"):
            raise UsageError(f"on a cluster worlds are on its nodes, got backend={backend!r} beside it; leave one out")
        make_options["backend"] = "ray"
    elif make_options.get("backend") == "ray":
        cluster = current_cluster()
    launcher().preload(__name__)  # and all that it imports, 49 modules: no worker has to
    make, trials = worlds_and_trials(world, source, settings, make_options, check_reuse=check_reuse)
    make = replace(make, apart=bool(make_options.get("isolate")) or make_options.get("backend") == "process")

    def make_way(rollouts: int) -> Way:
        count = min(rollouts, MOST_ENVS) if num_envs is None else num_envs
        cores = budget or (default_budget() if cluster is None else cluster.budget)
        return _way_of(make, choosing, wait, count, cores, make_options, cluster)

    return Collection(make_way, trials, make)


def _check_asked(wait: str, episodes_per_task: int, act_rows: int, make_options: dict[str, Any]) -> None:
    """Refuse what makes no sense, whatever the world is."""
    if episodes_per_task < 1 or act_rows < 1:
        raise UsageError(f"episodes_per_task and act_rows must be at least 1, got {episodes_per_task} and {act_rows}")
    if wait not in WAYS_TO_WAIT:
        raise UsageError(f"wait must be one of {', '.join(WAYS_TO_WAIT)}, got {wait!r}")
    check_options(make_options)


def _check_unused(given: dict[str, Any]) -> None:
    """Refuse what is asked for beside a vector environment."""
    if names := ", ".join(name for name, value in given.items() if value is not None):
        raise UsageError(f"a vector environment is used as it is, got {names} beside it; pass its world in place of it")


def _way_of(
    make: TrialMaker,
    choosing: Choosing,
    wait: str,
    num_envs: int,
    budget: CpuBudget,
    options: Mapping[str, Any],
    cluster: Cluster | None = None,
) -> Way:
    """Return the way that is asked for, or, with `"auto"`, the one that suits the policy."""
    whole, unfit = whole_options(options)
    if wait == "whole" and unfit:
        raise UsageError(
            f"wait='whole' plays whole rollouts in processes, got {unfit}; leave that out, or choose another wait"
        )
    if wait == "whole" or (wait == "auto" and not unfit):
        player = player_of(make, choosing, whole)
        # What crosses to another machine is rollouts, not steps.
        if wait == "whole" or cluster is not None or not player.batches:
            tell_who_is_in_order(player.plans)
            return WholeWay(player, budget, whole, cluster)
    envs = make_vec(make, num_envs, copy=False, budget=budget, **options)
    try:
        return BlockWay(envs, choosing, wait, owns_envs=True)
    except BaseException:
        envs.close()
        raise
