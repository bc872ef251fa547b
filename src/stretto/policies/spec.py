"""From what a user writes to a policy: names, specs that travel to workers, and loading them there."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import UsageError

ENTRY_POINT_GROUP = "stretto.policies"
STRATEGIES = ("sequential", "threads", "processes", "batched", "adaptive")

_KEYS = ("class", "data", "proportion", "strategy", "kw.NAME")
_KEY = r"\s*[A-Za-z_][\w.]*\s*="
_FORMS = "a known name, pkg.module:Class, file.py:Class, or class=NAME,data=FILE,proportion=N,strategy=NAME,kw.x=1"


@dataclass(frozen=True, slots=True)
class KnownPolicy:
    """A line of the listing; `error` says why an installed one cannot be used."""

    name: str
    summary: str
    target: str
    error: str | None = None


_BUILTIN = {
    known.name: known
    for known in (
        KnownPolicy("random", "draws every action uniformly from the action space", "stretto.policies.builtin:Random"),
        KnownPolicy("noop", "does nothing, as far as the action space allows that", "stretto.policies.builtin:Noop"),
        KnownPolicy(
            "gatherer",
            "Foundry: takes the nearest ore that it lacks, then the nearest forge",
            "stretto.policies.foundry:Gatherer",
        ),
        KnownPolicy(
            "planner",
            "Foundry: compares whole itineraries in each step, and takes the best",
            "stretto.policies.foundry:Planner",
        ),
        KnownPolicy("neural", "a small recurrent network; needs torch", "stretto.policies.neural:Neural"),
    )
}


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which policy, and how to build it; small, and the same in every process.

    `name` is what the user wrote, and labels results. `target` is `module:Class`, `/absolute/file.py:Class`, or the
    class or callable itself. `proportion` is the policy's share of the agents in a mix.
    """

    name: str
    target: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    data: str | None = None
    proportion: float = 1.0
    strategy: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.proportion) and self.proportion > 0):
            raise UsageError(f"proportion must be a number above 0, got {self.proportion}; leave it out for 1")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise UsageError(
                f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}{_near(self.strategy, STRATEGIES)}"
            )
        if self.data is not None and Path(self.data).suffix != ".safetensors":
            raise UsageError(
                f"data must be a .safetensors file, since others (pickles) can run code when they are loaded, "
                f"got {self.data!r}; save the weights with safetensors"
            )

    @classmethod
    def of(cls, policy: Any) -> PolicySpec:
        """Return the spec of a text, of a policy's class, or of a callable `observation -> action`.

        A callable is shared by all agents of a worker: what it returns may depend on the observation alone.
        """
        if isinstance(policy, PolicySpec):
            return policy
        if isinstance(policy, str):
            return parse_policy(policy)
        name = getattr(policy, "__name__", type(policy).__name__)
        _loader(policy, name)
        return cls(name, policy)


# --- what a text means ----------------------------------------------------------------------------------------


def parse_policy(text: str, *, allow_import: bool = True) -> PolicySpec:
    """Return what `text` names: a known name, `pkg.module:Class`, `file.py:Class`, or `class=NAME,data=FILE,kw.x=1`.

    Files are looked up from the current folder. Values of `kw.` are Python literals where they can be, else text.
    Without `allow_import` only known names pass, so that a file from elsewhere cannot have code run.
    """
    label = text.strip()
    if not re.match(_KEY, label):
        return PolicySpec(label, _target(label, allow_import))
    values: dict[str, str] = {}
    for item in _items(label):
        key, _, value = (part.strip() for part in item.partition("="))
        if key not in _KEYS and not (key.startswith("kw.") and key[3:].isidentifier()):
            raise UsageError(f"a policy's settings are {', '.join(_KEYS)}, got {key!r} in {label!r}{_near(key, _KEYS)}")
        if key in values or not value:
            raise UsageError(
                f"each setting of a policy has one value, got {key!r} {'twice' if value else 'without one'} in {label!r}"
            )
        values[key] = value
    if "class" not in values:
        raise UsageError(f"a policy's settings name its class, got {label!r}; add class=NAME")
    try:
        proportion = float(values.get("proportion", 1))
    except ValueError:
        raise UsageError(f"proportion must be a number above 0, got {values['proportion']!r} in {label!r}") from None
    spec = PolicySpec(
        label,
        _target(values["class"], allow_import),
        {key[3:]: _literal(value) for key, value in values.items() if key.startswith("kw.")},
        _absolute(values["data"]) if "data" in values else None,
        proportion,
        values.get("strategy"),
    )
    if spec.data is not None:
        _check_exists(spec.data, "data")
    return spec


def _items(text: str) -> Iterator[str]:
    """Split at the commas before a `key=`, except within a literal: `kw.sizes=[1,2]`, `kw.text="a,b=c"`."""
    pieces = re.split(rf",(?={_KEY})", text)
    while pieces:
        count = 1
        if pieces[0].partition("=")[2].lstrip()[:1] in {*"([{'\""}:
            values = (",".join(pieces[:n]).partition("=")[2].strip() for n in range(1, len(pieces) + 1))
            count = next((n for n, value in enumerate(values, 1) if _literal(value) != value), 1)
        yield ",".join(pieces[:count])
        del pieces[:count]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _target(name: str, allow_import: bool) -> str:
    """Return `module:Class` or `/absolute/file.py:Class`."""
    where, colon, attribute = name.rpartition(":")
    if not colon:
        return _registered(name)
    if not allow_import:
        raise UsageError(
            f"a policy that a file names must be a known name, since others import code, got {name!r}; "
            f"pass --allow-import if you trust the file"
        )
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(
            f"a class stands after the last colon of a policy, got {name!r}; write {where or 'module'}:Class"
        )
    if where.endswith(".py"):
        _check_exists(_absolute(where), "the file of a policy")
        return f"{_absolute(where)}:{attribute}"
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"a policy is {_FORMS}; got {name!r}, where {where!r} names no module and no .py file")
    return name


def _registered(name: str) -> str:
    if name in _BUILTIN:
        return _BUILTIN[name].target
    installed = {point.name: point for point in reversed(list(entry_points(group=ENTRY_POINT_GROUP)))}
    if name in installed:
        return f"{installed[name].module}:{installed[name].attr}"
    if "=" in name:
        remedy = f"; settings follow class=NAME, as in class={name}"
    elif name.endswith(".py"):
        remedy = f"; name the class in the file, as in {name}:Class"
    else:
        known = [*_BUILTIN, *installed]
        remedy = _near(name, known) or f"; known are {', '.join(known)}"
    raise UsageError(f"a policy is {_FORMS}; got {name!r}{remedy}")


def _near(name: str, known: Iterable[str]) -> str:
    spellings = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), spellings, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(spellings[one] for one in close)}?" if close else ""


def _absolute(path: str) -> str:
    # A worker may run in another folder.
    return str(Path(path).expanduser().resolve())


def _check_exists(path: str, role: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"{role} must exist, got {path}; write a path from the current folder, or an absolute one")


def known_policies() -> dict[str, KnownPolicy]:
    """Return all policies that have a short name: ours, and those that installed packages register.

    Ours are not imported for it. An installed one that cannot be imported, or whose name is taken, is listed with
    its error.
    """
    known = dict(_BUILTIN)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name in known:
            taken = f"the name {point.name} is taken by {known[point.name].target}; write {point.value} instead"
            known[point.value] = KnownPolicy(point.value, "", point.value, taken)
        else:
            known[point.name] = _described(point)
    return known


def _described(point: EntryPoint) -> KnownPolicy:
    try:
        found = point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001  listed as the policy's error, and it must not hide others
        return KnownPolicy(point.name, "", point.value, f"{type(error).__name__}: {error}")
    return KnownPolicy(point.name, (inspect.getdoc(found) or "").partition("\n")[0], point.value)


# --- loading it, inside a worker ------------------------------------------------------------------------------


def load_policy(spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    """Import and build a policy for `world`; code that chooses for one agent alone is wrapped.

    A class with `agent_policy` is built with the world and the kwargs. One with `step` or `__call__` is built with the
    kwargs for every agent and episode, and given `world` and `agent` if its constructor has arguments of these names.
    """
    found = _imported(spec.target) if isinstance(spec.target, str) else spec.target
    load = _loader(found, spec.name)
    if spec.data is not None and not callable(getattr(found, "load", None)):
        raise UsageError(f"data is given to a policy's load(path), which {spec.name!r} does not have; leave data out")
    return load(found, spec, world)


def _loader(found: Any, name: str) -> Callable[[Any, PolicySpec, WorldSpec], MultiAgentPolicy]:
    if not isinstance(found, type):
        if callable(found) and not hasattr(found, "agent_policy"):
            return _load_function
    elif hasattr(found, "agent_policy"):
        return _load_team
    elif hasattr(found, "step") or any("__call__" in vars(base) for base in found.__mro__):
        return _load_agents
    raise UsageError(
        f"a policy is a class with agent_policy, step or __call__, or a function from observation to action, "
        f"got {name!r}, {'a class without any' if isinstance(found, type) else f'an object of {type(found).__name__}'}; "
        f"pass such a class or function, or a text: {_FORMS}"
    )


def _load_team(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    _check_arguments(found, spec, (world,), spec.kwargs)
    return cast(MultiAgentPolicy, _with_data(found(world, **spec.kwargs), spec))


def _load_agents(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    names = inspect.signature(found).parameters

    def arguments(agent: AgentId) -> dict[str, Any]:
        offered = {"world": world, "agent": agent}
        return {**{name: value for name, value in offered.items() if name in names}, **spec.kwargs}

    def make(agent: AgentId) -> Any:
        made = _with_data(found(**arguments(agent)), spec)
        return made if hasattr(made, "step") else _Calling(made)

    _check_arguments(found, spec, (), arguments(""))
    return _Separate(world, make)


def _load_function(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    # A partial has no reset: one agent's new episode is no reason to reset what all agents share.
    function = functools.partial(_with_data(found, spec), **spec.kwargs)
    return _Separate(world, lambda agent: _Calling(function))


def _with_data(made: Any, spec: PolicySpec) -> Any:
    if spec.data is not None:
        made.load(spec.data)
    return made


def _check_arguments(found: Any, spec: PolicySpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    signature = inspect.signature(found)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"kw. settings must be arguments of the policy, got {dict(spec.kwargs)} for {spec.name!r} ({error}); "
            f"it takes {signature}"
        ) from None


class _Separate(MultiAgentPolicy):
    """Agents that share nothing that Stretto knows of."""

    def __init__(self, world: WorldSpec, make: Callable[[AgentId], Any]) -> None:
        super().__init__(world)
        self._make = make

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return cast(AgentPolicy, self._make(agent))


class _Calling(AgentPolicy):
    """A callable as the policy of one agent."""

    def __init__(self, function: Callable[[Observation], Action]) -> None:
        self._function = function

    def reset(self, rng: np.random.Generator) -> None:
        reset_policy(self._function, rng)

    def step(self, observation: Observation) -> Action:
        return self._function(observation)


def _imported(target: str) -> Any:
    where, _, attribute = target.rpartition(":")
    try:
        module = _file_module(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{where}.".startswith(f"{error.name}."):
            raise  # something that the module itself needs
        raise UsageError(
            f"a policy's module must be importable, got {where!r}; install it, or write file.py:Class"
        ) from error
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        remedy = _near(attribute, vars(module)) or "; name a class or function that it has"
        raise UsageError(
            f"a policy must be in its module, got {attribute!r}, which {where} does not have{remedy}"
        ) from None


_loading = threading.RLock()


def _file_module(path: Path) -> ModuleType:
    source = path.read_bytes()
    # Named by what it holds: a file that was changed since is loaded anew.
    name = f"{path.stem}_{hashlib.sha256(bytes(path) + source).hexdigest()[:12]}"
    with _loading:
        if name in sys.modules:
            return sys.modules[name]
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # last: it can import its neighbours, and they hide nothing
        module = ModuleType(name)
        module.__file__ = str(path)
        sys.modules[name] = module  # dataclasses and pickle look for it there
        try:
            exec(compile(source, path, "exec"), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        return module


_ResetCall = Callable[[Any, np.random.Generator], object]
_reset_calls: WeakKeyDictionary[Any, _ResetCall] = WeakKeyDictionary()


def reset_policy(agent_policy: Any, rng: np.random.Generator) -> None:
    """Begin an episode: call `reset` with the generator, or without if it takes none, or not at all if there is none."""
    reset = getattr(agent_policy, "reset", None)
    if reset is None:
        return
    function = getattr(reset, "__func__", reset)
    call = _reset_calls.get(function)
    if call is None:
        call = _reset_calls[function] = _reset_call(reset)
    call(reset, rng)


def _reset_call(reset: Any) -> _ResetCall:
    parameters = inspect.signature(reset).parameters.values()
    if any(p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL} for p in parameters):
        return lambda reset, rng: reset(rng)
    if any(p.name == "rng" for p in parameters):
        return lambda reset, rng: reset(rng=rng)
    return lambda reset, rng: reset()
