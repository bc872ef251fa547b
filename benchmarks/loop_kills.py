"""Learners and collectors are killed (SIGKILL) in one training run: its weights are those of an undisturbed one.

    python benchmarks/loop_kills.py --kills 50

Each loop is computed in one thread, by 1 to 4 workers, and by 2 workers while processes are killed at random moments: those
that step worlds, those that learn, and now and then the launcher that starts them. `benchmarks/resume.py` kills the driver.
Needs a checkout (it uses tests/). Exits with 1 if any weights differ.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

import stretto
from stretto.training.sets import LearnerSet
from stretto.workers.launcher import launcher
from tests.faults.killing import Killer

INTERVALS_A_KILL = 1.3
"""An interval in which a learner dies is learned again; kills meet other intervals, too."""

PPO = {"rows": 32, "batch": 64, "epochs": 4, "normalize_observations": True, "normalize_rewards": True}
DQN = {"rows": 32, "buffer": 2_000, "learning_starts": 200, "updates": 16, "priority_exponent": 0.6}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo, sync": ("sync", "ppo", PPO),
    "ppo, pipelined": ("pipelined", "ppo", PPO),
    "dqn, pipelined": ("pipelined", "dqn", DQN),
}


class Workers:
    """All processes that step worlds or learn."""

    @property
    def worker_pids(self) -> list[int]:
        """The processes that can be killed now."""
        try:
            return [child.pid for child in psutil.Process(launcher().pid).children()]
        except psutil.NoSuchProcess:
            return []


def weights(
    run: str, intervals: int, seed: int, on_interval: Callable[[Any], None] = lambda _: None, **options: Any
) -> dict[str, str]:
    """Do a run; return a digest of each agent's weights."""
    loop, learner, settings = RUNS[run]
    config = {"preset": None, "loop": loop, learner: settings, "block": 2, **options.pop("config", {})}
    given: dict[str, Any] = {"num_envs": 6, "seed": seed, "steps": intervals * 6 * 32, "cogs": 4, **options}
    report = stretto.train("foundry_1", learner, config=config, on_interval=on_interval, **given)
    return {agent: one.weights for agent, one in report.agents.items()}


def storm(run: str, kills: int, seed: int) -> tuple[dict[str, str], int, int]:
    """Kill in one run; return its weights, the kills, and how many learners were started anew."""
    learners: set[int] = set()
    finish = LearnerSet.finish

    def noting(self: LearnerSet) -> Any:
        found = finish(self)
        learners.update(self.pids)
        return found

    LearnerSet.finish = noting  # type: ignore[method-assign]
    try:
        with Killer(Workers(), seed, longest_delay=0.3, launcher_share=0.04) as killer:

            def strike(_: Any) -> None:
                if killer.kills < kills:
                    killer.strike_soon()

            where = {"config": {"learner_set": "processes"}, "backend": "process", "workers": 2, "max_restarts": 1_000}
            found = weights(run, int(kills * INTERVALS_A_KILL) + 4, seed, strike, isolate=True, **where)
    finally:
        LearnerSet.finish = finish  # type: ignore[method-assign]
    return found, killer.kills, len(learners)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="in each run (default: 50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", nargs="*", choices=RUNS, default=list(RUNS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    failures = Counter[str]()
    print("| run | intervals | equal over 1 to 4 workers | kills | learner processes | seconds | equal after kills |")
    print("|---|---:|---|---:|---:|---:|---|")
    for run in options.runs:
        intervals, began = int(options.kills * INTERVALS_A_KILL) + 4, time.monotonic()
        wanted = weights(run, intervals, options.seed, config={"parallel": {"enabled": False}})
        few = weights(run, 8, options.seed, config={"parallel": {"enabled": False}})
        widths = [
            weights(run, 8, options.seed, backend="process", workers=count, config={"learner_set": learner_set})
            for count, learner_set in ((1, "stacked"), (2, "processes"), (3, "threads"), (4, "processes"))
        ]
        found, kills, learners = storm(run, options.kills, options.seed)
        same, after = all(one == few for one in widths), found == wanted
        failures[run] += not (same and after and kills >= options.kills)
        seconds = time.monotonic() - began
        told = ["yes" if one else "**no**" for one in (same, after)]
        print(f"| {run} | {intervals} | {told[0]} | {kills} | {learners} | {seconds:.0f} | {told[1]} |", flush=True)
    return 1 if failures.total() else 0


if __name__ == "__main__":
    sys.exit(main())
