"""Games in turns by agent, in both turn modes; and what agents choose before it is their turn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import islice
from typing import Any, Generic, TypeVar

from stretto.adapters.base import AgentRules, NativeWorld, Sights, actions_of
from stretto.core import Action, AgentId, Observation, Outcome, TurnWorld, is_same

__calls_user_code__ = True

T = TypeVar("T")


class TurnAgents(NativeWorld):
    """A game in turns, by agent."""

    def __init__(self, world: TurnWorld, *, sequential: bool = False) -> None:
        super().__init__(world, world, "_np_random")
        self._world, self._sequential = world, sequential
        self._rules = AgentRules(world)
        self._here: tuple[AgentId, ...] = ()  # those who were there when the turn began
        self._waiting: Iterator[AgentId] = iter(())  # those of them who have not been asked yet
        self._acting: tuple[AgentId, ...] = ()
        self._ahead: tuple[AgentId, ...] | None = None  # who could act after them, while a turn begins
        self._nothing = _nothing(())  # what comes of an act in the middle of this turn
        self._at_first: dict[AgentId, Observation] = {}  # what was seen by those of them who have not acted yet
        self._observe_many: Callable[[Sequence[AgentId]], Sequence[Observation]] | None
        self._observe_many = getattr(world, "observe_many", None)
        self._changed: Callable[[AgentId], bool] | None = getattr(world, "changed", None)
        self._unseen: list[AgentId] = []
        self._gathered: list[Outcome] = []  # what turns have given that is not told yet

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        self._world.reset(seed, options)
        self._gathered.clear()
        acting = self._begin_turns()
        # A reset has no rewards: what skipped turns gave belongs to the first step, if there will be one.
        return self._outcome(_nothing(()) if acting else self._gathered_so_far(), acting)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        can_act, act = self._world.can_act, self._world.act
        given = actions if tuple(actions) == self._acting else actions_of(self._acting, actions)
        if self._sequential:
            self._ahead = None
            for agent in given:
                self._at_first.pop(agent, None)
        for agent, action in given.items():
            if can_act(agent):
                act(agent, action)
        acting = self._who_acts() if self._sequential else ()
        if acting:
            none = self._nothing
            self._gathered.append(Outcome({}, none.rewards, none.terminated, none.truncated, none.infos, ()))
        else:
            self._end_turn()
            acting = self._begin_turns()
        return self._outcome(self._gathered_so_far(), acting)

    def _who_acts(self) -> tuple[AgentId, ...]:
        """Return who acts next in this turn: all who can, or just the first of them; nobody if it is at its end."""
        if not self._sequential:
            return tuple(filter(self._world.can_act, self._here))
        return tuple(islice(filter(self._world.can_act, self._waiting), 1))

    def _begin_turns(self) -> tuple[AgentId, ...]:
        """Begin a turn and return who acts in it; as long as nobody can, end it and begin the next one."""
        world = self._world
        while world.agents:
            world.begin_turn()
            self._here = here = tuple(world.agents)
            self._rules.expect(here)
            if self._sequential:
                self._waiting = iter(here)
            if acting := self._who_acts():
                if self._sequential:
                    self._nothing = _nothing(self._here)
                    self._at_first.clear()
                    self._ahead = tuple(filter(world.can_act, copy(self._waiting)))
                return acting
            self._end_turn()
        return ()

    def _end_turn(self) -> None:
        """End the turn, keep what it gave, and look for the last time at what those see who ended."""
        world, here = self._world, self._here
        end = world.end_turn()
        left = tuple(world.agents)
        last = {} if left == here else {agent: world.observe(agent) for agent in here if agent not in left}
        given = self._rules.checked(end.rewards, end.terminated, end.truncated)
        self._gathered.append(Outcome(last, *given, end.infos, ()))

    def _gathered_so_far(self) -> Outcome:
        """Return what turns have given since it was last told."""
        if len(self._gathered) == 1:
            return self._gathered.pop()
        given = functools.reduce(_merged, self._gathered) if self._gathered else _nothing(())
        self._gathered.clear()
        return given

    def _outcome(self, given: Outcome, acting: tuple[AgentId, ...]) -> Outcome:
        """Return what was given, with what everybody sees now who is left."""
        agents = self._world.agents
        seen = {agent: self._look(agent) for agent in acting} if self._sequential else self._observed(acting)
        if given.observations:
            seen = {**given.observations, **seen}
        self._unseen.clear()
        if len(acting) < len(agents):
            self._unseen = [agent for agent in agents if agent not in acting]
        given.observations = Sights(self._look, seen, self._unseen) if self._unseen else seen
        given.acting, given.ahead = acting, self._ahead
        self._acting = acting
        return given

    def _look(self, agent: AgentId) -> Observation:
        """Return what an agent sees. Whoever looks ahead looks at all of them: what they see is needed until they act."""
        ahead = self._ahead
        if ahead is None:
            if agent in self._at_first and self._changed is not None and not self._changed(agent):
                return self._at_first[agent]
            return self._world.observe(agent)
        if agent in ahead and agent not in self._at_first:
            self._at_first = self._observed(ahead)
        return self._at_first[agent] if agent in self._at_first else self._world.observe(agent)

    def _observed(self, agents: Sequence[AgentId]) -> dict[AgentId, Observation]:
        """Observe for some agents, at once if the world can do that."""
        if self._observe_many is not None and len(agents) > 1:
            return dict(zip(agents, self._observe_many(agents), strict=True))
        observe = self._world.observe
        return {agent: observe(agent) for agent in agents}


class Tentative(Generic[T]):
    """What agents of a turn chose before it was their turn, and what they saw when they did.

    A choice stands if its agent sees the same when it acts. So what comes of the turn is what comes of it if nobody
    chooses ahead.
    """

    def __init__(self) -> None:
        self._chosen: dict[AgentId, tuple[Observation, T]] = {}

    def keep(self, agent: AgentId, seen: Observation, choice: T) -> None:
        """Take note of a choice."""
        self._chosen[agent] = seen, choice

    def __contains__(self, agent: AgentId) -> bool:
        return agent in self._chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def stands(self, agent: AgentId, sees: Observation) -> bool:
        """Whether an agent has chosen, on what it sees now."""
        kept = self._chosen.get(agent)
        return kept is not None and is_same(kept[0], sees)

    def fallen(self, observations: Mapping[AgentId, Observation]) -> list[AgentId]:
        """Return those whose choices do not stand any more."""
        there = ((agent, seen) for agent, (seen, _) in self._chosen.items() if agent in observations)
        return [agent for agent, seen in there if not is_same(seen, observations[agent])]

    def drop(self, agents: Iterable[AgentId]) -> None:
        """Forget choices."""
        for agent in agents:
            self._chosen.pop(agent, None)

    def take(self, agent: AgentId) -> T:
        """Return what an agent has chosen, which is done with by that."""
        return self._chosen.pop(agent)[1]

    def end(self) -> list[AgentId]:
        """End the turn: return those who have chosen and did not act."""
        left = list(self._chosen)
        self._chosen.clear()
        return left


def _nothing(here: Iterable[AgentId]) -> Outcome:
    """Return that nothing came of what was done: turns give when they end."""
    return Outcome(
        {}, dict.fromkeys(here, 0.0), dict.fromkeys(here, False), dict.fromkeys(here, False), {a: {} for a in here}, ()
    )


def _merged(first: Outcome, then: Outcome) -> Outcome:
    """Return what two turns gave together."""
    then.observations = {**first.observations, **then.observations}
    for agent, reward in first.rewards.items():
        then.rewards[agent] = reward + then.rewards.get(agent, 0.0)
    for ends, before in ((then.terminated, first.terminated), (then.truncated, first.truncated)):
        ends.update((agent, ended or ends.get(agent, False)) for agent, ended in before.items())
    then.infos = {
        agent: {**first.infos.get(agent, {}), **then.infos.get(agent, {})} for agent in (*first.infos, *then.infos)
    }
    return then
