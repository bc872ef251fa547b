"""The collecting side of a run: worlds that this process steps, or workers that collect segments by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stretto.collection.collector import Collector, Trials, why_not_resumable
from stretto.collection.experience import Segment
from stretto.collection.share_workers import ShareWorkers, ShareWorkplace
from stretto.collection.turn_stage import Turns
from stretto.collection.worlds import BlockWorlds
from stretto.core import SEQUENTIAL, AgentKind
from stretto.policies.ahead import Counted
from stretto.policies.block_runner import BlockRunner
from stretto.policies.questions import Weights
from stretto.run_trace import traced_runner, traced_worlds
from stretto.training.blocks import policy_numbers
from stretto.training.phases import Phases, before_each

if TYPE_CHECKING:
    from stretto.collection.share_service import SharePlayer
    from stretto.training.sets import LearnerSet


class Side(Protocol):
    """Collects a run's segments, with policies that act by the weights of a `version`."""

    count: int
    why_not_resumable: str | None

    @property
    def kinds(self) -> Sequence[AgentKind]:
        """Who acts, by kind."""

    @property
    def version(self) -> int:
        """The version of the weights that were published last."""

    def begin(self, learners: LearnerSet, rows: int, phases: Phases, poll: Callable[[], object] | None) -> None:
        """Make ready to collect segments of so many rows; `poll` is called now and again meanwhile."""

    def collect(self) -> Segment:
        """Return the next segment."""

    @property
    def counted(self) -> Counted:
        """How agents were asked since the beginning."""

    def publish(self, version: int, weights: Weights) -> None:
        """Let policies have weights. Those that share them with whoever learns have them already, and are not named."""

    @property
    def nodes(self) -> Mapping[str, int]:
        """How many environments are on each node of a cluster."""

    def state(self) -> dict[str, Any]:
        """Return all that is needed to go on after the last segment, if this is resumable."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned, before the first segment."""

    def close(self) -> None:
        """Let go of worlds and policies; may be called twice."""


class SteppedHere:
    """Worlds that this process steps, perhaps with the help of others, and policies that act here.

    A call of a policy has `act_rows` rows for each agent, by default one for each environment.
    """

    def __init__(
        self,
        worlds: BlockWorlds,
        trials: Trials,
        *,
        act_rows: int | None = None,
        resumable: bool = False,
        turns: str = SEQUENTIAL,
    ) -> None:
        self.count, self.kinds = worlds.count, worlds.kinds
        self._worlds, self._trials, self._turns = worlds, trials, turns
        self._act_rows, self._resumable = act_rows or worlds.count, resumable
        self._let_go: Callable[[], None] = worlds.close  # what there is before it begins

    def begin(self, learners: LearnerSet, rows: int, phases: Phases, poll: Callable[[], object] | None) -> None:
        policies = [one.policy for one in learners.learners]
        self._runner = BlockRunner(policies, self._act_rows, parts=learners.parts)
        runner = phases.of_runner(self._runner)
        if poll is not None:
            runner = before_each(runner, "act_block", poll)
        numbers = policy_numbers(learners.agents, self.kinds)
        seen = traced_worlds(phases.of_worlds(self._worlds))
        collector = Collector(seen, traced_runner(runner), numbers, Turns(self._turns))
        self._let_go = collector.close
        self.why_not_resumable = why_not_resumable(self._worlds, runner)
        resumable = self._resumable and self.why_not_resumable is None
        self._segments = collector.segments(rows, self._trials, resumable=resumable)

    def collect(self) -> Segment:
        return next(self._segments)

    @property
    def counted(self) -> Counted:
        return self._segments.counted

    @property
    def version(self) -> int:
        return self._runner.version

    def publish(self, version: int, weights: Weights) -> None:
        self._runner.publish(version, weights)

    @property
    def nodes(self) -> Mapping[str, int]:
        return {}

    def state(self) -> dict[str, Any]:
        return self._segments.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._segments.restore(state)

    def close(self) -> None:
        self._let_go()


class PlayedElsewhere:
    """Workers that collect segments of some slots each, with worlds and policies of their own."""

    def __init__(self, player: SharePlayer, kinds: Sequence[AgentKind], place: ShareWorkplace) -> None:
        self.count, self.kinds = player.slots, kinds
        self._workers = ShareWorkers(player, place, self._acting)
        self.why_not_resumable = self._workers.why_not_resumable

    def begin(self, learners: LearnerSet, rows: int, phases: Phases, poll: Callable[[], object] | None) -> None:
        self._learners, self._poll = learners, poll
        self._gather = phases.timed("exchanging", self._workers.gather)

    def _acting(self) -> Weights:
        """Return what all policies act by now."""
        learners = self._learners.learners
        return {number: learner.acting(learner.state()) for number, learner in enumerate(learners)}

    def collect(self) -> Segment:
        return self._gather(self._poll)

    @property
    def counted(self) -> Counted:
        return self._workers.counted

    @property
    def version(self) -> int:
        return self._workers.version

    def publish(self, version: int, weights: Weights) -> None:
        for number, arrays in weights.items():  # those of this process are saved, and evaluated
            policy: Any = self._learners.learners[number].policy
            policy.load_state(arrays)
        self._workers.publish(version)

    @property
    def nodes(self) -> Mapping[str, int]:
        return self._workers.nodes

    def state(self) -> dict[str, Any]:
        return self._workers.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._workers.restore(state)

    def close(self) -> None:
        self._workers.close()
