"""collect: rollouts of a policy in a world, by index, the same set however wide it is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stretto.adapters.agents import as_agents
from stretto.adapters.trial_views import TaskForm, TrialView
from stretto.budget import CpuBudget, default_budget
from stretto.collection.collector import Queue, Trials
from stretto.collection.description import TrialSettings, describe_collection
from stretto.collection.experience import Rollout
from stretto.collection.files import check_writable
from stretto.collection.look import plans_for
from stretto.collection.making import TrialMaker, world_maker
from stretto.collection.reuse import carries_over
from stretto.collection.rollout_folder import RolloutFolder
from stretto.collection.rollouts import Rollouts
from stretto.collection.stage import BlockStage
from stretto.collection.tasks import RolloutTasks, ShownTasks, rollout_tasks
from stretto.collection.whole import play_whole
from stretto.collection.worker_stage import TrialPlayer, describe
from stretto.collection.worlds import BlockWorlds, ReadyFirstWorlds
from stretto.core import SIMULTANEOUS, AgentId, WorldSpec
from stretto.envs.make import make_vec
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError, WorldCarriesOver, user_stacklevel
from stretto.policies.actors import PolicyPlan
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.run_trace import traced_runner, traced_worlds

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
        out: a folder for the rollouts, as they come, for which there need not be memory: those that are returned are read
            when they are looked at.
        resume: go on with what was begun in that folder, or, with a larger `num_rollouts`, with what is finished there. It
            is refused if anything is asked for otherwise, or if code, weights or versions have changed since.
        accept_changes: go on all the same if code, weights or versions have changed; the plan in the folder says so.
        on_begin: is called when the first rollout has ended and is about to be kept in the folder.
        on_rollout: hears of every rollout, in the order in which they end, those that were in the folder first.
        make_options: as of `make_vec`: `backend`, `workers`, `isolate`, `env_kwargs`, `wrappers` and so on.

    Raises:
        CollectionInterrupted: at Ctrl-C, with the rollouts that were finished.
    """
    if num_rollouts < 1 or episodes_per_task < 1 or act_rows < 1:
        raise UsageError(
            f"num_rollouts, episodes_per_task and act_rows must be at least 1, got {num_rollouts}, {episodes_per_task} "
            f"and {act_rows}"
        )
    if wait not in WAYS_TO_WAIT:
        raise UsageError(f"wait must be one of {', '.join(WAYS_TO_WAIT)}, got {wait!r}")
    if resume and out is None:
        raise UsageError("resume=True goes on with a collection in a folder, got none; pass the folder as out")
    views = {"boundaries": boundaries, "rewards": rewards, "oracle": oracle}
    settings = TrialSettings(seed, episodes_per_task, max_steps, turns, act_rows, fresh_worlds, **views)
    choosing, source = _Choosing(policy, seed, act_rows, strategy), rollout_tasks(tasks)
    if isinstance(world, (VectorEnv, MultiAgentVectorEnv)):
        given = {**make_options, "max_steps": max_steps, "out": out, "fresh_worlds": fresh_worlds or None}
        given |= {name: value or None for name, value in views.items()}
        if names := ", ".join(name for name, value in given.items() if value is not None):
            raise UsageError(
                f"a vector environment is used as it is, got {names} beside it; pass its world in place of it"
            )
        queue = Queue(num_rollouts, Trials(seed, source, episodes_per_task))
        return _gathered(_in_blocks(world, choosing, wait, queue), on_rollout)
    with ExitStack() as stack:
        folder = None
        if out is not None:
            plan = {"rollouts": num_rollouts, **describe_collection(world, policy, tasks, settings, make_options)}
            going_on: dict[str, Any] = {"resume": resume, "accept_changes": accept_changes, "on_begin": on_begin}
            folder = stack.enter_context(RolloutFolder(Path(out), plan, **going_on))
        make, trials = _worlds_and_trials(world, source, settings, make_options, check_reuse=check_reuse)
        make_options["turns"] = turns
        done = frozenset[int]()
        if folder is not None:
            check_writable(describe(make, turns), make.task if make.has_tasks else None)
            done = _earlier(folder, trials, on_rollout)
        queue = Queue(num_rollouts, trials, done)
        found = _played(make, choosing, queue, wait, num_envs, budget or default_budget(), make_options)
        return _gathered(found, on_rollout, folder)


class CollectionInterrupted(KeyboardInterrupt):
    """Ctrl-C during a collection; `rollouts` are those that were finished."""

    def __init__(self, rollouts: Rollouts) -> None:
        super().__init__()
        self.rollouts = rollouts


def _gathered(
    found: Generator[Rollout], on_rollout: Callable[[Rollout], None], folder: RolloutFolder | None = None
) -> Rollouts:
    """Return all that is found: in memory, or, where there is a folder, to be read from there."""
    kept: list[Rollout] = []
    keep = kept.append if folder is None else folder.add
    interrupted = False
    try:
        with closing(found):
            for rollout in found:
                keep(rollout)
                on_rollout(rollout)
    except KeyboardInterrupt:
        interrupted = True
    if folder is not None:
        folder.write()
    rollouts = Rollouts(kept if folder is None else folder.rollouts())
    if interrupted:
        raise CollectionInterrupted(rollouts)
    return rollouts


def _earlier(folder: RolloutFolder, trials: Trials, on_rollout: Callable[[Rollout], None]) -> frozenset[int]:
    """Take note of the rollouts that a folder has, and return their indices."""
    for rollout in folder.earlier():
        trials.add(rollout)
        on_rollout(rollout)
    return folder.done


def _worlds_and_trials(
    world: Any, source: RolloutTasks | None, settings: TrialSettings, options: dict[str, Any], *, check_reuse: bool
) -> tuple[TrialMaker, Trials]:
    """Return what makes worlds, and the trials that are played in them; takes what worlds need out of `options`."""
    trials = Trials(settings.seed, source, settings.episodes_per_task)
    made = world_maker(world, settings.turns, settings.max_steps, options)
    make = TrialMaker(made, partial(as_agents, turns=settings.turns))
    if source is not None:
        make = replace(make, has_tasks=True, task=trials.trial(0).task)
    if check_reuse and not settings.fresh_worlds:
        _say_what_carries_over(make, trials)
    if settings.fresh_worlds or settings.boundaries or settings.rewards or settings.oracle:
        seen = TrialView(settings.boundaries, settings.rewards)
        source, view = _shown(source, make.task, seen, settings.oracle)
        make = replace(make, fresh=settings.fresh_worlds, view=view)
        trials = Trials(settings.seed, source, settings.episodes_per_task, numbered=True)
    return make, trials


def _played(
    make: TrialMaker,
    choosing: _Choosing,
    queue: Queue,
    wait: str,
    num_envs: int | None,
    budget: CpuBudget,
    options: Mapping[str, Any],
) -> Generator[Rollout]:
    """Play a queue of trials, in one of the ways to wait."""
    if not len(queue):
        return
    if wait in ("auto", "whole"):
        player = choosing.player(make, options)
        if wait == "whole" or not player.batches:
            yield from play_whole(player, queue, budget, options)
            return
    count = min(len(queue), MOST_ENVS) if num_envs is None else num_envs
    with make_vec(make, count, copy=False, budget=budget, **options) as envs:
        yield from _in_blocks(envs, choosing, wait, queue)


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

    def player(self, make: TrialMaker, options: Mapping[str, Any]) -> TrialPlayer:
        """Return what plays whole trials."""
        world = describe(make, options["turns"])
        rngs = {name: options[name] for name in ("global_rng", "checks") if name in options}
        return TrialPlayer(make, *self.plans(world), world=world, turns=options["turns"], **rngs)


def _in_blocks(
    envs: VectorEnv | MultiAgentVectorEnv, choosing: _Choosing, wait: str, queue: Queue
) -> Generator[Rollout]:
    """Play trials in all slots of a vector environment at once, with policies in the caller."""
    worlds = ReadyFirstWorlds(envs) if wait == "ready-first" else BlockWorlds(envs)
    plans, followed = choosing.plans(worlds.spec)
    runner = make_runner(plans, worlds.spec, [choosing.strategy] * len(plans), 1)
    try:
        yield from queue.play(BlockStage(traced_worlds(worlds), traced_runner(runner), followed))
    finally:
        runner.close()


def _shown(
    source: RolloutTasks | None, first: Any, view: TrialView, oracle: bool
) -> tuple[RolloutTasks | None, TrialView | None]:
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
