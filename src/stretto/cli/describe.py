"""`stretto describe`: what a mission is, who acts in it, and what they see and do."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated, Any

import typer

from stretto.adapters.agents import as_agents
from stretto.cli import options
from stretto.cli.text import MOST_LINES, documentation, filled, users_code
from stretto.missions.mission import Mission
from stretto.missions.resolve import find_missions


def describe_command(
    mission: Annotated[str, typer.Argument(metavar="MISSION", help="A mission, as for stretto eval.")],
    variant: options.Variants = None,
    cogs: options.Cogs = None,
    map_seed: options.MapSeed = None,
    allow_import: options.AllowImport = False,
) -> None:
    """Say what a mission is, who acts in it, and what they see and do."""
    missions = find_missions([mission], cogs=cogs, variants=variant or (), map_seed=map_seed, allow_import=allow_import)
    for found in missions:
        with users_code("describing"):
            _describe(found)


def _describe(mission: Mission) -> None:
    env = mission.make()
    world = as_agents(env)
    spec = world.spec()
    agent = spec.agents[0]
    print(filled(f"{mission.name}: {mission.summary}"))
    if rules := _rules(type(getattr(env, "unwrapped", env))):
        print(f"\n{documentation(rules)}\n")
    print(filled(f"agents: {', '.join(spec.agents)}", MOST_LINES))
    print(filled(f"{agent} sees {_one_line(spec.observation_spaces[agent])}"))
    print(filled(f"{agent} does {_one_line(spec.action_spaces[agent])} {', '.join(spec.action_names)}".rstrip()))
    for key, value in mission.details.items():
        print(filled(f"{key} = {value}"))
    world.close()


def _rules(kind: type) -> str:
    """Return what a world's own class says of it, or its module; what a class inherits is not about this world."""
    own = vars(kind).get("__doc__") or vars(sys.modules[kind.__module__]).get("__doc__")
    return inspect.cleandoc(own or "")


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())
