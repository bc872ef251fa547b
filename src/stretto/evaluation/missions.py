"""Missions by name: our games, anybody's environments, files, and what other packages register."""

from __future__ import annotations

import difflib
import fnmatch
import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from stretto.adapters.gymnasium import makers
from stretto.errors import UsageError

GROUP = "stretto.missions"
"""Entry points of this group are functions that make a world, or have `MISSIONS` and `VARIANTS` as our games do."""

_GAMES = {"foundry": "Foundry", "netdefense": "Netdefense", "pointgoal": "Pointgoal"}


@dataclass(frozen=True, slots=True)
class Mission:
    """A world to be played, and under which name. `make` is called in whichever process plays it."""

    name: str
    make: Callable[[], Any]
    summary: str = ""
    max_steps: int | None = None
    has_default_action: bool = False
    default_action: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def make_with(self, render_mode: str | None) -> Callable[[], Any]:
        """Return what makes the world so that it can be looked at, if it can."""
        kwargs = getattr(self.make, "kwargs", None)
        if render_mode is None or kwargs is None:
            return self.make
        changed: Any = replace(self.make, kwargs={**kwargs, "render_mode": render_mode})  # type: ignore[type-var]
        return cast(Callable[[], Any], changed)


@dataclass(frozen=True, slots=True)
class _Call:
    """Calls a factory by keyword: picklable if the factory is."""

    factory: Callable[..., Any]
    kwargs: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.factory(**self.kwargs)


@dataclass(frozen=True, slots=True)
class _FromModule:
    """Calls something that a module or a file has; imported where it is called."""

    module: str
    name: str
    kwargs: Mapping[str, Any]
    path: str | None = None

    def __call__(self) -> Any:
        module = importlib.import_module(self.module) if self.path is None else module_from_file(self.path)
        return getattr(module, self.name)(**self.kwargs)


@dataclass(frozen=True, slots=True)
class KnownMission:
    """A mission that is known by a short name, for a listing."""

    name: str
    summary: str
    game: str
    kwargs: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    make: Callable[..., Any]


def known_missions() -> dict[str, KnownMission]:
    """Return the missions of our games, and those that installed packages register."""
    known: dict[str, KnownMission] = {}
    for game, name in _GAMES.items():
        module = importlib.import_module(f"stretto.games.{game}")
        _add_game(known, game, module, getattr(module, name))
    for point in entry_points(group=GROUP):
        try:
            found = point.load()
        except Exception as error:  # noqa: BLE001  whatever somebody else's package raises must not break the rest
            known[point.name] = KnownMission(
                point.name, f"cannot be loaded: {error!r}", point.name, {}, {}, _broken(error)
            )
            continue
        if hasattr(found, "MISSIONS"):
            _add_game(known, point.name, found, found.make)
        else:
            summary = (found.__doc__ or "").partition("\n")[0]
            known[point.name] = KnownMission(point.name, summary, point.name, {}, {}, found)
    return known


def _add_game(known: dict[str, KnownMission], game: str, module: Any, make: Callable[..., Any]) -> None:
    variants = getattr(module, "VARIANTS", {})
    for name, about in module.MISSIONS.items():
        known[name] = KnownMission(name, about["summary"], game, dict(about["kwargs"]), variants, make)


def _broken(error: Exception) -> Callable[..., Any]:
    def refuse(**_: Any) -> Any:
        raise UsageError(f"the package that registers this mission cannot be loaded: {error!r}") from error

    return refuse


def find_missions(
    names: Iterable[str],
    *,
    cogs: int | None = None,
    variants: Sequence[str] = (),
    map_seed: int | None = None,
    allow_import: bool = True,
) -> list[Mission]:
    """Return the missions that names, patterns such as `foundry_*`, and files stand for, in that order.

    Raises:
        UsageError: with the nearest known names.
    """
    found: dict[str, Mission] = {}
    for name in names:
        for mission in _find(name, cogs, variants, map_seed, allow_import):
            found.setdefault(mission.name, mission)
    return list(found.values())


def _find(
    name: str, cogs: int | None, variants: Sequence[str], map_seed: int | None, allow_import: bool
) -> list[Mission]:
    changes: dict[str, Any] = {}
    if cogs is not None:
        changes["cogs"] = cogs
    if map_seed is not None:
        changes["map_seed"] = map_seed
    kind, _, rest = name.partition(":")
    if kind == "gym" and rest:
        _refuse_changes(name, changes, variants)
        return [Mission(name, makers(rest, 1, None, ())[0], f"Gymnasium's {rest}")]
    if kind == "pz" and rest:
        _refuse_changes(name, changes, variants)
        return [Mission(name, _FromModule(_pettingzoo(rest), "parallel_env", {}), f"PettingZoo's {rest}")]
    if name.endswith((".yaml", ".yml")):
        return _from_yaml(Path(name), cogs, variants, map_seed, allow_import)
    if rest and kind.endswith(".py"):
        _refuse_changes(name, changes, variants)
        path = Path(kind).resolve()
        if not path.is_file():
            raise UsageError(f"a mission of the form file.py:function needs a file, and {kind!r} does not exist")
        return [Mission(name, _FromModule("", rest, {}, str(path)), f"{rest} in {kind}")]
    known = known_missions()
    chosen = fnmatch.filter(known, name) if any(c in name for c in "*?[") else [name] if name in known else []
    if not chosen:
        raise UsageError(_unknown("mission", name, known))
    return [_of_game(known[one], changes, variants) for one in chosen]


def _of_game(known: KnownMission, changes: Mapping[str, Any], variants: Sequence[str]) -> Mission:
    kwargs = dict(known.kwargs)
    for variant in variants:
        if variant not in known.variants:
            raise UsageError(_unknown(f"variant of {known.name}", variant, known.variants))
        kwargs.update(known.variants[variant])
    kwargs.update(changes)
    name = known.name + "".join(f"+{variant}" for variant in variants)
    return Mission(name, _Call(known.make, kwargs), known.summary, details=kwargs)


def _refuse_changes(name: str, changes: Mapping[str, Any], variants: Sequence[str]) -> None:
    if changes or variants:
        given = [*(f"--{key.replace('_', '-')}" for key in changes), *(f"--variant {one}" for one in variants)]
        raise UsageError(f"only our games' missions can be changed by {' '.join(given)}, got {name!r}; leave it out")


def _pettingzoo(name: str) -> str:
    """Return the module of a PettingZoo environment: `mpe2.simple_spread_v3`, or `butterfly.pistonball_v6`."""
    for module in (name, f"pettingzoo.{name}"):
        try:
            if importlib.util.find_spec(module) is not None:
                return module
        except ModuleNotFoundError:
            continue
    raise UsageError(f"no module {name!r} or 'pettingzoo.{name}' is installed; pip install pettingzoo, or its package")


def _from_yaml(
    path: Path, cogs: int | None, variants: Sequence[str], map_seed: int | None, allow_import: bool
) -> list[Mission]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"a mission file must be readable YAML, and {path} is not: {error}") from None
    missions = []
    for one in content if isinstance(content, list) else [content]:
        if not isinstance(one, dict) or "mission" not in one:
            raise UsageError(f"every entry of {path} must be a mapping with the key 'mission', got {one!r}")
        unknown = set(one) - {"mission", "name", "cogs", "variants", "map_seed", "steps", "default_action"}
        if unknown:
            raise UsageError(f"{path} has keys that nobody knows: {', '.join(sorted(unknown))}")
        if ".py:" in str(one["mission"]) and not allow_import:
            raise UsageError(f"{path} names code of its own, {one['mission']!r}; pass --allow-import if you trust it")
        given = one.get("cogs", cogs), one.get("variants", variants), one.get("map_seed", map_seed)
        missions += [
            replace(
                mission,
                name=one.get("name", mission.name),
                max_steps=one.get("steps"),
                has_default_action="default_action" in one,
                default_action=one.get("default_action"),
            )
            for mission in _find(str(one["mission"]), *given, allow_import)
        ]
    return missions


def module_from_file(path: str) -> Any:
    """Import a file as a module of its own, once."""
    name = f"_stretto_file_{Path(path).stem}_{zlib.crc32(path.encode()):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, 3, 0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names) or 'none'}"
    return f"no {what} is called {name!r}; {hint}"
