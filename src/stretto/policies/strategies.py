"""Strategies by name: one for each policy, several in one episode, or whichever turns out to be the fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import TypeVar

from stretto.core import WorldSpec
from stretto.errors import PolicyError
from stretto.policies.runners import InPlace, Processes, Runner, Threads
from stretto.policies.troupe import Casting, EpisodeKey, Question, Reply, Role

T = TypeVar("T")

FANOUT_SECONDS = 650e-6
"""What a step costs more when agents choose in other processes; measured with four that see 1 kB each."""

LEAST_GAIN = 1.15
"""A predicted gain below this is not worth it: the prediction may be off by as much."""

MOST_THREADS = 32

_WATCHED_STEPS = 16
"""How many of an episode's steps are looked at to choose for the next one."""


def make_runner(castings: Sequence[Casting], world: WorldSpec, strategies: Sequence[str], cores: int) -> Runner:
    """Return a runner in which policy number *i* has strategy *i*, with threads or processes for so many cores."""
    if "adaptive" in strategies:
        return Adaptive(castings, world, strategies, cores)
    if len(set(strategies)) == 1:
        return _plain(castings, world, strategies[0], cores)
    return Mixed(castings, world, strategies, cores)


def _plain(castings: Sequence[Casting], world: WorldSpec, strategy: str, cores: int) -> Runner:
    wide = max(1, min(cores, len(world.agents)))
    match strategy:
        case "sequential":
            return InPlace(castings, world, batched=False)
        case "batched":
            return InPlace(castings, world, batched=True)
        case "threads":
            return Threads(castings, world, threads=max(wide, min(MOST_THREADS, len(world.agents))))
        case "processes":
            return Processes(castings, world, processes=wide)
        case _:
            raise AssertionError(f"no such strategy: {strategy}")


class Mixed:
    """Several runners at once: those elsewhere are asked first, and work while the caller does its part."""

    def __init__(self, castings: Sequence[Casting], world: WorldSpec, strategies: Sequence[str], cores: int) -> None:
        # Those in place come last: nobody waits for them before all others are at work.
        order = sorted(set(strategies), key=lambda name: (name in ("sequential", "batched"), name))
        self._members = [[i for i, name in enumerate(strategies) if name == one] for one in order]
        self._runners = [
            _plain([castings[i] for i in members], world, one, cores)
            for one, members in zip(order, self._members, strict=True)
        ]
        self._runner_of = {i: r for r, members in enumerate(self._members) for i in members}
        self._roles: dict[tuple[EpisodeKey, str], int] = {}
        self._asked: list[list[int]] = []
        self._count = 0

    def begin(self, roles: Sequence[Role]) -> None:
        for r, runner in enumerate(self._runners):
            share = [role for role in roles if self._runner_of[role.policy] == r]
            if share:
                inner = [replace(role, policy=self._members[r].index(role.policy)) for role in share]
                self._attributed(r, partial(runner.begin, inner))
        self._roles.update({(role.episode, role.agent): self._runner_of[role.policy] for role in roles})

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._count = len(questions)
        self._asked = [[] for _ in self._runners]
        for i, question in enumerate(questions):
            self._asked[self._roles[question.episode, question.agent]].append(i)
        for runner, indices in zip(self._runners, self._asked, strict=True):
            if indices:
                runner.ask([questions[i] for i in indices], limit_seconds)

    def replies(self) -> list[Reply]:
        found: dict[int, Reply] = {}
        errors: list[PolicyError] = []
        for r in reversed(range(len(self._runners))):  # the caller's own part first: the others are at work
            if self._asked[r]:
                try:
                    replies = self._attributed(r, self._runners[r].replies)
                    found.update(zip(self._asked[r], replies, strict=True))
                except PolicyError as error:
                    errors.append(error)
        if errors:
            raise min(errors, key=lambda error: error.policy)
        return [found[i] for i in range(self._count)]

    def _attributed(self, r: int, function: Callable[[], T]) -> T:
        """Call something of a runner; what it raises has the policy's number among all."""
        try:
            return function()
        except PolicyError as error:
            error.policy = self._members[r][error.policy]
            raise

    def end(self, episode: EpisodeKey) -> None:
        for runner in self._runners:
            runner.end(episode)
        self._roles = {key: r for key, r in self._roles.items() if key[0] != episode}

    def close(self) -> None:
        for runner in self._runners:
            runner.close()


class Adaptive:
    """Watches how long agents take, and changes where they choose at the start of an episode. `reason` says why."""

    def __init__(self, castings: Sequence[Casting], world: WorldSpec, strategies: Sequence[str], cores: int) -> None:
        self._castings, self._world, self._cores = castings, world, cores
        self._free = [i for i, name in enumerate(strategies) if name == "adaptive"]
        self._chosen = ["batched" if i in self._free else name for i, name in enumerate(strategies)]
        self._runner = make_runner(castings, world, self._chosen, cores)
        self._seen: dict[int, list[tuple[float, float]]] = {}
        self._left = _WATCHED_STEPS
        self._policies: dict[tuple[EpisodeKey, str], int] = {}
        self._questions: Sequence[Question] = ()
        self._under_way: set[EpisodeKey] = set()
        self.reason = "batched: nothing was measured yet"

    def begin(self, roles: Sequence[Role]) -> None:
        if not self._under_way:
            self._reconsider()
        self._under_way |= {role.episode for role in roles}
        self._policies.update({(role.episode, role.agent): role.policy for role in roles})
        self._runner.begin(roles)

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._runner.ask(questions, limit_seconds)

    def replies(self) -> list[Reply]:
        replies = self._runner.replies()
        if self._left > 0:
            self._left -= 1
            for question, reply in zip(self._questions, replies, strict=True):
                policy = self._policies[question.episode, question.agent]
                self._seen.setdefault(policy, []).append((reply.seconds, reply.busy_seconds))
        return replies

    def _reconsider(self) -> None:
        """Choose anew for the policies that may be moved; build another runner if that changes anything."""
        if not self._seen:
            return
        reasons = []
        chosen = list(self._chosen)
        for i in self._free:
            if self._seen.get(i):
                chosen[i], reason = choose(self._castings[i], self._seen[i], len(self._world.agents), self._cores)
                reasons.append(f"{chosen[i]}: {reason}")
        self.reason = "; ".join(reasons)
        self._seen, self._left = {}, _WATCHED_STEPS
        if chosen != self._chosen:
            self._runner.close()
            self._chosen = chosen
            self._runner = make_runner(self._castings, self._world, chosen, self._cores)

    def end(self, episode: EpisodeKey) -> None:
        self._runner.end(episode)
        self._under_way.discard(episode)
        self._policies = {key: policy for key, policy in self._policies.items() if key[0] != episode}

    def close(self) -> None:
        self._runner.close()


def choose(casting: Casting, seen: Sequence[tuple[float, float]], agents: int, cores: int) -> tuple[str, str]:
    """Return the best strategy for a policy that was seen to take so many seconds, busy for so many of them; and why."""
    seconds = median(one for one, _ in seen)
    busy = median(one for _, one in seen)
    told = f"an agent takes {seconds * 1e6:.3g} µs"
    if casting.rows:
        return "batched", f"{told}, and all are asked at once"
    if agents == 1:
        return "batched", "there is only one agent"
    alone = agents * seconds
    if busy < 0.5 * seconds and alone > 1e-3:
        return "threads", f"{told}, most of it waiting"
    shared = -(-agents // max(1, cores)) * seconds + FANOUT_SECONDS
    if cores > 1 and alone > LEAST_GAIN * shared:
        return "processes", f"{told}, and {agents} of them on {cores} cores should be {alone / shared:.1f} times faster"
    return "batched", f"{told}, and handing {agents} of them to {cores} cores would gain nothing"
