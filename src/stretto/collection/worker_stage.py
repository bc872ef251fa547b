"""WorkerStage: whole trials in processes, each with a world and policies of its own; what crosses is trials and rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.adapters.agents import as_agents
from stretto.collection.experience import Rollout
from stretto.collection.plain_stage import PlainStage
from stretto.collection.stage import BlockStage
from stretto.collection.tasks import Trial
from stretto.collection.worlds import BlockWorlds
from stretto.core import SIMULTANEOUS, AgentId, WorldSpec
from stretto.envs.make import make_vec
from stretto.errors import Place
from stretto.policies.actors import PolicyPlan
from stretto.policies.runners import InPlace
from stretto.rollout import Advance, Slots, play
from stretto.run_trace import TracedService, traced_runner, traced_worlds
from stretto.workers.backends import PROCESS
from stretto.workers.base import Port
from stretto.workers.output import deliver_all
from stretto.workers.requests import Request, sender
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True


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
        if len(self.world.agents) == 1 and not runner.batches(0):
            return PlainStage(self.make, runner, self.global_rng, self.checks, position)
        envs = make_vec(
            self.make, 1, backend="serial", turns=self.turns, global_rng=self.global_rng, checks=self.checks, copy=False
        )
        return BlockStage(traced_worlds(BlockWorlds(envs)), traced_runner(runner), self.policies)

    def __call__(self, port: Port) -> TracedService:
        return TracedService(port, _TrialService(port, self), lambda trial: f"rollout {trial.index}")


class _TrialService:
    """Plays trials in a worker."""

    def __init__(self, port: Port, player: TrialPlayer) -> None:
        self._port, self._player = port, player
        self._stage: PlainStage | BlockStage | None = None

    def handle(self, message: Any) -> object:
        if not isinstance(message, Trial):
            return None
        self._port.place = lambda: Place(f"playing {message}", worker=self._port.index, seed=message.seed)
        if self._stage is None:
            self._stage = self._player.stage(self._port.position)
        waiting = [message]
        for rollouts in play(self._stage, lambda _: waiting.pop() if waiting else None):
            self._port.beat()
            if rollouts:
                return rollouts[0]
        raise AssertionError("a trial gives a rollout")

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()


class WorkerStage:
    """Gives a trial to each of `count` workers; one whose worker died or hung is begun again, from its seed.

    That happens `max_restarts` times with one trial at most.
    """

    def __init__(
        self,
        player: TrialPlayer,
        count: int,
        *,
        limit_seconds: float | None,
        max_restarts: int = 3,
        native_threads: int = 1,
    ) -> None:
        self.count, self._limit, self._max_restarts = count, limit_seconds, max_restarts
        self._supervisor = Supervisor(PROCESS, native_threads=native_threads)
        for _ in range(count):
            self._supervisor.add_seat(player)
        self._away: dict[int, tuple[Request, Trial]] = {}
        self._lost: dict[int, int] = {}
        self.steps = 0

    def advance(self, begun: Mapping[int, Trial], ready: Slots) -> Advance[list[Rollout]]:
        """Hand out trials, and wait until one that is under way is over."""
        for slot, trial in begun.items():
            self._give(slot, trial)
        rollouts: list[Rollout] = []
        free: list[int] = []
        while not free:
            self._supervisor.wait([request for request, _ in self._away.values()], 1)
            for slot, (request, trial) in list(self._away.items()):
                if not request.finished:
                    continue
                if request.lost and self._lost.get(trial.index, 0) < self._max_restarts:
                    self._lost[trial.index] = self._lost.get(trial.index, 0) + 1
                    self._give(slot, trial)
                    continue
                deliver_all(request.outputs)
                del self._away[slot]
                self._lost.pop(trial.index, None)
                if request.error is not None:
                    raise request.error
                rollouts.append(request.value)
                free.append(slot)
        self.steps += sum(len(rollout) for rollout in rollouts)
        return Advance(rollouts, (), free)

    def _give(self, slot: int, trial: Trial) -> None:
        seat = self._supervisor.seats[slot]
        self._away[slot] = (
            self._supervisor.ask(seat, sender(trial), f"playing {trial}", self._limit),
            trial,
        )

    @property
    def pids(self) -> list[int]:
        """The processes that it runs now."""
        return self._supervisor.pids

    def close(self) -> None:
        """End the workers; may be called twice."""
        self._supervisor.close()


def describe(make: Callable[[], Any], turns: str) -> WorldSpec:
    """Make a world, and say who acts in it, what they see and what they can do."""
    world = make()
    try:
        return as_agents(world, turns).spec()
    finally:
        world.close()
