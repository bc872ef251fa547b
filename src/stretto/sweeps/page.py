"""The page of a sweep, and its summary: which settings are best, what each setting does, and how the best ones learned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stretto.checkpoint import atomic_write_all
from stretto.evaluation.report.curves import curves
from stretto.evaluation.report.identity_section import identity_section
from stretto.evaluation.report.page import figures, invocations, page, versions
from stretto.evaluation.report.page_elements import facts_list, table, text
from stretto.evaluation.report.plots import Axis, estimate, plot
from stretto.evaluation.report.wording import counted, interval_text, short_number
from stretto.evaluation.statistics.averages import interquartile_mean
from stretto.run_folder import TIMING
from stretto.sweeps.results import Candidate, SweepReport, iqm_intervals
from stretto.sweeps.space import Span, space_of, value_text
from stretto.training.curves import SeedHistory, mean_curve, mean_of_agents, over_runs, series
from stretto.training.page import flat_settings
from stretto.training.run_files import PAGE, SUMMARY, seed_folder
from stretto.training.seeds import history_of

_MOST_CURVES = 5
"""How many candidates have a learning curve."""

_PARTS = 4
"""Into how many parts the values that were drawn from a span are put, for the plot of what it does."""


def write_sweep(report: SweepReport, plan: Mapping[str, Any]) -> None:
    """Write what came of a sweep into its folder: a summary, and a page for people."""
    texts = {SUMMARY: json.dumps(report.summary(), indent=1) + "\n", PAGE: render_sweep(report, plan)}
    atomic_write_all({report.folder / name: words for name, words in texts.items()})


def render_sweep(report: SweepReport, plan: Mapping[str, Any]) -> str:
    """Return the page of a sweep."""
    sections = {
        "Candidates": _candidates(report),
        "Failures": _failures(report),
        "What each setting does": _effects(report, plan["over"]),
        "Learning": _learning(report),
        "Settings": facts_list(dict(flat_settings(plan["config"]))),
        "Identity": identity_section(plan),
    }
    return page("Sweep", _head(report, plan), sections)


def _head(report: SweepReport, plan: Mapping[str, Any]) -> str:
    best = report.best
    if best is None:
        said = "each candidate has a run that failed"
    else:
        settings = ", ".join(f"{key} {value_text(value)}" for key, value in best.settings.items())
        over = f" {interval_text(found)}" if (found := report.intervals.get(best.number)) else ""
        said = f"return {short_number(best.score)}{over} with {settings}"
    sizes = [
        counted(len(report.candidates), "candidate"),
        counted(len(report.seeds), "seed"),
        f"engine {report.engine}",
    ]
    return (
        f"<h1>{text(report.mission)}, {text(plan['config']['learner'])}: {text(said)}</h1>\n"
        f'<p class="soft">{text(" · ".join(sizes))}</p>\n{invocations(plan.get(TIMING))}{versions(plan)}'
    )


def _candidates(report: SweepReport) -> str:
    keys = list(report.candidates[0].settings)
    heads = ["candidate", *keys, "return", "interval", *(f"seed {seed}" for seed in report.seeds)]
    rows = [
        [
            str(one.number),
            *(value_text(one.settings[key]) for key in keys),
            short_number(one.score) if one.score is not None else "failed",
            interval_text(report.intervals.get(one.number)) if one.score is not None else "-",
            *(short_number(one.returns.get(seed)) for seed in report.seeds),
        ]
        for one in report.candidates
    ]
    note = "The best first. A return is the interquartile mean over seeds, in held-out episodes, with its 95% interval."
    return f"<p>{note}</p>" + table(heads, rows)


def _failures(report: SweepReport) -> str:
    rows = [
        [str(one.number), str(seed), why] for one in report.candidates for seed, why in sorted(one.failures.items())
    ]
    if not rows:
        return ""
    note = "A candidate with a run that failed has no score."
    return f"<p>{note}</p>" + table(["candidate", "seed", "what happened"], rows, names=3)


def _effects(report: SweepReport, over: Mapping[str, Any]) -> str:
    good = [one for one in report.candidates if one.score is not None]
    plots = []
    for key, part in space_of(over).items():
        groups = _parts(good, key) if isinstance(part, Span) else _by_value(good, key)
        if len(groups) > 1:
            plots.append(_effect(key, groups))
    note = "All runs with a value of a setting, whatever the others were: the interquartile mean, and its 95% interval."
    return figures(note, plots)


def _by_value(candidates: Sequence[Candidate], key: str) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for one in sorted(candidates, key=lambda one: one.number):
        groups.setdefault(value_text(one.settings[key]), []).extend(one.returns.values())
    return groups


def _parts(candidates: Sequence[Candidate], key: str) -> dict[str, list[float]]:
    """Put candidates into parts of about the same size, by their value of a setting."""
    ordered = sorted(candidates, key=lambda one: (one.settings[key], one.number))
    count = min(_PARTS, len(ordered))
    groups: dict[str, list[float]] = {}
    for part in range(count):
        inside = ordered[len(ordered) * part // count : len(ordered) * (part + 1) // count]
        ends = dict.fromkeys(value_text(one.settings[key]) for one in (inside[0], inside[-1]))
        groups.setdefault(" to ".join(ends), []).extend(value for one in inside for value in one.returns.values())
    return groups


def _effect(key: str, groups: Mapping[str, Sequence[float]]) -> str:
    intervals = iqm_intervals(dict(enumerate(groups.values())))
    means = [interquartile_mean(numbers) for numbers in groups.values()]
    ends = [end for found in intervals.values() for end in found]
    axis = Axis.over([*means, *ends], "return")
    rows = [estimate(axis, name, 0, means[place], intervals.get(place)) for place, name in enumerate(groups)]
    return plot(key, f"The return by {key}", axis, rows)


def _learning(report: SweepReport) -> str:
    good = [one for one in report.candidates if one.score is not None][:_MOST_CURVES]
    learned, held_out = [], []
    for place, one in enumerate(good):
        runs = [_history(report, one, seed) for seed in one.runs]
        evaluated = [series(run.evaluations, lambda row: row["return"]) for run in runs]
        name = f"candidate {one.number}"
        learned.append(replace(over_runs(runs, mean_of_agents, name), colour=place))
        held_out.append(replace(mean_curve(evaluated, name), colour=place))
    steps = "environment steps"
    plots = [
        curves("While learning", "The mean return while agents learned", steps, learned),
        curves("Held-out episodes", "The mean return in held-out episodes", steps, held_out),
    ]
    note = f"The best candidates. Bands are 95% intervals of the mean over {counted(len(report.seeds), 'seed')}."
    return figures(note if len(report.seeds) > 1 else "The best candidates.", plots)


def _history(report: SweepReport, candidate: Candidate, seed: int) -> SeedHistory:
    return history_of(seed_folder(report.folder / f"candidate-{candidate.number}", seed), candidate.runs[seed])
