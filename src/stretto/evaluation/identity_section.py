"""The section of a report's page that says what produced the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.evaluation.identity import changes_told, identity_rows
from stretto.evaluation.page_elements import table, text


def identity_section(plan: Mapping[str, Any]) -> str:
    """Return what produced the results, and what changed while they were produced."""
    changes = "".join(
        f"<p><strong>Not all episodes were played by the same code:</strong> {text(one)}</p>\n"
        for one in changes_told(plan)
    )
    rows = list(identity_rows(plan))
    note = "What produced these results. Files and data are given by the beginning of their SHA-256."
    return changes + (f"<p>{note}</p>" + table(["whose", "what", "which"], rows, names=3) if rows else "")
