"""Actors: the policies of one process, and the agents that follow them; who is asked together with whom."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from stretto.core import Action, AgentId, BlockAnswer, BlockPolicy, EpisodeKey, Observation, WorldSpec, own_copy
from stretto.errors import UsageError
from stretto.policies.agent_reset import reset_policy
from stretto.policies.batches import Batches, Call, probe_rows
from stretto.policies.block_actors import BlockActors, BlockPlayer
from stretto.policies.loading import FunctionPolicy
from stretto.policies.players import Player, act_alone, act_by_block, act_together, asked_by_block, policy_failed
from stretto.policies.policy_plan import PolicyPlan, own_spaces
from stretto.policies.questions import AGAIN, AHEAD, FOR_GOOD, AgentEpisode, Block, Chooser, Decision, Question, Team
from stretto.policies.states import map_state
from stretto.policies.undo import why_not_again
from stretto.seeding.generators import PrivateGenerators
from stretto.spaces import Array, SpaceLayout, map_space

__calls_user_code__ = True


class _Loaded:
    """A policy that is there. It has `batches` unless it acts for one agent at a time."""

    def __init__(self, plan: PolicyPlan, world: WorldSpec) -> None:
        self.plan, self.world = plan, own_spaces(world)
        self.policy = plan.load(self.world)
        self.can_batch = isinstance(self.policy, BlockPolicy) or callable(getattr(self.policy, "step_batch", None))
        self.batches: Batches | None = None
        self.block: BlockActors | None = None
        if isinstance(self.policy, BlockPolicy):
            self.block = BlockActors(self.policy, self.world, plan.rows, interchangeable=plan.interchangeable)
        elif plan.rows and self.can_batch:
            self.batches = Batches(self.policy, self.world, plan.rows, interchangeable=plan.interchangeable)
        self.drawn: set[str] = set()
        self._layouts: dict[AgentId, SpaceLayout] = {}

    def action_layout(self, agent: AgentId) -> SpaceLayout:
        """Return how an agent's actions lie in arrays."""
        if agent not in self._layouts:
            self._layouts[agent] = SpaceLayout(self.world.action_spaces[agent])
        return self._layouts[agent]


class Actors:
    """Loads each policy once, and makes a fresh agent policy for every agent of an episode."""

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec) -> None:
        self._loaded = [_Loaded(plan, world) for plan in plans]
        self._players: dict[tuple[EpisodeKey, AgentId], Player] = {}
        self._agents_of: dict[EpisodeKey, set[AgentId]] = {}
        self._one_by_one = not any(loaded.batches or loaded.block for loaded in self._loaded)
        # All are asked together: they follow one policy, and have no generators of their own in place of global ones.
        self._alike = len(self._loaded) == 1 and not self._one_by_one and plans[0].draws == frozenset()
        self._begun: set[tuple[EpisodeKey, int]] = set()  # episodes that policies were told of
        self.version = 0

    def drawn(self, policy: int) -> frozenset[str]:
        """Return which global generators a policy has drawn from, of those that are watched."""
        return frozenset(self._loaded[policy].drawn)

    def batches(self, policy: int) -> bool:
        """Whether a policy can act for many agents at once."""
        return self._loaded[policy].can_batch

    def probe_rows(self, policy: int, rows: int, on_call: Callable[[], None]) -> bool:
        """Whether it is the same for a policy in which of so many rows an agent stands; `on_call` after each call of it."""
        loaded = self._loaded[policy]
        return probe_rows(loaded.policy, loaded.world, rows, on_call)

    def publish(self, version: int, weights: Mapping[int, Mapping[str, Array]]) -> None:
        """Let policies, given by their numbers, act with other weights from now on."""
        for policy, arrays in weights.items():
            loaded = self._loaded[policy]
            set_weights = getattr(loaded.policy, "set_weights", None)
            if set_weights is None:
                raise UsageError(f"weights are for a policy with set_weights, got some for {loaded.plan.spec.name!r}")
            set_weights(arrays)
        self.version = version

    def begin(self, agents: Iterable[AgentEpisode]) -> None:
        """Make the agent policies of an episode, or of some agents in it."""
        for who in agents:
            loaded = self._loaded[who.policy]
            self._agents_of.setdefault(who.episode, set()).add(who.agent)
            self._tell_of_episode(loaded.policy, who)
            if loaded.block is not None:
                loaded.block.begin(who.episode, who.agent, who.row, who.tree)
                self._players[who.episode, who.agent] = Player(
                    who, who.agent, who.row, loaded.policy, asked_by_block, None
                )
                continue
            guard, draws = None, loaded.plan.draws
            if draws is None or draws:
                probation = 1 << 62 if draws is None else 0
                guard = PrivateGenerators(who.tree.child("global"), probation, draws or ())
            self._players[who.episode, who.agent] = self._player(loaded, who, guard)

    def _tell_of_episode(self, policy: Any, who: AgentEpisode) -> None:
        """Let a policy that wants to know that an episode begins hear of it before its first agent is made."""
        begin_episode = getattr(policy, "begin_episode", None)
        if begin_episode is None or (who.episode, who.policy) in self._begun:
            return
        self._begun.add((who.episode, who.policy))
        try:
            begin_episode(who.episode)
        except (Exception, SystemExit) as error:
            raise policy_failed(who, error) from error

    def _player(self, loaded: _Loaded, who: AgentEpisode, guard: PrivateGenerators | None) -> Player:
        player = Player(who, who.agent, who.row, None, asked_by_block, guard)

        def make() -> Any:
            if isinstance(loaded.policy, FunctionPolicy):  # two generators that nobody draws from would take 20 µs
                return loaded.policy.agent_policy(who.agent)
            # Policies like to sample their actions from the space: these numbers too are the agent's own.
            space = loaded.world.action_spaces[who.agent]
            space.seed(who.tree.child("space").seed())
            if loaded.batches is not None:
                loaded.batches.spaces.watch(space)
            policy = loaded.policy.agent_policy(who.agent)
            player.rng, player.space = who.tree.generator(), None if loaded.batches is not None else space
            reset_policy(policy, player.rng)
            return policy

        try:
            player.policy = make() if guard is None else guard.run_repeatable(make)
            player.step = player.policy.step
            return player
        except (Exception, SystemExit) as error:
            raise policy_failed(who, error) from error

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""
        self._forget([(episode, agent) for agent in self._agents_of.pop(episode, ())])

    @property
    def idle(self) -> bool:
        """Whether no episode is under way."""
        return not self._players

    def keep(self, episodes: Container[EpisodeKey]) -> None:
        """Forget all episodes but these."""
        for episode in [one for one in self._agents_of if one not in episodes]:
            self.end(episode)

    def _forget(self, keys: Iterable[tuple[EpisodeKey, AgentId]]) -> None:
        for key in keys:
            player = self._players.pop(key, None)
            if player is None:  # it could not be made
                continue
            if (block := self._loaded[player.who.policy].block) is not None:
                block.end(key[0])
            self._begun.discard((key[0], player.who.policy))
            if player.guard is not None:
                self._loaded[player.who.policy].drawn |= player.guard.drawn

    def why_not_again(self, policy: int) -> str:
        """Say why agents that follow a policy cannot be asked ahead, because they could not choose again; nothing if not."""
        loaded = self._loaded[policy]
        if loaded.block is not None:
            return ""
        if loaded.drawn or loaded.plan.draws:
            return "it draws from global generators"
        return why_not_again(loaded.policy.agent_policy(loaded.world.agents[0]))

    def function(self, policy: int) -> Callable[[Observation], Any] | None:
        """Return the function that a policy is, if there is nothing more to it: nothing to begin, to end or to guard."""
        loaded = self._loaded[policy]
        if not isinstance(loaded.policy, FunctionPolicy) or loaded.plan.draws is None or loaded.plan.draws:
            return None
        return loaded.policy.agent_policy(loaded.world.agents[0]).step

    def prepare(self, questions: Sequence[Question]) -> None:
        """Keep what agents are who are asked ahead, and take back what those chose who are asked again."""
        for question in questions:
            if question.asking == AHEAD:
                self._undoing(question).keep()
            elif question.asking == AGAIN:
                player = self._undoing(question)
                player.take_back()
                player.keep()

    def take_back(self, questions: Iterable[Question]) -> None:
        """Let agents that were asked ahead be as they were before."""
        for question in questions:
            self._undoing(question).take_back()

    def _undoing(self, question: Question) -> Player | BlockPlayer:
        block = self._loaded[question.policy].block
        if block is not None:
            return BlockPlayer(block, question.episode, question.agent)
        return self._players[question.episode, question.agent]

    def groups(self, questions: Sequence[Question]) -> list[list[int]]:
        """Return which questions are answered together, by their indices: those for a policy with `step_batch`."""
        groups: dict[Hashable, list[int]] = {}
        if self._alike:
            return [list(range(len(questions)))]
        for i, (episode, agent, policy, *_) in enumerate(questions):
            # One that draws from global generators acts for one agent at a time: they are that agent's then.
            loaded = self._loaded[policy]
            together = (loaded.batches or loaded.block) and self._players[episode, agent].guard is None
            groups.setdefault(("batch", policy) if together else i, []).append(i)
        return list(groups.values())

    def act(self, questions: Sequence[Question]) -> list[Decision]:
        """Return what each agent does, asked in this order. Those that follow a policy with `step_batch` are together."""
        players = [self._players[question[:2]] for question in questions]
        if self._one_by_one:
            return [act_alone(player, question[3]) for player, question in zip(players, questions, strict=True)]
        seen = [question[3] for question in questions]
        if self._alike:
            loaded = self._loaded[0]
            return [Decision(*one) for one in _answers(loaded, players, seen, _calls(loaded, players))]
        decisions: dict[int, Decision] = {}
        for group in self.groups(questions):
            loaded = self._loaded[questions[group[0]].policy]
            asked = [players[i] for i in group]
            if loaded.block is None and loaded.batches is None:
                decisions[group[0]] = act_alone(asked[0], seen[group[0]])
                continue
            answers = _answers(loaded, asked, [seen[i] for i in group], _calls(loaded, asked))
            decisions.update(zip(group, (Decision(*one) for one in answers), strict=True))
        return [decisions[i] for i in range(len(questions))]

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> Team | None:
        """Return what chooses for agents at once; `None` unless they all follow one policy that does so."""
        if not self._alike:
            return None
        loaded, players = self._loaded[0], [self._players[one] for one in who]
        calls = _calls(loaded, players)
        return lambda seen: [action for action, _ in _answers(loaded, players, seen, calls)]

    def choosers(self, episode: EpisodeKey) -> dict[AgentId, Chooser] | None:
        """Return what chooses for each agent of an episode, in their order; `None` where some are asked together."""
        if not self._one_by_one:
            return None
        players = [self._players[episode, agent] for agent in self._agents_of[episode]]
        return {
            player.agent: Chooser(
                player.step if player.guard is None else partial(player.guard.run, player.step),
                partial(policy_failed, player.who),
            )
            for player in players
        }

    def act_block(self, block: Block) -> BlockAnswer:
        """Return what the agents of a block do: batches with the same leading axes. Whoever does not act has zeros."""
        loaded = self._loaded[block.policy]
        if loaded.block is None:
            return self._act_rows(loaded, block)
        try:
            return loaded.block.act(block)
        except (Exception, SystemExit) as error:
            s, j = np.argwhere(block.acting)[0]
            raise policy_failed(self._players[block.episodes[s], block.agents[j]].who, error, together=True) from error

    def _act_rows(self, loaded: _Loaded, block: Block) -> BlockAnswer:
        """Take a block apart for a policy that does not take it as it is."""
        first = block.agents[0]
        seen, layout = loaded.world.observation_spaces[first], loaded.action_layout(first)
        whom = [(s, j) for s, row in enumerate(block.acting.tolist()) for j, on in enumerate(row) if on]
        if isinstance(block.observations, np.ndarray):
            views = [block.observations[place].copy() for place in whom]
        else:
            views = [
                map_space(lambda _, part, s=s, j=j: own_copy(part[s][j]), seen, block.observations) for s, j in whom
            ]
        usual = AHEAD if block.keeps else FOR_GOOD
        asking = [usual if block.again is None or not block.again[place] else AGAIN for place in whom]
        questions = [
            Question(block.episodes[s], block.agents[j], block.policy, view, how)
            for (s, j), view, how in zip(whom, views, asking, strict=True)
        ]
        self.prepare(questions)
        decisions = self.act(questions)
        size = len(block.episodes), len(block.agents)
        arrays = [np.zeros((*size, *leaf.shape), leaf.dtype) for leaf in layout.fixed]
        objects = [[[None] * size[1] for _ in range(size[0])] for _ in layout.loose]
        for place, decision in zip(whom, decisions, strict=True):
            for array, leaf in zip(arrays, layout.fixed, strict=True):
                array[place] = leaf.get(decision.action)
            for values, leaf in zip(objects, layout.loose, strict=True):
                values[place[0]][place[1]] = leaf.get(decision.action)
        return BlockAnswer(layout.batch(arrays, objects), None, _said(whom, decisions, size))


def _calls(loaded: _Loaded, players: Sequence[Player]) -> list[Call]:
    return [] if loaded.batches is None else loaded.batches.calls(players)


def _answers(
    loaded: _Loaded, players: Sequence[Player], seen: Sequence[Observation], calls: Sequence[Call]
) -> list[tuple[Action, float]]:
    """Ask a policy for agents at once; return what each of them does, and how long that took."""
    if loaded.block is not None:
        actions, seconds = act_by_block(loaded.block, players, seen)
        return [(action, seconds) for action in actions]
    found: dict[int, tuple[Action, float]] = {}
    assert loaded.batches is not None
    for call in calls:
        actions, seconds = act_together(loaded.policy, loaded.batches, call, players, seen)
        for i, action in zip(call.places.values(), actions, strict=True):
            found[i] = action, seconds
    return [found[i] for i in range(len(players))]


def _said(whom: Sequence[tuple[int, int]], decisions: Sequence[Decision], size: tuple[int, int]) -> dict[str, Any]:
    """Put together what policies said about their actions; whoever did not act has zeros."""
    if not decisions or decisions[0].says is None:
        return {}

    def column(*parts: Any) -> Array:
        first = np.asarray(parts[0])
        array = np.zeros((*size, *first.shape), first.dtype)
        for place, part in zip(whom, parts, strict=True):
            array[place] = part
        return array

    said: dict[str, Any] = map_state(column, *(dict(decision.says or {}) for decision in decisions))
    return said
