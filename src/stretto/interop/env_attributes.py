"""Questions about a world that are answered beside it.

Apart from the modules that ask them, so that a worker need not import the package which those serve.
"""

from __future__ import annotations

from typing import Any

import gymnasium


def has_attribute(env: Any, name: str) -> bool:
    """Whether the world or one of its wrappers has this attribute."""
    # A world of old gym is asked itself, as its user knows it.
    return bool(env.has_wrapper_attr(name)) if isinstance(env, gymnasium.Env) else hasattr(env, name)


def read_attribute(env: Any, name: str) -> tuple[bool, Any]:
    """Return whether there is such an attribute, and its value, which is not called if it is a method."""
    if not has_attribute(env, name):
        return False, None
    return True, env.get_wrapper_attr(name) if isinstance(env, gymnasium.Env) else getattr(env, name)


def is_wrapped(env: Any, module: str, name: str) -> bool:
    """Whether one of the world's wrappers is of the class with this name.

    The class itself does not travel: its module may import torch, and one of `__main__` would arrive as another class.
    """
    while isinstance(env, gymnasium.Wrapper):
        if any((kind.__module__, kind.__qualname__) == (module, name) for kind in type(env).__mro__):
            return True
        env = env.env
    return False


def attribute_names(env: Any) -> list[str]:
    """Return the names of the world's own attributes."""
    return [name for name in dir(env.unwrapped) if not name.startswith("_")]
