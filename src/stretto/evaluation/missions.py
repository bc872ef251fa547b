"""Missions by name: our games, anybody's environments, files, and what other packages register."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from stretto.adapters.gymnasium import makers
from stretto.errors import UsageError
from stretto.evaluation.registry import KnownMission, known_missions, our_missions
from stretto.policies.files import module_from_file
from stretto.registry import near_or_all


@dataclass(frozen=True, slots=True)
class Source:
    """The words that stand for a mission: its name, and the changes that were asked for."""

    name: str
    cogs: int | None = None
    variants: tuple[str, ...] = ()
    map_seed: int | None = None
    allow_import: bool = False

    @property
    def changes(self) -> dict[str, int]:
        """The numbers that were asked for, by name."""
        return {key: value for key in ("cogs", "map_seed") if (value := getattr(self, key)) is not None}

    def words(self) -> list[str]:
        """Return the options of `stretto eval`."""
        words = ["-m", self.name]
        for variant in self.variants:
            words += ["--variant", variant]
        for name, value in self.changes.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words + (["--allow-import"] if self.allow_import else [])

    def arguments(self) -> list[str]:
        """Return the arguments of `stretto.evaluate`, the mission first."""
        changes = {**({"variants": list(self.variants)} if self.variants else {}), **self.changes}
        return [repr(self.name), *(f"{name}={value!r}" for name, value in changes.items())]


@dataclass(frozen=True, slots=True)
class Mission:
    """A world to be played, and under which name. `make` is called in whichever process plays it.

    `source` says how a user asked for it; a mission that was made in Python has none.
    """

    name: str
    make: Callable[[], Any]
    summary: str = ""
    max_steps: int | None = None
    has_default_action: bool = False
    default_action: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = field(default=None, compare=False)

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
        module = importlib.import_module(self.module) if self.path is None else module_from_file(Path(self.path))
        make = getattr(module, self.name, None)
        if not callable(make):
            there = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            where = self.path or self.module
            raise _unknown(f"function or class in {where} that makes a world", self.name, there)
        return make(**self.kwargs)


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
        for mission in _find(Source(name, cogs, tuple(variants), map_seed, allow_import)):
            if found.setdefault(mission.name, mission) != mission:
                raise UsageError(
                    f"two missions must not have one name, got {mission.name!r} for different ones; "
                    f"give one of them another name in a mission file"
                )
    return list(found.values())


def _find(asked: Source) -> list[Mission]:
    kind, _, rest = asked.name.partition(":")
    if kind == "gym" and rest:
        return [_unchanged(asked, makers(rest, 1, None, ())[0], f"Gymnasium's {rest}")]
    if kind == "pz" and rest:
        return [_unchanged(asked, _FromModule(_pettingzoo(rest), "parallel_env", {}), f"PettingZoo's {rest}")]
    if kind.endswith((".yaml", ".yml")):
        return _from_yaml(asked, Path(kind), rest)
    if kind.endswith(".py") and not rest:
        raise UsageError(
            f"a mission of the form file.py:function names what makes a world, got {asked.name!r}; "
            f"name the function or class in the file, as in {kind}:make"
        )
    if kind.endswith(".py"):
        path = Path(kind).expanduser().resolve()
        if not path.is_file():
            raise UsageError(f"a mission of the form file.py:function needs a file, and {kind!r} does not exist")
        return [_unchanged(asked, _FromModule("", rest, {}, str(path)), f"{rest} in {kind}")]
    known = our_missions()
    if asked.name not in known:
        known = known_missions()  # which imports other people's packages
    pattern = any(c in asked.name for c in "*?[")
    chosen = fnmatch.filter(known, asked.name) if pattern else [asked.name] if asked.name in known else []
    if not chosen:
        raise _unknown("mission", asked.name, known)
    return [_of_game(known[one], asked) for one in chosen if not (pattern and known[one].error)]


def _of_game(known: KnownMission, asked: Source) -> Mission:
    recipe = known.value
    if known.error is not None or recipe is None:
        raise UsageError(f"the mission {known.name!r} cannot be used: of the package {known.package}: {known.error}")
    kwargs = dict(recipe.kwargs)
    for variant in asked.variants:
        if variant not in recipe.variants:
            raise _unknown(f"variant of {known.name}", variant, recipe.variants)
        kwargs.update(recipe.variants[variant])
    changes = asked.changes
    takes = inspect.signature(recipe.make).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        _refuse(known.name, {key: value for key, value in changes.items() if key not in takes}, ())
    kwargs.update(changes)
    name = known.name + "".join(f"+{variant}" for variant in asked.variants)
    source = replace(asked, name=known.name, allow_import=False)
    # Summaries say how many cogs there are.
    others = "cogs" in recipe.kwargs and kwargs["cogs"] != recipe.kwargs["cogs"]
    summary = f"{known.name} with cogs = {kwargs['cogs']}" if others else known.summary
    return Mission(name, _Call(recipe.make, kwargs), summary, details=kwargs, source=source)


def _unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"no {what} is called {name!r}{near_or_all(name, names)}")


def _unchanged(asked: Source, make: Callable[[], Any], summary: str) -> Mission:
    _refuse(asked.name, asked.changes, asked.variants)
    return Mission(asked.name, make, summary, source=Source(asked.name))


def _refuse(name: str, changes: Mapping[str, Any], variants: Sequence[str]) -> None:
    if changes or variants:
        given = [*(f"--{key.replace('_', '-')}" for key in changes), *(f"--variant {one}" for one in variants)]
        raise UsageError(f"only games that know it can be changed by {' '.join(given)}, got {name!r}; leave it out")


def _pettingzoo(name: str) -> str:
    """Return the module of a PettingZoo environment: `mpe2.simple_spread_v3`, or `butterfly.pistonball_v6`."""
    for module in (name, f"pettingzoo.{name}"):
        try:
            if importlib.util.find_spec(module) is not None:
                return module
        except ModuleNotFoundError:
            continue
    raise UsageError(f"no module {name!r} or 'pettingzoo.{name}' is installed; pip install pettingzoo, or its package")


# --- files ----------------------------------------------------------------------------------------------------

_KEYS = ("mission", "name", "cogs", "variants", "map_seed", "steps", "default_action")


def _from_yaml(asked: Source, path: Path, wanted: str) -> list[Mission]:
    """Return the missions of a file, or the one that is wanted by its name."""
    entries = _entries(path)
    if not wanted:
        return [mission for entry in entries for mission in _of_entry(entry, asked, path)]
    # A pattern, or a mission with variants, has a name that only its missions tell; what has another is left alone.
    named = [str(entry.get("name", entry["mission"])) for entry in entries]
    open_ones = [
        entry
        for entry, name in zip(entries, named, strict=True)
        if name == wanted or ("name" not in entry and ".py:" not in name)
    ]
    found = [one for entry in open_ones for one in _of_entry(entry, asked, path) if one.name == wanted]
    if not found:
        raise _unknown(f"mission in {path}", wanted, named)
    return found


def _entries(path: Path) -> list[dict[str, Any]]:
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
        if strange := sorted(str(key) for key in one if key not in _KEYS):
            raise _unknown(f"key of a mission in {path}", strange[0], _KEYS)
    return entries


def _of_entry(entry: Mapping[str, Any], asked: Source, path: Path) -> list[Mission]:
    target = str(entry["mission"])
    imports = ".py:" in target
    if imports and not asked.allow_import:
        raise UsageError(f"{path} names code of its own, {target!r}; pass --allow-import if you trust it")
    changes = {key: entry[key] for key in ("cogs", "map_seed") if key in entry}
    variants = entry.get("variants", asked.variants)
    if isinstance(variants, str) or not all(isinstance(one, str) for one in variants):
        raise UsageError(f"variants in {path} must be a list of names, got {variants!r}; write [{variants}]")
    named = replace(asked, name=target, variants=tuple(variants), **changes)
    found = _find(named)
    if "name" in entry and len(found) > 1:
        raise UsageError(
            f"a name in {path} must be for one mission, got {entry['name']!r} for {target!r}; leave it out"
        )
    return [
        replace(
            mission,
            name=str(entry.get("name", mission.name)),
            max_steps=entry.get("steps"),
            has_default_action="default_action" in entry,
            default_action=entry.get("default_action"),
            source=replace(
                asked, name=f"{path}:{entry.get('name', mission.name)}", allow_import=imports and asked.allow_import
            ),
        )
        for mission in found
    ]
