"""The policies of a collection: who follows which, and a look at each before it is asked in earnest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.budget import NativeThreads
from stretto.core import AUTO, SIMULTANEOUS, SPECULATIVE, AgentId, WorldSpec
from stretto.errors import TurnsInOrder, UsageError, user_stacklevel
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Question
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.seeding import GLOBAL_GENERATORS, PrivateGenerators, SeedTree

LOOK_STEPS = 3
"""How many observations each policy is shown."""


@dataclass(frozen=True, slots=True)
class Choosing:
    """Whom agents follow, and what the plan fixes about that."""

    policy: Any
    seed: int
    act_rows: int
    strategy: str = "batched"
    native_threads: int = 1
    turns: str = SIMULTANEOUS

    @property
    def native(self) -> NativeThreads:
        """The native threads that policies compute with in the caller."""
        return NativeThreads(self.native_threads)

    def plans(self, world: WorldSpec) -> tuple[list[PolicyPlan], Mapping[AgentId, int]]:
        """Return the plans of all policies, and the number of the one that each agent follows."""
        specs, followed = policies_of(self.policy, world)
        with self.native.capped():
            plans = plans_for(specs, world, self.act_rows, self.seed, self.native_threads)
        if self.turns in (SPECULATIVE, AUTO):
            plans = [replace(plan, in_order=_why_in_order(plan, world)) for plan in plans]
        return plans, followed


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
    return replace(watched, draws=draws, interchangeable=interchangeable, batches=batches)


def _why_in_order(plan: PolicyPlan, world: WorldSpec) -> str:
    """Say why agents that follow a policy cannot be asked before it is their turn; nothing if they can."""
    if plan.draws:
        return "it draws from global generators"
    guard = PrivateGenerators(SeedTree(plan.seed).child("look"), probation=1 << 62)
    try:
        return guard.run_repeatable(InPlace([plan], world, batched=True).why_not_again, 0)
    except Exception as error:  # noqa: BLE001  what it raises in earnest is told there
        return f"an agent of it could not be made: {error!r}"


def tell_who_is_in_order(plans: Sequence[PolicyPlan]) -> None:
    """Say of each policy whose agents are asked only when it is their turn, although others were asked for."""
    for plan in plans:
        if plan.in_order:
            told = f"agents that follow {plan.spec.name} take sequential turns one after the other, because {plan.in_order}"
            warnings.warn(TurnsInOrder(told), stacklevel=user_stacklevel())


def plans_for(
    specs: Sequence[PolicySpec], world: WorldSpec, rows: int, seed: int, native_threads: int = 1
) -> list[PolicyPlan]:
    """Return the plans of several policies; `rows` are those of one agent."""
    return [look_at(spec, world, rows * len(world.agents), seed, native_threads) for spec in specs]


def policies_of(policy: Any, world: WorldSpec) -> tuple[Sequence[PolicySpec], Mapping[AgentId, int]]:
    """Return the policies that a user means, and which of them each agent follows, by its number."""
    if not isinstance(policy, Mapping):
        return [PolicySpec.of(policy)], dict.fromkeys(world.agents, 0)
    if missing := [agent for agent in world.agents if agent not in policy]:
        raise UsageError(
            f"every agent must follow a policy, got none for {', '.join(missing)}; add them to the mapping"
        )
    texts = list(dict.fromkeys(policy[agent] for agent in world.agents))
    return [PolicySpec.of(one) for one in texts], {agent: texts.index(policy[agent]) for agent in world.agents}
