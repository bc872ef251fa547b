"""Whoever can collect rollouts: a plain loop, Stretto, the barrier scheme, and peers; a world and a policy of any cost.

Each runs in a process of its own, which `collection.py` starts. A step's reward is the work that it was, in steps of
ordinary length: so returns say how much work a collection was, whoever did it.
"""

from __future__ import annotations

import collections
import itertools
import json
import multiprocessing
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces
from hosts import serve

import stretto
from stretto.budget import available_cores
from stretto.collection.collector import Trials

Array = np.ndarray[Any, Any]
Recorded = tuple[Array, ...]

EVEN_LENGTH, SHORTEST, LONGEST = 100, 10, 200
SLOW, ONE_IN = 10, 8
"""Where steps are uneven, an episode in so many has steps that are so much slower."""


@dataclass(frozen=True)
class Setting:
    """What is collected: the cost of a step of the world and of the policy, in turns of `compute`, and in sleep."""

    step_loops: int
    sleep_seconds: float
    policy_loops: int
    uneven_lengths: bool
    uneven_steps: bool
    num_envs: int

    @property
    def mean_length(self) -> float:
        """The expected steps of an episode."""
        return (SHORTEST + LONGEST) / 2 if self.uneven_lengths else EVEN_LENGTH

    @property
    def mean_work(self) -> float:
        """The expected work of an episode, in ordinary steps."""
        return self.mean_length * (1 + (SLOW - 1) / ONE_IN if self.uneven_steps else 1)

    def make(self) -> gymnasium.Env[Any, Any]:
        """Return such a world."""
        return Paced(self)

    def policy(self) -> Callable[[Any], int]:
        """Return the policy as a function of one observation."""
        loops = self.policy_loops

        def act(_: Any) -> int:
            compute(loops)
            return 0

        return act

    def block_policy(self) -> type[stretto.BlockPolicy]:
        """Return it as a function of arrays, which costs as much a row."""
        loops = self.policy_loops

        class InBlocks(stretto.BlockPolicy):
            def step_block(self, observations: Any, states: Any, choices: Any) -> stretto.BlockAnswer:
                size = observations.shape[:2]
                compute(loops * size[0] * size[1])
                return stretto.BlockAnswer(np.zeros(size, np.int64))

        return InBlocks


_BLOCK = bytes(range(256)) * 4


def compute(loops: int) -> None:
    """Compute for a while: a number of turns, not a time, because a process that is not running does no work.

    A turn is a checksum of 1 kB, in registers: all the turns of a call took the same time within 0.3%, in any process. A loop
    that counts references, in C or in Python, took 0.8 to 1.4 of its median from one second to the next with the same code.
    It keeps the interpreter's lock.
    """
    collections.deque(map(zlib.adler32, itertools.repeat(_BLOCK, loops)), maxlen=0)


class Paced(gymnasium.Env[Array, int]):
    """A world whose steps and episodes are as long as it is told; what is uneven is drawn for each episode."""

    def __init__(self, setting: Setting) -> None:
        self.observation_space = spaces.Box(0, np.inf, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._setting = setting
        self._left = self._pace = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(SHORTEST, LONGEST + 1)), int(self.np_random.integers(ONE_IN))
        self._left = drawn[0] if self._setting.uneven_lengths else EVEN_LENGTH
        self._pace = SLOW if self._setting.uneven_steps and drawn[1] == 0 else 1
        return np.array((self._left, self._pace, 0, 0), np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        setting, pace = self._setting, self._pace
        if setting.sleep_seconds:
            time.sleep(setting.sleep_seconds * pace)
        compute(setting.step_loops * pace)
        self._left -= 1
        return np.array((self._left, pace, action, 0), np.float32), float(pace), self._left == 0, False, {}


def calibrate() -> tuple[float, float]:
    """Return the seconds of a turn of `compute`, and those of a step in which nothing is computed."""
    env = Paced(Setting(0, 0.0, 0, uneven_lengths=False, uneven_steps=False, num_envs=1))
    env.reset(seed=0)

    def least(function: Callable[[], object]) -> float:
        took = []
        for _ in range(2000):
            began = time.perf_counter()
            function()
            took.append(time.perf_counter() - began)
        return min(took)

    return (least(lambda: compute(400)) - least(lambda: compute(0))) / 400, least(lambda: env.step(0))


class Contestant(Protocol):
    """Collects so many rollouts, the same ones each time; returns the sum of their returns."""

    def collect(self, count: int) -> float: ...

    def close(self) -> None: ...


# ---- without anybody's help ----


def seeds_of(count: int) -> list[int]:
    """Return the seeds of the episodes that Stretto collects."""
    trials = Trials(0)
    return [trials.trial(index).seed for index in range(count)]


def play(env: gymnasium.Env[Any, Any], policy: Callable[[Any], int], seed: int) -> Recorded:
    """Play an episode and keep what `collect` keeps of it."""
    observation, _ = env.reset(seed=seed)
    observations, actions, rewards, terminations, truncations = [observation], [], [], [], []
    over = False
    while not over:
        action = policy(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        actions.append(action)
        rewards.append(reward)
        terminations.append(terminated)
        truncations.append(truncated)
        over = terminated or truncated
    return as_arrays(observations, actions, rewards, terminations, truncations)


def as_arrays(*columns: list[Any]) -> Recorded:
    """Return what was kept of an episode."""
    return tuple(np.array(column) for column in columns)


class PlainLoop:
    """One world after the other, one step after the other."""

    def __init__(self, setting: Setting) -> None:
        self._env, self._policy = setting.make(), setting.policy()

    def collect(self, count: int) -> float:
        return self.collect_seeds(seeds_of(count))

    def collect_seeds(self, seeds: Sequence[int]) -> float:
        rollouts = [play(self._env, self._policy, seed) for seed in seeds]
        return float(sum(rewards.sum() for _, _, rewards, _, _ in rollouts))

    def close(self) -> None:
        self._env.close()


class PlainLoops:
    """What the machine could do at most: a plain loop on every core, each with its share of the rollouts."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._ends = setting, []
        context = multiprocessing.get_context("fork")
        for _ in range(available_cores()):
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(theirs,), daemon=True).start()
            self._ends.append(ours)

    def _serve(self, end: Any) -> None:
        loop = PlainLoop(self._setting)
        while True:
            seeds = end.recv()
            began = time.perf_counter()
            end.send((loop.collect_seeds(seeds), time.perf_counter() - began))

    def race(self, count: int) -> tuple[float, float]:
        """Return the work, and its seconds at the rate of all loops together: none waits for another at the end."""
        seeds = seeds_of(count)
        for number, end in enumerate(self._ends):
            end.send(seeds[number :: len(self._ends)])
        done = [end.recv() for end in self._ends]
        work = sum(work for work, _ in done)
        return work, work / sum(work / seconds for work, seconds in done)

    def close(self) -> None:
        pass


class Barrier:
    """A process an environment behind a pipe: the policy chooses for each, all are sent their actions, all are awaited.

    Rollouts are divided among the processes beforehand, and one that has done its share is idle, as users of this
    scheme do.
    """

    def __init__(self, setting: Setting, processes: int) -> None:
        self._policy, self._ends = setting.policy(), []
        context = multiprocessing.get_context("fork")
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=self._serve, args=(setting, theirs), daemon=True).start()
            self._ends.append(ours)

    @staticmethod
    def _serve(setting: Setting, end: Any) -> None:
        env = setting.make()
        while True:
            command, value = end.recv()
            end.send(env.reset(seed=value) if command == "reset" else env.step(value))

    def collect(self, count: int) -> float:
        seeds, ends = seeds_of(count), self._ends
        shares = [seeds[number :: len(ends)] for number in range(len(ends))]
        work = 0.0
        while active := [number for number, share in enumerate(shares) if share]:
            for number in active:
                ends[number].send(("reset", shares[number].pop()))
            episodes: dict[int, Any] = {number: ([ends[number].recv()[0]], [], [], [], []) for number in active}
            while episodes:
                actions = {number: self._policy(columns[0][-1]) for number, columns in episodes.items()}
                for number, action in actions.items():
                    ends[number].send(("step", action))
                for number, action in actions.items():
                    observation, reward, terminated, truncated, _ = ends[number].recv()
                    row = observation, action, reward, terminated, truncated
                    for column, value in zip(episodes[number], row, strict=True):
                        column.append(value)
                    if terminated or truncated:
                        work += float(as_arrays(*episodes.pop(number))[2].sum())
        return work

    def close(self) -> None:
        pass


# ---- Stretto ----


class FirstCall:
    """`collect` as users call it once: what it starts, measures and checks is part of the time."""

    def __init__(self, setting: Setting) -> None:
        self._make, self._policy = setting.make, setting.policy()

    def collect(self, count: int) -> float:
        return float(stretto.collect(self._make, self._policy, count).returns.sum())

    def close(self) -> None:
        pass


class Kept:
    """A collection that stays open, as for users who collect again and again; batches are as large as everybody's."""

    def __init__(self, setting: Setting, policy: Any, **options: Any) -> None:
        slots = setting.num_envs
        self._collection = stretto.open_collection(
            setting.make, policy, num_envs=slots, act_rows=max(1, slots // 2), **options
        )

    def collect(self, count: int) -> float:
        return float(self._collection.collect(count).returns.sum())

    def close(self) -> None:
        self._collection.close()


# ---- peers ----


class Tianshou:
    """Its collector over one of its own vector environments; the buffer has room for all that is collected."""

    def __init__(self, setting: Setting, kind: str) -> None:
        import tianshou.env
        from tianshou.algorithm.algorithm_base import Policy
        from tianshou.data import Batch, Collector

        loops = setting.policy_loops

        class Acts(Policy):
            def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
                compute(loops * len(batch.obs))
                return Batch(act=np.zeros(len(batch.obs), np.int64))

        self._envs = getattr(tianshou.env, kind)([setting.make] * setting.num_envs)
        self._collector = Collector(Acts(spaces.Discrete(2)), self._envs)
        self._steps, self._num_envs = setting.mean_length, setting.num_envs

    def collect(self, count: int) -> float:
        from tianshou.data import VectorReplayBuffer

        room = int(self._steps * count * 1.5) + self._num_envs * 4 * LONGEST
        self._collector.buffer = VectorReplayBuffer(room, self._num_envs)
        self._collector.reset_env()
        return float(np.sum(self._collector.collect(n_episode=count).returns))

    def close(self) -> None:
        self._envs.close()


@dataclass
class TensorPolicy:
    """The policy as TorchRL calls it."""

    loops: int

    def __call__(self, data: Any) -> Any:
        compute(self.loops * data.batch_size.numel())
        return data.set("action", data["observation"].new_zeros(data.batch_size).long())


class TorchRl:
    """Its collector over `num_envs` environments of its own, or a collector a core, each with an environment.

    It gives steps, not rollouts: as many batches as hold the work of the rollouts that were asked for.
    """

    BATCH_STEPS = 20

    def __init__(self, setting: Setting, kind: str) -> None:
        import torch
        from torchrl import envs as theirs
        from torchrl.collectors import Collector

        act = TensorPolicy(setting.policy_loops)

        def make() -> Any:
            return theirs.GymWrapper(setting.make(), categorical_action_encoding=True)

        torch.set_num_threads(1)
        steps = self.BATCH_STEPS * setting.num_envs
        common = {"frames_per_batch": steps, "total_frames": -1, "trust_policy": True}
        if kind in ("sync", "async"):
            cores = available_cores()
            self._collector = Collector([make] * cores, act, num_collectors=cores, sync=kind == "sync", **common)
        else:
            many = getattr(theirs, kind)
            options = {"mp_start_method": "fork"} if kind == "ParallelEnv" else {}
            self._collector = Collector(many(setting.num_envs, make, **options), act, **common)
        self._batches, self._work = iter(self._collector), setting.mean_work

    def collect(self, count: int) -> float:
        work, kept = 0.0, []
        while work < self._work * count:
            kept.append(next(self._batches).clone())
            work += float(kept[-1]["next", "reward"].sum())
        return work

    def close(self) -> None:
        self._collector.shutdown()


# ---- all of them ----


@dataclass(frozen=True)
class Entry:
    """A contestant under its name in the table; `family` are those of whom the best counts."""

    name: str
    build: Callable[[Setting], Any]
    family: str
    package: str | None = None


PLAIN, LIMIT = "plain loop", "a plain loop a core"
AUTO, AUTO_BLOCK = "stretto auto", "stretto auto, block"
WHOLE, LOCKSTEP, READY_FIRST = "stretto whole", "stretto lockstep", "stretto ready-first"
LOCKSTEP_BLOCK, READY_FIRST_BLOCK = "stretto lockstep, block", "stretto ready-first, block"
OURS, PEERS = "stretto", ("barrier", "tianshou", "TorchRL")


def _kept(wait: str, *, block: bool = False) -> Callable[[Setting], Kept]:
    return lambda setting: Kept(setting, setting.block_policy() if block else setting.policy(), wait=wait)


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(PLAIN, PlainLoop, "plain"),
        Entry(LIMIT, PlainLoops, "plain"),
        Entry(AUTO, _kept("auto"), OURS),
        Entry(AUTO_BLOCK, _kept("auto", block=True), OURS),
        Entry("stretto auto, first call", FirstCall, OURS),
        Entry(WHOLE, _kept("whole"), OURS),
        Entry(LOCKSTEP, _kept("lockstep"), OURS),
        Entry(READY_FIRST, _kept("ready-first"), OURS),
        Entry(LOCKSTEP_BLOCK, _kept("lockstep", block=True), OURS),
        Entry(READY_FIRST_BLOCK, _kept("ready-first", block=True), OURS),
        Entry("barrier, as many as cores", lambda setting: Barrier(setting, available_cores()), "barrier"),
        Entry("barrier, as many as slots", lambda setting: Barrier(setting, setting.num_envs), "barrier"),
        Entry("tianshou Dummy", lambda setting: Tianshou(setting, "DummyVectorEnv"), "tianshou", "tianshou"),
        Entry("tianshou Subproc", lambda setting: Tianshou(setting, "SubprocVectorEnv"), "tianshou", "tianshou"),
        Entry("tianshou Shmem", lambda setting: Tianshou(setting, "ShmemVectorEnv"), "tianshou", "tianshou"),
        Entry("TorchRL Serial", lambda setting: TorchRl(setting, "SerialEnv"), "TorchRL", "torchrl"),
        Entry("TorchRL Parallel", lambda setting: TorchRl(setting, "ParallelEnv"), "TorchRL", "torchrl"),
        Entry("TorchRL multi-sync", lambda setting: TorchRl(setting, "sync"), "TorchRL", "torchrl"),
        Entry("TorchRL multi-async", lambda setting: TorchRl(setting, "async"), "TorchRL", "torchrl"),
    )
}


def collect(contestant: Any, count: int) -> dict[str, Any]:
    """Let a contestant collect; say how much work that was, and how long it took."""
    if isinstance(contestant, PlainLoops):
        return dict(zip(("work", "seconds"), contestant.race(count), strict=True))
    began = time.perf_counter()
    work = contestant.collect(count)
    return {"work": work, "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    name, told = sys.argv[1:]
    serve(lambda: ENTRIES[name].build(Setting(**json.loads(told))), collect)
