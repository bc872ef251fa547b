"""The section of a page about failures: what went wrong, how often, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto.evaluation.report.failures import FailureGroup
from stretto.evaluation.report.page_elements import facts_list, text
from stretto.evaluation.report.wording import counted

MOST_GROUPS = 50


def failure_section(groups: Sequence[FailureGroup]) -> str:
    """Return a line for each group, which opens; nothing if nothing failed."""
    words = "".join(map(_failure_group, groups[:MOST_GROUPS]))
    left = sum(len(group.records) for group in groups[MOST_GROUPS:])
    return words + (f"<p>There are {left:,} more in episodes.jsonl.</p>" if left else "")


def _failure_group(group: FailureGroup) -> str:
    failure, record = group.first, group.records[0]
    facts: dict[str, Any] = {f"episodes on {mission}": numbers for mission, numbers in group.where().items()}
    facts |= {"policy": failure.policy, "agent": failure.agent, "at step": failure.step}
    facts |= {"seed": record.seed, "steps played": record.steps, "raised at": group.place or None}
    if len(group.records) > 1:
        facts["shown"] = f"episode {record.episode} on {record.mission}, which stands for all of them"
    blocks = "".join(
        f"<h3>{title}</h3><pre{style}><code>{text(code)}</code></pre>"
        for title, style, code in (
            ("Play it again", ' class="wrapped"', failure.reproduce),
            ("Traceback", "", failure.traceback),
        )
        if code
    )
    return (
        f'<details><summary><span class="kind">{text(failure.kind)}</span> in {counted(len(group.records), "episode")} of '
        f"{text(group.label)}: {text(failure.message)}</summary>{facts_list(facts)}{blocks}</details>\n"
    )
