"""Gymnasium environments: by agent, past wrappers that only pass on, and which spec an id stands for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

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
    """An environment by agent: there is just one. Steps go past wrappers that would only pass them on (see `direct`)."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env, env.unwrapped, "_np_random")
        self._way, self._left = around(env), _NO_LIMIT
        self._step: StepFunction = env.step

    def spec(self) -> WorldSpec:
        return self.spec_of({ONLY_AGENT: (self.native.observation_space, self.native.action_space)})

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        observation, info = self.native.reset(seed=seed, options=options)
        self._look()
        return Outcome({ONLY_AGENT: observation}, {}, {}, {}, {ONLY_AGENT: info}, (ONLY_AGENT,))

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        self._left -= 1
        if not self._left:  # the limit itself ends the episode
            self._tell_limit(1)
            self._step = self.native.step
        observation, reward, terminated, truncated, info = self._step(actions[ONLY_AGENT])
        try:
            number, over, cut = float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError):
            check_scalars(ONLY_AGENT, reward, terminated, truncated)
            raise
        if over or cut:
            self._tell_limit(self._left)
        return Outcome(
            {ONLY_AGENT: observation},
            {ONLY_AGENT: number},
            {ONLY_AGENT: over},
            {ONLY_AGENT: cut},
            {ONLY_AGENT: info},
            () if over or cut else (ONLY_AGENT,),
        )

    def render(self) -> Any:
        self._tell_limit(self._left)
        return super().render()

    def _look(self) -> None:
        """Look which way to the world is the shortest now, and again after a step, unless that is settled."""
        if not self._way.settled:
            self._way = direct(self.native)
        limit = self._way.limit
        self._step = self._way.step if self._way.settled else self._step_and_look
        self._left = _NO_LIMIT if limit is None else limit.left

    def _step_and_look(self, action: Action) -> Any:
        result = self.native.step(action)
        self._look()
        return result

    def _tell_limit(self, left: int) -> None:
        if self._way.limit is not None:
            self._way.limit.left = left


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


_SEED = "_np_random_seed"
"""Where Gymnasium's environments keep the seed of their `np_random`."""


def generator_state(env: gymnasium.Env[Any, Any]) -> dict[str, Any] | None:
    """Return the state of a world's own `np_random`, if it has one."""
    base = env.unwrapped
    generator = getattr(base, "_np_random", None)
    if not isinstance(generator, np.random.Generator):
        return None
    return {**generator.bit_generator.state, _SEED: getattr(base, _SEED, None)}


def set_generator(env: gymnasium.Env[Any, Any], state: dict[str, Any]) -> None:
    """Give a world an `np_random` in this state, and the seed that it says it had."""
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = {name: value for name, value in state.items() if name != _SEED}
    base = env.unwrapped
    base._np_random = np.random.Generator(bits)  # noqa: SLF001  the setter of np_random forgets the seed
    if state.get(_SEED) is not None:
        # Whoever asks for a seed that is not there is given a new generator. And where some worlds have as many attributes
        # as others and one more, Python's caches of attributes are of no use: a step of CartPole takes a tenth longer.
        setattr(base, _SEED, state[_SEED])


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


class Direct(NamedTuple):
    """What does the same as `step` and `reset()` of an environment but for the count of a `limit`, if it has one.

    `settled` says whether that is so for good.
    """

    step: StepFunction
    reset: Callable[..., Any]
    keywords: Mapping[str, None]
    limit: StepLimit | None
    settled: bool


_NONE_GIVEN: Mapping[str, None] = MappingProxyType({})
_DEFAULTS: Mapping[str, None] = MappingProxyType({"seed": None, "options": None})


def around(env: gymnasium.Env[Any, Any]) -> Direct:
    """Return the way through all wrappers."""
    return Direct(env.step, env.reset, _NONE_GIVEN, None, settled=False)


def direct(env: gymnasium.Env[Any, Any]) -> Direct:
    """Find the way past wrappers that only pass steps and resets on.

    `gymnasium.make` puts three around a world: one that has nothing to do once the world was reset, one that has
    nothing to do once it has checked two steps, and a `TimeLimit`, which counts. A step of CartPole through them takes
    a tenth more. A wrapper of any other type is called as ever. This takes 2 µs, because thousands of worlds may ask at once.
    """
    inner: Any = env
    limit = None
    if type(env) is TimeLimit and _as_made(env) and _can_be_counted(env):
        limit, inner = StepLimit(env), env.env
    while (has_nothing_to_do := _ONLY_PASS_ON.get(type(inner))) is not None and _as_made(inner):
        if not has_nothing_to_do(inner):
            return around(env)
        inner = inner.env
    # Wrappers pass these on even where their own caller gave none, and a world may have other defaults.
    keywords = _NONE_GIVEN if inner is env else _DEFAULTS
    return Direct(inner.step, inner.reset, keywords, limit, settled=True)


_ONLY_PASS_ON: dict[type, Callable[[Any], bool]] = {
    ResetDefaults: lambda _: True,
    OrderEnforcing: lambda wrapper: bool(wrapper.has_reset),
    PassiveEnvChecker: lambda wrapper: bool(
        wrapper.checked_reset and wrapper.checked_step and getattr(wrapper, "checked_data_reuse", True)
    ),
}
"""Wrappers that may only pass on what they are asked, and what says whether one does."""


def _can_be_counted(limit: Any) -> bool:
    """Whether a limit is a number of steps, and not one that stands for none."""
    most = limit._max_episode_steps  # noqa: SLF001
    return type(most) is int and most < _NO_LIMIT


def _as_made(wrapper: gymnasium.Wrapper[Any, Any, Any, Any]) -> bool:
    """Whether nobody has put another step or reset into a wrapper than those of its class."""
    kind, step, reset = type(wrapper), wrapper.step, wrapper.reset
    # Not by `vars`: an object that was asked for its dictionary has slower attributes from then on.
    return getattr(step, "__func__", None) is kind.step and getattr(reset, "__func__", None) is kind.reset


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
