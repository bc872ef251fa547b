"""A look at a policy before it is asked in earnest: what it draws from, and whether the rows of its batches matter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from stretto.core import WorldSpec
from stretto.policies.actors import AgentEpisode, PolicyPlan, Question
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.seeding import GLOBAL_GENERATORS, SeedTree

LOOK_STEPS = 3
"""How many observations each policy is shown."""


def look_at(spec: PolicySpec, world: WorldSpec, rows: int, seed: int, native_threads: int = 1) -> PolicyPlan:
    """Return what the plan must fix about a policy: it is shown values of its observation space, which nobody counts."""
    watched = PolicyPlan(spec, None, rows, seed, native_threads=native_threads)
    runner = InPlace([watched], world, batched=True)
    agent = world.agents[0]
    space = copy.deepcopy(world.observation_spaces[agent])
    space.seed(0)
    try:
        runner.begin([AgentEpisode("look", agent, 0, SeedTree(seed).child("look"))])
        for _ in range(LOOK_STEPS):
            runner.ask([Question("look", agent, 0, space.sample())])
            runner.replies()
        runner.end("look")
        draws = runner.drawn(0)
    except Exception:  # noqa: BLE001  no world showed it that: what it raises in earnest is told there
        draws = frozenset(GLOBAL_GENERATORS)  # private generators that nobody draws from change nothing
    batches = runner.batches(0) and not draws
    interchangeable = batches and runner.probe_rows(0, rows, lambda: None)
    return replace(watched, draws=draws, interchangeable=interchangeable)


def plans_for(
    specs: Sequence[PolicySpec], world: WorldSpec, rows: int, seed: int, native_threads: int = 1
) -> list[PolicyPlan]:
    """Return the plans of several policies; `rows` are those of one agent."""
    return [look_at(spec, world, rows * len(world.agents), seed, native_threads) for spec in specs]
