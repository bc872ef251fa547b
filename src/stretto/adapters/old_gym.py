"""Worlds with the API of old gym, as `gymnasium.Env`s."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from stretto.errors import InvalidSpace, ReadAsOldGym, warn_once

__calls_user_code__ = True

_MEMBERS = ("reset", "step", "observation_space", "action_space")


def modern(env: Any) -> Any:
    """Return a world of old gym as a `gymnasium.Env`, and say so once; others are returned as they are."""
    return OldGymEnv(env) if is_old_gym(env) else env


def is_old_gym(env: Any) -> bool:
    """Whether a world has one agent and the methods of gym up to 0.26.

    One that derives from `gymnasium.Env` is so, too, if its `reset` takes no seed.
    """
    if isinstance(env, gymnasium.Env):
        takes = _parameters(env.reset)
        return takes is not None and not {"seed", "task"} & takes.keys() and not _takes_any(takes)
    return all(hasattr(env, name) for name in _MEMBERS) and not hasattr(env, "possible_agents")


class OldGymEnv(gymnasium.Env[Any, Any]):
    """A world of old gym: `step` returns four values (or five), and `reset` an observation alone (or with an info).

    It is seeded by `reset(seed=...)` if it takes that, or else by its method `seed` or `set_seed`. A `done` is a
    termination, or a truncation where the info has a true `TimeLimit.truncated`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space, self.action_space = space_of(env.observation_space), space_of(env.action_space)
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.metadata.setdefault("render_modes", list(self.metadata.get("render.modes", ())))
        self.render_mode = getattr(env, "render_mode", None)
        self._takes = _parameters(env.reset) or {}
        self._seed, how = self._find_seed()
        kind = type(getattr(env, "unwrapped", env))
        warn_once(
            f"{kind.__module__}.{kind.__qualname__} is read as a world of old gym: {how}, and done ends an episode (as "
            f"truncated, where the info has TimeLimit.truncated)",
            ReadAsOldGym,
        )

    def _find_seed(self) -> tuple[Callable[[int], Any] | None, str]:
        """Return the method that seeds the world beside its reset, if there is one, and say how it is seeded."""
        if "seed" in self._takes or _takes_any(self._takes):
            return None, "reset takes its seed"
        for name in ("seed", "set_seed"):
            if callable(method := getattr(self.env, name, None)):
                return method, f"{name}() is given its seed"
        return None, "it takes no seed, so that only what it draws from global generators is seeded"

    @property
    def unwrapped(self) -> Any:
        return getattr(self.env, "unwrapped", self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None and self._seed is not None:
            self._seed(seed)
        given = {"seed": seed, "options": options}
        everything = _takes_any(self._takes)
        keywords = {
            name: value for name, value in given.items() if value is not None and (everything or name in self._takes)
        }
        started = self.env.reset(**keywords)
        if type(started) is tuple and len(started) == 2 and self._is_info(started):
            observation, info = started
            return observation, info
        return started, {}

    def _is_info(self, started: tuple[Any, Any]) -> bool:
        """Whether the second of two values is an info, and not a part of the observation."""
        space = self.observation_space
        return isinstance(started[1], dict) and not (isinstance(space, spaces.Tuple) and space.contains(started))

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result: tuple[Any, ...] = self.env.step(action)
        if len(result) != 4:
            return result  # of five values; others are refused by whoever asked
        observation, reward, done, info = result
        if done and info and info.get("TimeLimit.truncated", False):
            return observation, reward, False, True, info
        return observation, reward, done, False, info or {}

    def render(self) -> Any:
        if "mode" not in (_parameters(self.env.render) or {}):
            return self.env.render()
        modes = self.metadata["render_modes"]
        return self.env.render(mode=self.render_mode or ("rgb_array" if "rgb_array" in modes else modes[0]))

    def close(self) -> None:
        if callable(close := getattr(self.env, "close", None)):
            close()

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self.env, name)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, **_: Any) -> bool:
        layer = self.env
        while hasattr(layer, "env") and name not in vars(layer) and not hasattr(type(layer), name):
            layer = layer.env
        setattr(layer, name, value)
        return True

    def __str__(self) -> str:
        return str(self.env)


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function; `None` if it does not tell, as compiled code need not."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in parameters.values())


# --- spaces: known by the names of their classes, so that gym need not be there ---


def space_of(space: Any) -> spaces.Space[Any]:
    """Return a space of old gym as one of Gymnasium's.

    Raises:
        InvalidSpace: if it is of another kind.
    """
    if isinstance(space, spaces.Space):
        return space
    for kind in type(space).__mro__:
        if kind.__name__ in _SPACES:
            return _SPACES[kind.__name__](space)
    raise InvalidSpace(
        f"a world of old gym must have spaces that Gymnasium has too ({', '.join(_SPACES)}), got {space!r}; wrap it so "
        f"that it has"
    )


_SPACES: Mapping[str, Callable[[Any], spaces.Space[Any]]] = {
    "Box": lambda one: spaces.Box(
        np.asarray(one.low, one.dtype), np.asarray(one.high, one.dtype), dtype=np.dtype(one.dtype).type
    ),
    "Discrete": lambda one: spaces.Discrete(int(one.n), start=int(getattr(one, "start", 0))),
    "MultiDiscrete": lambda one: spaces.MultiDiscrete(np.asarray(one.nvec)),
    "MultiBinary": lambda one: spaces.MultiBinary(one.n),
    "Dict": lambda one: spaces.Dict({name: space_of(part) for name, part in one.spaces.items()}),
    "Tuple": lambda one: spaces.Tuple([space_of(part) for part in one.spaces]),
    "Text": lambda one: spaces.Text(one.max_length, min_length=one.min_length, charset=frozenset(one.character_set)),
}
