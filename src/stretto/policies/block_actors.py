"""BlockActors: agents of one policy that computes many of them in one pass, each with its state, row and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stretto.core import (
    Action,
    AgentId,
    AgentKind,
    BlockAnswer,
    BlockPolicy,
    EpisodeKey,
    Observation,
    WorldSpec,
    kinds_of,
)
from stretto.policies.questions import Block
from stretto.policies.states import map_state
from stretto.seeding.choices import Choices, stream_key
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array, SpaceLayout, map_space, row_of


class BlockActors:
    """All agents that follow a `BlockPolicy`, kind by kind."""

    def __init__(self, policy: BlockPolicy, world: WorldSpec, rows: int, *, interchangeable: bool) -> None:
        self._agents = {agent: j for j, agent in enumerate(world.agents)}
        episodes = max(1, rows // len(world.agents))
        kinds = [
            _KindActor(policy.of_kind(kind.agents), kind, episodes, interchangeable=interchangeable)
            for kind in kinds_of(world)
        ]
        self._kinds = {agent: actor for actor in kinds for agent in actor.kind.agents}

    def begin(self, episode: EpisodeKey, agent: AgentId, row: int, tree: SeedTree) -> None:
        """Let an agent begin an episode; `row` numbers all agents of all episodes."""
        self._kinds[agent].begin(episode, agent, row // len(self._agents), tree)

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""
        for actor in set(self._kinds.values()):
            actor.end(episode)

    def keep(self, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], where: Array) -> None:
        """Keep what agents of one kind are: those where `where` is true, which has two axes, episodes and agents."""
        self._kinds[agents[0]].keep(episodes, agents, where)

    def take_back(self, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], where: Array) -> None:
        """Let them be what they were when that was kept."""
        self._kinds[agents[0]].take_back(episodes, agents, where)

    def memory(self, episodes: Sequence[EpisodeKey]) -> list[list[Array]]:
        """Return what agents remember of episodes, kind by kind: arrays with two leading axes, episodes and agents."""
        return [actor.memory(episodes) for actor in dict.fromkeys(self._kinds.values())]

    def remember(self, episodes: Sequence[EpisodeKey], memory: Sequence[Sequence[Array]]) -> None:
        """Let agents that have begun these episodes remember what `memory` has returned."""
        for actor, arrays in zip(dict.fromkeys(self._kinds.values()), memory, strict=True):
            actor.remember(episodes, arrays)

    def act(self, block: Block) -> BlockAnswer:
        """Let agents of one kind act: batches have two leading axes, episodes and agents."""
        actor = self._kinds[block.agents[0]]
        if block.again is not None and block.again.any():
            actor.take_back(block.episodes, block.agents, block.again)
        if block.keeps:
            actor.keep(block.episodes, block.agents, block.acting)
        return actor.act(block.episodes, block.agents, block.observations, block.acting)

    def answer(self, questions: Sequence[tuple[EpisodeKey, AgentId, Observation]]) -> list[Action]:
        """Return what agents do who are asked one by one."""
        actions: dict[int, Action] = {}
        groups: dict[_KindActor, list[int]] = {}
        for i, (_, agent, _) in enumerate(questions):
            groups.setdefault(self._kinds[agent], []).append(i)
        for actor, members in groups.items():
            actions.update(zip(members, actor.answer([questions[i] for i in members]), strict=True))
        return [actions[i] for i in range(len(questions))]


class BlockPlayer(NamedTuple):
    """One agent in one episode, among others in a block."""

    actors: BlockActors
    episode: EpisodeKey
    agent: AgentId

    def keep(self) -> None:
        """Keep what the agent is, before it is asked ahead."""
        self.actors.keep([self.episode], [self.agent], _ONE)

    def take_back(self) -> None:
        """Let the agent be what it was before it was asked ahead."""
        self.actors.take_back([self.episode], [self.agent], _ONE)


_ONE = np.ones((1, 1), np.bool_)


class _KindActor:
    """Agents of one kind. A call has a fixed shape: all of them, and so many `rows` for episodes.

    An episode stands in the row that its number gives, in every call, unless rows are `interchangeable`; two that want
    the same row are asked in two calls. Rows that nobody has are filled with zeros and initial states. So what an agent
    does depends on its own past alone, however many episodes are played at once.
    """

    def __init__(self, policy: BlockPolicy, kind: AgentKind, rows: int, *, interchangeable: bool) -> None:
        self.kind, self._layout = kind, SpaceLayout(kind.observation_space)
        self._policy, self._rows, self._interchangeable = policy, rows, interchangeable
        self._columns = {agent: j for j, agent in enumerate(kind.agents)}
        self._lanes: dict[EpisodeKey, int] = {}
        self._free: list[int] = []
        self._initial = map_state(np.asarray, policy.initial_state())
        count = len(kind.agents)
        self._states = map_state(lambda part: np.zeros((0, count, *part.shape), part.dtype), self._initial)
        self._keys, self._steps = np.zeros((0, count), np.uint64), np.zeros((0, count), np.int64)
        self._numbers = np.zeros(0, np.int64)
        self._kept: Any = None  # steps and states from before agents were asked ahead

    def begin(self, episode: EpisodeKey, agent: AgentId, number: int, tree: SeedTree) -> None:
        if episode not in self._lanes:
            self._lanes[episode] = lane = self._free_lane()
            self._numbers[lane] = number
            map_state(lambda states, first: states.__setitem__(lane, first), self._states, self._initial)
        lane, j = self._lanes[episode], self._columns[agent]
        self._keys[lane, j], self._steps[lane, j] = stream_key(tree.child("choices")), 0

    def _free_lane(self) -> int:
        if not self._free:
            size = len(self._numbers)
            more = max(8, size)
            self._free = list(range(size + more - 1, size - 1, -1))
            arrays = self._states, self._keys, self._steps, self._numbers, self._kept
            self._states, self._keys, self._steps, self._numbers, self._kept = map_state(
                lambda part: _longer(part, more), arrays
            )
        return self._free.pop()

    def end(self, episode: EpisodeKey) -> None:
        lane = self._lanes.pop(episode, None)
        if lane is not None:
            self._free.append(lane)

    def keep(self, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], where: Array) -> None:
        now = self._steps, self._states
        if self._kept is None:
            self._kept = map_state(np.zeros_like, now)
        self._copy(now, self._kept, episodes, agents, where)

    def take_back(self, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], where: Array) -> None:
        self._copy(self._kept, (self._steps, self._states), episodes, agents, where)

    def _copy(
        self, source: Any, target: Any, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], where: Array
    ) -> None:
        """Copy what is kept of some agents from one place to another."""
        rows, columns = np.nonzero(where)
        lanes = np.array([self._lanes[episode] for episode in episodes], np.intp)
        places = lanes[rows], np.array([self._columns[agent] for agent in agents], np.intp)[columns]
        map_state(lambda to, part: to.__setitem__(places, part[places]), target, source)

    def _remembered(self) -> list[Array]:
        """Return how many steps agents have done, and the arrays of their states, by lane."""
        arrays = [self._steps]
        map_state(arrays.append, self._states)
        return arrays

    def memory(self, episodes: Sequence[EpisodeKey]) -> list[Array]:
        lanes = [self._lanes[episode] for episode in episodes]
        return [array[lanes] for array in self._remembered()]

    def remember(self, episodes: Sequence[EpisodeKey], memory: Sequence[Array]) -> None:
        lanes = [self._lanes[episode] for episode in episodes]
        for array, saved in zip(self._remembered(), memory, strict=True):
            array[lanes] = saved

    def answer(self, questions: Sequence[tuple[EpisodeKey, AgentId, Observation]]) -> list[Action]:
        numbers = {episode: i for i, episode in enumerate(dict.fromkeys(episode for episode, _, _ in questions))}
        episodes, layout, size = list(numbers), self._layout, (len(numbers), len(self.kind.agents))
        places = [(numbers[episode], self._columns[agent]) for episode, agent, _ in questions]
        arrays = [np.zeros((*size, *leaf.shape), leaf.dtype) for leaf in layout.fixed]
        acting = np.zeros(size, np.bool_)
        for place, (_, _, observation) in zip(places, questions, strict=True):
            acting[place] = True
            for array, leaf in zip(arrays, layout.fixed, strict=True):
                array[place] = leaf.get(observation)
        done = self.act(episodes, self.kind.agents, layout.batch(arrays, ()), acting).actions
        space = self.kind.action_space
        return [row_of(space, map_space(lambda _, part, s=s: part[s], space, done), j) for s, j in places]

    def act(
        self, episodes: Sequence[EpisodeKey], agents: Sequence[AgentId], observations: Any, acting: Array
    ) -> BlockAnswer:
        lanes = np.array([self._lanes[episode] for episode in episodes], np.intp)
        columns: Any = slice(None) if len(agents) == len(self._columns) else [self._columns[agent] for agent in agents]
        calls = self._calls(lanes)
        if len(calls) == 1:
            return self._call(lanes, calls[0][1], columns, observations, acting)
        space, answers = self.kind.observation_space, []
        for whom, rows in calls:
            seen = map_space(lambda _, part, whom=whom: part[whom], space, observations)
            answers.append(self._call(lanes[whom], rows, columns, seen, acting[whom]))
        order = np.argsort(np.concatenate([whom for whom, _ in calls]))
        joined: BlockAnswer = map_state(lambda *parts: np.concatenate(parts)[order], *answers)
        return joined

    def _calls(self, lanes: Array) -> list[tuple[Array, Array]]:
        """Return who is asked in which call: their places among those asked, and their rows in the call."""
        count, rows = len(lanes), self._rows
        if self._interchangeable:
            firsts = range(0, count, rows)
            return [
                (np.arange(first, min(count, first + rows)), np.arange(min(rows, count - first))) for first in firsts
            ]
        wanted = self._numbers[lanes] % rows
        taken = np.zeros(rows, np.bool_)
        taken[wanted] = True
        if np.count_nonzero(taken) == count:
            return [(np.arange(count), wanted)]
        order = np.argsort(wanted, kind="stable")
        ranked = wanted[order]
        firsts_of_rows = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])
        before = np.zeros(count, np.intp)  # how many others want the same row, and are asked before
        before[order] = np.arange(count) - np.repeat(firsts_of_rows, np.diff(np.r_[firsts_of_rows, count]))
        return [(np.flatnonzero(before == k), wanted[before == k]) for k in range(int(before.max()) + 1)]

    def _call(self, lanes: Array, rows: Array, columns: Any, observations: Any, acting: Array) -> BlockAnswer:
        """Ask for some episodes in one call, each in its row; the states in the answer are those from before."""
        agents = len(self._columns)

        def placed(part: Any, others: Any = None, columns: Any = slice(None)) -> Array:
            block = np.zeros((agents, self._rows, *part.shape[2:]), part.dtype)
            if others is not None and len(rows) < self._rows:
                block[:] = others
            if isinstance(columns, slice):
                block[:, rows] = part.swapaxes(0, 1)
            else:
                block[np.ix_(columns, rows)] = part.swapaxes(0, 1)
            return block

        def back(part: Any) -> Array:
            array = np.asarray(part)
            chosen = array[:, rows] if isinstance(columns, slice) else array[np.ix_(columns, rows)]
            return chosen.swapaxes(0, 1)

        seen = map_space(lambda _, part: placed(part, None, columns), self.kind.observation_space, observations)
        before = map_state(lambda part: part[lanes], self._states)
        choices = Choices(placed(self._keys[lanes]), placed(self._steps[lanes]))
        actions, after, says = self._policy.step_block(seen, map_state(placed, before, self._initial), choices)
        where = np.ix_(lanes, np.arange(agents)[columns])
        if after is not None:
            map_state(lambda states, new: _remember(states, where, back(new), acting), self._states, after)
        self._steps[where] += acting
        actions, says = map_state(back, actions), map_state(back, dict(says))
        if not acting.all():
            actions, says = map_state(lambda part: _zero(part, ~acting), (actions, says))
        return BlockAnswer(actions, before, says)


def _remember(states: Array, where: Any, new: Array, acting: Array) -> None:
    """Take in the states of those who acted."""
    if acting.all():
        states[where] = new
    else:
        kept = states[where]
        kept[acting] = new[acting]
        states[where] = kept


def _zero(array: Array, where: Array) -> Array:
    array = array.copy()
    array[where] = 0
    return array


def _longer(array: Array, more: int) -> Array:
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])
