"""BlockRunner: agents that follow policies which are already there, each for some agents of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from stretto.budget import NativeThreads
from stretto.core import AgentId, BlockAnswer, BlockPolicy, EpisodeKey
from stretto.policies.block_actors import BlockActors, BlockPlayer
from stretto.policies.questions import AgentEpisode, Block, Decision, Question, Weights
from stretto.spaces import Array


class BlockRunner:
    """Chooses in the caller's thread, a policy for a block of agents at a time. A call has `rows` rows for episodes.

    `version` is that of the weights that were published last.

    Policies that follow each other may be parts of one, so many for each as `parts` says: what agents remember is given back
    as that one would have it.
    """

    def __init__(
        self, policies: Sequence[BlockPolicy], rows: int, native_threads: int = 1, parts: Sequence[int] | None = None
    ) -> None:
        self._policies, self._native, self.version = policies, NativeThreads(native_threads), 0
        ends = list(accumulate([1] * len(policies) if parts is None else parts))
        self._blocks = [slice(first, end) for first, end in pairwise([0, *ends])]
        self._agents = sum(len(policy.world.agents) for policy in policies)
        self._actors = [
            BlockActors(policy, policy.world, rows * len(policy.world.agents), interchangeable=False)
            for policy in policies
        ]

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        for one in agents:
            number = one.row // self._agents  # of the episode; rows count the agents of all policies
            row = number * len(self._policies[one.policy].world.agents)
            self._actors[one.policy].begin(one.episode, one.agent, row, one.tree)

    def choosers(self, episode: EpisodeKey) -> None:
        return None

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> None:
        return None

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        raise NotImplementedError("agents of policies that take blocks are asked by blocks")

    def replies(self) -> list[Decision]:
        raise NotImplementedError("agents of policies that take blocks are asked by blocks")

    def take_back(self, questions: Sequence[Question]) -> None:
        for question in questions:
            BlockPlayer(self._actors[question.policy], question.episode, question.agent).take_back()

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        with self._native.capped():
            return self._actors[block.policy].act(block)

    def memory(self, episodes: Sequence[EpisodeKey]) -> list[list[list[Array]]]:
        found = [[actors.memory(episodes) for actors in self._actors[block]] for block in self._blocks]
        return [some[0] if len(some) == 1 else [_beside(kinds) for kinds in zip(*some, strict=True)] for some in found]

    def remember(self, episodes: Sequence[EpisodeKey], memory: Sequence[Sequence[Sequence[Array]]]) -> None:
        for block, kinds in zip(self._blocks, memory, strict=True):
            if block.stop - block.start == 1:
                self._actors[block.start].remember(episodes, kinds)
                continue
            first = 0
            for actors, policy in zip(self._actors[block], self._policies[block], strict=True):
                mine = slice(first, first := first + len(policy.world.agents))
                actors.remember(episodes, [[array[:, mine] for array in arrays] for arrays in kinds])

    def publish(self, version: int, weights: Weights) -> None:
        """Let policies have weights. Those that share them with whoever learns have them already, and are not named."""
        if version < self.version:
            raise AssertionError(f"version {version} of weights comes after version {self.version}")
        for number, arrays in weights.items():
            policy: Any = self._policies[number]
            policy.load_state(arrays)
        self.version = version

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        for actors in self._actors:
            actors.end(episode)
        return frozenset()

    def close(self) -> None:
        pass


def _beside(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """Return arrays of several policies with all of their agents beside each other, in the second axis."""
    return [np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)]
