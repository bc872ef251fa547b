"""make_vec: from an id or a factory to a running vector environment."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from stretto.adapters.blocks import as_env
from stretto.adapters.gymnasium import makers as makers_of
from stretto.budget import CpuBudget, default_budget
from stretto.core import SIMULTANEOUS, TURNS
from stretto.envs.arrays import Buffers, array_shapes
from stretto.envs.autotune import Choice, choose_backend
from stretto.envs.engine import Engine
from stretto.envs.group_worker import GroupFactory
from stretto.envs.messages import Attach, Built, Describe
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.recovery import Limits, Recovery
from stretto.envs.slot import GroupSettings, Maker
from stretto.envs.slots import SlotState, TaskSource
from stretto.envs.vector import VectorEnv
from stretto.errors import FewerWorkers, InvalidLayout, InvalidSpace, ResourceError, UsageError, user_stacklevel
from stretto.spaces import SpaceLayout, same_space
from stretto.workers.arena import lay_out
from stretto.workers.backends import MESSAGE_PROCESS, PROCESS, SERIAL, backend_named
from stretto.workers.supervisor import Supervisor

SPIN_SECONDS = 500e-6
"""How long both sides look at shared memory before they sleep, where every process has a core."""


def make_vec(  # noqa: PLR0913  the public constructor: every choice has a name and a default here
    id_or_factory: Any,
    num_envs: int = 1,
    *,
    backend: str = "auto",
    transport: str = "shared",
    workers: int | None = None,
    isolate: bool = False,
    env_kwargs: dict[str, Any] | None = None,
    wrappers: Sequence[Callable[[Any], Any]] = (),
    turns: str = SIMULTANEOUS,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    tasks: TaskSource | Sequence[Any] | None = None,
    episode_seeds: bool = False,
    global_rng: str = "auto",
    checks: str = "first",
    start_timeout: float | None = 60.0,
    reset_timeout: float | None = 60.0,
    step_timeout: float | None = 60.0,
    on_crash: str = "replay",
    max_restarts: int = 3,
    replay_limit: int = 100_000,
    copy: bool = True,
    native_threads: int = 1,
    budget: CpuBudget | None = None,
) -> VectorEnv | MultiAgentVectorEnv:
    """Run `num_envs` environments at once, and give the same answer however that is done.

    Args:
        id_or_factory: a registered id (also `module:Name-v0`), an `EnvSpec`, a function that returns an environment, or
            a list of `num_envs` such functions whose environments have equal spaces.
        num_envs: how many environments there are.
        backend: `"serial"`, `"thread"`, `"process"`, or `"auto"`, which measures one environment and chooses.
        transport: how arrays travel between processes: `"shared"` memory or `"message"`.
        workers: how many step environments; the caller is one of them unless `isolate`. Default: the free cores.
        isolate: keep every environment out of the caller's process, so that each can be killed and recovered.
        env_kwargs: passed to the environment's constructor.
        wrappers: applied to each environment, the first one innermost.
        turns: how a `TurnWorld` is played: `"simultaneous"` (all observe, and then all act, in order) or `"sequential"` (each
            observes after the one before has acted: a step lets one agent act in each environment).
        autoreset_mode: when an environment whose episode is over is reset, as Gymnasium defines it.
        tasks: `(slot, episode, stream) -> task`, or a sequence to draw from; passed to each reset as
            `options={"task": task}`.
        episode_seeds: seed every episode by its own key, so that it does not depend on the one before.
        global_rng: `"private"` gives every environment its own copies of the global random generators, `"shared"`
            none, `"auto"` those that it is seen to draw from.
        checks: whether what environments return fits their spaces: `"first"` (their first steps), `"always"`, `"off"`.
        start_timeout, reset_timeout, step_timeout: seconds for one environment to be built, reset and stepped; `None`
            for no limit. Off under a debugger.
        on_crash: what becomes of the episodes of a worker that died: `"replay"`, `"truncate"` or `"raise"`.
        max_restarts: how often in a row a worker may die before it is given up.
        replay_limit: how many steps of an episode are kept for a replay.
        copy: whether arrays are copied; if not, they are overwritten by the second step after.
        native_threads: how many threads libraries such as BLAS and torch use for a computation, in workers and while the
            caller steps environments itself. Another number may change the last bits of what environments compute.
        budget: the cores to draw on; default: those of this process.

    Returns:
        A `VectorEnv`, or a `MultiAgentVectorEnv` for PettingZoo's parallel environments and every `TurnWorld`.
    """
    mode = _mode(autoreset_mode)
    _check_words(transport=(transport, ("shared", "message")), on_crash=(on_crash, ("replay", "truncate", "raise")))
    _check_words(checks=(checks, ("first", "always", "off")), global_rng=(global_rng, ("auto", "private", "shared")))
    _check_words(turns=(turns, TURNS))
    _check_numbers(start_timeout=start_timeout, reset_timeout=reset_timeout, step_timeout=step_timeout)
    _check_whole(num_envs=(num_envs, 1), workers=(1 if workers is None else workers, None))
    _check_whole(native_threads=(native_threads, 1))
    _check_whole(max_restarts=(max_restarts, 0), replay_limit=(replay_limit, 0))
    _check_kinds(env_kwargs, tasks)
    makers = makers_of(id_or_factory, num_envs, env_kwargs, (*wrappers, partial(as_env, turns=turns)))
    budget = budget or default_budget()
    chosen = _choose(backend, workers, makers, budget, isolate)
    if transport == "message" and chosen.backend is PROCESS:
        chosen = replace(chosen, backend=MESSAGE_PROCESS)
    traced = _debugger_attached()
    limits = Limits(
        start=None if traced else start_timeout,
        reset=None if traced else reset_timeout,
        step=None if traced else step_timeout,
        on_crash=on_crash,
        max_restarts=max_restarts,
    )
    group = GroupSettings(mode, episode_seeds, global_rng, checks)
    recovery = Recovery(limits)
    supervisor, built, chosen = _start(makers, chosen, group, recovery, budget, isolate, native_threads)
    try:
        state = _state(supervisor, recovery, built, num_envs, replay_limit, mode)
        state.set_tasks(tasks)
    except BaseException:
        supervisor.close()
        raise
    engine = Engine(
        supervisor,
        recovery,
        state,
        autoreset_mode=mode,
        episode_seeds=episode_seeds,
        lease=budget.lease(chosen.workers * native_threads),
    )
    present = VectorEnv if built.agents is None else MultiAgentVectorEnv
    return present(engine, built, mode, copy=copy, choice=chosen.reason)


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        known = ", ".join(repr(m.value) for m in AutoresetMode)
        raise UsageError(f"autoreset_mode must be one of {known}, got {mode!r}") from None


def _check_words(**words: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, known) in words.items():
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")


def _check_numbers(**numbers: Any) -> None:
    for name, value in numbers.items():
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0):
            raise UsageError(f"{name} must be a number of more than 0, or None for no limit, got {value!r}")


def _check_whole(**numbers: tuple[Any, int | None]) -> None:
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise InvalidLayout(f"{name} must be a whole number, got {value!r}")
        if least is not None and value < least:
            raise InvalidLayout(f"{name} must be at least {least}, got {value}")


def _check_kinds(env_kwargs: Any, tasks: Any) -> None:
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise UsageError(f"env_kwargs must be a mapping from names to values, got {env_kwargs!r}")
    if tasks is not None and not callable(tasks) and (not isinstance(tasks, Sequence) or not tasks):
        raise UsageError(
            f"tasks must be a function (slot, episode, stream) -> task, or a sequence with some, got {tasks!r}"
        )


def _choose(backend: str, workers: int | None, makers: Sequence[Maker], budget: CpuBudget, isolate: bool) -> Choice:
    count = len(makers)
    if workers is not None and not 1 <= workers <= count:
        raise InvalidLayout(
            f"workers must be from 1 to the number of environments, got {workers} workers for {count} environments; "
            f"pass workers={count} or fewer"
        )
    if backend == "auto":
        chosen = choose_backend(makers[0], count, workers or budget.free, isolate=isolate)
        if workers is None or chosen.workers == workers:
            return chosen
        if chosen.backend is SERIAL and workers == 1:
            return chosen
        return Choice(PROCESS, workers, f"process with {workers} workers, because that many were asked for")
    row = backend_named(backend)
    if isolate and not row.killable:
        raise UsageError(f"isolate=True needs another process, got backend={backend!r}; use 'process' or 'auto'")
    if row is SERIAL:
        if workers not in (None, 1):
            raise InvalidLayout(f"the serial backend has one worker, the caller, got workers={workers}")
        return Choice(row, 1, "serial, because it was asked for")
    why = "because it was asked for" if workers else f"because that many of the budget's {budget.total} cores are free"
    workers = workers or min(count, budget.free)
    if workers == 1 and row.caller_works and not isolate:
        return Choice(row, 1, f"{row} with 1 worker, which is the caller, {why}; isolate=True would start a process")
    return Choice(row, workers, f"{row} with {workers} workers, {why}")


def _start(
    makers: Sequence[Maker],
    chosen: Choice,
    group: GroupSettings,
    recovery: Recovery,
    budget: CpuBudget,
    isolate: bool,
    native_threads: int,
) -> tuple[Supervisor, Built, Choice]:
    """Start the workers; with fewer than chosen if the machine does not allow as many."""
    workers, lack = chosen.workers, ""
    limit = recovery.limits.start
    while True:
        spin = SPIN_SECONDS if chosen.backend.pickles and workers <= budget.free else 0.0
        supervisor = Supervisor(
            chosen.backend,
            recovery=recovery,
            spin_seconds=spin,
            native_threads=native_threads,
            start_seconds=limit,
        )
        try:
            shares = _shares(makers, workers, group, chosen.relief)
            for index, share in enumerate(shares):
                works_here = index == len(shares) - 1 and chosen.backend.caller_works and not isolate
                supervisor.add_seat(share, inline=works_here, capacity=2 * len(share.makers) + 64)
            for seat in sorted(supervisor.seats, key=lambda seat: seat.inline):  # others build while the caller does
                supervisor.start(seat)
            built: list[Built] = supervisor.tell(lambda _: Describe(), "building", limit)
            _check_equal(built, shares)
            if workers != chosen.workers:
                reason = f"{chosen.backend} with {workers} workers, because {chosen.workers} cannot be had: {lack}"
                warnings.warn(FewerWorkers(reason), stacklevel=user_stacklevel())
                chosen = Choice(chosen.backend, workers, reason)
            return supervisor, built[0], chosen
        except ResourceError as error:
            started = sum(seat.worker is not None for seat in supervisor.seats)
            supervisor.close()
            if workers == 1:
                raise
            # Not as many as could be started: the caller's program, and who has to be replaced, need some room too.
            workers, lack = max(1, min(workers - 1, 3 * started // 4)), str(error)
        except BaseException:
            supervisor.close()
            raise


def _shares(makers: Sequence[Maker], workers: int, group: GroupSettings, relief: int) -> list[GroupFactory]:
    """Split the slots evenly; the last worker, which may be the caller, has `relief` fewer than the others."""
    least, more = divmod(len(makers) + relief, workers)
    shares, first = [], 0
    for index in range(workers):
        count = least + (index < more) - (relief if index == workers - 1 else 0)
        shares.append(GroupFactory(list(makers[first : first + count]), first, group))
        first += count
    return shares


def _check_equal(built: Sequence[Built], shares: Sequence[GroupFactory]) -> None:
    for one, share in zip(built, shares, strict=True):
        for name in ("observation_space", "action_space"):
            if not same_space(getattr(one, name), getattr(built[0], name)):
                raise InvalidSpace(
                    f"all environments of a vector must have the same {name}, got {getattr(one, name)} in slot "
                    f"{share.first} and {getattr(built[0], name)} in slot 0; wrap them so that they agree"
                )


def _state(
    supervisor: Supervisor, recovery: Recovery, built: Built, count: int, replay_limit: int, mode: AutoresetMode
) -> SlotState:
    """Lay out the arrays and tell the workers where they are."""
    observations, actions = SpaceLayout(built.observation_space), SpaceLayout(built.action_space)
    state = SlotState(observations, actions, count, replay_limit, mode)
    fields, size = lay_out(array_shapes(observations, actions, count))
    supervisor.arena.allocate(size)
    state.buffers = Buffers.of(supervisor.arena.view(fields), len(observations.fixed))
    recovery.attach(supervisor, Attach(fields if supervisor.backend.shares_memory else None, count), state)
    return state


def _debugger_attached() -> bool:
    """Whether somebody steps through this program, and takes as long as they like."""
    if sys.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
