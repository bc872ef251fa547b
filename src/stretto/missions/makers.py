"""What makes a world, wherever it runs: small, picklable, and the same in every process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, VectorizeMode, load_env_creator

from stretto.adapters.sorrel.world import fresh, in_turns
from stretto.errors import UsageError
from stretto.importing import check_parameters, imported, parameters_of
from stretto.missions.registered_ids import PickledSpecs, call_with_ids, registered_here

__calls_user_code__ = True

Maker = Callable[[], Any]
Wrap = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class SpecMaker:
    """Makes a registered environment from its spec, which travels by value: the worker need not know the id."""

    spec: EnvSpec
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        return gymnasium.make(copy.deepcopy(self.spec), **self.kwargs)

    def find(self) -> Callable[..., Any]:
        """Return what is called."""
        point = self.spec.entry_point
        return point if callable(point) else load_env_creator(str(point))

    def rendering(self, mode: str) -> SpecMaker:
        """Return what makes the world with this render mode."""
        return replace(self, kwargs={**self.kwargs, "render_mode": mode})


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that a module or a `.py` file has; imported where it is called.

    A module that does not have it may have what is called `otherwise`.
    """

    where: str
    name: str
    otherwise: str = ""

    @property
    def text(self) -> str:
        """What names it: "module:name" or "/folder/file.py:name"."""
        return f"{self.where}:{self.name}"

    def find(self) -> Callable[..., Any]:
        """Import it."""
        found: Callable[..., Any] = imported(self.where, self.name, "world", self.otherwise)
        return found


@dataclass(frozen=True, slots=True)
class FactoryMaker:
    """Calls a function or a class, or what a reference stands for, with keyword arguments."""

    factory: Callable[..., Any] | Reference
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    callers_ids: PickledSpecs = field(default_factory=dict, compare=False, repr=False)

    def __call__(self) -> Any:
        make = self.find()
        if isinstance(self.factory, Reference):  # what it takes could not be known before
            check_parameters(make, self.kwargs, f"{self.factory.name} of {self.factory.where}")
        call = partial(make, **fresh(make, self.kwargs))
        return in_turns(call_with_ids(call, self.callers_ids) if self.callers_ids else call())

    def __reduce__(self) -> tuple[Any, ...]:
        return FactoryMaker, (self.factory, self.kwargs, self.callers_ids or registered_here())

    def find(self) -> Callable[..., Any]:
        """Return what is called."""
        return self.factory.find() if isinstance(self.factory, Reference) else self.factory

    def rendering(self, mode: str) -> FactoryMaker:
        """Return what makes the world with this render mode, if it can be told."""
        takes = parameters_of(self.find())
        if takes is not None and "render_mode" not in takes:
            return self
        return replace(self, kwargs={**self.kwargs, "render_mode": mode})


@dataclass(frozen=True, slots=True)
class WrappedMaker:
    """Makes a world and wraps it, the first wrapper innermost."""

    make: Maker
    wrappers: Sequence[Wrap]

    def __call__(self) -> Any:
        env = self.make()
        for wrap in self.wrappers:
            env = wrap(env)
        return env


@dataclass(frozen=True, slots=True)
class VectorMaker:
    """Makes the vectorized form of a registered environment, or calls a function `(num_envs=..., **kwargs)`."""

    source: EnvSpec | Callable[..., Any]
    kwargs: dict[str, Any]
    wrappers: Sequence[Callable[[Any], Any]] = ()

    def __call__(self, count: int) -> Any:
        if isinstance(self.source, EnvSpec):
            mode = VectorizeMode.VECTOR_ENTRY_POINT
            env: Any = gymnasium.make_vec(copy.deepcopy(self.source), count, vectorization_mode=mode, **self.kwargs)
        else:
            env = self.source(num_envs=count, **self.kwargs)
        for wrap in self.wrappers:
            env = wrap(env)
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise UsageError(f"with vectorized=True a factory must return a gymnasium.vector.VectorEnv, got {env!r}")
        if env.num_envs != count:
            raise UsageError(
                f"a vectorized environment must have the {count} worlds it was asked for, got {env.num_envs}"
            )
        return env


def with_render_mode(env_kwargs: Mapping[str, Any] | None, render_mode: str | None) -> dict[str, Any]:
    """Return what environments are made with."""
    if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
        raise UsageError(f"env_kwargs must be a mapping from names to values, got {env_kwargs!r}")
    kwargs = dict(env_kwargs or {})
    if render_mode is None:
        return kwargs
    if kwargs.setdefault("render_mode", render_mode) != render_mode:
        raise UsageError(
            f"a render mode must be given once, got render_mode={render_mode!r} and {kwargs['render_mode']!r} in env_kwargs"
        )
    return kwargs


def with_argument(make: Maker, name: str, value: Any) -> Maker | None:
    """Return what makes the same world with one more argument; `None` if nothing says that it has such a parameter."""
    if isinstance(make, WrappedMaker):
        inner = with_argument(make.make, name, value)
        return None if inner is None else replace(make, make=inner)
    if not isinstance(make, FactoryMaker | SpecMaker) or name not in (parameters_of(make.find()) or ()):
        return None
    return replace(make, kwargs={**make.kwargs, name: value})
