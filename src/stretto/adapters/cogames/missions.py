"""Which missions and policies cogames has, and how its missions are made."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stretto.adapters.cogames.deferred import deferred
from stretto.adapters.cogames.found import Found, FoundPolicy
from stretto.errors import UsageError

# A third of the time that importing cogames takes. It needs the first two to reach its servers, and the third never.
with deferred("boto3", "httpx", "scipy.special"):
    from cogames.cli.mission import (
        get_all_eval_mission_names,
        get_all_mission_names,
        load_mission_config,
        load_mission_config_from_python,
        resolve_mission,
    )
    from cogames.game import get_game
    from mettagrid.config.mettagrid_config import MettaGridConfig
    from mettagrid.mapgen.mapgen import MapGenConfig

    from stretto.adapters.cogames.world import CogsWorld

__calls_user_code__ = True

GAME = "cogs_vs_clips"
"""The game whose missions need no game's name, as in cogames itself."""

_OF_BUNDLES = ("policy_spec.json", "cogames.toml")
"""One of these says what is in a folder."""

_FILES = (".yaml", ".yml", ".json", ".py")


def make(
    mission: str,
    variants: Sequence[str] = (),
    cogs: int | None = None,
    map_seed: int | None = None,
    max_steps: int | None = None,
) -> CogsWorld:
    """Make the world of a mission, by cogames' name for it or by the path of a file that has its configuration."""
    _, config, _ = _resolved(mission, variants, cogs)
    if max_steps is not None:
        config.game.max_steps = max_steps
    if map_seed is not None and isinstance(config.game.map_builder, MapGenConfig):
        config.game.map_builder.seed = map_seed
    return CogsWorld(config)


def find(pattern: str, variants: Sequence[str], cogs: int | None) -> list[Found]:
    """Return the missions with this name, or whose names are like this pattern; nothing if there are none.

    Raises:
        UsageError: if a mission has no such variant, or cannot have so many cogs.
    """
    if pattern.endswith(_FILES):
        path = Path(pattern).expanduser().resolve()
        if not path.is_file():
            raise UsageError(
                f"a mission of cogames may be a file with its configuration, and {pattern!r} does not exist"
            )
        return [Found(path.stem, str(path), f"cogames, as {path.name} has it")]
    names = [pattern]
    if "*" in pattern:
        wanted = re.compile(pattern.replace(".", r"\.").replace("*", ".*"))
        names = [name for name in all_names() if wanted.search(name)]
    elif _base(pattern) not in all_names() and not pattern.startswith("evals."):
        return []
    found = []
    for name in names:
        full, _, mission = _resolved(name, variants, cogs)
        found.append(Found(name if "." in name else full, name, getattr(mission, "description", "")))
    return found


def all_names() -> list[str]:
    """Return the names of all missions that need no game's name."""
    game = get_game(GAME)
    return [*get_all_mission_names(game), *get_all_eval_mission_names(game)]


def summaries() -> dict[str, str]:
    """Return what cogames says of each mission, by name."""
    game = get_game(GAME)
    return {one.full_name(): one.description for one in (*game.missions, *game.eval_missions)}


def _base(name: str) -> str:
    return name.partition(".")[0]


def _resolved(mission: str, variants: Sequence[str], cogs: int | None) -> tuple[str, MettaGridConfig, Any]:
    path = Path(mission)
    if path.suffix in _FILES:
        read: Callable[[Path], MettaGridConfig]
        read = load_mission_config_from_python if path.suffix == ".py" else load_mission_config
        return path.stem, read(path), None
    try:
        resolved: tuple[str, MettaGridConfig, Any] = resolve_mission(get_game(GAME), mission, list(variants), cogs)
    except ValueError as error:
        raise UsageError(f"{' '.join(str(error).split())} (of cogames)") from None
    return resolved


# ---- policies ----


def find_policy(text: str, device: str | None = None) -> FoundPolicy | None:
    """Return the policy that a text means to cogames; nothing if it has none of that name.

    Raises:
        UsageError: if the text is one of cogames' forms, but there is something wrong with it.
    """
    from cogames.cli.policy import parse_policy_spec
    from mettagrid.policy.policy import MultiAgentPolicy
    from mettagrid.util.module import load_symbol

    if "." not in sys.path and "" not in sys.path:
        sys.path.append(".")  # as cogames does
    first = text.partition(",")[0]
    if is_bundle(first):
        spec = _read(parse_policy_spec, text, device)
        return FoundPolicy(BUNDLE, {"bundle": _absolute(first)}, None, spec.proportion)
    if ":" in first.partition("=")[2] or "/" in first or (":" in first and not first.rpartition(":")[2].isdigit()):
        return None  # a file or a module, as we name them
    try:
        spec = parse_policy_spec(text, device)
        found = load_symbol(spec.class_path, strict=False)
    except (ValueError, ImportError, AttributeError):
        return None
    if not (isinstance(found, type) and issubclass(found, MultiAgentPolicy)):
        return None
    if spec.data_path is not None and not Path(spec.data_path).is_file():
        raise UsageError(
            f"data must exist, got {spec.data_path}; write a path from the current folder, or an absolute one"
        )
    target = f"{found.__module__}:{found.__qualname__}"
    return FoundPolicy(target, dict(spec.init_kwargs), spec.data_path, spec.proportion)


BUNDLE = "stretto.policies.cogames:FromBundle"


def is_bundle(text: str) -> bool:
    """Whether a text is the path or the address of what cogames calls a checkpoint bundle: a folder, or a zip file."""
    if "://" in text:
        return True
    path = Path(text).expanduser()
    if path.suffix == ".zip" and zipfile.is_zipfile(path):  # other libraries keep models in zip files, too
        with zipfile.ZipFile(path) as archive:
            return not set(_OF_BUNDLES).isdisjoint(archive.namelist())
    return "=" not in text and any((path / name).is_file() for name in _OF_BUNDLES)


def _absolute(text: str) -> str:
    return text if "://" in text else str(Path(text).expanduser().resolve())


def _read(parse: Callable[..., Any], text: str, device: str | None) -> Any:
    try:
        return parse(text, device)
    except Exception as error:
        raise UsageError(f"{text!r} is no bundle that cogames can read: {error}") from error


def policy_names() -> list[str]:
    """Return the short names of all policies that have one."""
    from mettagrid.policy.loader import discover_and_register_policies
    from mettagrid.policy.policy_registry import get_policy_registry

    discover_and_register_policies()
    return sorted(get_policy_registry())
