"""A page that needs no other file, and no network: how it begins, its sections, and when and by what it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from stretto.evaluation.report.page_elements import text
from stretto.run_folder import IDENTITY, INVOCATIONS

_SHOWN_VERSIONS = ("stretto", "python", "numpy", "gymnasium", "torch")

# The colours of policies lie 23 or more apart in CIELAB, for all eyes and for each kind of colour blindness, and have a
# contrast of 4.5 to 1 with what is behind them. Beyond six they repeat: a name always stands beside its colour.
_STYLE = files("stretto.evaluation.report").joinpath("report.css").read_text("utf-8")

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"


def page(title: str, head: str, sections: Mapping[str, str]) -> str:
    """Return a page, as the text of a file; sections without words are left out."""
    shown = {name: words for name, words in sections.items() if words}
    links = "".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in shown)
    body = "".join(
        f'<section id="{_anchor(name)}"><h2>{name}</h2>\n{words}</section>\n' for name, words in shown.items()
    )
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<style>\n{_STYLE}</style></head><body>\n{head}<nav>{links}</nav>\n{body}</body></html>\n"
    )


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def invocations(timing: Any) -> str:
    """Say when a run was begun and resumed, and by which commands."""
    lines = []
    for one in timing.get(INVOCATIONS, []) if isinstance(timing, Mapping) else ():
        command = f" · <code>{text(one['command'])}</code>" if "command" in one else ""
        lines.append(f"<time>{text(one['began'])}</time>{command}")
    return f'<p id="run" class="soft">{"<br>resumed ".join(lines)}</p>\n' if lines else ""


def versions(plan: Mapping[str, Any]) -> str:
    """Say which versions of what a plan was played with; all else that produced it has a section of its own."""
    installed = plan.get(IDENTITY, {}).get("installation", {})
    shown = [f"{name} {installed[name]}" for name in _SHOWN_VERSIONS if name in installed]
    return f'<p class="soft"><a href="#identity">{text(" · ".join(shown))}</a></p>\n' if shown else ""


def figures(note: str, plots: Sequence[str]) -> str:
    """Return plots beside each other, with a note above them; nothing if there are none."""
    return f'<p>{note}</p><div class="plots">{"".join(plots)}</div>\n' if any(plots) else ""
