"""What a collection is: all that its rollouts depend on, in plain values, and what produces them."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from stretto.collection.making import TrialSettings
from stretto.collection.task_json import encoded
from stretto.core import turns_of
from stretto.envs.make import make_vec
from stretto.errors import UsageError
from stretto.identity.names import name_of
from stretto.identity.record import identify, plain_settings
from stretto.missions.makers import WrappedMaker, with_render_mode
from stretto.missions.mission import Mission
from stretto.missions.resolve import find_missions
from stretto.policies.spec import PolicySpec
from stretto.run_folder import IDENTITY, identity_of

_NEUTRAL = (
    "backend",
    "transport",
    "workers",
    "isolate",
    "checks",
    "start_timeout",
    "reset_timeout",
    "step_timeout",
    "max_restarts",
    "replay_limit",
    "copy",
    "vectorization_mode",
    "vector_kwargs",
)
"""Options of `make_vec` that never change a rollout; all others are part of the plan."""


_ASKED = ("variants", "cogs", "map_seed")
OF_WORLD = (*_ASKED, "env_kwargs", "render_mode", "wrappers")
"""Options of `make_vec` that say what the world is."""


def describe_collection(
    world: Any, policy: Any, tasks: Any, settings: TrialSettings, make_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what rollouts depend on, in plain values."""
    specs = {agent: PolicySpec.of(one) for agent, one in policy.items()} if isinstance(policy, Mapping) else {}
    several = list(specs.values()) or [PolicySpec.of(policy)]
    devices = {spec.name: spec.device for spec in several if spec.device is not None}
    return {
        **describe_experience(mission_of(world, make_options), several, tasks, settings, make_options),
        "policy": {agent: spec.name for agent, spec in specs.items()} or several[0].name,
        **({"devices": devices} if devices else {}),
        **({"deterministic": True} if any(spec.deterministic for spec in several) else {}),
    }


def describe_experience(
    mission: Mission,
    policies: Sequence[PolicySpec],
    tasks: Any,
    settings: TrialSettings,
    make_options: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe what the experience in a world depends on beside who acts, and what all of it is."""
    usual = inspect.signature(make_vec).parameters
    others = {
        name: value
        for name, value in make_options.items()
        if name not in (*_NEUTRAL, *OF_WORLD) and (name not in usual or value != usual[name].default)
    }
    identity = identity_of([mission], policies)
    if tasks is not None and not _is_list(tasks):
        identity["tasks"] = {name_of(tasks): identify(tasks, {})}
    return {
        **plain_settings({**asdict(settings), "turns": turns_of(settings.turns), **others}),
        "world": mission.name,
        "world_settings": plain_settings(mission.details),
        "tasks": _tasks_text(tasks),
        IDENTITY: identity,
    }


def mission_of(world: Any, options: Mapping[str, Any]) -> Mission:
    """Return the mission that a world is, with the options of `make_vec` that are about it: `OF_WORLD`."""
    kwargs = with_render_mode(options.get("env_kwargs"), options.get("render_mode"))
    asked = {name: options[name] for name in _ASKED if name in options}
    found = find_missions(world, env_kwargs=kwargs, **asked)
    if len(found) != 1:
        raise UsageError(f"one world is needed here, got {world!r}, which stands for {len(found)} missions; name one")
    wrappers = tuple(options.get("wrappers") or ())
    return replace(found[0], make=WrappedMaker(found[0].make, wrappers)) if wrappers else found[0]


def _is_list(tasks: Any) -> bool:
    return isinstance(tasks, (np.ndarray, Sequence))


def _tasks_text(tasks: Any) -> str | None:
    """Return what a plan says of tasks: how many there are and a digest of them, or the name of their source."""
    if tasks is None:
        return None
    if not _is_list(tasks):
        return name_of(tasks)
    text = json.dumps([encoded(task) for task in tasks])
    return f"{len(tasks)} tasks {hashlib.sha256(text.encode()).hexdigest()[:16]}"
