"""TurnStage: trials in worlds of sequential turns, a row a turn, in which agents may be asked before it is their turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.adapters.turn_blocks import CHOSEN
from stretto.collection.stage import BlockStage, columns_of, some_of
from stretto.core import SEQUENTIAL, AgentId, AgentKind, BlockAnswer
from stretto.errors import PolicyFailed
from stretto.policies.ahead import Counted, FasterWay
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AHEAD, Block, Question, Runner
from stretto.spaces import FIXED, Array, any_value, map_space

if TYPE_CHECKING:
    from stretto.collection.trial_log import TrialLog
    from stretto.collection.worlds import BlockWorlds


@dataclass(frozen=True, slots=True)
class Turns:
    """How games are played that are `by_turn`: a way to play turns, and the policies that are asked in order in any case."""

    way: str = SEQUENTIAL
    fixed: frozenset[int] = frozenset()

    @classmethod
    def of(cls, way: str, plans: Sequence[PolicyPlan]) -> Turns:
        """Return how they are played with these policies."""
        return cls(way, frozenset(i for i, plan in enumerate(plans) if plan.in_order))


def stage_of(
    worlds: BlockWorlds,
    runner: Runner,
    policies: Mapping[AgentId, int],
    horizon: int | None = None,
    log: TrialLog | None = None,
    turns: Turns | None = None,
) -> BlockStage:
    """Return the stage that suits the worlds."""
    if not worlds.by_turn:
        return BlockStage(worlds, runner, policies, horizon, log)
    turns = turns or Turns()
    return TurnStage(worlds, runner, policies, horizon, log, way=FasterWay(turns.way), fixed=turns.fixed)


class TurnStage(BlockStage):
    """Plays trials in worlds that are `by_turn`: each slot goes on at its own pace, and has a row a turn.

    A row has what each agent saw when it chose, and of those who did not act what they saw when the turn began. So it does
    not depend on who was asked before it was its turn. Those who follow the policies in `fixed` never are. Agents that are
    asked again, or did not act, are brought back to before they were asked.
    """

    def __init__(
        self,
        worlds: BlockWorlds,
        runner: Runner,
        policies: Mapping[AgentId, int],
        horizon: int | None = None,
        log: TrialLog | None = None,
        *,
        way: FasterWay,
        fixed: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(worlds, runner, policies, horizon, log)
        self._way, self._fixed, self._began = way, fixed, 0.0
        self._asks = np.zeros(worlds.count, np.bool_)  # slots in whose turn agents are asked ahead
        self._chosen = [np.zeros((worlds.count, len(kind.agents)), np.bool_) for kind in worlds.kinds]
        self._first: list[Any] = [None] * len(worlds.kinds)  # what all saw when the turns of their slots began

    # ---- asking ----

    def _exchange(self, slots: Array) -> Array:
        """Ask agents in `slots`, write that down and let the worlds go on; return the slots that have been stepped."""
        self._began = time.perf_counter()
        worlds, recorder, beginning = self._worlds, self._recorder, self._beginning[slots]
        acting = slots[~beginning] if beginning.any() else slots
        ended = slots[beginning & ~self._unwritten[slots]]
        new = acting[worlds.turned[acting]]
        self._asks[new] = self._way.ahead
        for k, (kind, record) in enumerate(zip(worlds.kinds, recorder.kinds, strict=True)):
            seen = worlds.rows[k].observations
            for some in (ended, new):
                if len(some):
                    record.end(recorder.rows[some], some, some_of(kind.observation_space, seen, some))
            if len(new):
                self._first[k] = _copied(kind, self._first[k], seen, new)
        if not len(acting):
            return worlds.exchange(slots, acting, [])
        asked = [self._ask(k, acting) for k in range(len(worlds.kinds))]
        given = np.concatenate([who for _, who in asked], axis=1).astype(np.uint8) * np.uint8(CHOSEN)
        self._count(rounds=len(acting))
        return worlds.exchange(slots, acting, [*(actions for actions, _ in asked), given])

    def _ask(self, k: int, slots: Array) -> tuple[Any, Array]:
        """Ask agents of a kind, and write down what they do; return that, and who was asked."""
        kind, rows, record = self._worlds.kinds[k], self._worlds.rows[k], self._recorder.kinds[k]
        actions, asked = _nothing(kind, len(slots)), np.zeros((len(slots), len(kind.agents)), np.bool_)
        record.expect(actions)
        for policy, columns in self._parties[k]:
            due = rows.acting[slots][:, columns]
            wanted = due
            if policy not in self._fixed:
                wanted = due | (rows.ahead[slots][:, columns] & self._asks[slots][:, None])
            # Only slots in which somebody is asked: rows of a batch are planned, and two that want one are asked in turn.
            there = np.flatnonzero(wanted.any(axis=1))
            if not len(there):
                continue
            some = slots[there]
            seen = columns_of(kind.observation_space, some_of(kind.observation_space, rows.observations, some), columns)
            agents = [kind.agents[j] for j in columns]
            again = wanted[there] & self._chosen[k][_block(some, columns)]
            keeps = bool((wanted & ~due).any())
            block = Block(policy, self._trials[some].tolist(), agents, seen, wanted[there], keeps, again)
            block, answer = self._answer(block, due[there])
            asked[_block(there, columns)] = block.acting
            self._chosen[k][_block(some, columns)] |= block.acting
            record.act_some(self._recorder.rows[some], some, columns, block.acting, seen, answer)
            map_space(_placing(there, columns), kind.action_space, actions, answer.actions)
        return actions, asked

    def _answer(self, block: Block, due: Array) -> tuple[Block, BlockAnswer]:
        """Ask a block; return it as it was asked in the end, and the answer. Whose turn it is, is `due`."""
        began = time.perf_counter()
        assert block.again is not None
        self._count(conflicts=int(block.again.sum()))
        try:
            return block, self._runner.act_block(block)
        except PolicyFailed:
            if not block.keeps:
                raise
            # It may have failed on what no agent sees when it acts: whoever has to act now is asked alone.
            self._take_back(block.policy, block.episodes, block.agents, block.acting)
            block = block._replace(acting=due, keeps=False, again=None)
            return block, self._runner.act_block(block)
        finally:
            self.policy_seconds += time.perf_counter() - began

    def _take_back(self, policy: int, episodes: Sequence[Any], agents: Sequence[AgentId], where: Array) -> None:
        places = np.argwhere(where).tolist()
        self._runner.take_back([Question(episodes[s], agents[j], policy, None, AHEAD) for s, j in places])

    # ---- what came of it ----

    def _completed(self, acted: Array) -> Array:
        """Return the slots whose turns are over; those who were asked in them and did not act have not been asked."""
        worlds = self._worlds
        # An episode that was lost with its worker has no end of a turn: what was done counts.
        lost = worlds.over[acted] & ~worlds.turned[acted]
        whole = acted[worlds.turned[acted] | lost]
        done = 0
        for k, (rows, chosen) in enumerate(zip(worlds.rows, self._chosen, strict=True)):
            final = np.where(worlds.turned[whole][:, None], rows.acted[whole], chosen[whole])
            undone = chosen[whole] & ~final
            if undone.any():
                self._undo(k, whole, undone)
            chosen[whole] = False
            done += int(final.sum())
        self._count(turns=len(whole))
        portion = len(self._policies) * max(1, len(self._playing))
        self._way.add(done, time.perf_counter() - self._began, portion)
        return whole

    def _undo(self, k: int, slots: Array, where: Array) -> None:
        """Let agents be as they were before they were asked, and their rows as if they had not been."""
        kind, trials = self._worlds.kinds[k], self._trials[slots].tolist()
        for policy, columns in self._parties[k]:
            self._take_back(policy, trials, [kind.agents[j] for j in columns], where[:, columns])
        first = some_of(kind.observation_space, self._first[k], slots)
        self._recorder.kinds[k].take_back(self._recorder.rows[slots], slots, where, first)

    def _count(self, turns: int = 0, rounds: int = 0, conflicts: int = 0) -> None:
        self.counted = Counted(*map(add, self.counted, (turns, rounds, conflicts)))


def _nothing(kind: AgentKind, count: int) -> Any:
    """Return actions that nobody looks at: a batch with two leading axes, slots and agents."""

    def batch(leaf: Any) -> Any:
        nothing, agents = any_value(leaf), len(kind.agents)
        if not isinstance(leaf, FIXED):
            return [[nothing] * agents for _ in range(count)]
        array = np.empty((count, agents, *np.shape(nothing)), leaf.dtype)
        array[:] = nothing
        return array

    return map_space(batch, kind.action_space)


def _block(rows: Array, columns: Sequence[int]) -> Any:
    """Return the index of a block of an array."""
    return rows[:, None], np.asarray(columns, np.intp)


def _placing(rows: Array, columns: Sequence[int]) -> Callable[[Any, Any, Any], Any]:
    """Return what writes a batch into some rows and columns of a larger one, leaf by leaf."""

    def place(_: Any, batch: Any, part: Any) -> Any:
        if isinstance(batch, np.ndarray):
            batch[_block(rows, columns)] = part
        else:
            for row, values in zip(rows.tolist(), part, strict=True):
                for column, value in zip(columns, values, strict=True):
                    batch[row][column] = value
        return batch

    return place


def _copied(kind: AgentKind, kept: Any, seen: Any, slots: Array) -> Any:
    """Copy what agents of some slots see into what is kept of all slots; at first all of it."""
    if kept is None:
        return map_space(
            lambda _, part: part.copy() if isinstance(part, np.ndarray) else list(part), kind.observation_space, seen
        )

    def copy(_: Any, old: Any, part: Any) -> Any:
        for slot in slots.tolist():
            old[slot] = part[slot]
        return old

    return map_space(copy, kind.observation_space, kept, seen)
