"""What playing episodes gave: rewards, digests of every step where they are wanted, and why one has no result."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stretto.core import AgentId, AgentWorlds, Outcome, WorldStatistics
from stretto.episode_steps import Fault, SlotStep
from stretto.errors import PolicyFailed, PolicyLost, StrettoError, WorkerDied, WorldFailed, WorldHung, users_traceback
from stretto.evaluation.playing.tracebacks import last_place, without_addresses
from stretto.evaluation.records import EpisodeFailure
from stretto.policies.ahead import NOT_COUNTED, Counted

__calls_user_code__ = True

_LOST = (PolicyLost, WorkerDied, WorldHung)
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)


@dataclass(slots=True)
class Played:
    """What an episode gave.

    `digests` are there if they were asked for: for each step and agent, digests of what it saw and did, and its reward.
    `asking` counts how agents were asked, where some were asked before it was their turn.
    `drawn` are the global generators that policies in other processes drew from, although nobody knew that they would.
    """

    steps: int = 0
    rewards: dict[AgentId, float] = field(default_factory=dict)
    statistics: WorldStatistics = field(default_factory=dict)
    replay: str | None = None
    overdue: dict[AgentId, int] = field(default_factory=dict)
    world_seconds: float = 0.0
    policy_seconds: float = 0.0
    strategy: str = ""
    digests: list[dict[AgentId, tuple[int, int, float]]] = field(default_factory=list)
    failure: EpisodeFailure | None = None
    drawn: frozenset[str] = frozenset()
    asking: Counted = NOT_COUNTED
    node: str | None = None  # of a cluster


class _Tally:
    """Adds up the steps of one episode."""

    def __init__(self, keep_digests: bool, names: Sequence[str]) -> None:
        self.played, self._keeps_digests, self._names = Played(), keep_digests, names
        self._begun = False
        self._seen: dict[AgentId, int] = {}
        self._infos: dict[AgentId, Mapping[str, Any]] = {}  # the last one of each agent

    def add(self, step: SlotStep, limit_seconds: float | None) -> None:
        played, outcome = self.played, step.outcome
        played.steps = step.steps
        played.policy_seconds += step.policy_seconds
        played.world_seconds += step.world_seconds
        for agent in step.overdue:
            played.overdue[agent] = played.overdue.get(agent, 0) + 1
        if step.over:
            played.drawn, played.asking = played.drawn | step.drawn, step.asking
        if step.fault is not None:
            # Steps count from 1. A world's has been counted by now; that of a policy begins when it has chosen.
            number = step.steps + (step.fault.whose == "policy") if self._begun else None
            played.failure = _failure(step.fault, number, limit_seconds, self._names)
        elif outcome is not None:
            if not self._begun:
                played.rewards, self._begun = dict.fromkeys(outcome.acting, 0.0), True
            for agent, reward in step.rewards.items():
                played.rewards[agent] = played.rewards.get(agent, 0.0) + reward
            self._infos.update(step.infos)
            if self._keeps_digests:
                self._add_digests(step, outcome)

    def describe(self, offered: WorldStatistics) -> None:
        """Keep the statistics that a world offers, or, if it offers none, the numbers in the last infos of its agents."""
        self.played.statistics = offered or _numbers(self._infos)

    def _add_digests(self, step: SlotStep, outcome: Outcome) -> None:
        if step.actions:
            self.played.digests.append(
                {
                    agent: (self._seen[agent], digest(action), outcome.rewards.get(agent, 0.0))
                    for agent, action in step.actions.items()
                }
            )
        self._seen = {agent: digest(outcome.observations[agent]) for agent in outcome.acting}


def play_to_end(
    worlds: AgentWorlds,
    steps: Iterable[list[SlotStep]],
    names: Sequence[str],
    *,
    limit_seconds: float | None = None,
    keep_digests: bool = False,
    save_replay: Callable[[int, int], str | None] = lambda slot, episode: None,
) -> dict[int, Played]:
    """Play a rollout to its end; return what each episode gave, by its number. `names` are those of the policies.

    With `keep_digests` there are digests of every step. `limit_seconds` is how long a policy may take before its process is
    ended. `save_replay(slot, episode)` is called where an episode is over, and returns the file that its world has written,
    if any.
    """
    tallies: dict[int, _Tally] = {}
    for together in steps:
        for step in together:
            tally = tallies.get(step.plan.episode)
            if tally is None:
                tally = tallies[step.plan.episode] = _Tally(keep_digests, names)
            tally.add(step, limit_seconds)
            if step.over and step.fault is None:
                try:
                    tally.describe(worlds.statistics(step.slot))
                    tally.played.replay = save_replay(step.slot, step.plan.episode)
                except (Exception, SystemExit) as error:  # noqa: BLE001  whatever a world raises is its result
                    tally.played.failure = _failure(Fault(error, "world"), step.steps, None, names)
    return {episode: tally.played for episode, tally in tallies.items()}


def _numbers(infos: Mapping[AgentId, Mapping[str, Any]]) -> WorldStatistics:
    """Return the numbers in infos: by name, and, where there are several agents, by agent."""
    found: dict[str, dict[AgentId, float]] = {}
    for agent, info in infos.items():
        for name, value in info.items():
            if isinstance(value, _NUMBERS):
                found.setdefault(str(name), {})[agent] = float(value)
    return found if len(infos) > 1 else {name: value for name, each in found.items() for value in each.values()}


# ---- why there is no result ----


def _failure(fault: Fault, step: int | None, limit_seconds: float | None, names: Sequence[str]) -> EpisodeFailure:
    error, policy = fault.error, None if fault.policy is None else names[fault.policy]
    if isinstance(error, _LOST):
        whose = "a process of the policies" if fault.agent is None else f"the process of agent {fault.agent}'s policy"
        cause = error.__cause__ if isinstance(error, PolicyLost) and error.__cause__ is not None else error
        message, text = how_lost(whose, cause, limit_seconds)
        return EpisodeFailure(PolicyLost.__name__, message, policy, fault.agent, step, text)
    message = str(error) if isinstance(error, StrettoError) else f"the {fault.whose} raised {error!r}"
    kind, text = error.raised if isinstance(error, PolicyFailed) else (type(error).__name__, users_traceback(error))
    return EpisodeFailure(kind, message, policy, fault.agent, step, text)


def failure_of(error: BaseException) -> EpisodeFailure:
    """Tell what was raised around an episode, such as by making its world: what it was, and not in which process."""
    message = f"{type(error).__name__}: {error}".partition("\n")[0]
    remote = error if isinstance(error, WorldFailed) else error.__cause__
    if not isinstance(remote, WorldFailed):
        return EpisodeFailure(type(error).__name__, message, traceback=users_traceback(error))
    text = remote.remote_traceback.rstrip()
    if error is remote:  # what was raised could not be sent here: its last line says what it was
        message = text.rpartition("\n")[2]
    return EpisodeFailure(type(error).__name__, message, traceback=text)


def how_lost(what: str, error: BaseException, limit_seconds: float | None) -> tuple[str, str]:
    """Say in a sentence how a process was lost, and all that is known of it. Neither depends on the clock."""
    if isinstance(error, WorldHung):
        within = "" if limit_seconds is None else f" for {limit_seconds:g} s"
        stack = without_addresses(error.stack)
        return f"{what} gave no sign of life{within} and was ended", stack or "its Python stack is not known"
    ended = without_addresses((error.ended if isinstance(error, WorkerDied) else "") or str(error))
    place = last_place(ended).rpartition("/")[2]
    return f"{what} died{' at ' if place else ''}{place}: {ended.partition(chr(10))[0]}", ended


def digest(value: Any) -> int:
    """Return a number that tells two observations or actions apart, to the last bit."""
    if isinstance(value, Mapping):
        return zlib.crc32(repr([(str(key), digest(value[key])) for key in sorted(value, key=str)]).encode())
    if isinstance(value, (tuple, list)):
        return zlib.crc32(repr([digest(part) for part in value]).encode())
    if isinstance(value, (np.ndarray, np.generic, int, float, bool)):
        array = np.ascontiguousarray(value)
        return zlib.crc32(array.tobytes(), zlib.crc32(str((array.dtype, array.shape)).encode()))
    return zlib.crc32(repr(value).encode())
