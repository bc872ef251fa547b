"""Trained: the agents of a training run as a policy."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.core import AgentId, BlockPolicy, WorldSpec
from stretto.policies.networks.saved import read_policies
from stretto.policies.networks.team import TeamPolicy


class Trained(BlockPolicy):
    """Lets each agent act as the one of its name that has learned, or all as one `agent`.

    Args:
        world: the world that agents are in.
        agent: whose weights all of them act by; each by its own if this is `None`.
        greedy: take what seems best, and explore nothing.
    """

    def __init__(self, world: WorldSpec, *, agent: AgentId | None = None, greedy: bool = True) -> None:
        super().__init__(world)
        self._agent, self._greedy = agent, greedy

    def load(self, path: str) -> None:
        """Take the weights of a file that a training run has saved."""
        self._team = TeamPolicy(self.world, read_policies(path, self.world, self._agent), greedy=self._greedy)

    def of_kind(self, agents: Sequence[AgentId]) -> BlockPolicy:
        return self._team.of_kind(agents)
