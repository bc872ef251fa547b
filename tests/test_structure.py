"""The shape of the package: how deep imports go, who imports whom, and how large files and folders get."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import stretto

ROOT = Path(stretto.__file__).parent
MODULES = {
    ".".join(("stretto", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}

MOST_DEEP = 14
MOST_ENVS = 18
MOST_LINES = 400


def imported_by(name: str, *, anywhere: bool) -> set[str]:
    """Return the modules of ours that one imports when it is imported itself; or also later, `anywhere` in its code."""
    tree = ast.parse(MODULES[name].read_text())
    found = set()
    for node in _statements(tree) if anywhere else tree.body:
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys() or {node.module or ""}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & MODULES.keys()) - {name, "stretto"}


def _statements(tree: ast.AST) -> list[ast.AST]:
    """Return all nodes but those that only a type checker looks at."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            found += [node, *_statements(node)]
    return found


@cache
def chain_below(name: str) -> tuple[str, ...]:
    """Return the longest chain of modules, each of which imports the next, that begins with one."""
    below = (chain_below(other) for other in imported_by(name, anywhere=False))
    return (name, *max(below, key=len, default=()))


def test_the_longest_chain_of_imports_is_short_enough_to_follow():
    longest = max((chain_below(name) for name in MODULES), key=len)
    assert len(longest) <= MOST_DEEP, " > ".join(longest)


def test_no_two_modules_import_each_other_not_even_inside_functions():
    imports = {name: imported_by(name, anywhere=True) for name in MODULES}
    both = [(one, other) for one in MODULES for other in imports[one] if one < other and one in imports[other]]
    assert not both


def test_a_vector_environment_is_no_more_files_than_a_reader_can_hold_in_mind():
    assert len(list((ROOT / "envs").glob("*.py"))) <= MOST_ENVS


def test_no_file_is_longer_than_one_can_read():
    lines = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design.md"])
def test_the_files_that_a_table_names_are_there(page):
    """A name without a folder lies in the folder of the one before it in its row, or in the package's own."""
    missing, known = [], 0
    for row in (line for line in Path(page).read_text().splitlines() if line.startswith("| ")):
        folder = ""
        for name in re.findall(r"`([\w/]+(?:\.py|/))`", row):
            folder, _, file = name.rpartition("/") if "/" in name else (folder, "", name)
            known += 1
            if not any((root / file).exists() for root in (ROOT / folder, ROOT)):
                missing.append(name)
    assert known
    assert not missing
