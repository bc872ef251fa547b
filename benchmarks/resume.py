"""Training runs that are killed (SIGKILL) at random moments: each goes on from its checkpoints to the same weights.

    python benchmarks/resume.py --kills 50

Each run is a process of its own. It is killed at a moment drawn from the whole length of an undisturbed run, and gone on
with; some are killed again while they go on. Checkpoints are written after every interval, so that many kills meet one that
is being written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stretto.run_checkpoints import all_checkpoints
from stretto.training.train import train

_PPO = {"rows": 32, "batch": 32, "epochs": 2, "network": {"widths": [32]}}
_MEMORY = {"widths": [16], "memory": "gru", "memory_width": 16}
_OFTEN = {"preset": None, "checkpoint": {"every": 1}}

RUNS: dict[str, dict[str, Any]] = {
    "ppo, CartPole": {"world": "CartPole-v1", "steps": 4_000, "config": {**_OFTEN, "ppo": _PPO}, "backend": "serial"},
    "ppo with a memory": {
        "world": "CartPole-v1",
        "steps": 3_000,
        "config": {**_OFTEN, "ppo": {**_PPO, "sequence": 16, "network": _MEMORY}},
        "backend": "serial",
    },
    "ppo, Foundry with 4 agents, 2 workers": {
        "world": "foundry_1",
        "steps": 1_000,
        "config": {**_OFTEN, "ppo": _PPO},
        "backend": "process",
        "workers": 2,
    },
    "ppo, pipelined, in processes": {
        "world": "CartPole-v1",
        "steps": 4_000,
        "config": {**_OFTEN, "ppo": _PPO, "loop": "pipelined", "learner_set": "processes"},
        "backend": "process",
        "workers": 2,
    },
    "dqn with priorities, pipelined": {
        "world": "CartPole-v1",
        "learner": "dqn",
        "steps": 2_000,
        "config": {
            **_OFTEN,
            "dqn": {"rows": 32, "buffer": 1_000, "learning_starts": 200, "priority_exponent": 0.6, "n_steps": 3},
            "loop": "pipelined",
        },
        "backend": "serial",
    },
    "dqn with priorities": {
        "world": "CartPole-v1",
        "learner": "dqn",
        "steps": 2_000,
        "config": {
            **_OFTEN,
            "dqn": {"rows": 32, "buffer": 1_000, "learning_starts": 200, "priority_exponent": 0.6, "n_steps": 3},
        },
        "backend": "serial",
    },
}

_AGAIN = 0.3
"""How likely a run that goes on is killed once more."""


def child(name: str, out: Path, told: Connection) -> None:
    """Do a run, or go on with it; tell when it begins, and its weights at the end."""
    warnings.simplefilter("ignore")
    settings = dict(RUNS[name])
    told.send(None)
    begun = (out / "plan.json").exists()
    report = train(settings.pop("world"), num_envs=4, seed=1, out=out, resume=begun, **settings)
    told.send({agent: one.weights for agent, one in report.agents.items()})


def run(name: str, out: Path, kill_after: float | None) -> tuple[Any, float]:
    """Return the weights of a run, or `None` if it was killed, and how long it took."""
    context = multiprocessing.get_context("fork")  # torch is imported once, here
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(name, out, theirs))
    process.start()
    theirs.close()
    mine.recv()
    began = time.monotonic()
    if kill_after is not None and not mine.poll(kill_after):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    try:
        weights = mine.recv()
    except EOFError:
        weights = None
    process.join()
    if weights is None and kill_after is None:
        raise SystemExit(f"a run of {name} failed in {out}")
    return weights, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    draw, kills = random.Random(options.seed), 0
    found: dict[str, Counter[str]] = {name: Counter() for name in options.runs}
    with tempfile.TemporaryDirectory() as folder:
        wanted = {name: run(name, Path(folder) / f"whole {number}", None) for number, name in enumerate(found)}
        while kills < options.kills:
            name = list(found)[sum(counts["runs"] for counts in found.values()) % len(found)]
            (weights, seconds), out, counts = wanted[name], Path(folder) / "run", found[name]
            counts["runs"] += 1
            again = True
            while again and kills < options.kills:
                result, _ = run(name, out, draw.uniform(0, seconds))
                if result is None:
                    kills += 1
                    counts["kills"] += 1
                    counts["before the first checkpoint"] += not all_checkpoints(out)
                    counts["while one was written"] += (out / "checkpoints/.writing").exists()
                again = draw.random() < _AGAIN
            result, _ = run(name, out, None)
            counts["equal weights"] += result == weights
            print(
                f"{kills} kills, {name}: {'equal' if result == weights else 'OTHER'} weights",
                file=sys.stderr,
                flush=True,
            )
            shutil.rmtree(out)
    columns = "runs", "kills", "before the first checkpoint", "while one was written", "equal weights"
    print(f"| run | seconds undisturbed | {' | '.join(columns)} |")
    print("|---" * (2 + len(columns)) + "|")
    for name, counts in found.items():
        print(f"| {name} | {wanted[name][1]:.1f} | {' | '.join(str(counts[column]) for column in columns)} |")
    if any(counts["equal weights"] < counts["runs"] for counts in found.values()):
        raise SystemExit("some runs did not end with the weights of an undisturbed one")


if __name__ == "__main__":
    main()
