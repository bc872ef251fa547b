"""Names in Gymnasium's registry whose vector environments are ours: `gymnasium.make_vec("stretto/CartPole-v1", 64)`.

Importing this module registers a name for each id that is registered by then; `register` adds later ones. The modes of
`gymnasium.make_vec` are an enumeration that cannot be added to, so that ours have names of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from stretto.envs.make import make_vec

NAMESPACE = "stretto"


def register(ids: Iterable[str] | None = None) -> list[str]:
    """Register `stretto/ID` for each of these ids (default: all that are registered), and return the new names."""
    new = []
    for name in list(gymnasium.registry if ids is None else ids):
        spec = gymnasium.spec(name)
        if spec.namespace == NAMESPACE:
            continue
        ours = f"{NAMESPACE}/{name.replace('/', '-')}"
        if ours not in gymnasium.registry:
            found = copy.deepcopy(spec)
            gymnasium.registry[ours] = EnvSpec(
                id=ours,
                entry_point=found.entry_point,
                reward_threshold=found.reward_threshold,
                nondeterministic=found.nondeterministic,
                max_episode_steps=found.max_episode_steps,
                order_enforce=found.order_enforce,
                disable_env_checker=found.disable_env_checker,
                kwargs=found.kwargs,
                additional_wrappers=found.additional_wrappers,
                vector_entry_point=partial(_vector_env, spec),
            )
            new.append(ours)
    return new


def _vector_env(
    spec: EnvSpec, /, *, num_envs: int = 1, max_episode_steps: int | None = None, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Make our vector environment of a registered world."""
    changed = copy.deepcopy(spec)
    if max_episode_steps is not None:
        changed.max_episode_steps = max_episode_steps
    made: Any = make_vec(changed, num_envs, env_kwargs=kwargs)
    return made  # type: ignore[no-any-return]


register()
