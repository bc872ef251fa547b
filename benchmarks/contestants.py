"""Whoever can step many environments: a plain loop, Stretto, and its peers, behind one method each."""

from __future__ import annotations

import mmap
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from worlds import World

import stretto
from stretto.bench import PlainLoop
from stretto.budget import available_cores

Array = np.ndarray[Any, Any]

_WORD_BYTES = 64
"""Apart by as much, words that two cores write lie on cache lines of their own."""


class Contestant(Protocol):
    """Steps all its environments at once."""

    def step(self, actions: Array) -> int:
        """Step with a batch of actions, observe the batch, and return how many real steps that were."""

    def close(self) -> None: ...


class NextStep:
    """Gymnasium's vector environments: the step after an episode's end only resets, and does not count."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._envs, self._over = envs, 0
        envs.reset(seed=0)

    def step(self, actions: Array) -> int:
        _, _, terminated, truncated, _ = self._envs.step(actions)
        real = self._envs.num_envs - self._over
        self._over = int(np.count_nonzero(terminated | truncated))
        return real

    def close(self) -> None:
        self._envs.close()


class _Stretto:
    """One of ours, which counts its real steps itself: they are asked for once a turn."""

    def __init__(self, envs: stretto.VectorEnv) -> None:
        self._envs, self.choice = envs, envs.choice
        envs.reset(seed=0)

    def race(self, batches: list[Array], seconds: float, work_seconds: float) -> dict[str, Any]:
        """Step until the time is up."""
        step, before = self._envs.step, self._envs.statistics().steps

        def counted_later(batch: Array) -> int:
            step(batch)
            return 0

        _, times = _timed_race(counted_later, batches, seconds, work_seconds)
        steps = self._envs.statistics().steps - before
        return {"steps": steps, "seconds": sum(times), "quick": sorted(times)[len(times) // 10] * len(times) / steps}

    def close(self) -> None:
        self._envs.close()


class _WholeSteps:
    """Counts every step of all worlds, also one that only resets: for contestants that do so equally often."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        self._envs, self.choice = envs, getattr(envs, "choice", None)
        envs.reset(seed=0)

    def step(self, actions: Array) -> int:
        self._envs.step(actions)
        return self._envs.num_envs

    def close(self) -> None:
        self._envs.close()


def _plain_loop(world: World, num_envs: int) -> Contestant:
    return PlainLoop([world.make] * num_envs)


class _PlainLoops:
    """What the machine could do at most: a plain loop on every core, each with its share of worlds, none waiting."""

    def __init__(self, world: World, num_envs: int) -> None:
        cores = available_cores()
        self._share = num_envs // cores
        context = multiprocessing.get_context("fork")
        self._words = memoryview(mmap.mmap(-1, cores * _WORD_BYTES)).cast("q")[:: _WORD_BYTES // 8]
        self._ends = []
        for number in range(1, cores):
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(world, number, theirs), daemon=True).start()
            self._ends.append(ours)
        self._loop = self._loop_of(world, 0)
        for end in self._ends:
            end.recv()

    def _loop_of(self, world: World, number: int) -> PlainLoop:
        """Return the loop over those worlds that one loop over all has in this place: some cost more than others."""
        return PlainLoop([world.make] * self._share, number * self._share)

    def _parts(self, batches: list[Array], number: int) -> list[Array]:
        return [batch[number * self._share : (number + 1) * self._share] for batch in batches]

    def _serve(self, world: World, number: int, end: Any) -> None:
        loop = self._loop_of(world, number)
        end.send("ready")
        while True:
            end.send(self._work(loop, number, *end.recv()))

    def _work(self, loop: PlainLoop, number: int, *race: Any) -> Any:
        return _timed_race(loop.step, *race)

    def race(self, batches: list[Array], seconds: float, work_seconds: float) -> dict[str, Any]:
        """Let all loops step at the same time; return what they did together."""
        for number, end in enumerate(self._ends, 1):
            end.send((self._parts(batches, number), seconds, work_seconds))
        own = _timed_race(self._loop.step, self._parts(batches, 0), seconds, work_seconds)
        results = [own, *(end.recv() for end in self._ends)]
        rate = sum(sum(steps) / sum(times) for steps, times in results)
        undisturbed = sum(1 / _quick(steps, times) for steps, times in results)
        return {"steps": rate, "seconds": 1.0, "quick": 1 / undisturbed}

    def close(self) -> None:
        self._loop.close()


class _Lockstep(_PlainLoops):
    """The same loops, each waiting for the others after every step, with nothing around it but two words of memory.

    What any vector environment could reach that steps all worlds together: where cores slow down now and then, each
    step takes as long as the slowest.
    """

    def _work(self, loop: PlainLoop, number: int, *race: Any) -> int:
        parts, words, turn, count = race[0], self._words, 0, 0
        while True:
            while words[0] == turn:
                pass
            turn = words[0]
            if turn < 0:
                return count
            count += loop.step(parts[turn % len(parts)])
            words[number] = turn

    def race(self, batches: list[Array], seconds: float, work_seconds: float) -> dict[str, Any]:
        """Step all loops, turn by turn."""
        parts, words = self._parts(batches, 0), self._words
        words[0] = turn = 0
        for number, end in enumerate(self._ends, 1):
            end.send((self._parts(batches, number),))
        others = range(1, len(words))

        def step(part: Array) -> int:
            nonlocal turn
            turn += 1
            words[0] = turn
            steps = self._loop.step(part)
            for other in others:
                while words[other] != turn:
                    pass
            return steps

        steps, times = _timed_race(step, parts, seconds, work_seconds)
        words[0] = -1
        total = sum(steps) + sum(end.recv() for end in self._ends)
        for other in others:
            words[other] = 0
        return {"steps": total, "seconds": sum(times), "quick": sorted(times)[len(times) // 10] * len(times) / total}


def _quick(steps: list[int], times: list[float]) -> float:
    """Return the seconds of a real step if all turns were as quick as the quickest tenth."""
    return sorted(times)[len(times) // 10] * len(times) / sum(steps)


def _timed_race(
    step: Callable[[Array], int], batches: list[Array], seconds: float, work_seconds: float
) -> tuple[list[int], list[float]]:
    """Return how many real steps each turn had, and how long it took."""
    clock, steps, times = time.perf_counter, [], []
    last = clock()
    end = last + seconds
    while last < end:
        steps.append(step(batches[len(steps) % len(batches)]))
        until = clock() + work_seconds
        while clock() < until:
            pass
        now = clock()
        times.append(now - last)
        last = now
    return steps, times


def _stretto(**options: Any) -> Callable[[World, int], Any]:
    def build(world: World, num_envs: int) -> Any:
        return _Stretto(stretto.make_vec(world.make, num_envs, **options))

    return build


def _gymnasium_sync(world: World, num_envs: int) -> Contestant:
    return NextStep(gymnasium.vector.SyncVectorEnv([world.make] * num_envs, copy=False))


def _gymnasium_async(world: World, num_envs: int) -> Contestant:
    makers = [world.make] * num_envs
    try:
        return NextStep(gymnasium.vector.AsyncVectorEnv(makers, copy=False))
    except ValueError:  # texts cannot lie in its shared memory
        return NextStep(gymnasium.vector.AsyncVectorEnv(makers, shared_memory=False))


class _Sb3:
    def __init__(self, world: World, num_envs: int) -> None:
        from stable_baselines3.common.vec_env import SubprocVecEnv

        # Forked, because 64 fresh interpreters take a minute to start; how they step is the same.
        self._envs = SubprocVecEnv([world.make] * num_envs, start_method="fork")
        self._envs.seed(0)
        self._envs.reset()

    def step(self, actions: Array) -> int:
        return len(self._envs.step(actions)[2])

    def close(self) -> None:
        self._envs.close()


class _StrettoInSb3:
    def __init__(self, world: World, num_envs: int) -> None:
        from stretto.interop.sb3 import sb3_vec_env

        self._envs = sb3_vec_env(world.make, num_envs, monitor=False, copy=False)
        self._envs.reset()
        self.choice = self._envs.vector_env.choice

    def step(self, actions: Array) -> int:
        return len(self._envs.step(actions)[2])

    def close(self) -> None:
        self._envs.close()


class _Tianshou:
    def __init__(self, world: World, num_envs: int) -> None:
        from tianshou.env import ShmemVectorEnv

        self._envs = ShmemVectorEnv([world.make] * num_envs)
        self._envs.reset(seed=0)

    def step(self, actions: Array) -> int:
        _, _, terminated, truncated, _ = self._envs.step(actions)
        over = np.flatnonzero(terminated | truncated)
        if len(over):
            self._envs.reset(over)
        return len(terminated)

    def close(self) -> None:
        self._envs.close()


class _TorchRl:
    def __init__(self, world: World, num_envs: int) -> None:
        import torch
        from torchrl.envs import GymWrapper, ParallelEnv

        def make() -> Any:
            return GymWrapper(world.make(), categorical_action_encoding=True)

        self._tensor = torch.as_tensor
        self._envs = ParallelEnv(num_envs, make, mp_start_method="fork")
        self._state = self._envs.reset()

    def step(self, actions: Array) -> int:
        self._state["action"] = self._tensor(actions)
        stepped, self._state = self._envs.step_and_maybe_reset(self._state)
        return int(stepped.batch_size[0])

    def close(self) -> None:
        self._envs.close()


@dataclass(frozen=True)
class Entry:
    """A contestant under its name in the table, and the package that it comes from."""

    name: str
    build: Callable[[World, int], Any]
    package: str | None = None


PLAIN, LIMIT, LOCKSTEP = "plain loop", "a plain loop a core", "... in lockstep"
AUTO, AUTO_COPY = "stretto auto", "stretto auto, copies"

# The plain loop writes every batch over the one before. Where there is a choice the others may do so too, and `copies`
# shows what it costs to keep them all.
ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(PLAIN, _plain_loop),
        Entry(LIMIT, _PlainLoops),
        Entry(LOCKSTEP, _Lockstep),
        Entry(AUTO, _stretto(backend="auto", copy=False), "stretto"),
        Entry(AUTO_COPY, _stretto(backend="auto"), "stretto"),
        Entry("stretto serial", _stretto(backend="serial", copy=False), "stretto"),
        Entry("stretto serial, copies", _stretto(backend="serial"), "stretto"),
        Entry("stretto thread", _stretto(backend="thread", copy=False), "stretto"),
        Entry("stretto process", _stretto(backend="process", copy=False), "stretto"),
        Entry("stretto process, copies", _stretto(backend="process"), "stretto"),
        Entry("stretto isolate", _stretto(backend="process", isolate=True, copy=False), "stretto"),
        Entry("stretto auto in SB3", _StrettoInSb3, "stable_baselines3"),
        Entry("gymnasium sync", _gymnasium_sync),
        Entry("gymnasium async", _gymnasium_async),
        Entry("SB3 Subproc", _Sb3, "stable_baselines3"),
        Entry("tianshou Shmem", _Tianshou, "tianshou"),
        Entry("TorchRL Parallel", _TorchRl, "torchrl"),
    )
}

OURS_BATCHED, OURS_PLAIN, GYMNASIUM_BATCHED = "stretto vectorized", "stretto auto, plain", "gymnasium vectorized"
_BATCHED_ID = "CartPole-v1"

# Of a world that has a vectorized form, whichever is asked for: benchmarks/vectorized.py alone uses these.
BATCHED_ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(OURS_BATCHED, lambda _, count: _WholeSteps(stretto.make_vec(_BATCHED_ID, count, vectorized=True))),
        Entry(OURS_PLAIN, lambda _, count: _WholeSteps(stretto.make_vec(_BATCHED_ID, count, vectorized=False))),
        Entry(
            GYMNASIUM_BATCHED,
            lambda _, count: _WholeSteps(
                gymnasium.make_vec(_BATCHED_ID, count, vectorization_mode="vector_entry_point")
            ),
        ),
    )
}
