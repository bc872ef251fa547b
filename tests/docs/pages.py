"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_FENCE = re.compile(r"^( *)```(\w*)(?: title=\"(.+)\")?\s*$")


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """Code between two fences: its language, the file that it is (if it has a title), and the line that it begins in."""

    language: str
    file: str | None
    first_line: int
    lines: tuple[str, ...]

    @property
    def code(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def blocks_of(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in these languages; in all, if none is named."""
    return [block for block in _blocks(page.read_text().splitlines()) if not languages or block.language in languages]


def prose_of(page: Path) -> str:
    """Return the text of a page without its blocks of code; lines keep their numbers."""
    lines = page.read_text().splitlines()
    for block in _blocks(lines):
        begin = block.first_line - 2
        lines[begin : begin + len(block.lines) + 2] = [""] * (len(block.lines) + 2)
    return "\n".join(lines)


def _blocks(lines: list[str]) -> Iterator[Block]:
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        if begins := _FENCE.match(line):
            indent, language, file = begins.groups()
            inside = []
            for _, code in numbered:
                if code.strip() == "```":
                    break
                inside.append(code.removeprefix(indent))
            yield Block(language, file, number + 1, tuple(inside))
