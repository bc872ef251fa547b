"""Games in turns by agent, in both turn modes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from stretto.adapters.base import AgentRules, NativeWorld, Sights, actions_of
from stretto.core import Action, AgentId, Outcome, TurnWorld

__calls_user_code__ = True


class TurnAgents(NativeWorld):
    """A game in turns, by agent."""

    def __init__(self, world: TurnWorld, *, sequential: bool = False) -> None:
        super().__init__(world, world, "_np_random")
        self._world, self._sequential = world, sequential
        self._rules = AgentRules(world)
        self._here: tuple[AgentId, ...] = ()  # those who were there when the turn began
        self._waiting: Iterator[AgentId] = iter(())  # those of them who have not been asked yet
        self._acting: tuple[AgentId, ...] = ()
        self._unseen: list[AgentId] = []
        self._gathered: list[Outcome] = []  # what turns have given that is not told yet

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Outcome:
        self._world.reset(seed, options)
        self._gathered.clear()
        acting = self._begin_turns()
        # A reset has no rewards: what skipped turns gave belongs to the first step, if there will be one.
        return self._outcome(_nothing(()) if acting else self._gathered_so_far(), acting)

    def step(self, actions: Mapping[AgentId, Action]) -> Outcome:
        world = self._world
        for agent, action in actions_of(self._acting, actions).items():
            if world.can_act(agent):
                world.act(agent, action)
        acting = self._who_acts() if self._sequential else ()
        if acting:
            self._gathered.append(_nothing(self._here))
        else:
            self._end_turn()
            acting = self._begin_turns()
        return self._outcome(self._gathered_so_far(), acting)

    def _who_acts(self) -> tuple[AgentId, ...]:
        """Return who acts next in this turn: all who can, or just the first of them; nobody if it is at its end."""
        able = filter(self._world.can_act, self._waiting)
        return tuple(islice(able, 1) if self._sequential else able)

    def _begin_turns(self) -> tuple[AgentId, ...]:
        """Begin a turn and return who acts in it; as long as nobody can, end it and begin the next one."""
        world = self._world
        while world.agents:
            world.begin_turn()
            self._here = tuple(world.agents)
            self._waiting = iter(self._here)
            self._rules.expect(self._here)
            if acting := self._who_acts():
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
        given = functools.reduce(_merged, self._gathered) if self._gathered else _nothing(())
        self._gathered.clear()
        return given

    def _outcome(self, given: Outcome, acting: tuple[AgentId, ...]) -> Outcome:
        """Return what was given, with what everybody sees now who is left."""
        world = self._world
        seen = {agent: world.observe(agent) for agent in acting}
        if given.observations:
            seen = {**given.observations, **seen}
        self._unseen.clear()
        if len(acting) < len(world.agents):
            self._unseen = [agent for agent in world.agents if agent not in acting]
        given.observations = Sights(world.observe, seen, self._unseen) if self._unseen else seen
        given.acting = self._acting = acting
        return given


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
