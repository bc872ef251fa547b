"""Speculative turns equal sequential ones, to the bit: on every mission of Foundry, in every backend, and after kills.

    python benchmarks/turns_equal.py [--missions foundry_1 ...] [--steps 240] [--kills 4]

Three stochastic policies with a memory: agents that choose alone, agents that choose together (`step_batch`), and a block.
Each is evaluated with every strategy, in this process and in two workers, and collected with on every backend. Then both
are done while workers are killed (SIGKILL) at random moments. Compared are digests of every step, and of every rollout, with
those of sequential turns in one thread. Needs a checkout (it uses tests/). Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import stretto
from tests.backends import OPTIONS
from tests.collection.test_turns import POLICIES as COLLECTED
from tests.evaluation.test_lost_processes import killing
from tests.evaluation.test_turns import MISSIONS, POLICIES, steps_of

STRATEGIES = "sequential", "batched", "threads", "processes"


def evaluated(mission: str, policy: str, steps: int, kills: int) -> tuple[int, int, int, float]:
    """Return in how many ways an evaluation was computed and in how many it differed, kills, and conflicts a turn."""
    expected = steps_of(mission, POLICIES[policy], "sequential", steps=steps)[:2]
    ways, differed, asked = 0, 0, [0, 0]
    for strategy in STRATEGIES:
        for jobs in (0, 2):
            *found, counts = steps_of(
                mission, POLICIES[policy], "speculative", steps=steps, strategy=strategy, jobs=jobs
            )
            ways, differed = ways + 1, differed + (tuple(found) != expected)
            asked = [asked[i] + sum(one[name] for one in counts) for i, name in enumerate(("conflicts", "turns"))]
    with killing(steps, kills) as killed:
        found_after = steps_of(mission, POLICIES[policy], "speculative", steps=steps, jobs=2, strategy="processes")[:2]
    return ways + 1, differed + (found_after != expected), len(killed), asked[0] / max(1, asked[1])


def collected(mission: str, policy: str, steps: int, kills: int) -> tuple[int, int, int]:
    """Return the same of a collection, without conflicts."""
    given: dict[str, Any] = {"seed": 4, "max_steps": steps, "check_reuse": False, "wait": "lockstep"}

    def digest(turns: str, **options: Any) -> str:
        found: str = stretto.collect(mission, COLLECTED[policy], 4, turns=turns, **given, **options).digest()
        return found

    expected = digest("sequential", num_envs=1, backend="serial")
    differed = sum(digest("speculative", num_envs=3, **options) != expected for options in OPTIONS.values())
    with killing(steps, kills) as killed:
        after = digest("speculative", num_envs=3, **OPTIONS["process-isolated"], max_restarts=100)
    return len(OPTIONS) + 1, differed + (after != expected), len(killed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missions", nargs="+", choices=MISSIONS, default=MISSIONS)
    parser.add_argument("--steps", type=int, default=240, help="acts of an episode (default: 240)")
    parser.add_argument("--kills", type=int, default=4, help="at most so many in each storm (default: 4)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| mission | policy | conflicts a turn | ways to compute it | kills | differed | seconds |")
    print("|---|---|---:|---:|---:|---:|---:|")
    total = 0
    for mission in options.missions:
        for policy in POLICIES:
            began = time.monotonic()
            ways, differed, kills, conflicts = evaluated(mission, policy, options.steps, options.kills)
            more, also, deaths = collected(mission, policy, options.steps, options.kills)
            total += differed + also
            told = [f"{conflicts:.1f}", ways + more, kills + deaths, differed + also, f"{time.monotonic() - began:.0f}"]
            print(f"| {mission} | {policy} | {' | '.join(map(str, told))} |", flush=True)
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
