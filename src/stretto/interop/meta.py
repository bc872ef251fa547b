"""Names that code for meta-learning knows (VariBAD, pomdp-baselines), for our worlds: an environment is a trial.

    from stretto.interop.meta import make_parallel_env

    with make_parallel_env("pointgoal", episodes_per_task=2, num_workers=4, seed=0) as envs:
        observations = envs.reset_all(tasks)
        observations, rewards, dones, infos = envs.step_all(actions)

New code is better off with `stretto.collect`, which does all of this by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RescaleAction

from stretto.adapters.agents import as_agents
from stretto.adapters.trial_views import TrialView
from stretto.budget import default_budget
from stretto.collection.making import TrialMaker, own_trials, world_maker
from stretto.core import SIMULTANEOUS
from stretto.envs.make import make_vec
from stretto.envs.vector import VectorEnv
from stretto.errors import UsageError
from stretto.interop.parallel_env import ParallelEnv
from stretto.missions.makers import with_argument

AUTO = "auto"

LEARNERS_KEYS = ("n_tasks", "num_tasks", "num_train_tasks", "num_eval_tasks")
"""Arguments that learners pass along with those of a world; one that has no such parameter does not get them."""


def make_parallel_env(
    env_id: Any,
    episodes_per_task: int,
    num_workers: int | str,
    seed: int | None = None,
    oracle: bool = False,
    *,
    make_options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> ParallelEnv:
    """Make environments whose episodes are trials: `episodes_per_task` episodes of one task, one after the other.

    As in VariBAD, observations have a flag for the boundaries between episodes, if a trial has several; with `oracle`
    they have the task that the world tells (`get_current_task()`, `get_task()` or `task`); and actions in a Box are from -1
    to 1. A world that is in such a wrapper of its own (it has `episodes_per_task`) is left as it is.

    Args:
        env_id: whatever `stretto.make_vec` takes.
        episodes_per_task: how many episodes a trial has.
        num_workers: how many environments; `"auto"` for one a core.
        seed: of everything random; without one, results cannot be had again.
        oracle: show the task.
        make_options: further options of `stretto.make_vec`, such as `backend`.
        kwargs: arguments for the world.
    """
    count = default_budget().free if num_workers == AUTO else num_workers
    if not all(isinstance(one, int) and one >= 1 for one in (count, episodes_per_task)):
        raise UsageError(
            f"num_workers and episodes_per_task must be whole numbers of at least 1, got {num_workers!r} and "
            f"{episodes_per_task!r}; pass num_workers='auto' for one a core"
        )
    own = {name: value for name, value in kwargs.items() if name not in LEARNERS_KEYS}
    make = world_maker(env_id, SIMULTANEOUS, None, {"env_kwargs": own, "wrappers": [with_unit_actions]})
    for name in kwargs.keys() - own.keys():
        make = with_argument(make, name, kwargs[name]) or make
    options = {"backend": "serial" if count == 1 else AUTO, **(make_options or {})}
    return parallel_env(make, episodes_per_task, count, seed, oracle=oracle, options=options)


def parallel_env(
    make: Callable[[], Any],
    episodes: int,
    count: Any,
    seed: int | None,
    *,
    oracle: bool = False,
    options: Mapping[str, Any],
) -> ParallelEnv:
    """Return environments of a maker, whose episodes are trials."""
    last_reward = TrialView(rewards=True)
    view = TrialView(boundaries=episodes > 1, rewards=True, asks_world=oracle)
    maker = TrialMaker(make, as_agents, has_tasks=True, view=view, own_view=last_reward)
    envs = make_vec(maker, count, **options)
    try:
        if not isinstance(envs, VectorEnv):
            raise UsageError("these names are for worlds with one agent, got several; use stretto.collect")
        own = envs.map(own_trials)[0]
        if own is not None and (own != episodes or oracle):
            raise UsageError(
                f"a world in a wrapper of its own plays {own} episodes a task and shows what that wrapper shows, got "
                f"episodes_per_task={episodes} and oracle={oracle}; set both there"
            )
        return ParallelEnv(envs, episodes, seed, episodes_are_trials=own is not None)
    except BaseException:
        envs.close()
        raise


def with_unit_actions(env: Any) -> Any:
    """Let the actions of a bounded Box be from -1 to 1, which is what VariBAD's agents choose from."""
    space = getattr(env, "action_space", None)
    if not isinstance(env, gymnasium.Env) or not isinstance(space, spaces.Box) or own_trials(env) is not None:
        return env
    known = bool(space.is_bounded() and space.low.dtype.kind == "f")
    return RescaleAction(env, np.float32(-1), np.float32(1)) if known and not _is_unit(space) else env


def _is_unit(space: spaces.Box) -> bool:
    return bool((space.low == -1).all() and (space.high == 1).all())
