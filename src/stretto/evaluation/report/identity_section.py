"""The section of a report's page that says what produced the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stretto.evaluation.report.page_elements import table, text
from stretto.run_folder import IDENTITY, changes_told


def identity_section(plan: Mapping[str, Any]) -> str:
    """Return what produced the results, and what changed while they were produced."""
    changes = "".join(
        f"<p><strong>Not all episodes were played by the same code:</strong> {text(one)}</p>\n"
        for one in changes_told(plan)
    )
    rows = list(_identity_rows(plan))
    note = "What produced these results. Files and data are given by the beginning of their SHA-256."
    return changes + (f"<p>{note}</p>" + table(["whose", "what", "which"], rows, names=3) if rows else "")


def _identity_rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield, for a table, what a plan's description says of its identity: whose, what of it, and which one it is."""
    identity = plan.get(IDENTITY, {})
    for part, whose in (("missions", "mission"), ("policies", "policy")):
        for name, record in identity.get(part, {}).items():
            for what, value in record.items():
                for key, which in value.items() if isinstance(value, Mapping) else [("", value)]:
                    yield f"{whose} {name}", f"{what.removesuffix('s')} {key}".strip(), str(which)
    for name, version in identity.get("installation", {}).items():
        yield "installation", name, version
