"""Runners: where agents choose their actions. All of them compute the same, through one `Troupe` each or several."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from stretto.core import WorldSpec
from stretto.errors import PolicyLost
from stretto.policies.troupe import Casting, EpisodeKey, Question, Reply, Role, Troupe
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port, Start
from stretto.workers.control import BEAT
from stretto.workers.pool import Answer, Pool

SPIN_SECONDS = 200e-6


class Runner(Protocol):
    """Chooses actions: `ask`, and then `replies`, so that several runners can work at the same time."""

    def begin(self, roles: Sequence[Role]) -> None:
        """Make the agent policies of an episode."""

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        """Let agents choose, no longer than the limit where that can be enforced."""

    def replies(self) -> list[Reply]:
        """Return what was asked for last, in that order.

        Raises:
            PolicyError: with the policy and the agent.
        """

    def end(self, episode: EpisodeKey) -> None:
        """Forget an episode."""

    def close(self) -> None:
        """Let go of threads and processes; may be called twice."""


class InPlace:
    """In the caller's thread: all agents in one call (`batched`), or one after the other."""

    def __init__(self, castings: Sequence[Casting], world: WorldSpec, *, batched: bool) -> None:
        self._troupe = Troupe(castings, world)
        self._batched = batched
        self._questions: Sequence[Question] = ()

    def begin(self, roles: Sequence[Role]) -> None:
        self._troupe.begin(roles)

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions

    def replies(self) -> list[Reply]:
        if self._batched:
            return self._troupe.act(self._questions)
        return [self._troupe.act([question])[0] for question in self._questions]

    def end(self, episode: EpisodeKey) -> None:
        self._troupe.end(episode)

    def close(self) -> None:
        pass


class Threads:
    """In threads of this process: for policies that wait, or that compute outside of the interpreter's lock.

    Policies that draw from global generators take turns: these are one for all threads. A policy with `step_batch`
    chooses for all its agents in one thread.
    """

    def __init__(self, castings: Sequence[Casting], world: WorldSpec, *, threads: int) -> None:
        self._troupe = Troupe(castings, world)
        self._rows = [casting.rows for casting in castings]
        self._policies: dict[tuple[EpisodeKey, str], int] = {}
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="stretto-policy")
        self._pending: list[tuple[list[int], Future[list[Reply]]]] = []
        self._count = 0

    def begin(self, roles: Sequence[Role]) -> None:
        self._troupe.begin(roles)
        self._policies.update({(role.episode, role.agent): role.policy for role in roles})

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._count = len(questions)
        batches: dict[int, list[int]] = {}
        groups = []
        for i, question in enumerate(questions):
            policy = self._policies[question.episode, question.agent]
            if self._rows[policy]:
                batches.setdefault(policy, []).append(i)
            else:
                groups.append([i])
        self._pending = [
            (group, self._threads.submit(self._troupe.act, [questions[i] for i in group]))
            for group in (*groups, *batches.values())
        ]

    def replies(self) -> list[Reply]:
        found: dict[int, Reply] = {}
        errors: list[tuple[int, BaseException]] = []
        for group, future in self._pending:
            error = future.exception()  # waits for all: nobody may still be at work when the next step begins
            if error is not None:
                errors.append((group[0], error))
            else:
                found.update(zip(group, future.result(), strict=True))
        if errors:
            raise min(errors, key=lambda one: one[0])[1]
        return [found[i] for i in range(self._count)]

    def end(self, episode: EpisodeKey) -> None:
        self._troupe.end(episode)
        self._policies = {key: policy for key, policy in self._policies.items() if key[0] != episode}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Begin:
    roles: Sequence[Role]


@dataclass(frozen=True, slots=True)
class _Act:
    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class _End:
    episode: EpisodeKey


@dataclass(frozen=True, slots=True)
class TroupeFactory:
    """Builds a troupe inside a worker."""

    castings: Sequence[Casting]
    world: WorldSpec

    def __call__(self, port: Port) -> _TroupeService:
        return _TroupeService(port, Troupe(self.castings, self.world))


class _TroupeService:
    """A troupe behind a worker's port."""

    def __init__(self, port: Port, troupe: Troupe) -> None:
        self._port, self._troupe = port, troupe

    def handle(self, message: Any) -> object:
        self._port.words[BEAT] += 1
        match message:
            case _Begin(roles):
                self._troupe.begin(roles)
            case _Act(questions):
                replies = []
                for question in questions:
                    replies += self._troupe.act([question])
                    self._port.words[BEAT] += 1
                return replies
            case _End(episode):
                self._troupe.end(episode)
            case Start():
                pass
            case _:
                raise AssertionError(f"no such message: {message!r}")
        return None

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class Processes:
    """In other processes, each with a share of the agents, whose state stays there."""

    def __init__(self, castings: Sequence[Casting], world: WorldSpec, *, processes: int) -> None:
        self._world = world
        factory = TroupeFactory(castings, world)
        self._pool = Pool(PROCESS, [factory] * processes, spin_seconds=SPIN_SECONDS)
        self._home = {agent: i % processes for i, agent in enumerate(world.agents)}
        self._policies: dict[tuple[EpisodeKey, str], int] = {}
        self._asked: list[list[int]] = []
        self._questions: Sequence[Question] = ()

    def begin(self, roles: Sequence[Role]) -> None:
        self._policies.update({(role.episode, role.agent): role.policy for role in roles})
        shares: dict[int, list[Role]] = {}
        for role in roles:
            shares.setdefault(self._home[role.agent], []).append(role)
        for worker, share in shares.items():
            self._pool.give(worker, _Begin(share))
        self._gather(len(shares))

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._asked = [[] for _ in range(len(self._pool))]
        for i, question in enumerate(questions):
            self._asked[self._home[question.agent]].append(i)
        for worker, indices in enumerate(self._asked):
            if indices:
                self._pool.give(worker, _Act([questions[i] for i in indices]), limit_seconds, by_value=False)

    def replies(self) -> list[Reply]:
        answers = self._gather(sum(1 for indices in self._asked if indices))
        found: dict[int, Reply] = {}
        for answer in answers:
            found.update(zip(self._asked[answer.worker], answer.value, strict=True))
        return [found[i] for i in range(len(self._questions))]

    def _gather(self, count: int) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < count:
            answers += self._pool.wait()
        failed = sorted((answer for answer in answers if answer.error is not None), key=lambda answer: answer.worker)
        for answer in failed:
            if answer.lost and self._asked and self._asked[answer.worker]:
                question = self._questions[self._asked[answer.worker][0]]
                policy = self._policies[question.episode, question.agent]
                raise PolicyLost(str(answer.error), policy, question.agent) from answer.error
            assert answer.error is not None
            raise answer.error
        return answers

    def end(self, episode: EpisodeKey) -> None:
        idle = self._pool.idle
        for worker in idle:
            self._pool.give(worker, _End(episode))
        self._gather(len(idle))
        self._policies = {key: policy for key, policy in self._policies.items() if key[0] != episode}

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._pool.pids

    def close(self) -> None:
        self._pool.close()
