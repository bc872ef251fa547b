"""sweep: training runs with many settings and seeds on one budget of cores; the same answer at any width."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import format_exception
from typing import Any

from stretto.budget import CpuBudget
from stretto.checkpoint import atomic_write
from stretto.collection.description import OF_WORLD, mission_of
from stretto.errors import ResourceError, UsageError, WorkerDied
from stretto.missions.mission import Mission
from stretto.run_folder import IDENTITY, TIMING, RunFolder, RunKind, identity_of, invoked_now
from stretto.sweeps.engines import Engine, engine_of, settled_engine
from stretto.sweeps.page import write_sweep
from stretto.sweeps.progress import SweepProgress
from stretto.sweeps.results import Candidate, SweepReport
from stretto.sweeps.space import Point, nested, plain_space, point_text, space_of
from stretto.training.config import config_of, plain, read_config
from stretto.training.learners.own_settings import learner_text
from stretto.training.run_files import SUMMARY, seed_folder
from stretto.training.seeds import check_seeds
from stretto.training.settings import Config
from stretto.training.several import RunTask, SeveralRuns

SWEEP = RunKind("sweep", "a sweep", "candidates", "sweep")

_FAILED = "failed.json"
"""In the folder of a run that ended with an exception: what it was. It would come again, so the run is not tried again."""


def sweep(  # noqa: PLR0913  every choice has a name and a default here
    world: Any,
    over: Mapping[str, Any],
    out: str | Path,
    *,
    learner: str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    candidates: int | None = None,
    engine: str | None = None,
    round_size: int = 4,
    seed: int = 0,
    config: Mapping[str, Any] | str | Path | None = None,
    steps: int | None = None,
    resume: bool = False,
    accept_changes: bool = False,
    jobs: int | None = None,
    budget: CpuBudget | None = None,
    command: str | None = None,
    progress: SweepProgress | None = None,
    **arguments: Any,
) -> SweepReport:
    """Train with many settings, each with several seeds, and return which are best.

    A candidate is a value of each setting that is varied. Its score is the interquartile mean of the returns of its seeds, in
    held-out episodes at the end. Results do not depend on how many runs are done at once.

    Args:
        world: as of `train`.
        over: what is varied: of each key of the configuration a list of values, or a span:
            `{"low": 1e-4, "high": 1e-2, "log": True}`.
        out: a new folder.
        learner, config, steps: as of `train`, for all candidates.
        seeds: of the runs of each candidate.
        candidates: how many to try; a grid has all combinations.
        engine: `grid`, `random` or `optuna`; by default a grid where all settings have values and `candidates` is not given.
        round_size: how many candidates optuna proposes at once. It decides which ones are tried.
        seed: of what the engine draws.
        resume: go on with the sweep in the folder; there may be more candidates.
        accept_changes: go on all the same if code or versions have changed.
        jobs: how many runs are done at once, by default as many as there are cores; 0 does them in the caller.
        budget: the cores to draw on, which runs share.
        command: the command line that asked for this, for the report to show.
        progress: is told how far it is, for others to look at meanwhile.
        arguments: as of `train`, for all runs.
    """
    check_seeds(seeds)
    if round_size < 1:
        raise UsageError(f"a round has one candidate or more, got round_size={round_size}; the default is 4")
    space = space_of(over)
    chosen, count = settled_engine(engine, space, candidates)
    mission = mission_of(world, arguments)
    layer = read_config(Path(config)) if isinstance(config, (str, Path)) else config or {}
    given = {"learner": learner_text(learner), "steps": steps}
    task = _Sweep(
        mission,
        (layer, {name: value for name, value in given.items() if value is not None}),
        tuple(seeds),
        {name: value for name, value in arguments.items() if name not in OF_WORLD},
    )
    plan = {
        "world": mission.name,
        "config": plain(task.settings({})),
        "over": plain_space(space),
        "seeds": list(seeds),
        "engine": chosen,
        "engine_seed": seed,
        "candidates": count,
        IDENTITY: identity_of([mission], []),
        **({"round_size": round_size} if chosen == "optuna" else {}),
        TIMING: invoked_now(command),
    }
    proposals, at_once = engine_of(chosen, space, seed), round_size if chosen == "optuna" else count
    task.check([] if chosen == "optuna" else proposals.propose(range(count)))
    folder = _opened(out, plan, resume=resume, accept_changes=accept_changes)
    try:
        progress = progress or SweepProgress()
        progress.begin(folder.path, count * len(seeds), task.settings({}).steps)
        same, most = {**task.arguments, "accept_changes": accept_changes}, min(at_once, count) * len(seeds)
        with SeveralRuns(mission, same, most=most, jobs=jobs, budget=budget) as runs:
            tried = task.try_all(folder.path, proposals, count, at_once, runs, progress)
        report = SweepReport.of(mission.name, chosen, list(seeds), tried, folder.path)
        write_sweep(report, folder.plan)
    finally:
        folder.close()
    return report


def _opened(out: str | Path, plan: Mapping[str, Any], *, resume: bool, accept_changes: bool) -> RunFolder:
    folder = RunFolder(out, plan, SWEEP)
    with folder.opening():
        if resume:
            folder.check_same()
            folder.take_changes(len(list(Path(out).glob("candidate-*"))), accepted=accept_changes)
        else:
            folder.check_new(begun=False)
        folder.begin()
    return folder


def candidate_folder(folder: Path, number: int) -> Path:
    """Return where the runs of a candidate lie in the folder of a sweep."""
    return folder / f"candidate-{number}"


@dataclass(frozen=True)
class _Sweep:
    """What all candidates have in common."""

    mission: Mission
    layers: Sequence[Mapping[str, Any]]
    seeds: Sequence[int]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, point: Point) -> Config:
        """Return the configuration of a candidate; it is evaluated at the end, if not more often."""
        found = config_of(self.mission.name, *self.layers, nested(point))
        if found.evaluation.every is None:
            found = replace(found, evaluation=replace(found.evaluation, every=found.steps))
        return found

    def check(self, points: Sequence[Point]) -> None:
        """Refuse candidates that cannot be trained, before any is."""
        for number, point in enumerate(points):
            try:
                self.settings(point)
            except UsageError as error:
                raise UsageError(f"candidate {number} ({point_text(point)}) cannot be trained: {error}") from None

    def try_all(
        self, folder: Path, engine: Engine, count: int, at_once: int, runs: SeveralRuns, progress: SweepProgress
    ) -> list[Candidate]:
        """Train with all candidates, round by round; what a folder has already is not done again."""
        tried: list[Candidate] = []
        for first in range(0, count, at_once):
            numbers = range(first, min(count, first + at_once))
            points = dict(zip(numbers, engine.propose(numbers), strict=True))
            tried += self._try(folder, points, runs, progress)
            engine.hear({one.number: one.score for one in tried[first:]})
        return tried

    def _try(
        self, folder: Path, points: Mapping[int, Point], runs: SeveralRuns, progress: SweepProgress
    ) -> list[Candidate]:
        outcomes: dict[int, dict[int, Mapping[str, Any] | str]] = {number: {} for number in points}
        places: dict[Path, tuple[int, int]] = {}

        def note(path: Path, outcome: Mapping[str, Any] | str) -> None:
            number, seed = places[path]
            outcomes[number][seed] = outcome
            if len(outcomes[number]) == len(self.seeds):
                progress.add(Candidate.of(number, points[number], outcomes[number]))
            progress.ended(path)

        def ended(task: RunTask, outcome: Mapping[str, Any] | Exception) -> None:
            note(task.folder, _kept(task.folder, outcome) if isinstance(outcome, Exception) else outcome)

        tasks = []
        for number, point in points.items():
            for seed in self.seeds:
                path = seed_folder(candidate_folder(folder, number), seed)
                places[path] = number, seed
                known = _known(path)
                if known is not None:
                    note(path, known)
                    continue
                name, settings = f"candidate {number}, seed {seed}", {"config": plain(self.settings(point))}
                tasks.append(RunTask(name, seed, path, settings))
        progress.wait_for({task.folder: task.name for task in tasks})
        runs.do(tasks, ended)
        return [Candidate.of(number, points[number], outcomes[number]) for number in points]


def _known(folder: Path) -> Mapping[str, Any] | str | None:
    """Return the summary of a run that is over, or why it failed."""
    with suppress(OSError, ValueError):
        found: Mapping[str, Any] = json.loads((folder / SUMMARY).read_bytes())
        return found
    with suppress(OSError, ValueError):
        return str(json.loads((folder / _FAILED).read_bytes())["reason"])
    return None


def _kept(folder: Path, error: Exception) -> str:
    """Return in a line what ended a run. It is kept, unless it was no fault of the run's."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    if isinstance(error, (UsageError, ResourceError)):
        raise error
    if not isinstance(error, WorkerDied):
        folder.mkdir(parents=True, exist_ok=True)
        told = {"reason": reason, "traceback": "".join(format_exception(error))}
        atomic_write(folder / _FAILED, json.dumps(told, indent=1) + "\n")
    return reason
