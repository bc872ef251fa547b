"""What a Ray cluster costs: evaluations on one, beside plain Ray tasks and beside processes of our own on the same machine.

    python benchmarks/cluster.py [--episodes 200] [--rounds 3]

Everything runs on this machine, on a Ray of its own with one worker a core. Three worlds: episodes of one step that take no
time, episodes of 100 ms and episodes of 1 s (both sleep, so that cores do not matter). `driver` is the CPU time of the caller
for each episode. The last lines say how long it takes until all is as before when a node with two workers is killed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

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


def plain_ray(seconds: float, episodes: int) -> None:
    import ray

    task = ray.remote(num_cpus=1)(episode)
    assert sum(ray.get([task.remote(seconds, number) for number in range(episodes)])) == episodes


def evaluated(seconds: float, episodes: int, **where) -> None:
    report = stretto.evaluate(Sleeps, "random", env_kwargs={"seconds": seconds}, episodes=episodes, **where)
    assert len(report.records) == episodes


def measured(run: Callable[[int], None], few: int, many: int, rounds: int) -> tuple[float, float]:
    """Return seconds and the caller's CPU seconds for an episode, without what a run takes to begin."""
    found = []
    for _ in range(rounds):
        times = []
        for episodes in (few, many):
            began = time.perf_counter(), time.process_time()
            run(episodes)
            times.append((time.perf_counter() - began[0], time.process_time() - began[1]))
        found.append([(long - short) / (many - few) for short, long in zip(*times, strict=True)])
    return tuple(statistics.median(one) for one in zip(*found, strict=True))


def compare(cluster: stretto.Cluster, episodes: int, rounds: int, workers: int) -> None:
    print("| episode | way | episodes/s | driver, ms an episode |\n|---|---|---|---|")
    for seconds, count in ((0.0, episodes), (0.1, episodes // 4), (1.0, max(4 * workers, episodes // 20))):
        ways = {
            "stretto, cluster": lambda n, s=seconds: evaluated(s, n, cluster=cluster),
            "stretto, --jobs": lambda n, s=seconds: evaluated(s, n, jobs=workers),
            "plain Ray tasks": lambda n, s=seconds: plain_ray(s, n),
        }
        for name, run in ways.items():
            if name == "plain Ray tasks":
                cluster.release()  # they need its cores
            run(workers)
            took, cpu = measured(run, workers, workers + count // workers * workers, rounds)
            print(f"| {seconds * 1000:g} ms | {name} | {1 / took:.1f} | {cpu * 1000:.2f} |", flush=True)


def bytes_a_second(cluster: stretto.Cluster, megabytes: int = 8, calls: int = 10) -> None:
    with stretto.make_vec(Sleeps, 1, env_kwargs={"seconds": 0.0}, backend="ray", workers=1) as envs:
        envs.reset(seed=0)
        data = np.zeros(megabytes << 17, np.float64)
        began = time.perf_counter()
        for _ in range(calls):
            envs.map(lambda env: data)
        took = time.perf_counter() - began
    print(f"\nThere and back: {2 * calls * megabytes / took:.0f} MB/s, in messages of {megabytes} MB.")


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

                evaluated(0.1, 160, cluster=cluster, on_episode=heard)
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
    parser.add_argument("--parts", default="compare,bytes,recover")
    given = parser.parse_args()
    workers = len(os.sched_getaffinity(0))
    if {"compare", "bytes"} & set(given.parts.split(",")):
        with stretto.cluster("local", cpus=workers) as cluster:
            if "compare" in given.parts:
                compare(cluster, given.episodes, given.rounds, workers)
            if "bytes" in given.parts:
                bytes_a_second(cluster)
    if "recover" in given.parts:
        recover(given.rounds)


if __name__ == "__main__":
    main()
