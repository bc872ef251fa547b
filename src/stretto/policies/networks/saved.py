"""Policies in a file: the weights of agents that have learned, and what their networks are like."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from stretto.checkpoint import Content
from stretto.core import AgentId, BlockPolicy, WorldSpec, kinds_of
from stretto.errors import UsageError
from stretto.policies.networks.policies import ActorPolicy
from stretto.policies.networks.soft_actors import SoftPolicy
from stretto.policies.networks.values import ValuePolicy
from stretto.safetensors import read_metadata, read_safetensors, safetensors
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

_BLOCKS = "blocks"
"""The text of a file that says of each block of agents what it is."""


class Learned(Protocol):
    """A policy that was learned for a block of agents with equal spaces."""

    world: WorldSpec

    def description(self) -> dict[str, Any]:
        """Return what its networks are like, as JSON's values."""

    def state(self) -> dict[str, Array]:
        """Return all that it acts by: arrays with a row for each agent."""

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Become what `state` has returned."""


KINDS: dict[str, Any] = {kind.__name__: kind for kind in (ActorPolicy, SoftPolicy, ValuePolicy)}
"""The classes of policies that can be saved. Each makes one by `described(world, trees, description)`."""


def policies_content(policies: Sequence[Any]) -> Content:
    """Return a safetensors file of policies; those of learners that users wrote are not in it."""
    blocks: list[dict[str, Any]] = []
    arrays: dict[str, Array] = {}
    ours: list[Learned] = [policy for policy in policies if type(policy).__name__ in KINDS]
    for number, policy in enumerate(ours):
        agents = policy.world.agents
        blocks.append(
            {
                "agents": agents,
                "kind": type(policy).__name__,
                "spaces": _spaces_text(policy.world, agents[0]),
                "description": policy.description(),
            }
        )
        arrays.update({f"{number}.{name}": array for name, array in policy.state().items()})
    return safetensors(arrays, {_BLOCKS: json.dumps(blocks)})


def _spaces_text(world: WorldSpec, agent: AgentId) -> str:
    return f"{world.observation_spaces[agent]} and acts in {world.action_spaces[agent]}"


@dataclass(frozen=True)
class _Block:
    """A block of agents in a file; `state` has a row for each of them."""

    agents: list[AgentId]
    kind: str
    spaces: str
    description: Mapping[str, Any]
    state: Mapping[str, Array]

    def policy(self, world: WorldSpec, agents: tuple[AgentId, ...], learned: Sequence[AgentId]) -> BlockPolicy:
        """Return a policy for agents of a world, each of which acts as one that has `learned`."""
        here = _spaces_text(world, agents[0])
        if here != self.spaces:
            raise UsageError(
                f"an agent acts in worlds like the one that it learned in: {learned[0]} sees {self.spaces}, and {agents[0]} "
                f"sees {here}; choose such a world"
            )
        seen, acted = ({one: given[one] for one in agents} for given in (world.observation_spaces, world.action_spaces))
        trees = [SeedTree(0)] * len(agents)
        made = KINDS[self.kind].described(WorldSpec(agents, seen, acted), trees, self.description)
        made.load_state(self.rows(learned))
        return cast(BlockPolicy, made)

    def rows(self, learned: Sequence[AgentId]) -> dict[str, Array]:
        """Return the state of some agents."""
        rows = [self.agents.index(one) for one in learned]
        return {name: array[rows] for name, array in self.state.items()}


def _blocks(path: str | Path) -> list[_Block]:
    arrays, text = read_safetensors(path), read_metadata(path).get(_BLOCKS)
    if text is None:
        raise UsageError(f"policies must be what a training run has saved, got {path}; name the run's folder")
    found = []
    for number, block in enumerate(json.loads(text)):
        mine = f"{number}."
        state = {name.removeprefix(mine): array for name, array in arrays.items() if name.startswith(mine)}
        found.append(_Block(state=state, **block))
    return found


def read_policies(path: str | Path, world: WorldSpec, agent: AgentId | None = None) -> list[BlockPolicy]:
    """Return policies for the agents of a world: each acts as the one of its name, or all as the one that is named.

    Raises:
        UsageError: if nobody has learned to act for an agent, or not in such a world.
    """
    blocks = _blocks(path)
    home = {one: block for block in blocks for one in block.agents}
    wanted = {one: one if agent is None else agent for one in world.agents}
    if strangers := [one for one, learned in wanted.items() if learned not in home]:
        raise UsageError(
            f"every agent must have learned, got {strangers[0] if agent is None else agent} beside the learned "
            f"{', '.join(home)}; choose a world with these agents, or let all act as one of them: RUN#{next(iter(home))}"
        )
    policies = []
    for kind in kinds_of(world):
        for block in blocks:
            mine = tuple(one for one in kind.agents if home[wanted[one]] is block)
            if mine:
                policies.append(block.policy(world, mine, [wanted[one] for one in mine]))
    return policies


def saved_state(path: str | Path, policy: Any, agent: AgentId | None = None) -> dict[str, Array]:
    """Return the saved state of a policy's agents: of each its own, or for all that of one agent.

    Raises:
        UsageError: if they have other networks, or have not learned.
    """
    agents = policy.world.agents
    wanted = [one if agent is None else agent for one in agents]
    blocks = _blocks(path)
    learned = [one for block in blocks for one in block.agents]
    if agent is not None and agent not in learned:
        raise UsageError(f"an agent must be one that has learned, got {agent}; in {path} are {', '.join(learned)}")
    found = [block for block in blocks if wanted[0] in block.agents]
    block = found[0] if found and set(wanted) <= set(found[0].agents) else None
    kind = type(policy).__name__
    description = json.loads(json.dumps(policy.description())) if kind in KINDS else None
    if block is None or (block.kind, block.description) != (kind, description):
        raise UsageError(
            f"agents begin with weights of the same networks, and {path} has none for {', '.join(agents)}; choose the "
            f"learner and the settings of that run"
        )
    return block.rows(wanted)
