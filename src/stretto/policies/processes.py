"""Processes: agents choose their actions in several processes, whose policies keep their state there."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stretto.budget import NativeThreads
from stretto.core import AgentId, BlockAnswer, EpisodeKey, WorldSpec
from stretto.errors import PolicyError, PolicyFailed, PolicyLost
from stretto.policies.actors import Actors
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Block, Decision, Question, Weights
from stretto.seeding.generators import GlobalDraws
from stretto.spaces import leaves
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port
from stretto.workers.mail import dump, unsendable
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.shared_mailbox import Mailboxes
from stretto.workers.supervisor import Supervisor

SPIN_SECONDS = 200e-6

BEGIN_SECONDS = 300.0
"""How long the agents' policies of an episode may take to be made."""

_LEAST_BOX_BYTES, _MOST_BOX_BYTES = 1 << 16, 1 << 24


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
class _TakeBack:
    """Message: let agents that were asked ahead be as they were before."""

    questions: Sequence[Question]


@dataclass(frozen=True, slots=True)
class _WhichStuck:
    """Message: say which of the actions that were chosen last cannot be sent, by its index, if there is one."""


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
        self._last: list[tuple[Any, ...]] = []  # what was decided for the last questions

    def handle(self, message: Any) -> object:
        self._port.beat()
        match message:
            case list():
                return self._act(message)
            case Block():
                self._last = []
                return self._actors.act_block(message)
            case _Publish(version, weights):
                self._actors.publish(version, weights)
            case _Begin(agents, under_way):
                self._last = []
                self._native.cap_for_good()  # those of libraries, too, that policies have loaded since
                self._actors.keep(under_way)
                if self._actors.idle:
                    self._draws = GlobalDraws()
                for who in agents:
                    self._actors.begin([who])
                    self._port.beat()
            case _TakeBack(questions):
                self._actors.take_back(questions)
            case _End(episode):
                self._actors.end(episode)
                return self._draws.names()
            case _WhichStuck():
                return next((i for i, decision in enumerate(self._last) if _is_stuck(decision)), None)
            case _:
                raise AssertionError(f"no such message: {message!r}")
        return None

    def _act(self, questions: _Questions) -> list[tuple[Any, ...]]:
        decisions = self._last = []
        asked = [Question(*question) for question in questions]
        self._actors.prepare(asked)
        for question in asked:
            decisions.append(tuple(self._actors.act([question])[0]))
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
        self._actors = Actors(plans if takes_part else (), world)
        factory = ActorsFactory(plans, world)
        self._supervisor = Supervisor(
            PROCESS, spin_seconds=SPIN_SECONDS, spins=takes_part, native_threads=factory.native_threads
        )
        self._mailboxes = Mailboxes(self._supervisor, [factory] * self._here, _box_bytes(world))
        self._requests: list[Request] = []  # those that were made and not waited for yet
        self._under_way: set[EpisodeKey] = set()
        self._published: _Publish | None = None
        self._updated: dict[int, tuple[Any, int]] = {}  # by process: which worker has which version of the weights
        self._questions: Sequence[Question] = ()
        self._whom: list[tuple[AgentId, int]] = []  # the agents that begin, or are asked, and their policies
        self._shares: list[list[int]] = []  # their indices by process, the caller's own last

    def begin(self, agents: Sequence[AgentEpisode]) -> None:
        self._under_way |= {who.episode for who in agents}
        self._share_out(agents)
        for seat, share in zip(self._supervisor.seats, self._shares, strict=False):
            if share:
                begin_there = sender(_Begin([agents[i] for i in share], frozenset(self._under_way)))
                self._requests.append(self._supervisor.ask(seat, begin_there, "beginning an episode", BEGIN_SECONDS))
                self._update(seat)  # after it: only now is a new worker there, if it is one

        self._together(lambda: self._actors.begin([agents[i] for i in self._shares[-1]]))

    def publish(self, version: int, weights: Weights) -> None:
        if self._here < self._processes:
            self._actors.publish(version, weights)
        self._published = _Publish(version, weights)
        for seat in self._supervisor.seats:
            if seat.worker is not None:
                self._update(seat)
        self._together(lambda: None)

    def _update(self, seat: Seat) -> None:
        """Let a process, which may be a new one, have the weights that were published last."""
        news = self._published
        if news is not None and self._updated.get(seat.index) != (seat.worker, news.version):
            self._requests.append(self._supervisor.ask(seat, sender(news), "taking weights", BEGIN_SECONDS))
            self._updated[seat.index] = seat.worker, news.version

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        assert self._plans[block.policy].blocks, "its agents are in several processes"
        first = block.agents[np.argwhere(block.acting)[0][1]]
        home = self._home(first, block.policy)
        if home == self._here:
            return self._actors.act_block(block)
        self._whom, self._shares = [(first, block.policy)], [[] for _ in range(self._here + 1)]
        self._shares[home] = [0]
        seat = self._supervisor.seats[home]
        self._requests.append(self._mailboxes.ask(seat, block, "choosing actions", limit_seconds))
        answer: BlockAnswer = self._together(lambda: None)[0].value
        return answer

    def choosers(self, episode: EpisodeKey) -> None:
        return None

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> None:
        return None

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._share_out(questions)
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

    def _share_out(self, agents: Sequence[AgentEpisode] | Sequence[Question]) -> None:
        self._whom, self._shares = [(who.agent, who.policy) for who in agents], [[] for _ in range(self._here + 1)]
        for i, who in enumerate(self._whom):
            self._shares[self._home(*who)].append(i)

    def _home(self, agent: AgentId, policy: int) -> int:
        """Return the process of an agent: its own, or its policy's where that acts for all at once."""
        return (policy if self._plans[policy].blocks else self._order[agent]) % self._processes

    def _abandon(self) -> None:
        """Give up whoever is at work: what they answer would be taken for the answer to something else."""
        for request in self._requests:
            if not request.finished:
                self._supervisor.give_up(request.seat, None, lost=True)
        self._requests = []

    def _refused(self, questions: _Questions, error: Exception) -> PolicyFailed:
        """Return an error that says whose observation cannot be sent."""
        stuck = (one for one in questions if unsendable(one[3]) is not None)
        _, agent, policy, *_ = next(stuck, questions[0])
        return PolicyFailed(
            f"what agent {agent} observes must be picklable to reach a policy in another process, and is not: "
            f"{type(error).__name__}: {error}; use the strategy threads or sequential",
            policy,
            agent,
        )

    def replies(self) -> list[Decision]:
        found: dict[int, Decision] = {}

        def act() -> None:
            self._actors.prepare([self._questions[i] for i in self._shares[-1]])
            for i in self._shares[-1]:
                (found[i],) = self._actors.act([self._questions[i]])

        for request in self._together(act):
            for i, decision in zip(self._shares[request.seat.index], request.value, strict=True):
                found[i] = Decision(*decision)
        return [found[i] for i in range(len(self._questions))]

    def take_back(self, questions: Sequence[Question]) -> None:
        self._share_out(questions)
        for seat, share in zip(self._supervisor.seats, self._shares, strict=False):
            if share:
                message = sender(_TakeBack([questions[i]._replace(observation=None) for i in share]))
                self._requests.append(self._supervisor.ask(seat, message, "going back", BEGIN_SECONDS, fresh=False))
        self._together(lambda: self._actors.take_back([questions[i] for i in self._shares[-1]]))

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
            order = {agent: i for i, (agent, _) in enumerate(self._whom)}
            raise min(errors, key=lambda error: order.get(error.agent or "", -1))
        return requests

    def _blamed(self, request: Request) -> PolicyError:
        """Return whose error it is. A worker beats once when it begins, and once for each agent that is done."""
        error = request.error
        assert isinstance(error, Exception)
        if isinstance(error, PolicyError):
            return error
        share = [self._whom[i] for i in self._shares[request.seat.index]]
        at_work = min(max(0, request.beats - 1), len(share) - 1)
        if request.lost:
            agent, policy = share[at_work]
            blamed: PolicyError = PolicyLost(str(error), policy, agent)
        else:  # nobody's code: what cannot be pickled, for one
            agent, policy = share[self._which_stuck(request.seat, at_work)]
            message = f"what agent {agent} chose did not arrive from another process: {type(error).__name__}: {error}"
            blamed = PolicyFailed(message, policy, agent)
        blamed.__cause__ = error
        return blamed

    def _which_stuck(self, seat: Seat, otherwise: int) -> int:
        """Return which of the agents that a process was asked for chose something that cannot be sent."""
        request = self._supervisor.ask(seat, sender(_WhichStuck()), "finding out", BEGIN_SECONDS, fresh=False)
        self._supervisor.wait([request])
        return otherwise if request.value is None else request.value

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._actors.end(episode)
        self._under_way.discard(episode)
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


def _is_stuck(decision: tuple[Any, ...]) -> bool:
    try:
        pickle.loads(dump(decision))
    except Exception:  # noqa: BLE001  whatever a foreign __reduce__ or __setstate__ raises
        return True
    return False


def _box_bytes(world: WorldSpec) -> int:
    """Return how much room a step of all agents takes, roughly: what does not fit is sent in another way."""
    seen = sum(leaf.nbytes for space in world.observation_spaces.values() for leaf in leaves(space))
    return min(_MOST_BOX_BYTES, max(_LEAST_BOX_BYTES, 2 * seen))
