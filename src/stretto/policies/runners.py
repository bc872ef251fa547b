"""Runners: where agents choose their actions. All of them compute the same, through one `Actors` each or several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from stretto.budget import NativeThreads
from stretto.core import WorldSpec
from stretto.errors import PolicyError, PolicyFailed, PolicyLost
from stretto.policies.actors import Actors, AgentEpisode, Block, Decision, EpisodeKey, PolicyPlan, Question
from stretto.seeding import GlobalDraws
from stretto.spaces import Array, leaves
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port, Start
from stretto.workers.mail import unsendable
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.shared_mailbox import Mailboxes
from stretto.workers.supervisor import Supervisor

SPIN_SECONDS = 200e-6

BEGIN_SECONDS = 300.0
"""How long the agents' policies of an episode may take to be made."""

_LEAST_BOX_BYTES, _MOST_BOX_BYTES = 1 << 16, 1 << 24


Weights = Mapping[int, Mapping[str, Array]]
"""Arrays by name, for policies by number."""


class Runner(Protocol):
    """Chooses actions: `ask`, and then `replies`, so that several runners can work at the same time."""

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        """Make the agent policies of an episode."""

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        """Let agents choose, no longer than the limit where that can be enforced."""

    def replies(self) -> list[Decision]:
        """Return what was asked for last, in that order.

        Raises:
            PolicyError: with the policy and the agent.
        """

    def act_block(self, block: Block, limit_seconds: float | None = None) -> Any:
        """Return what the agents of a block do, as a batch; the block is never taken apart on the way to its policy."""

    def publish(self, version: int, weights: Weights) -> None:
        """Let policies act with other weights from now on, wherever they are: all of them, or none."""

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        """Forget an episode; return the global generators that policies drew from in other processes, unguarded."""

    def close(self) -> None:
        """Let go of threads and processes; may be called twice."""


class InPlace:
    """In the caller's thread: all agents in one call (`batched`), or one after the other."""

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec, *, batched: bool) -> None:
        self._actors = Actors(plans, world)
        self._batched = batched
        self._questions: Sequence[Question] = ()
        self.drawn, self.batches = self._actors.drawn, self._actors.batches

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        self._actors.begin(agents)

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions

    def replies(self) -> list[Decision]:
        if self._batched:
            return self._actors.act(self._questions)
        return [self._actors.act([question])[0] for question in self._questions]

    def act_block(self, block: Block, limit_seconds: float | None = None) -> Any:
        return self._actors.act_block(block)

    def publish(self, version: int, weights: Weights) -> None:
        self._actors.publish(version, weights)

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._actors.end(episode)
        return frozenset()

    def close(self) -> None:
        pass


class Threads:
    """In threads of this process: for policies that wait, or that compute outside of the interpreter's lock.

    Policies that draw from global generators take turns: these are one for all threads. A policy with `step_batch`
    chooses for all its agents in one thread.
    """

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec, *, threads: int) -> None:
        self._actors = Actors(plans, world)
        self._rows = [casting.rows for casting in plans]
        self._policies: dict[tuple[EpisodeKey, str], int] = {}
        self._threads = _DaemonThreads(threads)
        self._pending: list[tuple[list[int], Future[list[Decision]]]] = []
        self._count = 0

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        self._actors.begin(agents)
        self._policies.update({(who.episode, who.agent): who.policy for who in agents})

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
            (group, self._threads.submit(partial(self._actors.act, [questions[i] for i in group])))
            for group in (*groups, *batches.values())
        ]

    def replies(self) -> list[Decision]:
        found: dict[int, Decision] = {}
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

    def act_block(self, block: Block, limit_seconds: float | None = None) -> Any:
        return self._actors.act_block(block)

    def publish(self, version: int, weights: Weights) -> None:
        self._actors.publish(version, weights)

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._actors.end(episode)
        self._policies = {key: policy for key, policy in self._policies.items() if key[0] != episode}
        return frozenset()

    def close(self) -> None:
        self._threads.close()


class _DaemonThreads:
    """Threads that call functions for others. Nobody waits for them at the program's end: one of them may hang."""

    def __init__(self, count: int) -> None:
        self._work: SimpleQueue[tuple[Future[list[Decision]], Callable[[], list[Decision]]] | None] = SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._serve, name=f"stretto-policy-{number}", daemon=True).start()

    def submit(self, function: Callable[[], list[Decision]]) -> Future[list[Decision]]:
        future: Future[list[Decision]] = Future()
        self._work.put((future, function))
        return future

    def _serve(self) -> None:
        while (task := self._work.get()) is not None:
            future, function = task
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  whoever waits for the result has to know
                future.set_exception(error)
            del future, function, task

    def close(self) -> None:
        for _ in range(self._count):
            self._work.put(None)
        self._count = 0


@dataclass(frozen=True, slots=True)
class _Begin:
    """Message to actors in another process: an episode begins, and only these are under way."""

    agents: Sequence[AgentEpisode]
    under_way: frozenset[EpisodeKey]


@dataclass(frozen=True, slots=True)
class _End:
    """Message: an episode is over. The answer is what was drawn from global generators since none was under way."""

    episode: EpisodeKey


@dataclass(frozen=True, slots=True)
class _Publish:
    """Message: act with other weights from now on."""

    version: int
    weights: Weights


_Questions = list[tuple[Any, ...]]
"""Message: agents have to act. Tuples are pickled several times faster than anything else, and this is sent each step."""


@dataclass(frozen=True, slots=True)
class ActorsFactory:
    """Builds actors inside a worker."""

    plans: Sequence[PolicyPlan]
    world: WorldSpec

    def __call__(self, port: Port) -> _ActorsService:
        return _ActorsService(port, Actors(self.plans, self.world), self.native_threads)

    @property
    def native_threads(self) -> int:
        """With how many a process that has all of these policies computes."""
        return max(plan.native_threads for plan in self.plans)


class _ActorsService:
    """Actors behind a worker's port."""

    def __init__(self, port: Port, actors: Actors, native_threads: int) -> None:
        self._port, self._actors, self._native = port, actors, NativeThreads(native_threads)
        self._draws = GlobalDraws()

    def handle(self, message: Any) -> object:
        self._port.beat()
        match message:
            case list():
                return self._act(message)
            case Block():
                return self._actors.act_block(message)
            case _Publish(version, weights):
                self._actors.publish(version, weights)
            case _Begin(agents, under_way):
                self._native.cap()  # those of libraries, too, that policies have loaded since
                self._actors.keep(under_way)
                if self._actors.idle:
                    self._draws = GlobalDraws()
                for who in agents:
                    self._actors.begin([who])
                    self._port.beat()
            case _End(episode):
                self._actors.end(episode)
                return self._draws.names()
            case Start():
                pass
            case _:
                raise AssertionError(f"no such message: {message!r}")
        return None

    def _act(self, questions: _Questions) -> list[tuple[Any, ...]]:
        decisions = []
        for episode, agent, observation in questions:
            decisions.append(tuple(self._actors.act([Question(episode, agent, observation)])[0]))
            self._port.beat()
        return decisions

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
        self, plans: Sequence[PolicyPlan], world: WorldSpec, *, processes: int, takes_part: bool = False
    ) -> None:
        self._processes, self._plans = processes, plans
        self._order = {agent: i for i, agent in enumerate(world.agents)}
        self._here = processes - 1 if takes_part else processes  # the smallest share, because the caller has more to do
        self._actors = Actors(plans, world) if takes_part else None
        factory = ActorsFactory(plans, world)
        self._supervisor = Supervisor(
            PROCESS, spin_seconds=SPIN_SECONDS, spins=takes_part, native_threads=factory.native_threads
        )
        self._mailboxes = Mailboxes(self._supervisor, [factory] * self._here, _box_bytes(world))
        self._requests: list[Request] = []  # those that were made and not waited for yet
        self._episodes: dict[tuple[EpisodeKey, str], AgentEpisode] = {}
        self._published: _Publish | None = None
        self._told: dict[int, tuple[Any, int]] = {}  # by process: which worker knows which version
        self._questions: Sequence[Question] = ()
        self._whom: list[tuple[EpisodeKey, str]] = []  # the agents that begin, or are asked
        self._shares: list[list[int]] = []  # their indices by process, the caller's own last

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        self._episodes.update({(who.episode, who.agent): who for who in agents})
        under_way = frozenset(episode for episode, _ in self._episodes)
        self._share_out([(who.episode, who.agent) for who in agents])
        for seat, share in zip(self._supervisor.seats, self._shares, strict=False):
            if share:
                begin_there = sender(_Begin([agents[i] for i in share], under_way))
                self._requests.append(self._supervisor.ask(seat, begin_there, "beginning an episode", BEGIN_SECONDS))
                self._update(seat)  # after it: only now is a new worker there, if it is one

        def begin() -> None:
            if self._actors is not None:
                self._actors.begin([agents[i] for i in self._shares[-1]])

        self._together(begin)

    def publish(self, version: int, weights: Weights) -> None:
        if self._actors is not None:
            self._actors.publish(version, weights)
        self._published = _Publish(version, weights)
        for seat in self._supervisor.seats:
            if seat.worker is not None:
                self._update(seat)
        self._together(lambda: None)

    def _update(self, seat: Seat) -> None:
        """Let a process, which may be a new one, have the weights that were published last."""
        news = self._published
        if news is not None and self._told.get(seat.index) != (seat.worker, news.version):
            self._requests.append(self._supervisor.ask(seat, sender(news), "taking weights", BEGIN_SECONDS))
            self._told[seat.index] = seat.worker, news.version

    def act_block(self, block: Block, limit_seconds: float | None = None) -> Any:
        assert self._plans[block.policy].blocks, "its agents are in several processes"
        slot, column = np.argwhere(block.acting)[0]
        who = self._episodes[block.episodes[slot], block.agents[column]]
        home = self._home(who)
        if home == self._here:
            assert self._actors is not None
            return self._actors.act_block(block)
        self._whom, self._shares = [(who.episode, who.agent)], [[] for _ in range(self._here + 1)]
        self._shares[home] = [0]
        seat = self._supervisor.seats[home]
        self._requests.append(self._mailboxes.ask(seat, block, "choosing actions", limit_seconds))
        return self._together(lambda: None)[0].value

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._share_out([(question.episode, question.agent) for question in questions])
        for seat, share in zip(self._supervisor.seats, self._shares, strict=False):
            if share:
                message: _Questions = [tuple(questions[i]) for i in share]
                try:
                    self._requests.append(self._mailboxes.ask(seat, message, "choosing actions", limit_seconds))
                except BaseException as error:
                    self._abandon()
                    if isinstance(error, Exception):
                        raise self._refused(message, error) from error
                    raise

    def _share_out(self, whom: list[tuple[EpisodeKey, str]]) -> None:
        self._whom, self._shares = whom, [[] for _ in range(self._here + 1)]
        for i, key in enumerate(whom):
            self._shares[self._home(self._episodes[key])].append(i)

    def _home(self, who: AgentEpisode) -> int:
        """Return the process of an agent: its own, or its policy's where that acts for all at once."""
        number = who.policy if self._plans[who.policy].blocks else self._order[who.agent]
        return number % self._processes

    def _abandon(self) -> None:
        """Give up whoever is at work: what they answer would be taken for the answer to something else."""
        for request in self._requests:
            if not request.finished:
                self._supervisor.abandon(request.seat)
        self._requests = []

    def _refused(self, questions: _Questions, error: Exception) -> PolicyFailed:
        """Return an error that says whose observation cannot be sent."""
        stuck = (one for one in questions if unsendable(one[2]) is not None)
        episode, agent, _ = next(stuck, questions[0])
        return PolicyFailed(
            f"what agent {agent} observes must be picklable to reach a policy in another process, and is not: "
            f"{type(error).__name__}: {error}; use the strategy threads or sequential",
            self._episodes[episode, agent].policy,
            agent,
        )

    def replies(self) -> list[Decision]:
        found: dict[int, Decision] = {}

        def act() -> None:
            if self._actors is not None:
                for i in self._shares[-1]:
                    (found[i],) = self._actors.act([self._questions[i]])

        for request in self._together(act):
            for i, decision in zip(self._shares[request.seat.index], request.value, strict=True):
                found[i] = Decision(*decision)
        return [found[i] for i in range(len(self._questions))]

    def _together(self, own: Callable[[], None]) -> list[Request]:
        """Do the caller's own part, and gather the others'; raise what the first of the agents gave cause for."""
        errors: list[PolicyError] = []
        try:
            own()
        except PolicyError as error:
            errors.append(error)
        except BaseException:
            self._abandon()
            raise
        requests, self._requests = self._requests, []
        self._supervisor.wait(requests)
        deliver_all([output for request in requests for output in request.outputs])
        errors += [self._blamed(request) for request in requests if request.error is not None]
        if errors:
            order = {agent: i for i, (_, agent) in enumerate(self._whom)}
            raise min(errors, key=lambda error: order.get(error.agent or "", -1))
        return requests

    def _blamed(self, request: Request) -> PolicyError:
        """Return whose error it is. A worker beats once when it begins, and once for each agent that is done."""
        error = request.error
        assert isinstance(error, Exception)
        if isinstance(error, PolicyError):
            return error
        share = [self._whom[i] for i in self._shares[request.seat.index]]
        episode, agent = share[min(max(0, request.beats - 1), len(share) - 1)]
        policy = self._episodes[episode, agent].policy
        if request.lost:
            blamed: PolicyError = PolicyLost(str(error), policy, agent)
        else:  # nobody's code: what cannot be pickled, for one
            told = f"what agent {agent} chose did not arrive from another process: {type(error).__name__}: {error}"
            blamed = PolicyFailed(told, policy, agent)
        blamed.__cause__ = error
        return blamed

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        if self._actors is not None:
            self._actors.end(episode)
        self._episodes = {key: who for key, who in self._episodes.items() if key[0] != episode}
        self._abandon()  # those that were asked and never heard
        supervisor = self._supervisor
        requests = [
            supervisor.ask(seat, sender(_End(episode)), "ending an episode", BEGIN_SECONDS, fresh=False)
            for seat in supervisor.seats
            if seat.worker is not None
        ]
        supervisor.wait(requests)
        # One that has died since has forgotten the episode.
        return frozenset().union(*(request.value for request in requests if request.error is None))

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._supervisor.pids

    def close(self) -> None:
        self._supervisor.close()


def _box_bytes(world: WorldSpec) -> int:
    """Return how much room a step of all agents takes, roughly: what does not fit is sent in another way."""
    seen = sum(leaf.nbytes for space in world.observation_spaces.values() for leaf in leaves(space))
    return min(_MOST_BOX_BYTES, max(_LEAST_BOX_BYTES, 2 * seen))
