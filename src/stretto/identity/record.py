"""Identity as plain values: what something is made of, and in what two such records differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stretto.identity.installation import PACKAGES
from stretto.identity.names import name_of
from stretto.identity.objects import ObjectDigest
from stretto.identity.source import Sources, digest_of_path

Record = dict[str, Any]
"""What `identify` returns; it survives JSON."""


def identify(target: Any, settings: Mapping[str, Any], data: str | None = None) -> Record:
    """Return what code is: its files, packages and settings, by digest and version, without importing any of it.

    `target` is "module:name", "/folder/file.py:name", or an object. A setting that is the path of a file or a folder counts
    with its content, and so does `data`. Keys that have nothing to say are left out.
    """
    sources = Sources()
    objects = ObjectDigest(sources)
    record: Record = {"code": _code(target, sources, objects)}
    plain = plain_settings(settings, sources, objects.not_covered)
    record["files"] = sources.by_name()
    # What every result depends on stands in `installation`; here it does only if the code itself is part of it.
    own = _package(target)
    record["packages"] = {
        name: version for name, version in sorted(sources.packages.items()) if name == own or name not in PACKAGES
    }
    record["data"] = {name: digest for name, path in _paths(settings, data) if (digest := _content(path)) is not None}
    record["settings"] = plain
    record["not covered"] = sorted(objects.not_covered)
    return {name: value for name, value in record.items() if value}


def _code(target: Any, sources: Sources, objects: ObjectDigest) -> str:
    """Add the code of a target to `sources`, and return its name, which has no folder in it."""
    if not isinstance(target, str):
        objects.add(target)
        return f"{name_of(target)} {objects.hexdigest()}"
    where, _, attribute = target.rpartition(":")
    if where.endswith(".py"):
        sources.add_file(Path(where))
        return f"{Path(where).name}:{attribute}"
    sources.add_module(where)
    return target


def _package(target: Any) -> str:
    module = target.rpartition(":")[0] if isinstance(target, str) else str(getattr(target, "__module__", ""))
    return module.partition(".")[0]


def plain_settings(
    settings: Mapping[str, Any], sources: Sources | None = None, not_covered: set[str] | None = None
) -> dict[str, Any]:
    """Return settings, by name, as values that JSON has; of all others their type and a digest."""
    found: dict[str, Any] = {}
    for name, value in sorted(settings.items()):
        try:
            found[name] = json.loads(json.dumps(value))
        except (TypeError, ValueError):
            digest = ObjectDigest(Sources() if sources is None else sources)
            digest.add(value)
            found[name] = f"{type(value).__name__} {digest.hexdigest()}"
            if not_covered is not None:
                not_covered |= digest.not_covered
    return found


def _paths(settings: Mapping[str, Any], data: str | None) -> Iterator[tuple[str, Path]]:
    if data is not None:
        yield Path(data).name, Path(data)
    for name, value in settings.items():
        if isinstance(value, str | Path) and value and Path(value).name:
            yield f"{name}={Path(value).name}", Path(value)


def _content(path: Path) -> str | None:
    """Return the digest of what is at a path, or None if nothing that can be read is there."""
    try:
        return digest_of_path(path) if path.is_file() or path.is_dir() else None
    except (OSError, ValueError):  # a text that can be no path is none
        return None


_ONE_OF = {"files": "the file ", "packages": "the package ", "data": "the data ", "settings": "the setting "}


def differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in words, what is something else in one record than in another: "the file a.py was 01ab and is 23cd"."""
    for part in dict.fromkeys([*begun, *now]):
        one, other = begun.get(part), now.get(part)
        if not isinstance(one or other, Mapping):
            one, other, name = {part: one}, {part: other}, "its " if part == "code" else ""
        else:
            one, other, name = one or {}, other or {}, _ONE_OF.get(part, "")
        for key in dict.fromkeys([*one, *other]):
            if one.get(key) != other.get(key):
                yield f"{name}{key} was {_text(one.get(key))} and is {_text(other.get(key))}"


def _text(value: Any) -> str:
    return "not there" if value is None else str(value)
