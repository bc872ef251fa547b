"""Parts of a page: texts, tables, lists of facts. Whatever was named by users passes through `text`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

MOST_ROWS = 40  # of a table that is shown as high as it is; a higher one scrolls in a box
_LONG_NAME = 16  # characters: a longer one is broken into lines, which should not be too many
_CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Return a table that scrolls in a box of its own; its first `names` columns are names, all others figures."""
    rows = list(rows)
    head = "".join(_cell('th scope="col"', name, left=i < names, name=True) for i, name in enumerate(heads))
    lines = "".join(
        f"<tr>{''.join(_cell('td', cell, left=i < names, name=i < names) for i, cell in enumerate(row))}</tr>\n"
        for row in rows
    )
    box = "scroll high" if len(rows) > MOST_ROWS else "scroll"
    return (
        f'<div class="{box}" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{lines}</tbody></table></div>\n'
    )


def _cell(tag: str, words: str, *, left: bool, name: bool) -> str:
    """Return a cell of a table; a name may be broken into lines where it is long, a figure never."""
    long = name and len(words) > _LONG_NAME
    classes = " ".join(["left"] * left + ["long"] * long)
    attribute = f' class="{classes}"' if classes else ""
    shown = re.sub("([._/:,=])(?=[^0-9])", r"\1<wbr>", text(words)) if long else text(words)
    return f"<{tag}{attribute}>{shown}</{tag.partition(' ')[0]}>"


def facts_list(facts: Mapping[str, Any]) -> str:
    """Return names and values, without those that are None or empty; nothing if there are no others."""
    known = {name: value for name, value in facts.items() if value not in (None, "", [], {})}
    shown = {name: value if isinstance(value, str) else json.dumps(value) for name, value in known.items()}
    lines = "".join(f"<dt>{text(name)}</dt><dd>{text(words)}</dd>" for name, words in shown.items())
    return f"<dl>{lines}</dl>\n" if lines else ""


def text(words: str) -> str:
    """Return what shows `words` as they are."""
    return escape(words.translate(_CONTROLS))
