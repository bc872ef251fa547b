"""Which files and packages a piece of code is made of, found without importing any of it.

Imports are read from the source. The user's own modules are followed and their files digested. Of an installed package the
version counts, and the standard library belongs to the version of Python. What code imports by a name that it computes is
not seen.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from stretto.identity.owners import is_users

DIGEST_CHARACTERS = 16
"""How much of a SHA-256 is kept: enough that no two files of a project share it by chance."""

MOST_FILES = 1000
"""How many files of a folder are read; a larger one is hardly weights."""


def digest_of(content: bytes) -> str:
    """Return a short text that tells contents apart."""
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARACTERS]


def digest_of_path(path: Path) -> str:
    """Return the digest of a file, or of all files in a folder with their names; hidden ones do not count."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_CHARACTERS]
    found = []
    for folder, below, names in os.walk(path):
        below[:] = [name for name in below if not name.startswith((".", "__pycache__"))]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
        if len(found) > MOST_FILES:
            return f"not read: more than {MOST_FILES} files"
    texts = [f"{one.relative_to(path)} {digest_of_path(one)}" for one in sorted(found) if one.is_file()]
    return digest_of("\n".join(texts).encode())


@cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


@cache
def version_of(package: str) -> str | None:
    """Return the version of the distribution that a package came with."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # Reads the lists of all distributions: only for packages that are called differently.
        names = sorted(set(_distributions().get(package, ())))
        return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names) or None


def find_module(name: str, beside: Path | None = None) -> importlib.machinery.ModuleSpec | None:
    """Return where a new process would import a module from, or None; no parent of it is imported.

    `beside` is a folder in which it is looked for last.
    """
    top, *below = name.split(".")
    found = (finder.find_spec(top, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((one for one in found if one is not None), None)
    if spec is None and beside is not None:
        spec = importlib.machinery.PathFinder.find_spec(top, [str(beside)])
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name alone: a namespace would look its parent up among the imported modules.
        spec = importlib.machinery.PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


class Sources:
    """The files and the versions of packages that code depends on, gathered from where it begins."""

    def __init__(self) -> None:
        self.files: dict[Path, str] = {}
        self.packages: dict[str, str] = {}
        self._seen: set[str] = set()

    def add_file(self, path: Path) -> None:
        """Add a file that is a module of its own, and its neighbours that it imports."""
        self._add(path.resolve(), "", path.resolve().parent)

    def add_module(self, name: str, beside: Path | None = None) -> None:
        """Add a module and its parents, if somebody may edit them, else the version of their package.

        `beside` is a folder in which modules are looked for that are not found elsewhere.
        """
        parent, _, _ = name.rpartition(".")
        top = name.partition(".")[0]
        if name in self._seen or top in sys.stdlib_module_names or top in self.packages:
            return
        self._seen.add(name)
        if parent:
            self.add_module(parent, beside)
        spec = None if top in self.packages else find_module(name, beside)
        if spec is None or spec.origin is None or not spec.has_location:  # not there, a namespace, or built in
            return
        if not is_users(spec.origin):
            self.packages[top] = version_of(top) or "unknown"
        else:
            package = parent if spec.submodule_search_locations is None else name
            self._add(Path(spec.origin).resolve(), package, beside)

    def _add(self, path: Path, package: str, beside: Path | None) -> None:
        if path in self.files:
            return
        content = path.read_bytes()
        self.files[path] = digest_of(content)
        if path.suffix != ".py":  # compiled: what it imports cannot be read
            return
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # told by whoever imports it
            return
        for name in _imports(tree, package):
            self.add_module(name, beside)

    def by_name(self) -> dict[str, str]:
        """Return the digests by path from the first file's folder, so that they stay the same when a project moves."""
        root = next(iter(self.files), Path()).parent
        return {Path(os.path.relpath(path, root)).as_posix(): digest for path, digest in sorted(self.files.items())}


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield the modules that a source imports, wherever in it; what is imported from a package may be a module too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                kept = parts[: len(parts) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
