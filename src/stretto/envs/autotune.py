"""Which backend, and how many workers: measured on a throwaway instance, the plain loop among the candidates."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium

from stretto.errors import UsageError
from stretto.measure import Timing, time_calls
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import SpaceLayout
from stretto.workers.backends import PROCESS, SERIAL, THREAD, Backend
from stretto.workers.base import Port
from stretto.workers.requests import sender
from stretto.workers.supervisor import Supervisor

BUILD_SECONDS = 0.5
"""A world that takes longer to build is not built just to be measured."""

STEP_SECONDS, RESET_SECONDS = 0.15, 0.05

MEASURE_SECONDS = 2.0
"""A world that is not built and measured by then is given up, and with it the process that it is in."""

EXCHANGE_SECONDS = 45e-6
"""What a vector step costs beyond the worlds' own steps when it is spread over workers; measured with CartPole."""

MESSAGE_SECONDS = 40e-6
"""What it costs more when observations have parts that travel by mail."""

RELIEF_SECONDS = 20e-6
"""What the caller does while the others already step their worlds, and is spared in worlds of its own."""

LEAST_GAIN = 1.15
"""A predicted gain below this is not worth processes: the prediction may be off by as much."""

MOST_WAITING_WORKERS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, the number of workers (the caller included), and the reason in one sentence.

    `relief` is how many environments fewer the caller gets than the others, because it also hands out the work.
    """

    backend: Backend
    workers: int
    reason: str
    relief: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """What a throwaway instance showed: the time of a step with its share of resets, bytes, mail, global draws."""

    step: Timing
    reset_seconds: float
    bytes: int
    by_mail: bool
    drawn: frozenset[str]


def probe(maker: Callable[[], Any]) -> Probe | float:
    """Build one world, step it for a moment with random actions, and throw it away.

    It draws from private generators, so that the caller's global ones are untouched. Returns just the seconds that
    building took where that was too long to go on.
    """
    private = PrivateGenerators(SeedTree(0).child("probe"), probation=1 << 62)
    began = time.perf_counter()
    env = private.run_repeatable(maker, undo=lambda first: first.close())
    built = time.perf_counter() - began
    try:
        if built > BUILD_SECONDS:
            return built
        return private.run_repeatable(_measure, env, private)
    finally:
        env.close()


def _measure(env: gymnasium.Env[Any, Any], private: PrivateGenerators) -> Probe:
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(64)]
    env.reset(seed=0)
    steps = resets = 0

    def step() -> None:
        nonlocal steps, resets
        steps += 1
        _, _, terminated, truncated, _ = env.step(actions[steps % 64])
        if terminated or truncated:
            resets += 1
            env.reset()

    timing = time_calls(step, budget_seconds=STEP_SECONDS)
    reset = time_calls(env.reset, budget_seconds=RESET_SECONDS)
    layout = SpaceLayout(env.observation_space)
    return Probe(
        step=Timing(timing.seconds + reset.seconds * resets / steps, timing.busy, timing.calls),
        reset_seconds=reset.seconds,
        bytes=sum(leaf.nbytes for leaf in layout.fixed),
        by_mail=bool(layout.loose),
        drawn=frozenset(private.drawn),
    )


@dataclass(frozen=True, slots=True)
class _Measure:
    """Message: build a world and measure it."""


@dataclass(frozen=True, slots=True)
class _ProbeFactory:
    maker: Callable[[], Any]

    def __call__(self, port: Port) -> _ProbeService:
        port.muted = True  # what it prints nobody asked for
        return _ProbeService(self.maker)


class _ProbeService:
    def __init__(self, maker: Callable[[], Any]) -> None:
        self._maker = maker

    def handle(self, message: Any) -> object:
        return probe(self._maker) if isinstance(message, _Measure) else None

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


def _probe_elsewhere(maker: Callable[[], Any]) -> Probe | str:
    """Measure a world in a process that is thrown away with it, or say why that cannot be done.

    A world may hang or crash, and it is not yet anybody's slot: it must not take the caller with it.
    """
    with Supervisor(PROCESS) as supervisor:
        request = supervisor.ask(
            supervisor.add_seat(_ProbeFactory(maker)), sender(_Measure()), "being measured", MEASURE_SECONDS
        )
        supervisor.wait([request])
    if request.lost:
        return str(request.error).partition("; its Python stack")[0].partition("\n")[0]
    if request.error is not None:
        return f"it raised {request.error!r}"
    if isinstance(request.value, float):
        return f"it takes {request.value:.1f} s to build"
    found: Probe = request.value
    return found


def choose_backend(maker: Callable[[], Any], count: int, cores: int, *, isolate: bool) -> Choice:
    """Choose how to run `count` worlds like this one on so many free cores."""
    everywhere = max(1, min(count, cores))
    if isolate:
        told = "because isolate=True keeps worlds out of the caller"
        return Choice(PROCESS, everywhere, f"process with {everywhere} workers, {told}")
    if count == 1:
        return Choice(SERIAL, 1, "serial, because there is only one environment")
    if cores == 1:
        return Choice(SERIAL, 1, "serial, because only one core is free")
    try:
        seen = _probe_elsewhere(maker)
    except UsageError as error:  # it cannot be pickled
        return Choice(SERIAL, 1, f"serial, because {str(error).partition(';')[0]}")
    if isinstance(seen, str):
        # What a world raises is the user's to see where it is one of theirs, with the slot and the traceback.
        told = f"one a free core, because a world could not be measured: {seen}"
        return Choice(PROCESS, everywhere, f"process with {everywhere} workers, {told}")
    return _compare(seen, count, cores)


def _compare(seen: Probe, count: int, cores: int) -> Choice:
    step = seen.step.seconds
    told = f"a step takes {step * 1e6:.3g} µs"
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
        return Choice(SERIAL, 1, f"serial, because {told} and handing {count} of them to workers would take longer")
    relief = min(int(RELIEF_SECONDS / step), count // best - 1)
    return Choice(
        PROCESS,
        best,
        f"process with {best} workers, the caller being one, because {told} and {count} of them should be "
        f"{gain:.1f} times faster on {best} cores",
        relief,
    )
