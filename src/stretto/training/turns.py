"""Turns of learners: who learns next where not everybody can in every interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stretto.core import AgentId
from stretto.errors import UsageError
from stretto.importing import imported

Priority = Callable[[AgentId, int], float]
"""Tells how urgent it is that an agent learns, given after how many intervals it would: the highest come first."""


def staleness(_: AgentId, waited: int) -> float:
    """Let whoever has waited longest learn first."""
    return waited


def priority_named(name: str) -> Priority:
    """Return a priority by its name, or by where a function is: `file.py:NAME` or `module:NAME`."""
    if name == staleness.__name__:
        return staleness
    where, colon, inside = name.rpartition(":")
    if not colon:
        raise UsageError(f"priority must be staleness, file.py:NAME or module:NAME, got {name!r}")
    found: Priority = imported(where, inside, "priority")
    return found


class LearningTurns:
    """Chooses at most `most` agents an interval, all if it is `None`; between equals the order of agents decides.

    Those that are `stopped` learn no more.
    """

    def __init__(self, agents: Sequence[AgentId], most: int | None = None, priority: Priority = staleness) -> None:
        self._agents, self._most, self._priority = agents, most, priority
        self._waited = dict.fromkeys(agents, 0)
        self.stopped: set[AgentId] = set()

    def stop(self, agent: AgentId) -> None:
        """Let an agent learn no more."""
        self.stopped.add(agent)

    @property
    def over(self) -> bool:
        """Whether there is nobody left to learn."""
        return len(self.stopped) == len(self._agents)

    def next(self) -> frozenset[AgentId]:
        """Return who learns in this interval."""
        agents = [agent for agent in self._agents if agent not in self.stopped]
        if self._most is None or self._most >= len(agents):
            return frozenset(agents)
        for agent in agents:
            self._waited[agent] += 1
        ranked = sorted(agents, key=lambda agent: -self._priority(agent, self._waited[agent]))
        chosen = frozenset(ranked[: self._most])
        self._waited.update(dict.fromkeys(chosen, 0))
        return chosen

    def state(self) -> dict[AgentId, int]:
        """Return how long each agent has waited."""
        return dict(self._waited)

    def load_state(self, state: Mapping[AgentId, int]) -> None:
        """Become what `state` has returned."""
        self._waited.update(state)
