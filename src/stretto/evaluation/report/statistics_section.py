"""The section of a page about what games tell of their episodes beside rewards, also by agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stretto.evaluation.report.page_elements import table, text
from stretto.evaluation.report.wording import short_number, shorten
from stretto.evaluation.statistics.summary import LabelSummary, Summary

_LONGEST_HEAD = 40
_MEAN = "mean over episodes"


def statistics_section(summary: Summary) -> str:
    """Return tables for each mission, with a column a policy; nothing if no game tells anything."""
    words = ""
    for mission in summary.missions:
        rows = [row for row in summary.by_mission if row.mission == mission]
        tables = _of_episodes(rows) + _of_agents(rows)
        words += f"<h3>{text(mission)}</h3>{tables}" if tables else ""
    return words


def _of_episodes(rows: Sequence[LabelSummary]) -> str:
    names = sorted({name for row in rows for name in row.statistics})
    cells = [[name, *(_figure(row.statistics.get(name, {})) for row in rows)] for name in names]
    return table([_MEAN, *_heads(rows)], cells) if cells else ""


def _of_agents(rows: Sequence[LabelSummary]) -> str:
    """Return a row for each statistic and agent, of those statistics that several agents have."""
    told: dict[str, set[str]] = {}
    for row in rows:
        for name, agents in row.agent_statistics.items():
            told.setdefault(name, set()).update(agents)
    cells = [
        [name, agent, *(_figure(row.agent_statistics.get(name, {}).get(agent, {})) for row in rows)]
        for name, agents in sorted(told.items())
        if len(agents) > 1
        for agent in sorted(agents, key=_in_order)
    ]
    return f"<h4>By agent</h4>{table([_MEAN, 'agent', *_heads(rows)], cells, names=2)}" if cells else ""


def _in_order(agent: str) -> tuple[str, int, str]:
    """Sort "cog_10" behind "cog_9"."""
    letters = agent.rstrip("0123456789")
    return letters, int(agent[len(letters) :] or -1), agent


def _figure(told: Mapping[str, float]) -> str:
    return short_number(told.get("mean"))


def _heads(rows: Sequence[LabelSummary]) -> Sequence[str]:
    """Return labels short enough not to make the heads of all columns high, or as they are if that made two alike."""
    labels = [row.label for row in rows]
    short = [shorten(label, _LONGEST_HEAD) for label in labels]
    return short if len(set(short)) == len(set(labels)) else labels
