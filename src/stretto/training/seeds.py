"""Runs that differ in their seed alone, in processes of their own where cores allow, and what came of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.budget import CpuBudget
from stretto.errors import UsageError
from stretto.evaluation.statistics.averages import mean
from stretto.run_folder import PLAN
from stretto.training.curves import SeedHistory, final_return
from stretto.training.history import History
from stretto.training.run_files import read_rows, seed_folder, write_results
from stretto.training.several import RunTask, SeveralRuns

__calls_user_code__ = True


def train_seeds(
    world: Any,
    seeds: Sequence[int],
    out: str | Path,
    *,
    resume: bool = False,
    jobs: int | None = None,
    budget: CpuBudget | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Do a run for each seed, and return the summary of all; each lies in a folder of its own within `out`.

    Args:
        world: as of `train`.
        seeds: one or more, all different.
        out: a new folder.
        resume: go on with what was begun in that folder; there may be more seeds.
        jobs: how many runs are done at once, by default as many as there are cores; 0 does them in the caller.
        budget: the cores to draw on, which runs share.
        arguments: as of `train`; each run has the same.
    """
    check_seeds(seeds)
    folder = Path(out)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"runs of several seeds need a new folder, and {folder} has something in it; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[int, Any] = {}

    def ended(task: RunTask, outcome: Mapping[str, Any] | Exception) -> None:
        if isinstance(outcome, Exception):
            raise outcome
        found[task.seed] = outcome

    tasks = [RunTask(f"seed {seed}", seed, seed_folder(folder, seed)) for seed in seeds]
    with SeveralRuns(world, arguments, most=len(tasks), jobs=jobs, budget=budget) as runs:
        runs.do(tasks, ended)
    return _finish(folder, [found[seed] for seed in seeds])


def check_seeds(seeds: Sequence[int]) -> None:
    """Refuse seeds of which there are none, or two equal ones."""
    if not seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"seeds must be one or more, all different, got {list(seeds)}")


def _finish(folder: Path, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write and return what came of all seeds."""
    runs = [history_of(seed_folder(folder, one["seed"]), one) for one in summaries]
    plan = json.loads((seed_folder(folder, runs[0].seed) / PLAN).read_bytes())
    summary = {
        **{name: summaries[0][name] for name in ("mission", "learner")},
        "seeds": [run.seed for run in runs],
        "return": mean([value for run in runs if (value := final_return(run.summary)) is not None]),
        "runs": {str(run.seed): run.summary for run in runs},
    }
    write_results(folder, summary, plan, runs)
    return summary


def history_of(folder: Path, summary: Mapping[str, Any]) -> SeedHistory:
    """Return what is known of the run in a folder."""
    history = History(read_rows(folder))
    return SeedHistory(summary["seed"], history.rows, summary, history.evaluations)
