"""Which backend, and how many workers: measured on a throwaway instance, the plain loop among the candidates."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from stretto.adapters.worlds import as_world
from stretto.envs.backends import PROCESS, SERIAL, THREAD, Backend
from stretto.measure import Timing, time_calls
from stretto.seeding import PrivateGenerators, SeedTree

BUILD_SECONDS = 1.0
"""A world that takes longer to build is not built just to be measured."""

PROBE_SECONDS = 0.2
EXCHANGE_SECONDS = 60e-6
"""What it costs a vector step to be spread over workers: measured with CartPole, 2 cores."""

LEAST_GAIN = 1.15
MOST_WAITING_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, the number of workers (the caller included), and the reason in one sentence."""

    backend: Backend
    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """What a throwaway instance showed; `None` where building it took too long."""

    step: Timing | None
    build_seconds: float


def probe(maker: Callable[[], Any]) -> Probe:
    """Build one world, step it for a moment with random actions, and throw it away.

    It draws from private generators, so that the caller's global ones are untouched.
    """
    private = PrivateGenerators(SeedTree(0).child("probe"), probation=1 << 62)
    began = time.perf_counter()
    env = as_world(private.run(maker))
    built = time.perf_counter() - began
    try:
        if built > BUILD_SECONDS:
            return Probe(None, built)
        return Probe(private.run(_time_steps, env), built)
    finally:
        env.close()


def _time_steps(env: gymnasium.Env[Any, Any]) -> Timing:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]
    env.reset(seed=0)
    position = 0

    def step() -> None:
        nonlocal position
        position += 1
        _, _, terminated, truncated, _ = env.step(actions[position % 64])
        if terminated or truncated:
            env.reset()

    return time_calls(step, budget_seconds=PROBE_SECONDS)


def choose(maker: Callable[[], Any], count: int, cores: int, *, isolate: bool) -> Choice:
    """Choose how to run `count` worlds like this one on so many free cores."""
    if isolate:
        workers = max(1, min(count, cores))
        return Choice(PROCESS, workers, f"process with {workers} workers, because isolate=True keeps worlds out of the caller")
    if count == 1:
        return Choice(SERIAL, 1, "serial, because there is only one environment")
    seen = Probe(None, 0.0)
    # An error here is the user's to see where the worlds themselves are built, with the slot and the traceback.
    with contextlib.suppress(Exception):
        seen = probe(maker)
    if seen.step is None:
        workers = max(1, min(count, cores))
        backend = PROCESS if workers > 1 else SERIAL
        return Choice(
            backend, workers, f"{backend} with {workers} workers, one a free core, because a world takes too long to build "
            f"({seen.build_seconds:.1f} s) to measure one",
        )
    return _compare(seen.step, count, cores)


def _compare(step: Timing, count: int, cores: int) -> Choice:
    told = f"a step takes {step.seconds * 1e6:.3g} µs"
    if step.busy < 0.5 and step.seconds > 1e-3:
        workers = min(count, MOST_WAITING_WORKERS)
        return Choice(THREAD, workers, f"thread with {workers} workers, because {told} and most of that is waiting")
    serial = count * step.seconds
    best, best_seconds = 1, serial
    for workers in range(2, min(count, cores) + 1):
        seconds = -(-count // workers) * step.seconds + EXCHANGE_SECONDS
        if seconds < best_seconds:
            best, best_seconds = workers, seconds
    gain = serial / best_seconds
    if best > 1 and gain >= LEAST_GAIN:
        return Choice(
            PROCESS,
            best,
            f"process with {best} workers (the caller is one), because {told} and {count} of them are "
            f"{gain:.1f} times faster on {best} cores",
        )
    if cores == 1:
        return Choice(SERIAL, 1, f"serial, because only one core is free ({told})")
    return Choice(SERIAL, 1, f"serial, because {told} and handing {count} of them to workers would take longer")
