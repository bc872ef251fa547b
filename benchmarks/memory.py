"""Memory of 1,000 CartPole environments on `process` with 2 workers, over that of a plain list of them.

Run it with: python benchmarks/memory.py [NUM_ENVS]
Shared pages are counted once, by giving each process its proportion of them (PSS; where the system does not tell it,
the pages that are a process's own, USS). Each figure is taken in a fresh process and in all that it started.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import psutil
from machine import describe

STEPS = 50
ROUNDS = 3


def used_bytes() -> int:
    """Return the memory of this process and all that it started."""
    gc.collect()
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        info: Any = process.memory_full_info()
        total += getattr(info, "pss", 0) or info.uss
    return total


def plain(num_envs: int) -> int:
    """Return what a plain list takes, with the batch that it fills."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(num_envs)]
    batch = np.zeros((num_envs, 4), np.float32)
    for i, env in enumerate(envs):
        batch[i] = env.reset(seed=i)[0]
    for _ in range(STEPS):
        for i, env in enumerate(envs):
            batch[i], _, terminated, truncated, _ = env.step(i & 1)
            if terminated or truncated:
                batch[i] = env.reset()[0]
    return used_bytes()


def process(num_envs: int) -> int:
    """Return what they take on two workers, one of which is the caller."""
    import stretto

    with stretto.make_vec("CartPole-v1", num_envs, backend="process", workers=min(2, num_envs)) as envs:
        envs.reset(seed=0)
        actions = np.arange(num_envs) & 1
        for _ in range(STEPS):
            envs.step(actions)
        return used_bytes()


def in_fresh_process(kind: str, num_envs: int) -> int:
    """Return the least of some measurements: the rest is what happened to be in the way."""
    command = [sys.executable, __file__, kind, str(num_envs)]
    return min(
        int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout) for _ in range(ROUNDS)
    )


def main(num_envs: int = 1000) -> None:
    """Measure both at this number and at few, to tell what each environment takes from what they all share."""
    few = max(2, num_envs // 10)
    sizes = {(kind, count): in_fresh_process(kind, count) for kind in ("plain", "process") for count in (few, num_envs)}
    each = {kind: (sizes[kind, num_envs] - sizes[kind, few]) / (num_envs - few) for kind in ("plain", "process")}
    print(describe("stretto", "gymnasium", "numpy"), "\n")
    print(f"{num_envs:,} CartPole environments    all, MB   a further one, bytes")
    print(f"a plain list                {sizes['plain', num_envs] / 1e6:12.1f} {each['plain']:22,.0f}")
    print(f"process, 2 workers          {sizes['process', num_envs] / 1e6:12.1f} {each['process']:22,.0f}")
    over = (sizes["process", num_envs] - sizes["plain", num_envs]) / num_envs
    further = each["process"] - each["plain"]
    once = (over - further) * num_envs / 1e6
    print(f"\nover the plain list: {over:,.0f} bytes an environment, with all processes counted, of which")
    print(f"  {further:,.0f} for the environment itself (what a further one adds), and")
    print(f"  {over - further:,.0f} are its share of the {once:.0f} MB that launcher and worker always take")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["plain", count]:
            print(plain(int(count)))
        case ["process", count]:
            print(process(int(count)))
        case [count]:
            main(int(count))
        case _:
            main()
