"""The page of a run: what came of it, how agents learned, and what it was made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stretto.evaluation.report.curves import Curve, curves
from stretto.evaluation.report.identity_section import identity_section
from stretto.evaluation.report.page import figures, invocations, page, versions
from stretto.evaluation.report.page_elements import facts_list, table, text
from stretto.evaluation.report.wording import counted, interval_text, short_number
from stretto.evaluation.statistics.averages import Interval
from stretto.run_folder import TIMING
from stretto.training.adaptation import BY_EPISODE, adaptation_section
from stretto.training.curves import Row, SeedHistory, mean_curve, mean_intervals, mean_of_agents, over_runs, series

MOST_AGENTS = 24
"""How many agents have a curve of their own."""

_STEPS = "environment steps"


def render_page(plan: Mapping[str, Any], runs: Sequence[SeedHistory]) -> str:
    """Return the page of one run, or of several that differ in their seed alone."""
    sections = {
        "Agents": _agents(runs),
        "Learning": _learning(runs),
        "Held-out episodes": _held_out(runs),
        **_by_episode(runs),
        "Figures": _metrics(runs),
        "Timing": _timing(runs),
        "Settings": facts_list(dict(flat_settings(plan.get("config", {})))),
        "Identity": identity_section(plan),
    }
    return page("Training", _head(plan, runs), sections)


def _head(plan: Mapping[str, Any], runs: Sequence[SeedHistory]) -> str:
    learner, first = plan["config"]["learner"], runs[0].summary
    sizes = [counted(len(first["agents"]), "agent"), counted(first["steps"], "step")]
    if len(runs) > 1:
        sizes.append(counted(len(runs), "seed"))
    finals = [run.summary["evaluation"]["return"] for run in runs if "evaluation" in run.summary]
    what = "held-out episodes" if finals else "the last episodes of training"
    finals = finals or [value for run in runs if (value := mean_of_agents(run.summary)) is not None]
    score = f"mean return {short_number(float(np.mean(finals)))} in {what}" if finals else "no episode has ended"
    found = _interval(finals)
    over = f", {interval_text(found)} over {len(finals)} seeds" if found else ""
    return (
        f"<h1>{text(plan['world'])}, {text(learner)}: {score}{over}</h1>\n"
        f'<p class="soft">{" · ".join(sizes)}</p>\n{invocations(plan.get(TIMING))}{versions(plan)}'
    )


def _agents(runs: Sequence[SeedHistory]) -> str:
    heads = ["agent", "seed", "return", "updates", "weights"]
    cells = [
        [agent, str(run.seed), short_number(one["return"]), f"{one['updates']:,}", one["weights"][:16]]
        for run in runs
        for agent, one in run.summary["agents"].items()
    ]
    note = "A return is the mean of the last 100 episodes of training. Weights are given by the beginning of their SHA-256."
    stopped = [
        f"<p>{text(agent)} (seed {run.seed}) was stopped in {text(one['stopped'])}</p>"
        for run in runs
        for agent, one in run.summary["agents"].items()
        if "stopped" in one
    ]
    return f"<p>{note}</p>" + table(heads, cells) + "".join(stopped)


def _learning(runs: Sequence[SeedHistory]) -> str:
    agents = list(runs[0].summary["agents"])
    plots = [
        curves(
            "All agents",
            "The mean return of all agents while they learned",
            _STEPS,
            [over_runs(runs, mean_of_agents, "mean")],
        )
    ]
    if len(agents) > 1:
        for agent in agents[:MOST_AGENTS]:
            line = over_runs(runs, lambda row, agent=agent: row["agents"][agent]["return"], agent)  # type: ignore[misc]
            plots.append(curves(agent, f"The return of {agent} while it learned", _STEPS, [line]))
    note = "The mean return of the last 100 episodes, while agents explore."
    return figures(note + _band_note(runs), plots)


def _held_out(runs: Sequence[SeedHistory]) -> str:
    if len(runs) > 1:
        line = mean_curve([series(run.evaluations, lambda one: one["return"]) for run in runs], "mean")
    else:
        line = _over_episodes(runs[0].evaluations)
    plot = curves("Held-out episodes", "The mean return in held-out episodes", _STEPS, [line])
    note = "The mean return in episodes that training never saw. They are the same ones each time."
    return figures(note + (_band_note(runs) or " The band is the 95% interval of the mean over episodes."), [plot])


def _by_episode(runs: Sequence[SeedHistory]) -> dict[str, str]:
    """Return the section of how agents adapt within a trial, if there were trials; each seed has its own."""
    played = [run for run in runs if run.evaluations and BY_EPISODE in run.evaluations[-1]]
    return {
        "Adaptation" if len(runs) == 1 else f"Adaptation, seed {run.seed}": adaptation_section(run.evaluations)
        for run in played
    }


def _over_episodes(evaluations: Sequence[Row]) -> Curve:
    """Return the curve of one run's evaluations; the band is as wide as the deviation between episodes tells."""
    values = [one["return"] for one in evaluations]
    halves = [1.96 * one["deviation"] / math.sqrt(one["episodes"]) for one in evaluations]
    lows, highs = ([value + sign * half for value, half in zip(values, halves, strict=True)] for sign in (-1, 1))
    return Curve("mean", 0, [one["steps"] for one in evaluations], values, lows, highs)


def _metrics(runs: Sequence[SeedHistory]) -> str:
    first = next(iter(runs[0].rows[-1]["agents"].values())) if runs[0].rows else {}
    plots = []
    for name in (one for one in first if one not in ("return", "episodes", "updates")):

        def of(row: Row, name: str = name) -> float | None:
            known = [one[name] for one in row["agents"].values() if one.get(name) is not None]
            return float(np.mean(known)) if known else None

        title = name.replace("_", " ")
        plots.append(curves(title, f"{title} over steps", _STEPS, [over_runs(runs, of, "mean")]))
    for name in runs[0].rows[-1].get("custom", {}) if runs[0].rows else ():
        own = over_runs(runs, lambda row, name=name: row.get("custom", {}).get(name), "own")  # type: ignore[misc]
        plots.append(curves(name, f"{name} over steps", _STEPS, [own]))
    return figures("What learners say of their updates, on average over agents." + _band_note(runs), plots)


def _timing(runs: Sequence[SeedHistory]) -> str:
    timings = [(run.seed, run.summary["timing"]) for run in runs if run.summary.get("timing")]
    if not timings:
        return ""
    phases = list(timings[0][1].get("shares", {}))
    overlaps = all("overlap" in one for _, one in timings)
    cells = [
        [
            *(str(seed), f"{one['seconds']:,.1f}", f"{one['steps_per_second']:,.0f}"),
            *(f"{one['shares'].get(phase, 0.0):.0%}" for phase in phases),
            *(_overlap_cells(one["overlap"]) if overlaps else ()),
        ]
        for seed, one in timings
    ]
    phases += _OVERLAP if overlaps else []
    note = "What the run took by the clock, on which nothing else here depends, and what the time was spent on."
    return f"<p>{note}</p>" + table(["seed", "seconds", "steps/s", *phases], cells) + _nodes(timings)


def _nodes(timings: Sequence[tuple[int, Mapping[str, Any]]]) -> str:
    """Return which node of a cluster had what at the end, if there was one."""
    cells = [
        [str(seed), node, str(had["environments"]), str(had["agents"])]
        for seed, one in timings
        for node, had in one.get("nodes", {}).items()
    ]
    if not cells:
        return ""
    note = "Where environments were stepped and agents learned in the last interval."
    return f"<p>{note}</p>" + table(["seed", "node", "environments", "agents"], cells)


_OVERLAP = ["learners wait", "mean lag", "most lag", "replay ratio"]


def _overlap_cells(overlap: Mapping[str, float]) -> list[str]:
    waits, replayed = f"{overlap['learning_waits']:.0%}", f"{overlap['replay_ratio']:.2f}"
    return [waits, f"{overlap['mean_lag']:.2f}", f"{overlap['most_lag']:.0f}", replayed]


def flat_settings(values: Mapping[str, Any], at: str = "") -> list[tuple[str, Any]]:
    """Return settings by their keys with dots."""
    pairs = [
        flat_settings(value, f"{at}{key}.") if isinstance(value, Mapping) else [(f"{at}{key}", value)]
        for key, value in values.items()
    ]
    return list(itertools.chain.from_iterable(pairs))


# ---- over seeds ----


def _band_note(runs: Sequence[SeedHistory]) -> str:
    return f" Bands are 95% intervals of the mean over {len(runs)} seeds." if len(runs) > 1 else ""


def _interval(values: Sequence[float]) -> Interval | None:
    return mean_intervals(np.array(values)[:, None])[0] if len(values) > 1 else None
