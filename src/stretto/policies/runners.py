"""Runners: where agents choose their actions. All of them compute the same, through one `Troupe` each or several."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces

from stretto.core import WorldSpec
from stretto.errors import PolicyError, PolicyLost
from stretto.policies.troupe import Casting, EpisodeKey, Question, Reply, Role, Troupe
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port, Start
from stretto.workers.control import BEAT
from stretto.workers.pool import Answer, Pool

SPIN_SECONDS = 200e-6

BEGIN_SECONDS = 300.0
"""How long the agents' policies of an episode may take to be made."""

_LEAST_BOX_BYTES, _MOST_BOX_BYTES = 1 << 16, 1 << 24


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


# Messages to a troupe in another process: tuples, because they are pickled several times faster than anything else.
_BEGIN, _ACT, _END = "begin", "act", "end"


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
            case (str() as what, content):
                return self._do(what, content)
            case Start():
                return None
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def _do(self, what: str, content: Any) -> object:
        if what == _ACT:
            told = []
            for episode, agent, observation in content:
                (reply,) = self._troupe.act([Question(episode, agent, observation)])
                told.append((reply.action, reply.seconds, reply.busy_seconds))
                self._port.words[BEAT] += 1
            return told
        if what == _BEGIN:
            self._troupe.begin(content)
        else:
            self._troupe.end(content)
        return None

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        pass


class Processes:
    """In several processes, each with a share of the agents, whose state stays there.

    The caller is one of them if it `takes_part`: then none waits for another without having a core of its own. It must
    not where a policy that crashes or hangs would take somebody along who matters.
    """

    def __init__(
        self, castings: Sequence[Casting], world: WorldSpec, *, processes: int, takes_part: bool = False
    ) -> None:
        self._home = {agent: i % processes for i, agent in enumerate(world.agents)}
        self._here = processes - 1 if takes_part else processes  # the smallest share, because the caller has more to do
        self._pool = Pool(
            PROCESS,
            [TroupeFactory(castings, world)] * self._here,
            spin_seconds=SPIN_SECONDS,
            spins=takes_part,
            box_bytes=_box_bytes(world),
        )
        self._troupe = Troupe(castings, world) if takes_part else None
        self._policies: dict[tuple[EpisodeKey, str], int] = {}
        self._asked: list[list[int]] = []
        self._questions: Sequence[Question] = ()
        self._begun: dict[int, list[Role]] = {}

    def begin(self, roles: Sequence[Role]) -> None:
        self._policies.update({(role.episode, role.agent): role.policy for role in roles})
        self._questions, self._asked = (), []
        shares: dict[int, list[Role]] = {}
        for role in roles:
            shares.setdefault(self._home[role.agent], []).append(role)
        own = shares.pop(self._here, [])
        self._begun = shares
        for worker, share in shares.items():
            self._pool.give(worker, (_BEGIN, share), BEGIN_SECONDS)
        order = {role.agent: i for i, role in enumerate(roles)}
        self._together(lambda: self._troupe.begin(own) if self._troupe is not None else None, len(shares), order)

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._asked = [[] for _ in range(self._here + 1)]
        home, asked = self._home, self._asked
        for i, question in enumerate(questions):
            asked[home[question.agent]].append(i)
        for worker, indices in enumerate(asked[: self._here]):
            if indices:
                told = [(q.episode, q.agent, q.observation) for q in map(questions.__getitem__, indices)]
                self._pool.give(worker, (_ACT, told), limit_seconds, by_value=False, fresh=False)

    def replies(self) -> list[Reply]:
        found: dict[int, Reply] = {}

        def act() -> None:
            if self._troupe is not None:
                for i in self._asked[-1]:
                    (found[i],) = self._troupe.act([self._questions[i]])

        given = sum(1 for indices in self._asked[: self._here] if indices)
        order = {question.agent: i for i, question in enumerate(self._questions)}
        for answer in self._together(act, given, order):
            for i, told in zip(self._asked[answer.worker], answer.value, strict=True):
                found[i] = Reply(*told)
        return [found[i] for i in range(len(self._questions))]

    def _together(self, own: Callable[[], None], given: int, order: Mapping[str, int]) -> list[Answer]:
        """Do the caller's own part, and gather `given` answers; raise what the first agent in `order` gave cause for."""
        errors: list[Exception] = []
        try:
            own()
        except PolicyError as error:
            errors.append(error)
        answers = self._gather(given)
        errors += [self._blamed(answer) for answer in answers if answer.error is not None]
        if errors:
            raise min(errors, key=lambda error: order.get(getattr(error, "agent", ""), -1))
        return answers

    def _gather(self, count: int) -> list[Answer]:
        answers: list[Answer] = []
        while len(answers) < count:
            answers += self._pool.wait()
        return answers

    def _blamed(self, answer: Answer) -> Exception:
        assert isinstance(answer.error, Exception)
        if not answer.lost:
            return answer.error
        if self._asked:
            question = self._questions[self._asked[answer.worker][0]]
            lost = PolicyLost(str(answer.error), self._policies[question.episode, question.agent], question.agent)
        else:
            role = self._begun[answer.worker][0]
            lost = PolicyLost(str(answer.error), role.policy, role.agent)
        lost.__cause__ = answer.error
        return lost

    def end(self, episode: EpisodeKey) -> None:
        if self._troupe is not None:
            self._troupe.end(episode)
        idle = self._pool.idle
        for worker in idle:
            self._pool.give(worker, (_END, episode))
        for answer in self._gather(len(idle)):
            if answer.error is not None:
                raise answer.error
        self._policies = {key: policy for key, policy in self._policies.items() if key[0] != episode}

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._pool.pids

    def close(self) -> None:
        self._pool.close()


def _box_bytes(world: WorldSpec) -> int:
    """Return how much room a step of all agents takes, roughly: what does not fit is sent in another way."""
    seen = sum(_space_bytes(space) for space in world.observation_spaces.values())
    return min(_MOST_BOX_BYTES, max(_LEAST_BOX_BYTES, 2 * seen))


def _space_bytes(space: Any) -> int:
    match space:
        case spaces.Dict():
            return sum(map(_space_bytes, space.values()))
        case spaces.Tuple():
            return sum(map(_space_bytes, space))
        case _:
            size = 1
            for length in getattr(space, "shape", None) or ():
                size *= length
            return size * np.dtype(getattr(space, "dtype", None) or np.float64).itemsize
