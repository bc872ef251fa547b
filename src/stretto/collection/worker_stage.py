"""WorkerStage: whole trials in processes, each with a world and policies of its own; what crosses is trials and rollouts."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stretto import trace
from stretto.adapters.agents import as_agents
from stretto.adapters.gymnasium import ONLY_AGENT
from stretto.adapters.wrapped import limit_steps
from stretto.collection.experience import Rollout
from stretto.collection.plain_stage import PlainStage
from stretto.collection.stage import BlockStage
from stretto.collection.tasks import Trial
from stretto.collection.turn_stage import Turns, stage_of
from stretto.collection.worlds import BlockWorlds
from stretto.core import SIMULTANEOUS, AgentId, WorldSpec
from stretto.envs.make import make_vec
from stretto.errors import Place, ResourceError
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.runners import InPlace
from stretto.rollout import Advance, Slots, play
from stretto.run_trace import TracedService, traced_runner, traced_worlds
from stretto.workers.backends import PROCESS
from stretto.workers.base import Backend, Port
from stretto.workers.fewer import count_to_keep, start_or_fewer, tell_fewer
from stretto.workers.mail import Sent
from stretto.workers.output import deliver_all, held_back
from stretto.workers.requests import Request, Seat, sender
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

SHARE_SECONDS = 0.02
"""What the trials take that a worker is given at once: long beside a wake-up, which often takes 1 ms on a busy machine."""

_COMPARED_STEPS = 8
"""How many steps nodes are compared by."""

SLOTS_A_WORKER = 64
"""How many trials wait or are played for each worker, so that there are enough for shares of short ones."""


@dataclass(frozen=True, slots=True)
class TrialPlayer:
    """Makes what plays trials, wherever that is: a world, and the policies that its agents follow."""

    make: Callable[[], Any]
    plans: Sequence[PolicyPlan]
    policies: Mapping[AgentId, int]
    world: WorldSpec
    turns: str = SIMULTANEOUS
    global_rng: str = "auto"
    checks: str = "first"

    @property
    def batches(self) -> bool:
        """Whether any of the policies chooses for many agents at once."""
        runner = InPlace(self.plans, self.world, batched=True)
        return any(runner.batches(policy) for policy in range(len(self.plans)))

    def stage(self, position: memoryview[int] | None = None) -> PlainStage | BlockStage:
        """Return a stage with one slot, in this process; whoever watches it sees at `position` that it moves."""
        runner = InPlace(self.plans, self.world, batched=True)
        if self.world.agents == (ONLY_AGENT,) and not runner.batches(0):
            return PlainStage(self.make, runner, self.global_rng, self.checks, position)
        envs = make_vec(self.make, 1, backend="serial", global_rng=self.global_rng, checks=self.checks, copy=False)
        turns = Turns.of(self.turns, self.plans)
        return stage_of(traced_worlds(BlockWorlds(envs)), traced_runner(runner), self.policies, turns=turns)

    def __call__(self, port: Port) -> TracedService:
        return TracedService(port, _TrialService(port, self), str)


@dataclass(frozen=True, slots=True)
class _Share(Sent):
    """Trials that a worker plays one after the other."""

    trials: tuple[Trial, ...]

    def __str__(self) -> str:
        first, last = self.trials[0], self.trials[-1]
        return str(first) if first is last else f"rollouts {first.index} to {last.index}"


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """Message: play the first steps of a trial, and return a digest of them."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class _ShortWorld:
    """Makes a world whose episodes end after a few steps."""

    make: Callable[[], Any]
    turns: str

    def __call__(self) -> Any:
        return limit_steps(self.make(), as_agents=partial(as_agents, turns=self.turns), max_steps=_COMPARED_STEPS)


@dataclass(frozen=True, slots=True)
class _Played(Sent):
    """What came of a share: rollouts of its first trials, of all unless one raised; and the seconds that they took."""

    rollouts: list[Rollout]
    seconds: float


class _TrialService:
    """Plays trials in a worker."""

    def __init__(self, port: Port, player: TrialPlayer) -> None:
        self._port, self._player = port, player
        self._stage: PlainStage | BlockStage | None = None

    def handle(self, message: Any) -> object:
        if isinstance(message, FirstSteps):
            return self._digest_first_steps(message.trial)
        if not isinstance(message, _Share):
            return None
        began, rollouts = time.perf_counter(), list[Rollout]()
        for trial in message.trials:
            try:
                rollouts.append(self._play(trial))
            except Exception:
                if not rollouts:
                    raise
                break  # what was played is not lost, and the caller asks for this one again, by itself
        return _Played(rollouts, time.perf_counter() - began)

    def _digest_first_steps(self, trial: Trial) -> str:
        short = replace(self._player, make=_ShortWorld(self._player.make, self._player.turns))
        with (
            held_back(self._port),
            closing(short.stage(self._port.position)) as stage,
        ):  # it is said again where it counts
            return self._play(trial, stage).digest()

    def _play(self, trial: Trial, stage: PlainStage | BlockStage | None = None) -> Rollout:
        self._port.place = lambda: Place(f"playing {trial}", worker=self._port.index, seed=trial.seed)
        if stage is None:
            self._stage = stage = self._stage or self._player.stage(self._port.position)
        waiting = [trial]
        rollouts: list[Rollout]
        with trace.span(f"rollout {trial.index}"):
            for rollouts in play(stage, lambda _: waiting.pop() if waiting else None):
                self._port.beat()
                if rollouts:
                    return rollouts[0]
        raise AssertionError("a trial gives a rollout")

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()


@dataclass(slots=True)
class _Away:
    """A share that a worker has, and the slots of its trials."""

    seat: Seat
    request: Request
    slots: list[int]
    share: _Share


class WorkerStage:
    """Hands trials to workers, several at once where they are short; those of a worker that died or hung are begun again.

    It has many more slots than workers: whoever is free takes the next trials that wait in them, and while one share is
    played the next lies ready. A trial is begun again, by itself, `max_restarts` times at most.

    So many workers are `started_together`, the others one after the other while these play: only as long as trials wait.
    """

    def __init__(  # noqa: PLR0913  every choice has a name
        self,
        player: TrialPlayer,
        workers: int,
        *,
        limit_seconds: float | None,
        max_restarts: int = 3,
        native_threads: int = 1,
        backend: Backend = PROCESS,
        prepare: Callable[[Supervisor], object] = lambda _: None,
        started_together: int | None = None,
    ) -> None:
        self._player, self._limit, self._max_restarts = player, limit_seconds, max_restarts
        self._together = workers if started_together is None else started_together
        first = min(workers, self._together)

        def make(count: int) -> Supervisor:
            supervisor = Supervisor(backend, native_threads=native_threads)
            for _ in range(count):
                supervisor.add_seat(player)
            return supervisor

        def start(supervisor: Supervisor) -> None:
            for seat in supervisor.seats:
                supervisor.start(seat)
            prepare(supervisor)

        self._supervisor, _, there, _ = start_or_fewer(first, make, start)
        self.grow(workers if there == first else there)
        self.wanted = workers  # there may be fewer
        self._waiting: deque[tuple[int, Trial]] = deque()
        self._away: list[_Away] = []
        self._lost: Counter[int] = Counter()
        self._alone: set[int] = set()
        self._played, self._seconds = 0, 0.0
        self.steps = 0

    def grow(self, workers: int) -> None:
        """Let there be so many workers, between two plays; those that are there stay, and play while others start."""
        while len(self._supervisor.seats) < workers:
            self._supervisor.add_seat(self._player)
        self.wanted, self.count = workers, len(self._supervisor.seats) * SLOTS_A_WORKER

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        """Hand out trials, and wait until some that are under way are over."""
        self._waiting.extend(begun.items())
        rollouts: list[Rollout] = []
        free: list[int] = []
        while not free:
            self._hand_out()
            self._supervisor.wait([*(one.request for one in self._away), *self._starting()], 1)
            finished = [one for one in self._away if one.request.finished]
            self._away = [one for one in self._away if not one.request.finished]
            lost = set[int]()
            for one in finished:
                if one.request.lost and one.seat.index in lost:
                    self._put_back(one, 0)  # it lay ready, and its worker died over the share before
                elif one.request.lost:
                    lost.add(one.seat.index)
                    self._lose(one)
                else:
                    found = self._take(one)
                    rollouts += found
                    free += one.slots[: len(found)]
        self._hand_out()
        self.steps += sum(len(rollout) for rollout in rollouts)
        return Advance(rollouts, (), free)

    def _hand_out(self) -> None:
        """Give waiting trials to those who have least to do; to whoever has just been started only if all have."""
        has = Counter(one.seat.index for one in self._away)
        self._start_workers(has)
        seats = [seat for seat in self._supervisor.seats if seat.ready]
        seats = seats or [seat for seat in self._supervisor.seats if seat.worker is not None or seat.error is not None]
        most = 2 if self._trial_seconds < SHARE_SECONDS else 1
        for number in range(most):
            for seat in seats:
                if self._waiting and has[seat.index] == number:
                    self._give(seat)
                    has[seat.index] += 1

    def _start_workers(self, has: Mapping[int, int]) -> None:
        """Start workers where there are none: no more together than shall be, nor than trials wait that nobody can begin."""
        seats = self._supervisor.seats
        starting = sum(seat.worker is not None and not seat.ready for seat in seats)
        idle = sum(seat.ready and not has[seat.index] for seat in seats)
        for seat in seats:
            if starting >= min(self._together, len(self._waiting) - idle):
                return
            if seat.worker is None and seat.error is None:
                try:
                    self._supervisor.start(seat)
                except ResourceError as error:
                    self._do_without(seat, error)
                    return
                starting += 1

    def _do_without(self, seat: Seat, error: ResourceError) -> None:
        """Let there be fewer workers, because one more cannot be started; raise if it is no more, but one that was lost."""
        seats, started = self._supervisor.seats, seat.index
        was_there = any(one.built or one.worker is not None for one in seats[started:])
        if was_there or all(one.worker is None for one in seats[:started]):
            raise error
        asked, keep = len(seats), count_to_keep(started)
        for one in [one for one in self._away if one.seat.index >= keep]:
            self._put_back(one, 0)
        self._away = [one for one in self._away if one.seat.index < keep]
        for surplus in seats[keep:started]:
            self._supervisor.give_up(surplus, None, lost=True)
        del seats[keep:]
        tell_fewer(self._supervisor, keep, asked, str(error))

    def _starting(self) -> list[Request]:
        """Return the starts of workers that can be given something when they are over."""
        busy = {one.seat.index for one in self._away}
        seats = self._supervisor.seats
        return [seat.requests[0] for seat in seats if seat.requests and not seat.ready and seat.index not in busy]

    def _give(self, seat: Seat) -> None:
        # Never more than half of what there is for each: all should end at the same time.
        fair = len(self._waiting) // (2 * len(self._supervisor.seats))
        size = max(1, min(int(SHARE_SECONDS / self._trial_seconds), fair))
        slots, trials = list[int](), list[Trial]()
        while self._waiting and len(trials) < size:
            by_itself = self._waiting[0][1].index in self._alone
            if by_itself and trials:
                break
            slot, trial = self._waiting.popleft()
            slots.append(slot)
            trials.append(trial)
            if by_itself:
                break
        share = _Share(tuple(trials))
        issue = sender(share, by_value=False)
        request = self._supervisor.ask(seat, issue, f"playing {share}", self._limit)
        self._away.append(_Away(seat, request, slots, share))

    @property
    def _trial_seconds(self) -> float:
        """What a trial takes; before any is known, as long as a whole share."""
        return max(self._seconds / self._played, 1e-6) if self._played else SHARE_SECONDS

    def _take(self, one: _Away) -> list[Rollout]:
        """Take in what was played, and put back what was not."""
        deliver_all(one.request.outputs)
        if one.request.error is not None:
            raise one.request.error
        played: _Played = one.request.value
        self._played += len(played.rollouts)
        self._seconds += played.seconds
        for trial in one.share.trials[: len(played.rollouts)]:
            self._lost.pop(trial.index, None)
            self._alone.discard(trial.index)
        self._put_back(one, len(played.rollouts))
        return played.rollouts

    def _lose(self, one: _Away) -> None:
        """Begin trials again whose worker was lost, or raise if that has happened too often."""
        self._lost.update(trial.index for trial in one.share.trials)
        if any(self._lost[trial.index] > self._max_restarts for trial in one.share.trials):
            deliver_all(one.request.outputs)
            assert one.request.error is not None
            raise one.request.error
        self._put_back(one, 0)

    def _put_back(self, one: _Away, played: int) -> None:
        """Let trials wait again, before all others; each is played by itself then, so that what fails is known."""
        rest = list(zip(one.slots, one.share.trials, strict=True))[played:]
        self._alone.update(trial.index for _, trial in rest)
        self._waiting.extendleft(reversed(rest))

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._supervisor.pids

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._supervisor.close()
