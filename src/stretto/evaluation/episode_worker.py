"""What plays episodes inside a worker: worlds and policies are made once, and kept for the tasks that follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from stretto import trace
from stretto.adapters.agents import as_agents
from stretto.core import AgentWorld, WorldSpec, own_copy
from stretto.errors import Place, WorldFailed, users_traceback
from stretto.evaluation.missions import Mission
from stretto.evaluation.plan import Facts, Plan, Task, rows
from stretto.evaluation.tracing import TracedService, traced_runner, traced_world
from stretto.policies.actors import PolicyPlan, own_spaces
from stretto.policies.builtin import Random
from stretto.policies.loading import reset_policy
from stretto.policies.runners import Runner
from stretto.policies.strategies import make_runner
from stretto.rollout import Deadline, Played, Trouble, play
from stretto.seeding import GLOBAL_GENERATORS, LATE_IMPORT, GlobalDraws, PrivateGenerators, SeedTree
from stretto.workers.backends import Backend
from stretto.workers.base import Port, Start
from stretto.workers.supervisor import Supervisor

__calls_user_code__ = True

_LOOK_STEPS = 3
"""How many steps of a throwaway episode are watched for draws from global generators."""

HANG_SECONDS = 60.0
"""How long a step may take, of the world or of all agents together, before it counts as hung."""

LOADING_SECONDS = 300.0
"""How long it may take to make a world, to load a policy, or to make the agents' policies of an episode."""

_BEAT_SECONDS = 0.2

MARGIN_SECONDS = 1.0
"""By how much a worker may be silent longer than a policy in a process below it: who hangs is told by who is nearest."""

_MOST_APART = 8
"""How many processes an episode's agents are spread over to find out whose policy it is that dies or hangs."""

_ALL_GENERATORS = frozenset(GLOBAL_GENERATORS)


@dataclass(frozen=True, slots=True)
class Ready:
    """Message: answer as soon as you can be given something."""


@dataclass(frozen=True, slots=True)
class Look:
    """Message: say what a plan must know of a mission with an entry; without `acting`, without letting anybody act."""

    mission: int
    entry: int
    acting: bool = True


@dataclass(frozen=True, slots=True)
class PlayTask:
    """Message: play the episodes of a task; `apart`: with the policies in other processes than the world."""

    task: Task
    facts: Facts
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Staging:
    """How a worker computes what a plan says: this never changes a result."""

    strategy: str = "sequential"
    cores: int = 1
    action_seconds: float | None = None
    overage_seconds: float = 0.0
    hang_seconds: float | None = HANG_SECONDS
    watch: bool = False

    def silence_seconds(self, agents: int) -> float | None:
        """Return for how long a worker may show no sign of life while so many agents act in a step."""
        if self.hang_seconds is None:
            return None
        allowed = 0.0 if self.action_seconds is None else agents * (self.action_seconds + self.overage_seconds)
        return max(self.hang_seconds, allowed)


@dataclass(frozen=True, slots=True)
class EpisodeWorkerFactory:
    """Builds the service inside a worker."""

    plan: Plan
    staging: Staging

    def __call__(self, port: Port) -> TracedService:
        service = EpisodeService(port, self.plan, self.staging)
        return TracedService(port, service, service.describe)


def episode_workers(backend: Backend, factory: EpisodeWorkerFactory, count: int = 1) -> Supervisor:
    """Return so many workers that play episodes."""
    supervisor = Supervisor(backend)
    for _ in range(count):
        supervisor.add_seat(factory)
    return supervisor


class EpisodeService:
    """Plays tasks of a plan."""

    def __init__(self, port: Port, plan: Plan, staging: Staging) -> None:
        self._port, self._plan, self._staging = port, plan, staging
        self._worlds: dict[int, list[AgentWorld]] = {}
        self._runners: dict[tuple[int, int, bool, bool], Runner] = {}
        self._guarded: set[tuple[int, int]] = (
            set()
        )  # missions and entries in which something draws later than we looked

    def handle(self, message: Any) -> object:
        match message:
            case Look(mission, entry, acting):
                self._at("looking at", mission, entry)
                return self._look(mission, entry, acting=acting)
            case PlayTask(task, facts, apart):
                self._at("playing", task.mission, task.entry, task.episodes[0])
                return self._play(task, facts, apart=apart)
            case Start() | Ready():
                return None
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def signal(self, code: int) -> object:
        raise AssertionError(f"no such signal: {code}")

    def describe(self, message: Any) -> str:
        """Say in a few words what is done for a message."""
        match message:
            case Look(mission, entry):
                doing = "look"
            case PlayTask(Task(mission, entry, episodes)):
                doing = f"episode {', '.join(map(str, episodes))}"
            case _:
                return type(message).__name__
        return f"{doing}: {self._plan.missions[mission].name}, {self._plan.entries[entry].label}"

    def _at(self, doing: str, mission: int, entry: int, episode: int | None = None) -> None:
        """From now on, let what is told of this worker say what it does."""
        names = f"{doing} {self._plan.missions[mission].name} with {self._plan.entries[entry].label}"
        self._port.place = lambda: Place(names, episode=episode)

    def _beat(self, _: int = 0) -> None:
        self._port.beat()

    @contextmanager
    def _loading(self) -> Iterator[None]:
        """Show signs of life while something is loaded, but not for ever: that may take longer than any step."""
        if not self._port.pickles:  # nobody watches
            yield
            return
        done = threading.Event()
        until = time.monotonic() + LOADING_SECONDS

        def beat() -> None:
            while not done.wait(_BEAT_SECONDS) and time.monotonic() < until:
                self._beat()

        thread = threading.Thread(target=beat, name="stretto-loading", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # ---- looking ----

    def _look(self, mission: int, entry: int, *, acting: bool) -> Facts:
        (world,) = self._some_worlds(mission, 1)
        spec = world.spec()
        specs = self._plan.entries[entry].specs
        found = []
        for one in specs:
            guard = PrivateGenerators(SeedTree(0).child("look"), probation=1 << 62)
            with trace.span("load policy"), self._loading():
                loaded = PolicyPlan(one, seed=self._plan.seed).load(own_spaces(spec))
            well = acting and self._try_out(guard, loaded, spec, mission)
            # Private generators that nobody draws from change nothing: where it is not known, there are all of them.
            found.append((frozenset(guard.drawn) if well else _ALL_GENERATORS, _batches(loaded)))
        return Facts(spec.agents, tuple(drawn for drawn, _ in found), tuple(batches for _, batches in found))

    def _try_out(self, guard: PrivateGenerators, loaded: Any, spec: WorldSpec, mission: int) -> bool:
        """Let one agent follow a policy for a moment, in an episode that nobody counts; return whether that went well.

        What is raised here will be raised again in the episodes that count, and is told there.
        """
        (world,) = self._some_worlds(mission, 1)
        try:
            guard.run_repeatable(self._act_a_little, loaded, spec, world)
        except (Exception, SystemExit):  # noqa: BLE001  whatever a policy or a world raises
            self._forget_worlds(mission)
            return False
        return True

    def _act_a_little(self, loaded: Any, spec: WorldSpec, world: AgentWorld) -> None:
        others = Random(spec)
        players: dict[str, Any] = {}
        outcome = world.reset(0)
        for _ in range(_LOOK_STEPS):
            if not outcome.acting:
                break
            actions = {}
            for i, agent in enumerate(outcome.acting):
                observation = own_copy(outcome.observations[agent])
                if agent not in players:
                    players[agent] = (loaded if i == 0 else others).agent_policy(agent)
                    reset_policy(players[agent], SeedTree(0).child("look", agent).generator())
                if i == 0 and _batches(loaded):
                    (action,) = loaded.step_batch([players[agent]], [observation])
                else:
                    action = players[agent].step(observation)
                actions[agent] = own_copy(action)
            outcome = world.step(actions)
            self._beat()

    # ---- playing ----

    def _play(self, task: Task, facts: Facts, *, apart: bool) -> list[Played]:
        try:
            return self._play_together(task, facts, apart=apart)
        except (Exception, SystemExit) as error:
            self._forget_worlds(task.mission)
            self._forget_runners()  # which may still be in the middle of something
            if len(task.episodes) > 1:
                raise  # each of them is played again by itself
            return [Played(trouble=trouble_of(error))]

    def _play_together(self, task: Task, facts: Facts, *, apart: bool) -> list[Played]:
        """Play a task. If anything draws from global generators of which that was not known, play it again, guarded.

        And once more for each process in which that was the first use of torch: only now can it be guarded there.
        """
        pair = (task.mission, task.entry)
        played: list[Played] = []
        for _ in range(len(facts.agents) + 3):
            guarded, draws = pair in self._guarded, GlobalDraws()
            played = self._play_once(task, facts, apart=apart, guarded=guarded)
            drawn = draws.names().union(*(one.drawn for one in played))
            if LATE_IMPORT not in drawn and (guarded or not drawn):
                break
            self._forget_worlds(task.mission)
            if drawn != {LATE_IMPORT}:
                self._guarded.add(pair)
        return played

    def _play_once(self, task: Task, facts: Facts, *, apart: bool, guarded: bool) -> list[Played]:
        plan, mission = self._plan, self._plan.missions[task.mission]
        with trace.span("load policies"), self._loading():
            runner = self._runner(task, facts, apart=apart, guarded=guarded)
        worlds = self._some_worlds(task.mission, len(task.episodes))
        episodes = [plan.episode(task.mission, task.entry, number, facts.agents) for number in task.episodes]
        played = play(
            worlds,
            runner,
            episodes,
            max_steps=plan.max_steps if plan.max_steps is not None else mission.max_steps,
            deadline=self._deadline(mission),
            watch=self._staging.watch,
            on_step=self._beat,
            loading=self._loading,
            guarded=guarded,
        )
        for one in played:
            one.strategy = self._how_chosen(task, runner)
        if any(one.trouble is not None for one in played):
            self._forget_worlds(task.mission)  # nobody knows what state they are in
        return played

    def _how_chosen(self, task: Task, runner: Runner) -> str:
        """Say where agents chose their actions."""
        own = {spec.strategy or self._staging.strategy for spec in self._plan.entries[task.entry].specs}
        return str(getattr(runner, "reason", " and ".join(sorted(own))))

    def _deadline(self, mission: Mission) -> Deadline:
        staging = self._staging
        return Deadline(
            staging.action_seconds,
            staging.overage_seconds,
            mission.default_action,
            mission.has_default_action,
            staging.hang_seconds,
        )

    def _some_worlds(self, mission: int, count: int) -> list[AgentWorld]:
        worlds = self._worlds.setdefault(mission, [])
        while len(worlds) < count:
            tree = SeedTree(0).child("construct", len(worlds))
            with trace.span("make world"), self._loading():
                make = self._plan.missions[mission].make
                made = PrivateGenerators(tree).run_repeatable(make, undo=lambda first: first.close())
                world = as_agents(made, self._plan.turns)
            worlds.append(traced_world(world))
        return worlds[:count]

    def _forget_worlds(self, mission: int) -> None:
        for world in self._worlds.pop(mission, []):
            # Nobody needs it any more, and what it raises here must not hide why it is let go.
            with suppress(Exception, SystemExit):
                world.close()

    def _runner(self, task: Task, facts: Facts, *, apart: bool, guarded: bool) -> Runner:
        key = (task.mission, task.entry, apart, guarded)
        if key not in self._runners:
            self._forget_runners()  # tasks come mission by mission: what is done is not needed again
            (world,) = self._some_worlds(task.mission, 1)
            entry, staging = self._plan.entries[task.entry], self._staging
            castings = [
                PolicyPlan(spec, _ALL_GENERATORS if guarded else facts.draws[i], rows(facts, i), self._plan.seed)
                for i, spec in enumerate(entry.specs)
            ]
            strategies = ["processes" if apart else spec.strategy or staging.strategy for spec in entry.specs]
            # A policy that crashes or exceeds its time must not take the user's program along, nor the other agents.
            takes_part = self._port.pickles and staging.action_seconds is None and not apart
            cores = min(len(facts.agents), _MOST_APART) if apart else staging.cores
            runner = make_runner(castings, world.spec(), strategies, cores, takes_part=takes_part)
            self._runners[key] = traced_runner(runner)
        return self._runners[key]

    def _forget_runners(self) -> None:
        while self._runners:
            self._runners.popitem()[1].close()

    def close(self) -> None:
        self._forget_runners()
        for mission in list(self._worlds):
            self._forget_worlds(mission)


def trouble_of(error: BaseException) -> Trouble:
    """Tell what was raised around an episode, such as by making its world: what it was, and not in which process."""
    message = f"{type(error).__name__}: {error}".partition("\n")[0]
    remote = error if isinstance(error, WorldFailed) else error.__cause__
    if not isinstance(remote, WorldFailed):
        return Trouble(type(error).__name__, message, users_traceback(error))
    text = remote.remote_traceback.rstrip()
    if error is remote:  # what was raised could not be sent here: its last line says what it was
        message = text.rpartition("\n")[2]
    return Trouble(type(error).__name__, message, text)


def _batches(policy: Any) -> bool:
    return callable(getattr(policy, "step_batch", None))
