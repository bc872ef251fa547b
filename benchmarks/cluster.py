"""What a Ray cluster costs: evaluations on one, beside plain Ray tasks and beside processes of our own on the same machine.

    python benchmarks/cluster.py [--episodes 200] [--rounds 3] [--rllib PYTHON] [--parts compare,bytes,recover,train]

Everything runs on this machine, on a Ray of its own with one worker a core. Three worlds: episodes of one step that take no
time, episodes of 100 ms and episodes of 1 s (both sleep, so that cores do not matter). `driver` is the CPU time of the caller
for each episode. RLlib asks its default network; the others act at random. Rounds take turns. Then: a training, and how long
it takes until all is as before when a node with two workers is killed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import as_completed
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

import stretto


class Sleeps(gymnasium.Env):
    """An episode of one step, which takes so many seconds."""

    observation_space = spaces.Box(0, 1, (4,))
    action_space = spaces.Discrete(2)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action):
        if self._seconds:
            time.sleep(self._seconds)
        return np.zeros(4, np.float32), 1.0, True, False, {}


def episode(seconds: float, number: int) -> float:
    """Play an episode as a plain Ray task does it: make the world, and step it with random actions."""
    env = Sleeps(seconds)
    generator = np.random.default_rng(number)
    env.reset(seed=number)
    return float(env.step(int(generator.integers(2)))[1])


Heard = Callable[[object], None]


def plain_ray(seconds: float, episodes: int, heard: Heard) -> None:
    import ray

    task = ray.remote(num_cpus=1)(episode)
    for answer in as_completed([task.remote(seconds, number).future() for number in range(episodes)]):
        heard(answer.result())


def evaluated(seconds: float, episodes: int, heard: Heard, **where) -> None:
    options = {"env_kwargs": {"seconds": seconds}, "episodes": episodes, "on_episode": heard}
    assert len(stretto.evaluate(Sleeps, "random", **options, **where).records) == episodes


class RLlib:
    """Evaluation workers of RLlib, in another Python; use as a context manager."""

    def __init__(self, python: str, workers: int) -> None:
        command = [python, str(Path(__file__).with_name("cluster_rllib.py")), str(workers)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def seconds(self, seconds: float, episodes: int) -> float:
        """Return how long so many episodes take workers that are there."""
        self._process.stdin.write(f"{seconds} {episodes}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait(60)


def measured(run: Callable[[Heard], None], first: int) -> tuple[float, float]:
    """Return seconds and the caller's CPU seconds for an episode, from the end of the first ones on: all works then."""
    ends: list[tuple[float, float]] = []
    run(lambda _: ends.append((time.perf_counter(), time.process_time())))
    count = len(ends) - first
    return tuple((last - early) / count for early, last in zip(ends[first - 1], ends[-1], strict=True))


def compare(cluster: stretto.Cluster, episodes: int, rounds: int, workers: int, rllib: RLlib | None) -> None:
    """Measure all ways in turn, round by round; print medians, quartiles, and ratios within rounds."""
    print("| episode | way | episodes/s | quartiles | of plain Ray | of --jobs | driver, ms an episode |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for seconds, count in ((0.0, 10 * episodes), (0.1, episodes // 4), (1.0, 6 * workers)):
        many = workers + count // workers * workers
        ways = {
            "stretto, cluster": partial(evaluated, seconds, many, cluster=cluster),
            "stretto, --jobs": partial(evaluated, seconds, many, jobs=workers),
            "plain Ray tasks": partial(plain_ray, seconds, many),
        }
        found: dict[str, list[tuple[float, float | None]]] = {}
        for number in range(rounds):
            for name, run in ways.items():
                if name == "plain Ray tasks":
                    cluster.release()  # they need its cores
                found.setdefault(name, []).append(measured(run, max(workers, many // 4)))
            if rllib is not None:
                if not number:
                    rllib.seconds(seconds, many)  # its workers start
                found.setdefault("RLlib", []).append((rllib.seconds(seconds, many) / many, None))
        for name, all_of in found.items():
            speeds = [1 / took for took, _ in all_of]
            low, middle, high = statistics.quantiles(speeds, n=4) if len(speeds) > 1 else speeds * 3
            plain, jobs = (
                statistics.median(theirs[0] / mine[0] for mine, theirs in zip(all_of, found[other], strict=True))
                for other in ("plain Ray tasks", "stretto, --jobs")
            )
            cpu = [cpu for _, cpu in all_of if cpu is not None]
            told = f"{statistics.median(cpu) * 1000:.2f}" if cpu else "-"
            shown = f"{middle:.1f} | {low:.1f} to {high:.1f} | {plain:.2f} | {jobs:.2f} | {told}"
            print(f"| {seconds * 1000:g} ms | {name} | {shown} |", flush=True)


def _nothing(env: object) -> None:
    pass


def bytes_a_second(cluster: stretto.Cluster, megabytes: int = 8, calls: int = 10) -> None:
    with stretto.make_vec(Sleeps, 1, env_kwargs={"seconds": 0.0}, backend="ray", workers=1) as envs:
        envs.reset(seed=0)
        data = np.zeros(megabytes << 17, np.float64)
        began = time.perf_counter()
        for _ in range(calls):
            envs.map(lambda env: data)
        took = time.perf_counter() - began
        short, before = 500, (time.perf_counter(), time.process_time())
        for _ in range(short):
            envs.map(_nothing)
        after = time.perf_counter(), time.process_time()
        each = [(now - then) / short * 1000 for now, then in zip(after, before, strict=True)]
    print(f"\nThere and back: {2 * calls * megabytes / took:.0f} MB/s, in messages of {megabytes} MB.")
    print(f"A call and its answer: {each[0]:.2f} ms, of which the caller computes {each[1]:.2f} ms.", flush=True)


def trained(intervals: int, **where) -> tuple[float, float]:
    """Train so many intervals; return the seconds of each but the first, and the caller's CPU seconds."""
    ends = [(time.perf_counter(), time.process_time())]

    def heard(_: object) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    config = {"learner": "ppo", "ppo": {"rows": 64}}
    stretto.train("foundry_1", cogs=8, steps=intervals * 64 * 8, num_envs=8, config=config, on_interval=heard, **where)
    (first, cpu), (last, cpu_then) = ends[1], ends[-1]
    return (last - first) / (len(ends) - 2), (cpu_then - cpu) / (len(ends) - 2)


def train(rounds: int, workers: int, intervals: int = 12) -> None:
    """Train 8 agents in 8 worlds on a cluster of its own, and without; print what an interval takes."""
    ways = {
        "cluster": {"cluster": "local"},
        "one process": {"backend": "serial"},
        f"--jobs {workers}": {"workers": workers},
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, where in ways.items():
            found[name].append(trained(intervals, **where))
    print("\n| training of 8 agents | steps/s | quartiles | caller, CPU ms an interval |\n|---|---|---|---|")
    for name, times in found.items():
        speeds = [64 * 8 / took for took, _ in times]
        low, middle, high = statistics.quantiles(speeds, n=4) if len(speeds) > 1 else speeds * 3
        cpu = statistics.median(cpu for _, cpu in times) * 1000
        print(f"| {name} | {middle:.0f} | {low:.0f} to {high:.0f} | {cpu:.0f} |", flush=True)


def recover(rounds: int) -> None:
    """Kill one of two nodes while episodes of 100 ms are played; say for how long fewer than usual ended."""
    import ray
    from ray.cluster_utils import Cluster

    from stretto.workers.ray_start import loopback_alone

    with loopback_alone():
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        lost = [nodes.add_node(num_cpus=2, include_dashboard=False) for _ in range(2)]
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        found = []
        with stretto.cluster("auto") as cluster:
            for _ in range(rounds):
                ends: list[float] = []
                killed = 0.0

                def heard(_: object, ends=ends) -> None:
                    nonlocal killed
                    ends.append(time.perf_counter())
                    if len(ends) == 40:
                        nodes.remove_node(lost.pop(), allow_graceful=False)
                        killed = time.perf_counter()

                evaluated(0.1, 160, heard, cluster=cluster)
                after = [end for end in ends if end > killed]
                found.append(max(b - a for a, b in zip([killed, *after], after, strict=False)))
                lost.append(nodes.add_node(num_cpus=2, include_dashboard=False))
                cluster.release()
        print(f"\nThe longest time without an episode after a node was killed: {statistics.median(found):.2f} s.")
        ray.shutdown()
        nodes.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", default="compare,bytes,recover,train")
    parser.add_argument("--rllib", metavar="PYTHON", help="a Python that has RLlib")
    given = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    if {"compare", "bytes"} & set(given.parts.split(",")):
        with stretto.cluster("local", cpus=workers) as cluster:
            if "compare" in given.parts:
                with RLlib(given.rllib, workers) if given.rllib else nullcontext() as rllib:
                    compare(cluster, given.episodes, given.rounds, workers, rllib)
            if "bytes" in given.parts:
                bytes_a_second(cluster)
    if "train" in given.parts:
        train(given.rounds, workers)
    if "recover" in given.parts:
        recover(given.rounds)


if __name__ == "__main__":
    main()
