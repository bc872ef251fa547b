"""Which backend, and how many workers: measured on a throwaway instance, the plain loop among the candidates."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from stretto.errors import UsageError
from stretto.measure import Timing, duration, time_calls
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import SpaceLayout
from stretto.workers.apart import Beat, Problem, run_apart
from stretto.workers.backends import PROCESS, SERIAL, THREAD
from stretto.workers.base import Backend

BUILD_SECONDS = 0.5
"""A world that takes longer to build makes one step instead of being measured."""

STEP_SECONDS, RESET_SECONDS = 0.15, 0.05

MEASURE_SECONDS = 2.0
"""A world that is not built and measured by then is given up, and with it the process that it is in."""

EXCHANGE_SECONDS = 45e-6
"""What a vector step costs beyond the worlds' own steps when it is spread over workers; measured with CartPole."""

MESSAGE_SECONDS = 40e-6
"""What it costs more when observations have parts that travel by mail."""

SWAP_SECONDS = 2.5e-6
"""What a step costs more where a world has global generators of its own: measured with one draw from `numpy` or `random`."""

RELIEF_SECONDS = 10e-6
"""What the caller does while the others already step their worlds, and is spared in worlds of its own.

With 64 CartPoles in two processes, shares of 32 and 32 and of 33 and 31 are equally fast, and 34 and 30 are 3% slower.
"""

LEAST_GAIN = 1.15
"""A predicted gain below this is not worth processes: the prediction may be off by as much."""

MOST_WAITING_WORKERS = 32

_UNTRIED = "it was not tried in a process of its own: if it crashes, this one does too (isolate=True prevents that)"

COMPARED_STEPS = 400
"""How many steps a vectorized form is compared with its plain environments."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, the number of workers (the caller included), and the reason in one sentence.

    `relief` is how many environments fewer the caller gets than the others, because it also hands out the work.
    `isolate`: it gets none, because they were seen to end a process. `moves`: it may take all of them home and move them
    out again, as that pays.
    """

    backend: Backend
    workers: int
    reason: str
    relief: int = 0
    isolate: bool = False
    moves: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """What a throwaway instance showed: the time of a step with its share of resets, bytes, mail, global draws."""

    step: Timing
    bytes: int
    by_mail: bool
    drawn: frozenset[str] = frozenset()


def probe(maker: Callable[[], Any], resets: Sequence[dict[str, Any]], beat: Beat = lambda: None) -> Probe | float:
    """Build one world, step it for a moment with random actions, and throw it away.

    Its episodes begin with the arguments in `resets`, one after the other and then again. It draws from private
    generators, so that the caller's global ones are untouched. Where building took too long, it makes only one step, which
    shows a world that crashes at once, and returns the seconds that building took.
    """
    private = PrivateGenerators(SeedTree(0).child("probe"), probation=1 << 62)
    began = time.perf_counter()
    env = private.run_repeatable(maker, undo=lambda first: first.close())
    built = time.perf_counter() - began
    try:
        beat()
        if built > BUILD_SECONDS:
            private.run_repeatable(_step_once, env, resets[0], beat)
            return built
        found = private.run_repeatable(_measure, env, itertools.cycle(resets))
        return replace(found, drawn=frozenset(private.drawn))  # known only after the call
    finally:
        env.close()


def _step_once(env: gymnasium.Env[Any, Any], reset: dict[str, Any], beat: Beat) -> None:
    env.action_space.seed(0)
    env.reset(**reset)
    beat()
    env.step(env.action_space.sample())


def _measure(env: gymnasium.Env[Any, Any], begin: Iterator[dict[str, Any]]) -> Probe:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]

    def reset_env() -> None:
        env.reset(**next(begin))

    reset_env()
    steps = resets = 0

    def step() -> None:
        nonlocal steps, resets
        steps += 1
        _, _, terminated, truncated, _ = env.step(actions[steps % 64])
        if np.ndim(terminated) == 0 and (terminated or truncated):  # else it is batched, and resets itself
            resets += 1
            reset_env()

    timing = time_calls(step, budget_seconds=STEP_SECONDS)
    reset = time_calls(reset_env, budget_seconds=RESET_SECONDS)
    layout = SpaceLayout(env.observation_space)
    return Probe(
        step=Timing(timing.seconds + reset.seconds * resets / steps, timing.busy, timing.calls),
        bytes=sum(leaf.nbytes for leaf in layout.fixed),
        by_mail=bool(layout.loose),
    )


def why_not_alike(maker: Callable[[], Any], vector_maker: Callable[[int], Any], mode: AutoresetMode) -> str | None:
    """Say why the vectorized form of a world cannot take its place; `None` if it gives the same numbers."""
    try:
        found = run_apart(partial(_difference, maker, vector_maker, mode), "being compared", MEASURE_SECONDS)
    except UsageError as error:
        return str(error).partition(";")[0]
    return f"it could not be compared: {found.reason}" if isinstance(found, Problem) else found


def _difference(
    maker: Callable[[], Any], vector_maker: Callable[[int], Any], mode: AutoresetMode, beat: Beat
) -> str | None:
    """Play two plain worlds and their vectorized form with the same seeds and actions, and say how they differ."""
    plain, vectorized = SyncVectorEnv([maker] * 2, autoreset_mode=mode), vector_maker(2)
    leaves = SpaceLayout(plain.single_observation_space).leaves
    plain.action_space.seed(0)
    ended = 0

    def same_observations(one: Any, other: Any) -> bool:
        parts = [(np.asarray(leaf.get(one)), np.asarray(leaf.get(other))) for leaf in leaves]
        return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in parts)

    same = same_observations(plain.reset(seed=0)[0], vectorized.reset(seed=0)[0])
    for _ in range(COMPARED_STEPS):
        if not same:
            return "its random numbers, or what it computes, are not those of the plain environments"
        actions = plain.action_space.sample()
        one, other = plain.step(actions), vectorized.step(actions)
        same = same_observations(one[0], other[0]) and all(map(np.array_equal, one[1:4], other[1:4]))
        ended += int(np.sum(one[2] | one[3]))
    return None if ended > 1 else f"too few episodes ended in {COMPARED_STEPS} steps to compare it with the plain ones"


def choose_backend(
    maker: Callable[[], Any],
    count: int,
    cores: int,
    *,
    isolate: bool,
    noun: str = "environment",
    resets: Sequence[dict[str, Any]] = ({"seed": 0}, {}),
    global_rng: str = "auto",
) -> Choice:
    """Choose how to run `count` worlds (or blocks of them) like this one on so many free cores.

    `resets` are the arguments of its first resets, `global_rng` says whether it has global generators of its own.
    """
    everywhere = max(1, min(count, cores))
    if isolate:
        told = "because isolate=True keeps worlds out of the caller"
        return Choice(PROCESS, everywhere, f"process with {everywhere} workers, {told}")
    if count == 1 or cores == 1:
        # A process to try it in would take 50 ms, the first one 0.4 s, and there is nothing to choose.
        why = f"there is only one {noun}" if count == 1 else "only one core is free"
        return Choice(SERIAL, 1, f"serial, because {why}; {_UNTRIED}")
    try:
        seen = run_apart(partial(probe, maker, resets), "being measured", MEASURE_SECONDS)
    except UsageError as error:  # it cannot be pickled
        return Choice(SERIAL, 1, f"serial, because {str(error).partition(';')[0]}")
    if isinstance(seen, Probe):
        return _compare(
            seen, count, cores, swaps=global_rng == "private" or (global_rng == "auto" and bool(seen.drawn))
        )
    # What a world raises is the user's to see where it is one of theirs, with the slot and the traceback. But one that
    # ended the process in which it was measured would end the caller's too.
    if isinstance(seen, Problem):
        lost, reason = seen.lost, seen.reason
    else:
        lost, reason = False, f"it takes {seen:.1f} s to build, so only its first step was tried"
    kept_out = "and isolate=True, which keeps it out of the caller, " if lost else ""
    told = f"one a free core, {kept_out}because a world could not be measured: {reason}"
    return Choice(PROCESS, everywhere, f"process with {everywhere} workers, {told}", isolate=lost)


def _compare(seen: Probe, count: int, cores: int, *, swaps: bool) -> Choice:
    step = seen.step.seconds
    told = f"a step took {duration(step)} when it was measured"
    if swaps:
        step += SWAP_SECONDS
        told += f", and its own random generators take {duration(SWAP_SECONDS)} more"
    if seen.step.busy < 0.5 and step > 1e-3:
        workers = min(count, MOST_WAITING_WORKERS)
        return Choice(THREAD, workers, f"thread with {workers} workers, because {told}, most of it waiting")
    exchange = EXCHANGE_SECONDS + (MESSAGE_SECONDS if seen.by_mail else 0.0)
    serial = count * step
    best, best_seconds = 1, serial
    for workers in range(2, min(count, cores) + 1):
        seconds = count * step / workers + exchange
        if seconds < best_seconds:
            best, best_seconds = workers, seconds
    gain = serial / best_seconds
    if best == 1 or gain < LEAST_GAIN:
        return Choice(SERIAL, 1, f"serial, because {told}, and handing {count} of them to workers would take longer")
    relief = min(int(RELIEF_SECONDS / step), count // best - 1)
    return Choice(
        PROCESS,
        best,
        f"process with {best} workers, the caller being one, because {told}: if {best} cores stay free, {count} of them "
        f"are {gain:.1f} times faster there",
        relief,
        moves=True,
    )
