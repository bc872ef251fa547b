"""Which world a text, a class, a function or a spec means: the one place that answers it, for all who run worlds."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from stretto.adapters.agents import as_agents
from stretto.adapters.gymnasium import spec_of
from stretto.adapters.old_gym import modern
from stretto.adapters.sorrel.world import copied
from stretto.adapters.wrapped import limit_steps
from stretto.core import SIMULTANEOUS
from stretto.errors import UsageError
from stretto.identity.names import canonical_name
from stretto.identity.source import find_module
from stretto.importing import check_parameters
from stretto.missions import cogames
from stretto.missions.makers import FactoryMaker, Maker, Reference, SpecMaker, Wrap, WrappedMaker
from stretto.missions.mission import Mission, Source
from stretto.missions.mission_files import KEYS, read_entries
from stretto.missions.pools import POOL, pool_maker
from stretto.missions.registry import KnownMission, known_missions, our_missions, package_of
from stretto.registry import near, near_or_all
from stretto.settings import has_settings, literal, parse_settings, settings_text

FORMS = (
    "a mission's name, a Gymnasium id, gym:ID, pz:MODULE, envpool:ID, file.py:NAME, module:NAME, file.yaml, an EnvSpec, "
    "a class or a function that makes a world, or a list of these"
)
"""What can stand for worlds."""


def find_missions(
    sources: Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    variants: Sequence[str] = (),
    cogs: int | None = None,
    map_seed: int | None = None,
    allow_import: bool = True,
) -> list[Mission]:
    """Return the missions that `sources` stand for, in that order, each once; `FORMS` says what they may be.

    `env_kwargs` are given to whatever makes the worlds; `cogs` and `map_seed` are two of them. `variants` are names that
    a game knows, or that a function with a parameter `variants` is given.

    Raises:
        UsageError: with the nearest known names.
    """
    asked = _asked(env_kwargs, variants, cogs, map_seed, allow_import=allow_import)
    found: dict[str, Mission] = {}
    for one in sources if isinstance(sources, (list, tuple)) else [sources]:
        for mission in _find(one, asked):
            if found.setdefault(mission.name, mission) != mission:
                text = "file.py:make" if mission.source is None else mission.source.name
                raise UsageError(
                    f"two missions must not have one name, got {mission.name!r} for different ones, since episodes follow "
                    f"from the name; give one of them another, as in {text},name=other"
                )
    return list(found.values())


def makers(  # noqa: PLR0913, PLR0917  all that says which worlds there are
    source: Any,
    count: int,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Wrap] = (),
    variants: Sequence[str] = (),
    turns: str = SIMULTANEOUS,
    cogs: int | None = None,
    map_seed: int | None = None,
) -> list[Maker]:
    """Return what makes the world of each of `count` slots: one mission for all of them, or a list with one for each."""
    asked = _asked(env_kwargs, variants, cogs, map_seed)
    several = isinstance(source, (list, tuple))
    if several and len(source) != count:
        raise UsageError(f"a list of worlds must have one for each environment, got {len(source)} for num_envs={count}")
    found = [_maker(one, asked, wrappers, turns) for one in (source if several else [source])]
    return found if several else found * count


def _maker(source: Any, asked: Source, wrappers: Sequence[Wrap], turns: str) -> Maker:
    found = _find(source, asked)
    if len(found) != 1:
        raise UsageError(f"one world is needed here, got {source!r}, which stands for {len(found)} missions; name one")
    (mission,) = found
    limit = mission.max_steps
    inner = () if limit is None else (partial(limit_steps, as_agents=partial(as_agents, turns=turns), max_steps=limit),)
    return WrappedMaker(mission.make, (modern, *inner, *wrappers)) if inner or wrappers else mission.make


def _asked(
    env_kwargs: Mapping[str, Any] | None,
    variants: Sequence[str],
    cogs: int | None = None,
    map_seed: int | None = None,
    *,
    allow_import: bool = True,
) -> Source:
    options = {name: value for name, value in (("cogs", cogs), ("map_seed", map_seed)) if value is not None}
    return Source("", {**(env_kwargs or {}), **options}, tuple(variants), allow_import)


def _find(source: Any, asked: Source) -> list[Mission]:
    if isinstance(source, str):
        asked = replace(asked, name=source)
        return _with_settings(asked) if has_settings(source) else _named(asked)
    if isinstance(source, EnvSpec):
        return [_of_spec(source, asked)]
    if isinstance(source, Mission):
        if asked.kwargs or asked.variants:
            raise UsageError(f"a Mission is made as it is, got changes for {source.name!r}; leave them out")
        return [source]
    if not callable(source := copied(source)):
        raise UsageError(f"a world is {FORMS}; got {source!r}")
    check_parameters(source, kwargs := _with_variants(asked), name := canonical_name(source))
    return [Mission(_changed(name, asked), FactoryMaker(source, kwargs), details=kwargs)]


def _named(asked: Source) -> list[Mission]:
    kind, _, rest = asked.name.partition(":")
    if kind == "gym" and rest:
        return [_of_spec(spec_of(rest), asked)]
    if kind == "pz" and rest:
        return [_of_pettingzoo(asked, rest)]
    if kind == POOL and rest:
        return [_of_pool(asked, rest)]
    if kind == cogames.PROGRAM and rest:
        return _of_cogames(replace(asked, name=rest))
    if kind.endswith((".yaml", ".yml")):
        return _from_yaml(asked, Path(kind), rest)
    if kind.endswith(".py"):
        return [_of_file(asked, kind, rest)]
    if rest:
        return [_of_module(asked, kind, rest)]
    return [_of_spec(spec_of(asked.name), asked)] if asked.name in gymnasium.registry else _known(asked)


def _of_file(asked: Source, file: str, name: str) -> Mission:
    if not name:
        raise UsageError(
            f"a mission of the form file.py:function names what makes a world, got {asked.name!r}; "
            f"name the function or class in the file, as in {file}:make"
        )
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"a mission of the form file.py:function needs a file, and {file!r} does not exist")
    return _of_reference(asked, Reference(str(path), name), f"{name} in {file}")


def _of_module(asked: Source, module: str, name: str) -> Mission:
    """Return what a module registers with Gymnasium under this name, or else what it has of this name."""
    try:
        spec = spec_of(asked.name)
    except UsageError:
        if not name.isidentifier():
            raise
        if find_module(module) is None:
            if remedy := _file_instead(module, name):
                raise UsageError(f"no module {module!r} is installed{remedy}") from None
            raise
        return _of_reference(asked, Reference(module, name), f"{name} in {module}")
    return _of_spec(spec, asked)


def _file_instead(module: str, name: str) -> str:
    """Return the remedy for a module that is a file in this folder, where commands import no modules from."""
    file = f"{module.replace('.', '/')}.py"
    return f"; for the file {file} write {file}:{name}" if Path(file).is_file() else ""


def _of_reference(asked: Source, reference: Reference, summary: str) -> Mission:
    kwargs = _with_variants(asked)
    name = _changed(canonical_name(reference.text), asked)
    return Mission(name, FactoryMaker(reference, kwargs), summary, details=kwargs, source=asked)


def _of_spec(spec: EnvSpec, asked: Source) -> Mission:
    kwargs, name = _with_variants(asked), f"gym:{spec.id}"
    if kwargs:
        check_parameters(SpecMaker(spec).find(), kwargs, name, also=inspect.signature(gymnasium.make).parameters)
    source = replace(asked, name=asked.name or name)
    return Mission(
        _changed(name, asked), SpecMaker(spec, kwargs), f"Gymnasium's {spec.id}", details=kwargs, source=source
    )


def _with_variants(asked: Source) -> dict[str, Any]:
    """Return the keyword arguments for what is no game of ours: it is given the names of variants, if there are any."""
    return {**asked.kwargs, **({"variants": list(asked.variants)} if asked.variants else {})}


def _changed(name: str, asked: Source) -> str:
    return name + "".join(f"+{variant}" for variant in asked.variants)


def _known(asked: Source) -> list[Mission]:
    """Return the missions that have this short name, or one like this pattern; or the newest version of an id."""
    known = our_missions()
    pattern = any(c in asked.name for c in "*?[")
    if asked.name not in known and not pattern:
        try:
            return [_of_spec(spec_of(asked.name), asked)]
        except UsageError as error:
            if found := _of_cogames(asked):
                return found
            known = known_missions()  # which imports other people's packages
            if asked.name not in known:
                raise _unknown_name(asked.name, [*known, *cogames.summaries()], error) from None
    elif pattern:
        known = known_missions()
    chosen = fnmatch.filter(known, asked.name) if pattern else [asked.name]
    if not chosen and (found := _of_cogames(asked)):
        return found
    if not chosen:
        raise _unknown("mission", asked.name, [*known, *cogames.summaries()])
    return [_of_game(known[one], asked) for one in chosen if not (pattern and known[one].error)]


def _of_cogames(asked: Source) -> list[Mission]:
    """Return the missions that cogames has of this name, or like this pattern, if it is installed."""
    if not cogames.is_installed():
        return []
    given = {name: value for name, value in asked.kwargs.items() if name != "cogs"}
    strange = given.keys() - {"map_seed", "max_steps"}
    found = cogames.find(asked.name, asked.variants, asked.kwargs.get("cogs"))
    if found and strange:
        raise UsageError(
            f"arguments must be parameters of what they are for, got {', '.join(sorted(strange))} for {asked.name}, "
            f"which takes cogs, map_seed, max_steps"
        )
    reference = Reference(cogames.MODULE, "make")
    missions = []
    for one in found:
        kwargs = {
            "mission": one.mission,
            **({"variants": list(asked.variants)} if asked.variants else {}),
            **asked.kwargs,
        }
        source = replace(asked, name=f"{cogames.PROGRAM}:{one.mission}")
        missions.append(
            Mission(
                _changed(one.name, asked),
                FactoryMaker(reference, kwargs),
                one.summary,
                has_default_action=True,
                default_action=0,
                details=kwargs,
                source=source,
                program=cogames.PROGRAM,
            )
        )
    return missions


def _unknown_name(name: str, known: Iterable[str], error: UsageError) -> UsageError:
    """Say that a text is no mission, and what it may have been: a world that is not installed, or an id of Gymnasium's."""
    if (package := package_of(name)) is not None:
        return UsageError(f"the mission {name!r} needs {package}, which is not installed; put its folder on PYTHONPATH")
    looks_like_an_id = "/" in name or name.rpartition("-v")[2].isdecimal()
    if looks_like_an_id:
        return UsageError(f"{error}{near(name, known)}")
    offered = near(name, [*known, *gymnasium.registry]) or near_or_all(name, known)
    return UsageError(f"no mission is called {name!r}{offered}")


def _of_game(known: KnownMission, asked: Source) -> Mission:
    recipe = known.value
    if known.error is not None or recipe is None:
        raise UsageError(f"the mission {known.name!r} cannot be used: of the package {known.package}: {known.error}")
    kwargs = dict(recipe.kwargs)
    for variant in asked.variants:
        if variant not in recipe.variants:
            raise _unknown(f"variant of {known.name}", variant, recipe.variants)
        kwargs.update(recipe.variants[variant])
    check_parameters(recipe.make, asked.kwargs, known.name)
    kwargs.update(asked.kwargs)
    source = replace(asked, name=known.name, allow_import=False)
    # Summaries say how many cogs there are.
    others = "cogs" in recipe.kwargs and kwargs["cogs"] != recipe.kwargs["cogs"]
    summary = f"{known.name} with cogs = {kwargs['cogs']}" if others else known.summary
    return Mission(
        _changed(known.name, asked), FactoryMaker(recipe.make, kwargs), summary, details=kwargs, source=source
    )


def _unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    return UsageError(f"no {what} is called {name!r}{near_or_all(name, names)}")


def _of_pettingzoo(asked: Source, name: str) -> Mission:
    """Return the world of a module: `mpe2.simple_spread_v3`, or `classic.chess_v6`, a game with an `env` alone."""
    module = next((one for one in (name, f"pettingzoo.{name}") if find_module(one) is not None), None)
    if module is None:
        remedy = _file_instead(name, "parallel_env") or "; pip install pettingzoo, or its package"
        raise UsageError(f"no module {name!r} or 'pettingzoo.{name}' is installed{remedy}")
    found = _of_reference(asked, Reference(module, "parallel_env", otherwise="env"), f"PettingZoo's {name}")
    return replace(found, name=_changed(f"pz:{module.removeprefix('pettingzoo.')}", asked))


def _of_pool(asked: Source, task: str) -> Mission:
    make = pool_maker(task, _with_variants(asked))
    return Mission(_changed(f"{POOL}:{task}", asked), make, f"EnvPool's {task}", details=make.kwargs, source=asked)


# --- settings, in texts and in files --------------------------------------------------------------------------


def _with_settings(asked: Source) -> list[Mission]:
    """Return the missions of a text such as `file.py:make,name=small,steps=100,kw.size=3`."""
    settings = parse_settings(asked.name, "mission", "mission", KEYS)
    entry = {key: literal(value) for key, value in settings.values.items()}
    if isinstance(variants := entry.get("variants"), str):
        entry["variants"] = variants.strip("[]").replace(" ", "").split(",")
    entry |= {"mission": settings.name, "env_kwargs": settings.kwargs}
    written = {**settings.values, **{f"kw.{name}": value for name, value in settings.kwargs.items()}}

    def source(mission: Mission) -> Source:
        named = settings.name if mission.source is None else mission.source.name
        return replace(asked, name=settings_text(named, written))

    return _of_entry(entry, asked, repr(asked.name), source)


def _from_yaml(asked: Source, path: Path, wanted: str) -> list[Mission]:
    """Return the missions of a file, or the one that is wanted by its name."""
    entries = read_entries(path)

    def of(entry: Mapping[str, Any]) -> list[Mission]:
        target = str(entry["mission"])
        imports = _imports(target)
        if imports and not asked.allow_import:
            raise UsageError(f"{path} names code of its own, {target!r}; pass --allow-import if you trust it")
        allowed = replace(asked, allow_import=imports and asked.allow_import)
        name = entry.get("name")
        return _of_entry(entry, asked, str(path), lambda one: replace(allowed, name=f"{path}:{name or one.name}"))

    if not wanted:
        return [mission for entry in entries for mission in of(entry)]
    # A pattern, or a mission with variants, has a name that only its missions tell; what has another is left alone.
    named = [str(entry.get("name", entry["mission"])) for entry in entries]
    open_ones = [
        entry
        for entry, name in zip(entries, named, strict=True)
        if wanted in (name, _without_folder(name))
        or ("name" not in entry and ".py:" not in name and (asked.allow_import or not _imports(name)))
    ]
    found = [one for entry in open_ones for one in of(entry) if _without_folder(wanted) == one.name]
    if not found:
        raise _unknown(f"mission in {path}", wanted, named)
    return found


def _imports(target: str) -> bool:
    """Whether a mission's text names a module or a file to import; of Gymnasium's own ids none does."""
    return ":" in target.removeprefix("gym:")


def _without_folder(name: str) -> str:
    """Return what a mission of the form file.py:function is called; other names stay."""
    return canonical_name(name) if ".py:" in name else name


def _of_entry(
    entry: Mapping[str, Any], asked: Source, where: str, source: Callable[[Mission], Source]
) -> list[Mission]:
    """Return the missions of an entry, whose settings say more than what was asked for beside it."""
    target, steps = str(entry["mission"]), entry.get("steps")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise UsageError(f"steps in {where} must be a whole number of at least 1, got {steps!r}; leave it out for none")
    changes = {key: entry[key] for key in ("cogs", "map_seed") if key in entry}
    variants = entry.get("variants", asked.variants)
    if isinstance(variants, str) or not all(isinstance(one, str) for one in variants):
        raise UsageError(f"variants in {where} must be a list of names, got {variants!r}; write [{variants}]")
    kwargs = {**asked.kwargs, **(entry.get("env_kwargs") or {}), **changes}
    found = _find(target, replace(asked, kwargs=kwargs, variants=tuple(variants)))
    if "name" in entry and len(found) > 1:
        raise UsageError(
            f"a name in {where} must be for one mission, got {entry['name']!r} for {target!r}; leave it out"
        )
    return [
        replace(
            mission,
            name=str(entry.get("name", mission.name)),
            max_steps=steps if steps is not None else mission.max_steps,
            has_default_action=mission.has_default_action or "default_action" in entry,
            default_action=entry.get("default_action", mission.default_action),
            source=source(mission),
        )
        for mission in found
    ]
