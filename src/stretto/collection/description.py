"""What a collection is: all that its rollouts depend on, in plain values, and what produces them."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from stretto.collection.files import encoded
from stretto.envs.arguments import with_render_mode
from stretto.envs.make import make_vec
from stretto.identity import identify, name_of, plain_settings
from stretto.missions.makers import WrappedMaker
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


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """What rollouts depend on beside their world, policy and tasks: the arguments of `collect` of these names."""

    seed: int
    episodes_per_task: int
    max_steps: int | None
    turns: str
    act_rows: int
    fresh_worlds: bool
    boundaries: bool
    rewards: bool
    oracle: bool


_OF_WORLD = ("env_kwargs", "variants", "render_mode", "wrappers")


def describe_collection(
    world: Any, policy: Any, tasks: Any, settings: TrialSettings, make_options: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe what rollouts depend on, in plain values."""
    mission = _mission(world, make_options)
    specs = {agent: PolicySpec.of(one) for agent, one in policy.items()} if isinstance(policy, Mapping) else {}
    several = list(specs.values()) or [PolicySpec.of(policy)]
    devices = {spec.name: spec.device for spec in several if spec.device is not None}
    usual = inspect.signature(make_vec).parameters
    others = {
        name: value
        for name, value in make_options.items()
        if name not in (*_NEUTRAL, *_OF_WORLD) and (name not in usual or value != usual[name].default)
    }
    identity = identity_of([mission], several)
    if tasks is not None and not _is_list(tasks):
        identity["tasks"] = {name_of(tasks): identify(tasks, {})}
    return {
        **plain_settings({**asdict(settings), **others}),
        "world": mission.name,
        "world_settings": plain_settings(mission.details),
        "policy": {agent: spec.name for agent, spec in specs.items()} or several[0].name,
        **({"devices": devices} if devices else {}),
        **({"deterministic": True} if any(spec.deterministic for spec in several) else {}),
        "tasks": _tasks_text(tasks),
        IDENTITY: identity,
    }


def _mission(world: Any, options: Mapping[str, Any]) -> Mission:
    kwargs = with_render_mode(options.get("env_kwargs"), options.get("render_mode"))
    mission = find_missions(world, env_kwargs=kwargs, variants=options.get("variants", ()))[0]
    wrappers = tuple(options.get("wrappers") or ())
    return replace(mission, make=WrappedMaker(mission.make, wrappers)) if wrappers else mission


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
