"""TeamPolicy: policies that were learned for some agents each, as one policy of all agents of a world."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from stretto.core import AgentId, BlockAnswer, BlockPolicy, ChoiceStreams, WorldSpec
from stretto.errors import UsageError
from stretto.policies.states import map_state
from stretto.spaces import Array, map_space


class TeamPolicy(BlockPolicy):
    """Asks each of its members for the agents that it was learned for.

    Args:
        world: the world that agents are in.
        members: policies, each for some agents; they are not changed.
        greedy: take what seems best, and explore nothing.
    """

    def __init__(self, world: WorldSpec, members: Sequence[BlockPolicy], *, greedy: bool = True) -> None:
        super().__init__(world)
        self._members = [_acting(member, greedy=greedy) for member in members]
        learned = [agent for member in members for agent in member.world.agents]
        if strangers := [agent for agent in world.agents if agent not in learned]:
            raise UsageError(
                f"every agent of a world must be one that has learned, got {', '.join(strangers)} and policies of "
                f"{', '.join(learned)}; choose a world with the same agents"
            )

    def of_kind(self, agents: Sequence[AgentId]) -> BlockPolicy:
        mine = [member for member in self._members if member.world.agents[0] in agents]
        if len(mine) == 1 and mine[0].world.agents == tuple(agents):
            return mine[0]
        return _KindTeam(self.world, tuple(agents), mine)


def _acting(member: BlockPolicy, *, greedy: bool) -> BlockPolicy:
    acting: Any = copy.copy(member)  # its weights stay those of the other
    acting.greedy = greedy
    return acting  # type: ignore[no-any-return]


class _KindTeam(BlockPolicy):
    """The members of one kind: each is shown the columns of its own agents, and their answers are put together."""

    def __init__(self, world: WorldSpec, agents: tuple[AgentId, ...], members: Sequence[BlockPolicy]) -> None:
        super().__init__(world)
        self._members, self._space = members, world.observation_spaces[agents[0]]
        self._columns = [np.array([agents.index(one) for one in member.world.agents], np.intp) for member in members]
        self._order = np.argsort(np.concatenate(self._columns))

    def initial_state(self) -> Any:
        return self._members[0].initial_state()

    def step_block(self, observations: Any, states: Any, choices: ChoiceStreams) -> BlockAnswer:
        answers = []
        for member, columns in zip(self._members, self._columns, strict=True):
            seen = map_space(lambda _, part, columns=columns: part[columns], self._space, observations)
            before = map_state(lambda part, columns=columns: part[columns], states)
            answers.append(member.step_block(seen, before, _Some(choices, columns)))
        joined: BlockAnswer = map_state(lambda *parts: np.concatenate(parts)[self._order], *answers)
        return joined


class _Some:
    """The random numbers of some agents."""

    def __init__(self, choices: ChoiceStreams, columns: Array) -> None:
        self._choices, self._columns = choices, columns

    def uniform(self, count: int, part: int = 0) -> Array:
        return self._choices.uniform(count, part)[self._columns]

    def normal(self, count: int, part: int = 0) -> Array:
        return self._choices.normal(count, part)[self._columns]
