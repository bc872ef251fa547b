"""The examples that Sorrel brings, by short names, with the settings of their own `main.py`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module, resources
from typing import Any

from stretto.adapters.sorrel.world import SorrelTurns
from stretto.errors import UsageError
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree

__calls_user_code__ = True

_TREASURE: Mapping[str, Any] = {
    "experiment": {"max_turns": 100},
    "model": {"agent_vision_radius": 2},
    "world": {"height": 21, "width": 21, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.005},
}
_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "treasurehunt": {**_TREASURE, "model": {**_TREASURE["model"], "observation_spec": "rgb"}},
    "treasurehunt_threadsafe": _TREASURE,
    "tag": {
        "experiment": {"max_turns": 20},
        "model": {},
        "agent": {"num_agents": 5, "vision_radius": 4},
        "world": {"height": 11, "width": 11, "layers": 1},
    },
    "iowa": {
        "experiment": {"max_turns": 100},
        "model": {
            "agent_vision_radius": 2,
            "parameters": {"layer_size": 250, "epsilon": 0.5, "device": "cpu", "n_frames": 5},
        },
        "world": {"height": 20, "width": 20, "spawn_prob": 0.01},
    },
}
_AGENTS = {
    "treasurehunt": ("model", "num_agents"),
    "tag": ("agent", "num_agents"),
    "cleanup": ("agent", "agent", "num"),
}
"""Where the number of agents stands, where it can be chosen."""

MISSIONS: Mapping[str, Mapping[str, Any]] = {
    f"sorrel_{name}": {"summary": f"Sorrel: {summary}", "kwargs": {"example": name}}
    for name, summary in {
        "treasurehunt": "agents collect gems and food, and avoid bones",
        "treasurehunt_threadsafe": "treasurehunt with one model for all agents",
        "cleanup": "agents eat apples that grow only where somebody cleans the river",
        "tag": "agents run away from whoever is it",
        "iowa": "agents draw from good and bad decks",
    }.items()
}


def make(
    example: str = "treasurehunt",
    agents: int | None = None,
    max_turns: int | None = None,
    config: Mapping[str, Any] | None = None,
    frames: int = 1,
) -> SorrelTurns:
    """Return an example of Sorrel's as a game in turns.

    Args:
        example: `"treasurehunt"`, `"treasurehunt_threadsafe"`, `"cleanup"`, `"tag"` or `"iowa"`.
        agents: how many there are, where that can be chosen.
        max_turns: after so many turns an episode is truncated.
        config: values that differ from those of the example, nested as Sorrel has them.
        frames: how many observations agents see at once, as Sorrel's models do.
    """
    import torch  # noqa: F401  before something is drawn from it

    # How agents begin may be drawn when they are made: it must be the same in every slot and in every process.
    own = PrivateGenerators(SeedTree(0).child("sorrel", example), 0, GLOBAL_GENERATORS)
    return SorrelTurns(own.run(environment, example, agents, max_turns, config), frames=frames)


def environment(
    example: str = "treasurehunt",
    agents: int | None = None,
    max_turns: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Any:
    """Return Sorrel's own object of an example; see `make` for the arguments."""
    from omegaconf import OmegaConf

    if f"sorrel_{example}" not in MISSIONS:
        known = ", ".join(name.removeprefix("sorrel_") for name in MISSIONS)
        raise UsageError(f"example must be one of {known}, got {example!r}")
    folder = f"sorrel.examples.{example}"
    if example == "cleanup":
        found = OmegaConf.create(resources.files(folder).joinpath("configs/config.yaml").read_text())
    else:
        found = OmegaConf.create(copy.deepcopy(dict(_CONFIGS[example])))
    given = OmegaConf.merge(found, OmegaConf.create(_changes(example, agents, max_turns, config)))
    env, world = import_module(f"{folder}.env"), _world(example, folder, given)
    (kind,) = [value for name, value in vars(env).items() if name.endswith("Env") and value.__module__ == env.__name__]
    return kind(world, given)


def _changes(
    example: str, agents: int | None, max_turns: int | None, config: Mapping[str, Any] | None
) -> dict[str, Any]:
    changes: dict[str, Any] = copy.deepcopy(dict(config or {}))
    if max_turns is not None:
        changes["experiment"] = {**changes.get("experiment", {}), "max_turns": max_turns}
    if agents is None:
        return changes
    if example not in _AGENTS:
        raise UsageError(f"agents can be chosen in {', '.join(_AGENTS)}, got {agents} for {example}; leave it out")
    path, inner = _AGENTS[example], changes
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = agents
    return changes


def _world(example: str, folder: str, config: Any) -> Any:
    if example == "tag":
        basic = import_module("sorrel.entities.basic_entities")
        return import_module("sorrel.worlds").Gridworld(**config.world, default_entity=basic.EmptyEntity())
    module = import_module(f"{folder}.world")
    (kind,) = [
        value
        for name, value in vars(module).items()
        if name.endswith("World") and getattr(value, "__module__", "") == module.__name__
    ]
    return kind(config=config, default_entity=import_module(f"{folder}.entities").EmptyEntity())
