"""Memory of training: 32 agents with DQN and buffers of 100,000 steps each; and whether anything grows meanwhile.

    python benchmarks/training_memory.py [--agents 32] [--steps 100000]
    python benchmarks/training_memory.py --soak 10

Each agent sees 8 numbers. The buffers are filled; then the memory of the run is compared with that of one whose buffers
hold next to nothing, and with the size of what was seen, done and paid. Each runs in processes of its own. The soak trains
in worker processes, with some rest after each interval, and exits with 1 if memory, descriptors or threads grow. The first
third of its time does not count: until then the last 5,000 steps, with which worlds are recovered, fill their room.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from machine import describe
from memory import used_bytes
from walkers import Walkers

import stretto

ENVS, ROWS, ROWS_BETWEEN = 16, 250, 16
STEP_BYTES = 8 * 4 + 8 + 4 + 2
"""What one agent sees (8 of float32), does (int64) and is paid (float32) in a step, and two flags."""

MOST_KILOBYTES = 2.0
"""How much the caller may grow in an interval. A share of what it holds, as in soak.py, would hide slow growth."""


def filled(agents: int, steps: int, buffer: int) -> dict[str, float]:
    """Fill the buffers of all agents, with a few updates; return what is held then, in MB."""
    dqn = {"rows": ROWS, "updates": 1, "buffer": buffer, "learning_starts": ROWS}
    held: dict[str, float] = {}

    def look(interval: Any) -> None:
        if interval.steps >= steps:
            held.update(resident(), all=used_bytes() / 1e6)

    stretto.train(
        partial(Walkers, agents),
        "dqn",
        steps=steps,
        num_envs=ENVS,
        backend="serial",
        config={"dqn": dqn, "learner_set": "processes"},
        on_interval=look,
    )
    return held


def resident() -> dict[str, float]:
    """Return the resident memory of this process and the part of it that is shared memory, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(lines[key].split()[0]) / 1e3 for name, key in (("rss", "VmRSS"), ("shared", "RssShmem"))}


def compare(agents: int, steps: int) -> None:
    """Print what full buffers take, beside the size of the data."""
    found = {}
    for buffer in (ENVS * ROWS * 2, steps):
        command = [sys.executable, __file__, "--task", json.dumps([agents, steps, buffer])]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[buffer] = json.loads(output.splitlines()[-1])
    small, full = found.values()
    least, data = next(iter(found)), agents * STEP_BYTES / 1e6
    print(f"{agents} agents\n")
    print("| steps kept of each | the data, MB | shared memory, MB | the caller's RSS, MB | all processes (PSS), MB |")
    print("|---:|---:|---:|---:|---:|")
    for buffer, held in ((least, small), (steps, full)):
        print(f"| {buffer:,} | {data * buffer:.1f} | {held['shared']:.1f} | {held['rss']:.1f} | {held['all']:.1f} |")
    further = (full["all"] - small["all"]) / (steps - least)
    print(f"\nA further step of all agents takes {further / data:.2f} times its data.")


class Over(Exception):
    """The time of the soak is over."""


def soak(minutes: float) -> int:
    """Train, and say whether anything grows."""
    from soak import SAMPLES, Held, judge

    from stretto.workers.launcher import launcher

    began, samples = time.monotonic(), []
    print(Held.HEAD)

    def look(interval: Any) -> None:
        time.sleep(0.5)  # others use the machine, too
        if time.monotonic() > began + 60 * minutes:
            raise Over
        if time.monotonic() > began + 60 * minutes * len(samples) / SAMPLES:
            pids = [child.pid for child in psutil.Process(launcher().pid).children(recursive=True)]
            samples.append(Held.now(began, pids, interval.steps, 0))
            print(samples[-1], flush=True)

    dqn = {"rows": ROWS_BETWEEN, "updates": 4, "buffer": 2_000, "learning_starts": 500}
    with contextlib.suppress(Over):
        stretto.train(
            partial(Walkers, 32),
            "dqn",
            steps=10**12,
            num_envs=ENVS,
            backend="process",
            workers=2,
            isolate=True,
            config={"dqn": dqn, "learner_set": "processes"},
            on_interval=look,
        )
    failed = judge(samples)
    late = samples[len(samples) // 3 :]
    intervals = (late[-1].steps - late[0].steps) / (ENVS * ROWS_BETWEEN)
    grown = 1e3 * (late[-1].caller - late[0].caller) / intervals
    print(f"the caller grows by {grown:.1f} kB an interval; the bar is {MOST_KILOBYTES:g}")
    return failed or int(grown > MOST_KILOBYTES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        print(json.dumps(filled(*json.loads(given.task))))
    elif given.soak:
        sys.exit(soak(given.soak))
    else:
        print(describe("stretto", "torch", "numpy"), "\n")
        compare(given.agents, given.steps)


if __name__ == "__main__":
    main()
