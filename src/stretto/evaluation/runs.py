"""Evaluations that lie in folders: a report built again, and several of them set side by side."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Self

from stretto.core import SIMULTANEOUS
from stretto.errors import UsageError
from stretto.evaluation.journal import EVALUATION, PARTIAL
from stretto.evaluation.records import EpisodeRecord, read_records
from stretto.evaluation.report.report import EPISODES, SUMMARY, Report
from stretto.evaluation.statistics.scales import references_of
from stretto.evaluation.statistics.summary import Failed
from stretto.identity.record import Record, differences
from stretto.run_folder import IDENTITY, TIMING, changes_told, invoked_now, locked, read_plan

_SAME = {"seed": 0, "steps": None, "turns": SIMULTANEOUS, "action_timeout_ms": None, "overage_ms": 0.0}
"""What must be the same in runs that are compared, and what it is where a plan does not say: episodes depend on it."""

_NOTED = ("native_threads", "devices", "deterministic", "hang_seconds")
"""What may differ, and is told: it can change the last digits, or who is given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """An evaluation in a folder, be it finished or not: what describes it, and the episodes that are there."""

    name: str
    folder: Path
    plan: Mapping[str, Any]
    records: Sequence[EpisodeRecord]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """Return the evaluation that a folder holds.

        Raises:
            UsageError: if there is none, or it is damaged.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UsageError(f"an evaluation lies in a folder, and {folder} is none; name the folder of --out")
        partial = (folder / PARTIAL).exists()
        if not partial and not (folder / EPISODES).exists():
            raise UsageError(f"an evaluation has a file {EPISODES}, and {folder} has none; name the folder of --out")
        records = read_records(folder / (PARTIAL if partial else EPISODES), whole=not partial)
        return cls(folder.name or str(folder), folder, _plan_of(folder, partial=partial), records)

    def identity(self, mission: str) -> Record:
        """Return what a mission was."""
        found: Record = self.plan.get(IDENTITY, {}).get("missions", {}).get(mission, {})
        return found


def _plan_of(folder: Path, *, partial: bool) -> dict[str, Any]:
    """Return the plan that a summary has, which says how long it took, too; or else the one that was begun with."""
    try:
        plan = json.loads((folder / SUMMARY).read_bytes())["plan"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        plan = None
    return plan if isinstance(plan, dict) and not partial else read_plan(folder, EVALUATION)


def rebuild(folder: str | os.PathLike[str]) -> Report:
    """Build the report of an evaluation again from its episodes, write it, and return it; one that is not finished stays so.

    Raises:
        UsageError: if there is no evaluation, it is damaged, or it is going on just now.
    """
    run = Run.read(folder)
    lock = locked(run.folder)
    try:
        run = Run.read(folder)  # as it is now that nobody writes
        plan = run.plan
        labels, scale = plan.get("policies"), plan.get("normalize")
        report = Report.of(
            run.records,
            plan,
            failed=plan.get("failed", "exclude"),
            seed=plan.get("seed", 0),
            missions=plan.get("missions"),
            labels=labels,
            normalize=references_of(scale, labels) if scale and labels else None,
        )
        report.save(run.folder)
    finally:
        os.close(lock)
    return report


def compare(
    folders: Sequence[str | os.PathLike[str]],
    *,
    failed: Failed = "exclude",
    accept_changes: bool = False,
    command: str | None = None,
) -> Report:
    """Return a report on the policies of several evaluations, on the episodes that all of them played.

    A mission that is another one in one of them (its code, its package or its settings) is left out, unless changes are
    accepted. `plan["notes"]` of the report says what was left out, and in what else the evaluations differ. A policy that
    several of them have is called by its name and its folder's. The report shows the time and the `command` line, if given.

    Raises:
        UsageError: if nothing can be compared; the message says why.
    """
    runs = [Run.read(folder) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < max(2, len(runs)):
        raise UsageError(
            f"two or more different evaluations are compared, got {', '.join(map(str, folders)) or 'none'}"
        )
    if len({run.name for run in runs}) < len(runs):
        runs = [replace(run, name=str(run.folder)) for run in runs]
    _check_settings(runs)
    notes = [*_notes(runs)]
    missions, left_out = _shared_missions(runs, accept_changes)
    records = [record for mission in missions for record in _shared_records(runs, mission)]
    if not records:
        raise UsageError(
            f"evaluations are compared on episodes that all of them played, and {', '.join(run.name for run in runs)} "
            f"have none in common: {'; '.join(left_out) or 'their episodes have other numbers or seeds'}"
        )
    plan = {name: runs[0].plan.get(name, usual) for name, usual in _SAME.items()} | {
        "compared": [run.name for run in runs],
        "notes": notes + left_out,
        "failed": failed,
        IDENTITY: _joint_identity(runs, missions),
        TIMING: invoked_now(command),
    }
    labels = [label for run in runs for label in _labels(runs, run).values() if any(r.label == label for r in records)]
    plan |= {"missions": missions, "policies": labels}
    return Report.of(records, plan, failed=failed, seed=plan["seed"], missions=missions, labels=labels)


def _check_settings(runs: Sequence[Run]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for name, usual in _SAME.items():
            one, other = first.plan.get(name, usual), run.plan.get(name, usual)
            if one != other:
                raise UsageError(
                    f"evaluations are compared on the same episodes, and {name} is {one!r} in {first.folder} and {other!r} "
                    f"in {run.folder}; play one of them again with the other's"
                )


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    """Yield what differs between runs and may be compared all the same."""
    first = runs[0]
    for run in runs:
        yield from (f"{run.name}: {one}" for one in changes_told(run.plan))
    for run in runs[1:]:
        here, there = ({name: one.plan.get(name) for name in _NOTED} for one in (first, run))
        for part in (first, run):
            installed = part.plan.get(IDENTITY, {}).get("installation", {})
            (here if part is first else there).update(installed)
        yield from (
            f"{name} is {here.get(name)} in {first.name} and {there.get(name)} in {run.name}"
            for name in dict.fromkeys([*here, *there])
            if here.get(name) != there.get(name)
        )


def _shared_missions(runs: Sequence[Run], accept_changes: bool) -> tuple[list[str], list[str]]:
    """Return the missions that all runs have, and why others are left out."""
    shared, left_out = [], []
    for mission in dict.fromkeys(record.mission for run in runs for record in run.records):
        without = [run.name for run in runs if all(record.mission != mission for record in run.records)]
        changes = [] if without else [*_mission_changes(runs, mission)]
        if without:
            left_out.append(f"{mission} is left out: {', '.join(without)} did not play it")
        elif changes and not accept_changes:
            told = "; ".join(changes)
            left_out.append(f"{mission} is left out, unless --accept-changes, since it is not the same: {told}")
        else:
            shared.append(mission)
            left_out += [f"{mission} is not the same: {change}" for change in changes]
    return shared, left_out


def _mission_changes(runs: Sequence[Run], mission: str) -> Iterator[str]:
    first = runs[0]
    for run in runs:
        if not run.identity(mission):
            yield f"{run.name} does not say what it was"
            return
    for run in runs[1:]:
        for change in differences(first.identity(mission), run.identity(mission)):
            yield f"{change} (first {first.name}, then {run.name})"


def _shared_records(runs: Sequence[Run], mission: str) -> list[EpisodeRecord]:
    """Return the records of the episodes of a mission that all labels of all runs played, with the labels they get."""
    played: dict[str, dict[tuple[int, int], EpisodeRecord]] = {}
    for run in runs:
        labels = _labels(runs, run)
        for record in (one for one in run.records if one.mission == mission):
            label = labels[record.label]
            # One policy that all agents followed has the label's name; those of a mix keep theirs.
            policies = {agent: label if one == record.label else one for agent, one in record.policies.items()}
            played.setdefault(label, {})[record.episode, record.seed] = replace(record, label=label, policies=policies)
    shared = reduce(set.intersection, (set(found) for found in played.values()))
    return [found[key] for found in played.values() for key in sorted(shared)]


def _labels(runs: Sequence[Run], run: Run) -> dict[str, str]:
    """Return what the labels of a run are called beside those of others."""
    counts = Counter(label for one in runs for label in {record.label for record in one.records})
    return {label: _called(label, run, counts) for label in dict.fromkeys(record.label for record in run.records)}


def _called(name: str, run: Run, counts: Mapping[str, int]) -> str:
    return name if counts[name] == 1 else f"{name} ({run.name})"


def _joint_identity(runs: Sequence[Run], missions: Sequence[str]) -> dict[str, Any]:
    """Return what the missions were in the first run, and what each policy was in its own."""
    policies = [run.plan.get(IDENTITY, {}).get("policies", {}) for run in runs]
    counts = Counter(name for one in policies for name in one)
    return {
        "missions": {mission: runs[0].identity(mission) for mission in missions},
        "policies": {
            _called(name, run, counts): record
            for run, one in zip(runs, policies, strict=True)
            for name, record in one.items()
        },
        "installation": runs[0].plan.get(IDENTITY, {}).get("installation", {}),
    }
