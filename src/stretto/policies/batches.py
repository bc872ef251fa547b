"""Batches: who stands in which row when a policy acts for many agents at once, and who fills up the rest."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from stretto.core import AgentId, Observation, WorldSpec, own_copy
from stretto.policies.agent_reset import reset_policy
from stretto.policies.space_watch import SpaceWatch
from stretto.seeding.generators import PrivateGenerators
from stretto.seeding.streams import SeedTree
from stretto.spaces import leaves, same_space

__calls_user_code__ = True

_PROBE_STEPS = 4
"""How many observations every row is shown when a policy is probed."""


class Asked(Protocol):
    """An agent that is asked: the number of its planned row, and its own policy."""

    agent: AgentId
    row: int
    policy: Any


class Call(NamedTuple):
    """One call of `step_batch`: who stands at which place, by their indices; `first` is the number of its first row."""

    first: int
    places: dict[int, int]


class Batches:
    """The calls of a policy's `step_batch`, all with the same number of rows.

    The last bits of an answer depend on the shape of its batch and on its row: a library's matrix product treats rows by how
    they lie in memory. So the plan gives every agent of every episode a row. Rows are numbered on and on: number *r* is at
    place *r* modulo `rows`, and belongs to agent *r* modulo the number of agents, who is made anew to fill it while nobody is
    asked there. So whoever is asked, each place has the same agent; a policy that computes its agents in groups of their
    own meets the same shapes, too. Where rows are `interchangeable`, an agent may have any place that belongs to it, so that
    fewer calls are needed. It never has the place of another agent: groups would have other shapes then.
    """

    def __init__(self, policy: Any, world: WorldSpec, rows: int, *, interchangeable: bool) -> None:
        self._policy, self._agents = policy, world.agents
        self.rows, self._interchangeable = rows, interchangeable
        self._index = {agent: i for i, agent in enumerate(world.agents)}
        self._wraps = rows % len(world.agents) == 0  # a place has the same agent in all batches
        self._kinds = _kinds(world)
        # Whose the rows are, with their kind, for batches that begin with any of the agents.
        self._owners = [(agent, self._kinds[agent]) for agent in world.agents] * (2 + rows // len(world.agents))
        # What those see of whose kind nobody is asked: there are none if there is one kind.
        several = len(set(self._kinds.values())) > 1
        self._samples = {
            kind: _samples(world.observation_spaces[agent], 1)[0] if several else None
            for agent, kind in self._kinds.items()
        }
        self.spaces = SpaceWatch()
        self._generators = [SeedTree(0).child("extra", place).generator() for place in range(rows)]

    def calls(self, asked: Sequence[Asked]) -> list[Call]:
        """Return the calls in which these agents are asked. Two who want the same place are in two calls."""
        rows, calls = self.rows, list[Call]()
        if self._wraps:
            places = {one.row % rows: i for i, one in enumerate(asked)}
            if len(places) == len(asked):  # nearly always
                return [Call(0, places)]
            if self._interchangeable:
                return self._packed(asked)
        for i, one in enumerate(asked):
            place = one.row % rows
            first = 0 if self._wraps else one.row - place
            for call in calls:
                if call.first == first and place not in call.places:
                    call.places[place] = i
                    break
            else:
                calls.append(Call(first, {place: i}))
        return calls

    def _packed(self, asked: Sequence[Asked]) -> list[Call]:
        """Return as few calls as there can be: whoever is asked has the next free place that belongs to that agent."""
        agents = len(self._agents)
        calls: list[Call] = []
        seen: Counter[AgentId] = Counter()
        for i, one in enumerate(asked):
            number, turn = divmod(seen[one.agent], self.rows // agents)
            seen[one.agent] += 1
            if number == len(calls):
                calls.append(Call(0, {}))
            calls[number].places[self._index[one.agent] + turn * agents] = i
        return calls

    def fill(
        self, call: Call, asked: Sequence[Asked], observations: Sequence[Observation]
    ) -> tuple[list[Any], list[Observation]]:
        """Return the agent policies and observations of a whole batch, with those who are asked at their places."""
        line: list[Any] = [None] * self.rows
        seen: list[Observation] = [None] * self.rows
        for place, i in call.places.items():
            line[place], seen[place] = asked[i].policy, observations[i]
        if len(call.places) == self.rows:
            return line, seen
        given = {self._kinds[asked[i].agent]: observations[i] for i in call.places.values()}
        copies = {kind: own_copy(given.get(kind, sample)) for kind, sample in self._samples.items()}
        make, turn = self._policy.agent_policy, call.first % len(self._agents)
        for place, (agent, kind) in enumerate(self._owners[turn : turn + self.rows]):
            if place not in call.places:
                # A new one each time, so that nothing can come of what it saw before.
                extra = line[place] = make(agent)
                reset_policy(extra, self._generators[place])
                seen[place] = copies[kind]
        return line, seen


def _kinds(world: WorldSpec) -> dict[AgentId, int]:
    """Return a number for every agent, the same for those that observe the same space."""
    firsts: list[spaces.Space[Any]] = []
    kinds = {}
    for agent in world.agents:
        space = world.observation_spaces[agent]
        same = (i for i, first in enumerate(firsts) if same_space(first, space))
        kinds[agent] = next(same, len(firsts))
        if kinds[agent] == len(firsts):
            firsts.append(space)
    return kinds


# ---- whether rows are interchangeable ----


def probe_rows(policy: Any, world: WorldSpec, rows: int, on_call: Callable[[], None] = lambda: None) -> bool:
    """Whether an agent acts the same, to the last bit, in whichever row it stands and whoever stands in the others.

    A policy says so itself with `rows_interchangeable`. Otherwise it is tried out, and in doubt the answer is no: actions
    that are no floats hide the bits that they were computed from, and so do those that are drawn or at their bounds.
    """
    declared = getattr(policy, "rows_interchangeable", None)
    if declared is not None:
        return bool(declared)
    parts = [leaf.space for agent in world.agents for leaf in leaves(world.action_spaces[agent])]
    if not all(isinstance(part, spaces.Box) and part.dtype.kind == "f" for part in parts):
        return False
    guard = PrivateGenerators(SeedTree(0).child("probe"), probation=1 << 62)
    try:
        same = guard.run_repeatable(_acts_the_same, policy, world, rows, on_call)
    except (Exception, SystemExit):  # noqa: BLE001  what it raises in episodes that count is told there
        return False
    return same and not guard.drawn


def _acts_the_same(policy: Any, world: WorldSpec, rows: int, on_call: Callable[[], None]) -> bool:
    """Let agents see the same in several rows, among others; compare what each of them does."""
    agents, draw = world.agents, np.random.default_rng(0)
    planned = [agents[row % len(agents)] for row in range(rows)]
    shuffled = [agents[i] for i in draw.integers(len(agents), size=rows)]
    seen = {agent: _samples(world.observation_spaces[agent], _PROBE_STEPS) for agent in agents}
    found: dict[AgentId, list[list[bytes]]] = {}
    for line in (planned, [agents[0]] * rows, shuffled):
        players = [policy.agent_policy(agent) for agent in line]
        for row, player in enumerate(players):
            reset_policy(player, np.random.default_rng(row))  # another in each row: who draws is not the same in all
        steps = []
        for step in range(_PROBE_STEPS):
            actions = policy.step_batch(players, [own_copy(seen[agent][step]) for agent in line])
            shown = [_numbers(world, agent, action) for agent, action in zip(line, actions, strict=True)]
            steps.append(shown)
            on_call()
        for row, agent in enumerate(line):
            course = [shown[row] for shown in steps]
            if found.setdefault(agent, course) != course:
                return False
    # A number that comes twice is at its bound, or rounded: it shows nothing of the bits below.
    return all(len(set(values)) == _PROBE_STEPS for course in found.values() for values in zip(*course, strict=True))


def _samples(space: spaces.Space[Any], count: int) -> list[Observation]:
    own = copy.deepcopy(space)  # the other one's generator may be somebody's
    own.seed(0)
    return [own.sample() for _ in range(count)]


def _numbers(world: WorldSpec, agent: AgentId, action: Any) -> list[bytes]:
    """Return the bits of every number in an action."""
    arrays = [np.asarray(leaf.get(action)).ravel() for leaf in leaves(world.action_spaces[agent])]
    return [number.tobytes() for array in arrays for number in array]
