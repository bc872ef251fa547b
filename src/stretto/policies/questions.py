"""What policies are asked and what they answer, and Runner: whoever answers, wherever that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stretto.core import Action, AgentId, BlockAnswer, EpisodeKey, Observation
from stretto.errors import PolicyFailed
from stretto.seeding.streams import SeedTree
from stretto.spaces import Array

Weights = Mapping[int, Mapping[str, Array]]
"""Arrays by name, for policies by number."""


@dataclass(frozen=True, slots=True)
class AgentEpisode:
    """One agent in one episode: which policy it follows, the root of its random numbers, and its row.

    `row` is the number of its row in the batches of a policy that acts for many at once. It decides last bits, so it must
    follow from who this is (the number of the episode, and of the agent in it), never from who else is there. Numbers go on
    and on: the rows of an episode's agents follow each other, and those of the next episode follow them.
    """

    episode: EpisodeKey
    agent: AgentId
    policy: int
    tree: SeedTree
    row: int = 0


FOR_GOOD, AHEAD, AGAIN = range(3)
"""How an agent is asked: its choice counts; it is asked before it is its turn, and what it is now is kept; or it has chosen
on what it does not see any more, and chooses again as if it had not."""


class Question(NamedTuple):
    """An agent, which follows the policy with this number, has to act. `asking` says whether that counts: see `FOR_GOOD`."""

    episode: EpisodeKey
    agent: AgentId
    policy: int
    observation: Observation
    asking: int = FOR_GOOD


class Block(NamedTuple):
    """Agents that follow one policy have to act, in several slots at once.

    `observations` is a batch of the agents' space with two leading axes, slots and agents, and is not taken apart for a
    `BlockPolicy`; `acting` says by slot and agent who acts, and `episodes` in which episode each slot is. With `keeps`, what
    agents are is kept before they choose, since that may not count; those in `again` go back to there first.
    """

    policy: int
    episodes: Sequence[EpisodeKey]
    agents: Sequence[AgentId]
    observations: Any
    acting: Array
    keeps: bool = False
    again: Array | None = None


class Decision(NamedTuple):
    """What it does, how long choosing that took, and what it says about it."""

    action: Action
    seconds: float
    says: Mapping[str, Any] | None = None


class Chooser(NamedTuple):
    """What chooses for one agent of an episode, with nothing around it, and what says who failed if it raises."""

    step: Callable[[Observation], Any]
    failed: Callable[[BaseException], PolicyFailed]


Team = Callable[[Sequence[Observation]], list[Action]]
"""What chooses for agents at once, which see this, in their order; it may be called step after step."""


class Runner(Protocol):
    """Chooses actions: `ask`, and then `replies`, so that several runners can work at the same time."""

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        """Make the agent policies of an episode."""

    def choosers(self, episode: EpisodeKey) -> Mapping[AgentId, Chooser] | None:
        """Return what chooses for the agents of an episode; `None` where they are asked together, or elsewhere."""

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> Team | None:
        """Return what chooses for agents of several episodes at once; `None` where they are asked in another way."""

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        """Let agents choose, no longer than the limit where that can be enforced."""

    def replies(self) -> list[Decision]:
        """Return what was asked for last, in that order.

        Raises:
            PolicyError: with the policy and the agent.
        """

    def take_back(self, questions: Sequence[Question]) -> None:
        """Let agents that were asked `AHEAD` be as they were before: their choices do not count."""

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        """Return what the agents of a block do, as a batch; the block is never taken apart on the way to its policy."""

    def publish(self, version: int, weights: Weights) -> None:
        """Let policies act with other weights from now on, wherever they are: all of them, or none."""

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        """Forget an episode; return the global generators that policies drew from in other processes, unguarded."""

    def close(self) -> None:
        """Let go of threads and processes; may be called twice."""


class Remembering(Runner, Protocol):
    """A runner that can tell all that agents remember in the middle of an episode."""

    def memory(self, episodes: Sequence[EpisodeKey]) -> list[list[list[Array]]]:
        """Return what agents remember of episodes, by policy and kind of agent: arrays (episodes, agents, ...)."""

    def remember(self, episodes: Sequence[EpisodeKey], memory: Sequence[Sequence[Sequence[Array]]]) -> None:
        """Let agents that have begun these episodes remember what `memory` has returned."""
