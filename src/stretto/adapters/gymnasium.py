"""Gymnasium environments by id, spec or factory: resolved in the caller, built wherever they run."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from stretto.errors import UsageError

Wrap = Callable[[Any], Any]
StepFunction = Callable[[Any], tuple[Any, Any, Any, Any, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SpecMaker:
    """Makes a registered environment from its spec, which travels by value: the worker need not know the id."""

    spec: EnvSpec
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Wrap] = ()

    def __call__(self) -> Any:
        env: Any = gymnasium.make(copy.deepcopy(self.spec), **self.kwargs)
        for wrap in self.wrappers:
            env = wrap(env)
        return env


@dataclass(frozen=True, slots=True)
class FactoryMaker:
    """Calls a factory and wraps what it returns."""

    factory: Callable[..., Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: Sequence[Wrap] = ()

    def __call__(self) -> Any:
        env = self.factory(**self.kwargs)
        for wrap in self.wrappers:
            env = wrap(env)
        return env


def makers(source: Any, count: int, kwargs: dict[str, Any] | None, wrappers: Sequence[Wrap]) -> list[Callable[[], Any]]:
    """Return one maker a slot.

    `source` is an id (also `module:Name-v0`), an `EnvSpec`, a factory, or a sequence of factories.
    """
    kwargs = dict(kwargs or {})
    if isinstance(source, str):
        return [SpecMaker(_spec(source), kwargs, tuple(wrappers))] * count
    if isinstance(source, EnvSpec):
        return [SpecMaker(source, kwargs, tuple(wrappers))] * count
    if callable(source):
        return [FactoryMaker(source, kwargs, tuple(wrappers))] * count
    if isinstance(source, Sequence) and source and all(callable(one) for one in source):
        if len(source) != count:
            raise UsageError(
                f"a list of factories must have one for each environment, got {len(source)} for num_envs={count}"
            )
        return [FactoryMaker(one, kwargs, tuple(wrappers)) for one in source]
    raise UsageError(f"an environment is given as an id, an EnvSpec, a factory or a list of factories, got {source!r}")


def direct_step(env: gymnasium.Env[Any, Any]) -> tuple[StepFunction, bool]:
    """Return what does the same as `env.step`, past wrappers that only pass it on; and whether that is for good.

    `gymnasium.make` puts three around a world: one that has nothing to do once the world was reset, one that has
    nothing to do once it has checked two steps, and a `TimeLimit`, which counts. Past them a step of CartPole takes 3%
    less. A wrapper of any other type is called as ever.
    """
    limit: Any = env if isinstance(env, TimeLimit) and _as_made(env) else None
    inner: gymnasium.Env[Any, Any] = env if limit is None else limit.env
    while isinstance(inner, OrderEnforcing | PassiveEnvChecker) and _as_made(inner):
        if isinstance(inner, OrderEnforcing):
            idle = inner.has_reset
        else:
            idle = inner.checked_step and getattr(inner, "checked_data_reuse", True)
        if not idle:
            return env.step, False
        inner = inner.env
    return inner.step if limit is None else _limited(limit, inner.step), True


def _as_made(wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether a wrapper of Gymnasium's is no subclass, and nobody has put another step into it."""
    return type(wrapper) in (TimeLimit, OrderEnforcing, PassiveEnvChecker) and "step" not in vars(wrapper)


def _limited(limit: Any, step: StepFunction) -> StepFunction:
    def limited(action: Any) -> Any:
        observation, reward, terminated, truncated, info = step(action)
        limit._elapsed_steps = elapsed = limit._elapsed_steps + 1  # noqa: SLF001  the count is the wrapper's
        if elapsed >= limit._max_episode_steps:  # noqa: SLF001
            truncated = True
        return observation, reward, terminated, truncated, info

    return limited


def _spec(name: str) -> EnvSpec:
    module, _, rest = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.spec(_with_version(rest))
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"{name!r} is no registered environment: {error}") from None


def _with_version(name: str) -> str:
    """Return the newest registered version of a name without one, and say so, as `gymnasium.make` does."""
    namespace, bare, version = parse_env_id(name)
    newest = find_highest_version(namespace, bare) if version is None and name not in gymnasium.registry else None
    if newest is None:
        return name
    found = get_env_id(namespace, bare, newest)
    gymnasium.logger.warn(
        f"Using the latest versioned environment `{found}` instead of the unversioned environment `{name}`."
    )
    return found
