"""ReadyFirstWorlds: slots are stepped apart, so that policies choose for some while workers step the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.collection.worlds import BlockWorlds, KindRows
from stretto.core import NextEpisode
from stretto.envs.messages import Past
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.states import map_state
from stretto.spaces import Array


@dataclass(frozen=True, slots=True)
class Calls:
    """How policies that batch are asked: a call has `rows` for trials, filled up, so that one for few costs as much.

    With `planned`, a trial has the row that its index gives, and two that want the same row are asked in two calls.
    """

    rows: int
    planned: bool

    @classmethod
    def of(cls, plans: Sequence[PolicyPlan], rows: int) -> Calls | None:
        """Return how these policies are asked, each with so many rows for trials; `None` if none of them batches."""
        batching = [plan for plan in plans if plan.batches]
        return cls(rows, not all(plan.interchangeable for plan in batching)) if batching else None

    def next(self, trials: Array) -> Array:
        """Return who of some that play these trials is asked in one call, by their places."""
        if not self.planned:
            return np.arange(min(self.rows, len(trials)))
        return np.sort(np.unique(trials % self.rows, return_index=True)[1])


class ReadyFirstWorlds(BlockWorlds):
    """Slots are stepped apart: an exchange is over when the first half of those under way have done a step.

    So no slot waits for a slow one of another worker, and policies choose for some slots while workers step the others. Half
    of a worker's slots are asked together, because every request may have to wake the worker.

    With `calls`, slots wait until a call of the policy is full, or two thirds of all are ready: a call that is half empty
    takes as long. They do not wait for the last quarter: those may be slow ones. Who has waited longest is asked first.
    `together` brings all slots to where none is stepped.
    """

    def __init__(self, envs: VectorEnv | MultiAgentVectorEnv, calls: Calls | None = None) -> None:
        super().__init__(envs)
        shares = [len(seat.factory.slots) for seat in self._engine.supervisor.seats]
        self._share = half = max(1, max(shares) // 2)
        # Every other worker begins with its second half: then those that are ready together want different rows of a batch.
        self._rank = np.concatenate([(np.arange(n) + half * (w % 2)) % n for w, n in enumerate(shares)])
        self._calls, self._missing, self.together = calls, 0, False
        self._turn, self._since = 0, np.zeros(self.count, np.int64)  # since which turn slots wait, 0 if they do not

    def reset(self, episodes: Mapping[int, NextEpisode]) -> None:
        first = not self.started
        super().reset(episodes)
        if first:
            self._keep_all()
        else:
            self._keep(list(episodes))

    def take_over(self, worlds: BlockWorlds) -> None:
        super().take_over(worlds)
        self._keep_all()

    def restore(self, pasts: Sequence[Past], state: Mapping[str, Array]) -> None:
        super().restore(pasts, state)
        self._keep_all()

    def choose(self, slots: Array, acting: Array, trials: Array) -> Array:
        """Return which slots do their step now; the others wait until a call is full, or until nothing else is under way."""
        flying = len(self._engine.flying)
        if self.together:
            return slots[:0] if flying else slots
        if self._calls is None:
            return slots
        self._turn += 1
        waiting, since = slots[acting], self._since
        since[waiting] = np.where(since[waiting] == 0, self._turn, since[waiting])
        order = np.lexsort((self._rank[waiting], since[waiting]))
        waiting, played = waiting[order], trials[acting][order]
        flying += len(slots) - len(waiting)
        playing = len(waiting) + flying
        full, few = min(self._calls.rows, -(-2 * playing // 3)), playing // 4
        chosen = self._calls.next(played)[:full]
        if len(chosen) < full and flying > few:
            chosen = chosen[:0]
        left = np.ones(len(waiting), np.bool_)
        left[chosen] = False
        since[waiting[chosen]] = 0
        missing = full - len(self._calls.next(played[left]))
        self._missing = min(missing, max(1, flying + len(chosen) - few))
        return np.sort(np.concatenate([slots[~acting], waiting[chosen]]))

    def exchange(self, slots: Array, acting: Array, actions: Sequence[Any]) -> Array:
        engine = self._engine
        with engine.alone:
            if len(slots):
                slots = slots[np.argsort(self._rank[slots], kind="stable")]
                chosen = self._rows(self._of_all(acting, actions), slots)
                going = engine.check_ids(slots)
                engine.send(self._gate.admit(self._batch(chosen), going), going, self._share)
            wanted = self._wanted(len(engine.flying))
            back = engine.recv(wanted, ordered=False)[0] if wanted else []
        if back:
            self._keep(back)
        return np.array(sorted(back), np.intp)

    def _wanted(self, flying: int) -> int:
        """Return how many of those under way are waited for."""
        if self.together:
            return flying
        return max(1, flying // 2) if self._calls is None else max(0, min(flying, self._missing))

    def _keep_all(self) -> None:
        """Take in the rows of all slots, for the first time."""
        self._kept = [
            KindRows(*(map_state(np.array, getattr(rows, name)) for name in KindRows.__slots__)) for rows in self.rows
        ]
        self._kept_over = self.over.copy()
        self._use_kept()

    def _keep(self, slots: Sequence[int]) -> None:
        """Take in the rows of some slots."""
        found, over = self._kind_rows(*self._engine.state.gather(slots))
        for kept, new in zip(self._kept, found, strict=True):
            for name in KindRows.__slots__:
                map_state(lambda old, part: old.__setitem__(slots, part), getattr(kept, name), getattr(new, name))
        self._kept_over[slots] = over
        self._use_kept()

    def _use_kept(self) -> None:
        self.rows, self.over = self._kept, self._kept_over
