"""Adaptive: watches what choosing takes, and changes where agents choose at the start of an episode."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from stretto.core import BlockAnswer, EpisodeKey, WorldSpec
from stretto.measure import LockWatch, duration
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Block, Decision, Question, Runner, Weights
from stretto.workers.mail import dump, unsendable

PROCESSES_SECONDS = 100e-6
"""What a step costs more when agents choose in other processes, beside the pickling; measured with four agents."""

THREAD_SECONDS = 60e-6
"""What it costs more for each agent that chooses in a thread."""

MOST_THREADS = 32

LEAST_GAIN = 1.15
"""A predicted gain below this is not worth a change: the prediction may be off by as much."""

WATCHED_STEPS = 16
"""How many of an episode's steps are looked at to choose a strategy for the next one."""

_LOCKWATCHED_STEPS = 2
_LOCK_SECONDS = 3e-3
"""The interpreter's lock is watched for so many steps, if they take so long: in shorter ones nobody else asks for it."""


@dataclass(slots=True)
class Seen:
    """What was measured of one policy: seconds of a choice, for how many of them it computed, and of pickling.

    `free` is the share of the computing that leaves the interpreter's lock to others; `stuck` says why the policy
    cannot be sent to another process, if it cannot.
    """

    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    waits: float | None = None
    pickling: float | None = None
    free: float = 0.0
    stuck: str | None = None


class Adaptive:
    """Asks whichever runner should be the fastest. `reason` says which, and why."""

    def __init__(
        self,
        plans: Sequence[PolicyPlan],
        world: WorldSpec,
        strategies: Sequence[str],
        cores: int,
        make: Callable[[Sequence[str]], Runner],
    ) -> None:
        self._plans, self._world, self._cores, self._make = plans, world, cores, make
        self._free = [i for i, name in enumerate(strategies) if name == "adaptive"]
        self._chosen = ["batched" if i in self._free else name for i, name in enumerate(strategies)]
        self._runner = make(self._chosen)
        self._seen = {i: Seen(stuck=unsendable((plans[i], world))) for i in self._free}
        self._under_way: set[EpisodeKey] = set()
        self._questions: Sequence[Question] = ()
        self._published: tuple[int, Weights] | None = None
        self._left, self._lock_left, self._last_seconds = WATCHED_STEPS, _LOCKWATCHED_STEPS, 0.0
        self.reason = "batched: nothing was measured yet"
        self.ask, self.replies = self._watched_ask, self._watched_replies

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        if not self._under_way:
            self._reconsider()
        self._under_way |= {who.episode for who in agents}
        self._runner.begin(agents)

    def _watched_ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._runner.ask(questions, limit_seconds)

    def _watched_replies(self) -> list[Decision]:
        began = time.perf_counter()
        if self._lock_left and self._last_seconds > _LOCK_SECONDS and set(self._chosen) <= {"batched", "sequential"}:
            with LockWatch() as lock:
                replies = self._runner.replies()
            self._lock_left -= 1
            for seen in self._seen.values():
                seen.free = max(seen.free, lock.free)
        else:
            replies = self._runner.replies()
        self._last_seconds = time.perf_counter() - began
        for question, reply in zip(self._questions, replies, strict=True):
            seen_of = self._seen.get(question.policy)
            if seen_of is not None:
                seen_of.seconds.append(reply.seconds)
                seen_of.busy.append(reply.busy_seconds)
                if seen_of.pickling is None:
                    _measure_pickling(seen_of, question.observation, reply.action)
        self._left -= 1
        if self._left <= 0:  # from now on nothing stands in between
            self.ask, self.replies = self._runner.ask, self._runner.replies
        return replies

    def _reconsider(self) -> None:
        """Choose anew for the policies that may be moved; make another runner if that changes anything."""
        reasons, chosen = [], list(self._chosen)
        for i, seen in self._seen.items():
            if seen.seconds:
                chosen[i], reason = choose_strategy(
                    self._plans[i], seen, len(self._world.agents), self._cores, present=self._chosen[i]
                )
                reasons.append(f"{chosen[i]}: {reason}")
                seen.seconds, seen.busy = [], []
        if not reasons:
            return
        self.reason = "; ".join(reasons)
        if chosen != self._chosen:
            self._runner.close()
            self._chosen = chosen
            self._runner = self._make(chosen)
            if self._published is not None:
                self._runner.publish(*self._published)
        self._left, self._lock_left = WATCHED_STEPS, _LOCKWATCHED_STEPS
        self.ask, self.replies = self._watched_ask, self._watched_replies

    def take_back(self, questions: Sequence[Question]) -> None:
        self._runner.take_back(questions)

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        return self._runner.act_block(block, limit_seconds)

    def publish(self, version: int, weights: Weights) -> None:
        self._published = version, weights
        self._runner.publish(version, weights)

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._under_way.discard(episode)
        return self._runner.end(episode)

    def close(self) -> None:
        self._runner.close()


def choose_strategy(
    plan: PolicyPlan, seen: Seen, agents: int, cores: int, *, present: str = "batched"
) -> tuple[str, str]:
    """Return the best strategy for a policy of which so much was seen, and why."""
    busy = median(seen.busy)
    if present != "threads" or seen.waits is None:
        seen.waits = max(0.0, median(seen.seconds) - busy)
    # Where threads wait for each other's turn with the interpreter, that is no waiting of the policy's own.
    seconds = busy + seen.waits
    each = f"an agent takes {duration(seconds)}"
    if plan.rows:
        return "batched", f"{each}, and all are asked at once"
    if agents == 1:
        return "batched", "there is only one agent"
    expected = {"batched": agents * seconds, "threads": _in_threads(seen, busy, agents, cores)}
    if cores > 1 and seen.stuck is None:
        shared = -(-agents // cores) * seconds
        expected["processes"] = shared + PROCESSES_SECONDS + agents * (seen.pickling or 0.0)
    best = min(expected, key=lambda name: expected[name])
    if expected.get(present, float("inf")) <= LEAST_GAIN * expected[best]:
        best = present
    gain = expected["batched"] / expected[best]
    if best == "threads":
        why = "most of it waiting" if busy < 0.5 * seconds else "which leaves the interpreter to other threads"
        return best, f"{each}, {why}, and {agents} threads should be {gain:.1f} times faster"
    if best == "processes":
        return best, f"{each}, and {agents} of them on {cores} cores should be {gain:.1f} times faster"
    if seen.stuck is not None:
        return best, f"{each}, and it cannot be in another process: {seen.stuck}"
    return best, f"{each}, and handing {agents} of them to {cores} cores would gain nothing"


def _in_threads(seen: Seen, busy: float, agents: int, cores: int) -> float:
    """Return how long all agents should take in threads: waits all at once, computing in turn unless it is free."""
    assert seen.waits is not None
    waiting = -(-agents // MOST_THREADS) * seen.waits
    side_by_side = -(-agents // cores) * busy * seen.free
    return waiting + side_by_side + agents * busy * (1 - seen.free) + agents * THREAD_SECONDS


def _measure_pickling(seen: Seen, *values: Any) -> None:
    """Note how long it takes to send these somewhere else, or that it cannot be done."""
    began = time.perf_counter()
    try:
        pickle.loads(dump(values))
    except Exception as error:  # noqa: BLE001  whatever a foreign __reduce__ raises
        seen.stuck = f"what it sees or does is not picklable: {type(error).__name__}: {error}"
    seen.pickling = time.perf_counter() - began
