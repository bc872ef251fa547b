"""Mission files: YAML with an entry for each mission."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stretto.errors import UsageError
from stretto.registry import near_or_all

KEYS = ("name", "cogs", "variants", "map_seed", "steps", "default_action")
"""What can be set for a mission, in a file and in a text; a text also has `kw.x`, and a file `env_kwargs`."""

_IN_FILES = ("mission", *KEYS, "env_kwargs")


def read_entries(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a mission file.

    Raises:
        UsageError: in one sentence, if it is no such file.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UsageError(f"a mission file must be readable YAML, and {path} is not: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"a mission file must be readable YAML, and {path} is not: {reason}") from None
    if isinstance(content, dict) and "mission" not in content:
        raise UsageError(
            f"a mission file must be a list of entries with the key 'mission', and {path} is a mapping with the keys "
            f"{', '.join(map(repr, content)) or 'none'}; begin it with '- mission: NAME'"
        )
    entries = content if isinstance(content, list) else [content]
    for one in entries:
        if not isinstance(one, dict) or "mission" not in one:
            raise UsageError(f"every entry of {path} must be a mapping with the key 'mission', got {one!r}")
        if strange := sorted(str(key) for key in one if key not in _IN_FILES):
            raise UsageError(
                f"no key of a mission in {path} is called {strange[0]!r}{near_or_all(strange[0], _IN_FILES)}"
            )
        if not isinstance(one.get("name", ""), str | int):
            raise UsageError(f"name in {path} must be a text, got {one['name']!r}; write name: small")
        if not isinstance(one.get("env_kwargs", {}), dict):
            raise UsageError(
                f"env_kwargs in {path} must be a mapping from names to values, got {one['env_kwargs']!r}; write {{size: 3}}"
            )
    return entries
