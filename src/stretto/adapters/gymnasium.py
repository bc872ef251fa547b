"""Gymnasium environments: by agent, past wrappers that only pass on, and which spec an id stands for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from stretto.adapters.base import NativeWorld, check_scalars
from stretto.core import Action, AgentId, Outcome, WorldSpec
from stretto.errors import UsageError

__calls_user_code__ = True

ONLY_AGENT = "agent_0"
"""What the agent of a world with just one is called."""

_NO_LIMIT = 1 << 40

StepFunction = Callable[[Any], tuple[Any, Any, Any, Any, dict[str, Any]]]


class OneAgent(NativeWorld):
    """An environment by agent: there is just one."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, env.unwrapped, "_np_random")

    def spec(self) -> WorldSpec:
        return self.spec_of({ONLY_AGENT: (self.native.observation_space, self.native.action_space)})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        observation, info = self.native.reset(seed=seed, options=options)
        return Outcome({ONLY_AGENT: observation}, {}, {}, {}, {ONLY_AGENT: info}, (ONLY_AGENT,))

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        observation, reward, terminated, truncated, info = self.native.step(actions[ONLY_AGENT])
        try:
            number, over, cut = float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            check_scalars(ONLY_AGENT, reward, terminated, truncated)
            raise
        return Outcome(
            {ONLY_AGENT: observation},
            {ONLY_AGENT: number},
            {ONLY_AGENT: over},
            {ONLY_AGENT: cut},
            {ONLY_AGENT: info},
            () if over or cut else (ONLY_AGENT,),
        )


class ResetDefaults(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives a world whose `reset(seed, options)` has no defaults both arguments, as every wrapper of Gymnasium's does."""


def lacks_reset_defaults(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether `reset` of a world cannot be called without a seed, or without options."""
    try:
        takes = inspect.signature(env.reset).parameters
    except (TypeError, ValueError):  # compiled code need not tell
        return False
    return any(name in takes and takes[name].default is inspect.Parameter.empty for name in ("seed", "options"))


def ensure_generator(env: gymnasium.Env[Any, Any]) -> None:
    """Let a world that was never seeded have its `np_random` now, so that its state can be recorded."""
    base = env.unwrapped
    if getattr(base, "_np_random", None) is None:
        getattr(base, "np_random", None)  # worlds of old gym may have none


def generator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of a world's own `np_random`, if it has one."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return dict(generator.bit_generator.state) if isinstance(generator, np.random.Generator) else None


def set_generator(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Give a world an `np_random` in this state."""
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    env.unwrapped._np_random = np.random.Generator(bits)  # noqa: SLF001  the setter of np_random forgets the seed


class StepLimit:
    """A `TimeLimit` that is stepped past: whoever does so counts in its place, and tells it before somebody looks."""

    __slots__ = ("_wrapper", "most")

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper
        self.most: int = wrapper._max_episode_steps  # noqa: SLF001  the limit and the count are the wrapper's own

    @property
    def left(self) -> int:
        """How many more steps the episode may have, as far as the wrapper knows."""
        return self.most - int(self._wrapper._elapsed_steps or 0)  # noqa: SLF001

    @left.setter
    def left(self, left: int) -> None:
        self._wrapper._elapsed_steps = self.most - left  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class Direct:
    """What does the same as `step` and `reset()` of an environment but for the count of a `limit`, if it has one.

    `settled` says whether that is so for good.
    """

    step: StepFunction
    reset: Callable[..., Any]
    keywords: dict[str, None] = field(default_factory=dict)
    limit: StepLimit | None = None
    settled: bool = True


def direct(env: gymnasium.Env[Any, Any]) -> Direct:
    """Find the way past wrappers that only pass steps and resets on.

    `gymnasium.make` puts three around a world: one that has nothing to do once the world was reset, one that has
    nothing to do once it has checked two steps, and a `TimeLimit`, which counts. A step of CartPole through them takes
    a tenth more. A wrapper of any other type is called as ever.
    """
    limit = StepLimit(env) if isinstance(env, TimeLimit) and _as_made(env) and _can_be_counted(env) else None
    inner: Any = env if limit is None else env.env  # type: ignore[attr-defined]
    while isinstance(inner, OrderEnforcing | PassiveEnvChecker | ResetDefaults) and _as_made(inner):
        if isinstance(inner, ResetDefaults):
            idle = True
        elif isinstance(inner, OrderEnforcing):
            idle = inner.has_reset
        else:
            idle = inner.checked_reset and inner.checked_step and getattr(inner, "checked_data_reuse", True)
        if not idle:
            return Direct(env.step, env.reset, settled=False)
        inner = inner.env
    # Wrappers pass these on even where their own caller gave none, and a world may have other defaults.
    keywords = {} if inner is env else {"seed": None, "options": None}
    return Direct(inner.step, inner.reset, keywords, limit)


def _can_be_counted(limit: Any) -> bool:
    """Whether a limit is a number of steps, and not one that stands for none."""
    most = limit._max_episode_steps  # noqa: SLF001
    return type(most) is int and most < _NO_LIMIT


def _as_made(wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether a wrapper of Gymnasium's is no subclass, and nobody has put another step or reset into it."""
    kind = type(wrapper)
    # Not by `vars`: an object that was asked for its dictionary has slower attributes from then on.
    return kind in (TimeLimit, OrderEnforcing, PassiveEnvChecker, ResetDefaults) and all(
        getattr(method, "__func__", None) is own
        for method, own in ((wrapper.step, kind.step), (wrapper.reset, kind.reset))
    )


def spec_of(source: str | EnvSpec) -> EnvSpec:
    """Return the spec of an id, which may be `module:Name-v0`.

    Raises:
        UsageError: if it is not registered.
    """
    if isinstance(source, EnvSpec):
        return source
    name = source
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
