"""What plays episodes inside a worker: worlds and policies are made once, and kept for the tasks that follow."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from stretto import trace
from stretto.adapters.agents import as_agents
from stretto.adapters.local import LocalWorlds
from stretto.budget import CpuBudget, NativeThreads, set_default_budget
from stretto.core import AUTO, SPECULATIVE, AgentWorld, TurnWorld
from stretto.episode_steps import FORFEIT, EpisodePlan
from stretto.errors import Place, PolicyFailed
from stretto.evaluation.plan import Facts, Plan, PlaySettings, Task, batch_rows
from stretto.evaluation.playing.episodes import Played, failure_of, play_to_end
from stretto.evaluation.playing.loading import Loading
from stretto.evaluation.playing.messages import FirstSteps, Look, LookAtPicture, PlayTask, Ready
from stretto.evaluation.playing.rendering import why_unseen
from stretto.evaluation.records import episode_file_name
from stretto.policies.ahead import AheadOfTurn, FasterWay
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import Runner
from stretto.policies.runners import InPlace
from stretto.policies.spec import PolicySpec
from stretto.policies.strategies import make_runner
from stretto.rollout import rollout
from stretto.run_trace import TracedService, traced_runner, traced_world
from stretto.seeding import GLOBAL_GENERATORS, LATE_IMPORT, GlobalDraws, PrivateGenerators, SeedTree
from stretto.workers.base import Port
from stretto.workers.output import held_back

__calls_user_code__ = True

_COMPARED_STEPS = 8
"""How many steps machines are compared by."""

_LOOK_STEPS = 3
"""How many steps of a throwaway episode are watched for draws from global generators."""

MARGIN_SECONDS = 1.0
"""By how much a worker may be silent longer than a policy in a process below it: who hangs is told by who is nearest."""

_MOST_APART = 8
"""How many processes an episode's agents are spread over to find out whose policy it is that dies or hangs."""

_ALL_GENERATORS = frozenset(GLOBAL_GENERATORS)


@dataclass(frozen=True, slots=True)
class EpisodeWorkerFactory:
    """Builds the service inside a worker."""

    plan: Plan
    settings: PlaySettings

    def __call__(self, port: Port) -> TracedService:
        service = EpisodeService(port, self.plan, self.settings)
        return TracedService(port, service, service.describe)


class EpisodeService:
    """Plays tasks of a plan."""

    def __init__(self, port: Port, plan: Plan, settings: PlaySettings) -> None:
        self._port, self._plan, self._settings = port, plan, settings
        self._steps = port.position  # of the episodes that are played now: the caller sees it, and that it moves
        self._worlds: dict[int, dict[int, AgentWorld]] = {}
        self._playing: LocalWorlds | None = None
        self._cores = 1
        self._native = NativeThreads(plan.native_threads)
        self._runners: dict[tuple[int, int, int, str | None, bool], Runner] = {}
        # Nobody watches the caller's own thread.
        self._loading: Callable[[], AbstractContextManager[None]]
        self._loading = Loading(port.beat) if port.pickles else nullcontext
        self._guarded: set[tuple[int, int]] = set()  # missions and entries in which something draws late
        self._ways: dict[tuple[int, int, int], FasterWay] = {}

    def handle(self, message: Any) -> object:
        if self._port.pickles:
            self._native.cap_for_good()  # of libraries, too, that were loaded since; others see to the caller's process
        match message:
            case Look(mission, entry, acting):
                self._at("starting", mission, entry)
                return self._look(mission, entry, acting=acting)
            case FirstSteps():
                return self._digest_first_steps()
            case LookAtPicture(mission):
                self._port.place = lambda: Place(f"drawing {self._plan.missions[mission].name}")
                with self._loading():
                    return why_unseen(self._plan.missions[mission], self._plan.turns)
            case PlayTask(task, facts, cores, apart):
                self._cores = cores
                if self._port.pickles:  # all that this process runs draws on what it was given
                    set_default_budget(CpuBudget(cores))
                tasks = task.singles if task.in_turn else [task]
                return [one for part in tasks for one in self._play(part, facts, "processes" if apart else None)]
            case Ready():
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
            case PlayTask(Task(mission=mission, entry=entry, episodes=episodes)):
                doing = f"episode {', '.join(map(str, episodes))}"
            case _:
                return type(message).__name__
        return f"{doing}: {self._plan.missions[mission].name}, {self._plan.entries[entry].label}"

    def _at(self, doing: str, mission: int, entry: int, episodes: Sequence[int] = ()) -> None:
        """From now on, let what is told of this worker say what it does, and in which episode."""
        place = Place(doing, mission=self._plan.missions[mission].name, policy=self._plan.entries[entry].label)
        self._playing = None

        def here() -> Place:
            slot = 0 if len(episodes) == 1 else None if self._playing is None else self._playing.at
            return place if slot is None else replace(place, episode=episodes[slot])

        self._port.place = here

    # ---- looking ----

    def _look(self, mission: int, entry: int, *, acting: bool) -> Facts:
        agents = self._worlds_of(mission, 1).spec.agents
        with held_back(self._port):  # what is printed here is printed again in the episodes that count
            found = [self._try_out(spec, mission, acting=acting) for spec in self._plan.entries[entry].specs]
        facts = Facts(
            agents,
            tuple(drawn for _, drawn, _ in found),
            tuple(runner.batches(0) for runner, _, _ in found),
            frozenset().union(*(by_world for _, _, by_world in found)),
        )
        # One that draws from global generators acts for one agent at a time: it keeps its row anyway.
        probed = [acting and batches and not drawn for batches, drawn in zip(facts.batches, facts.draws, strict=True)]
        interchangeable = tuple(
            probed[i] and runner.probe_rows(0, batch_rows(facts, i), self._port.beat)
            for i, (runner, _, _) in enumerate(found)
        )
        runners = [runner for runner, _, _ in found]
        return replace(facts, interchangeable=interchangeable, in_order=self._in_order(mission, runners, facts))

    def _in_order(self, mission: int, runners: Sequence[InPlace], facts: Facts) -> tuple[str, ...]:
        """Return, where agents are to be asked before it is their turn, why those of each policy cannot be."""
        played = self._worlds_of(mission, 1).world(0).native
        if self._plan.turns not in (SPECULATIVE, AUTO) or not isinstance(played, TurnWorld):
            return ()
        reasons = []
        for runner, draws in zip(runners, facts.draws, strict=True):
            with self._loading():
                # Its first agent may draw anything while it is made: nobody else does from these generators.
                guard = PrivateGenerators(SeedTree(0).child("look"), probation=1 << 62)
                reasons.append(
                    "it draws from global generators" if draws else guard.run_repeatable(runner.why_not_again, 0)
                )
        return tuple(reasons)

    def _try_out(
        self, spec: PolicySpec, mission: int, *, acting: bool
    ) -> tuple[InPlace, frozenset[str], frozenset[str]]:
        """Let one agent follow a policy for a moment, in an episode that nobody counts.

        Return where it acted, and the global generators that it and the world draw from. What is raised here will be raised
        again in the episodes that count, and is told there.
        """
        worlds = self._worlds_of(mission, 1, None)
        first, *others = worlds.spec.agents
        plans = [PolicyPlan(one, None, 1, self._plan.seed) for one in (spec, PolicySpec.of("random"))]
        with trace.span("load policy"), self._loading():
            runner = InPlace(plans, worlds.spec, batched=False)
        if acting:
            episode = EpisodePlan(
                0, 0, {first: 0, **dict.fromkeys(others, 1)}, options=self._plan.options_of(mission, 0)
            )
            for steps in rollout(worlds, runner, [episode], max_steps=_LOOK_STEPS):
                self._port.beat()
                if steps[0].fault is not None:
                    self._forget_worlds(mission)
                    acting = False
        # Private generators that nobody draws from change nothing: where it is not known, there are all of them.
        drawn, by_world = (runner.drawn(0), worlds.drawn) if acting else (_ALL_GENERATORS, _ALL_GENERATORS)
        return runner, drawn, by_world

    def _digest_first_steps(self) -> str:
        """Return what tells a machine apart that computes differently: in its worlds, or in its policies."""
        missions, entries = range(len(self._plan.missions)), range(len(self._plan.entries))
        pairs = dict.fromkeys([*((mission, 0) for mission in missions), *((0, entry) for entry in entries)])
        digest = hashlib.sha256()
        with held_back(self._port):  # the episodes that count print it again
            for mission, entry in pairs:
                self._at("playing the first steps", mission, entry)
                played = self._play_first_steps(mission, entry)
                digest.update(repr((played.digests, played.rewards, played.failure and played.failure.kind)).encode())
        return digest.hexdigest()

    def _play_first_steps(self, mission: int, entry: int) -> Played:
        task = Task(mission, entry, (0,))
        try:
            facts = self._look(mission, entry, acting=True)
            worlds = self._worlds_of(mission, 1, _ALL_GENERATORS)
            runner = self._runner(task, facts, "sequential", guarded=True)
            episode = self._plan.episode(mission, entry, 0, facts.agents)
            steps = rollout(
                worlds, runner, [episode], max_steps=_COMPARED_STEPS, loading=self._loading, position=self._steps
            )
            names = [spec.name for spec in self._plan.entries[entry].specs]
            return play_to_end(worlds, steps, names, keep_digests=True)[0]
        except (Exception, SystemExit) as error:  # noqa: BLE001  it will be raised again where it counts
            return Played(failure=failure_of(error))
        finally:
            self._forget_worlds(mission)

    # ---- playing ----

    def _play(self, task: Task, facts: Facts, strategy: str | None) -> list[Played]:
        """Play a task; `strategy` is one for all policies, in place of those that the user chose."""
        self._at("playing", task.mission, task.entry, task.episodes)
        try:
            return self._play_together(task, facts, strategy)
        except (Exception, SystemExit) as error:
            self._forget_worlds(task.mission)
            self._forget_runners()  # which may still be in the middle of something
            if len(task.episodes) > 1:
                raise  # each of them is played again by itself
            if not (isinstance(error, PolicyFailed) and error.together):
                return [Played(failure=failure_of(error))]
        # Asked one by one, agents do the same as before, and then the right one is named.
        return self._play(task, facts, "sequential")

    def _play_together(self, task: Task, facts: Facts, strategy: str | None) -> list[Played]:
        """Play a task. If anything draws from global generators of which that was not known, play it again, guarded.

        And once more for each process in which that was the first use of torch: only now can it be guarded there.
        """
        pair = (task.mission, task.entry)
        played: list[Played] = []
        for _ in range(len(facts.agents) + 3):
            guarded, draws = pair in self._guarded, GlobalDraws()
            played = self._play_once(task, facts, strategy, guarded=guarded)
            drawn = draws.names().union(*(one.drawn for one in played))
            if LATE_IMPORT not in drawn and (guarded or not drawn):
                break
            self._forget_worlds(task.mission)
            if drawn != {LATE_IMPORT}:
                self._guarded.add(pair)
        return played

    def _play_once(self, task: Task, facts: Facts, strategy: str | None, *, guarded: bool) -> list[Played]:
        plan, mission, limits = self._plan, self._plan.missions[task.mission], self._settings.limits
        self._steps[0] = 0
        with trace.span("load policies"), self._loading():
            runner = self._runner(task, facts, strategy, guarded=guarded)
        worlds = self._worlds_of(task.mission, len(task.episodes), _ALL_GENERATORS if guarded else facts.world_draws)
        self._playing = worlds
        episodes = [plan.episode(task.mission, task.entry, number, facts.agents) for number in task.episodes]
        # Another attempt at an episode that failed asks as few agents as possible for it.
        ahead = self._ahead(task, facts, runner) if strategy is None and not guarded else None
        steps = rollout(
            worlds,
            runner,
            episodes,
            limits=limits,
            default_action=mission.default_action if mission.has_default_action else FORFEIT,
            max_steps=plan.steps_of(task.mission),
            loading=self._loading,
            each_step=self._settings.keep_digests,
            position=self._steps,
            ahead=ahead,
        )
        found = play_to_end(
            worlds,
            steps,
            [spec.name for spec in plan.entries[task.entry].specs],
            limit_seconds=limits.end_seconds,
            keep_digests=self._settings.keep_digests,
            save_replay=partial(self._save_replay, worlds, task),
        )
        played = [found[number] for number in task.episodes]
        for one in played:
            one.strategy = self._how_chosen(task, runner)
        if any(one.failure is not None for one in played):
            self._forget_worlds(task.mission)  # nobody knows what state they are in
        return played

    def _ahead(self, task: Task, facts: Facts, runner: Runner) -> AheadOfTurn | None:
        """Return what asks agents before it is their turn, if that is wanted, with what was found out in other episodes."""
        if not facts.askable_ahead:
            return None
        way = self._ways.setdefault((task.mission, task.entry, len(task.episodes)), FasterWay(self._plan.turns))
        strategies = self._settings.strategies(self._plan.entries[task.entry])
        together = [
            i
            for i, name in enumerate(strategies)
            if name == "threads" or (facts.batches[i] and name not in ("sequential", "processes"))
        ]
        return AheadOfTurn(runner, facts.askable_ahead, way, frozenset(together))

    def _save_replay(self, worlds: LocalWorlds, task: Task, slot: int, episode: int) -> str | None:
        """Let a world write what its episode was, if that is wanted; return the file's path beside the folder of all."""
        if self._settings.replays is None:
            return None
        folder = Path(self._settings.replays)
        folder.mkdir(parents=True, exist_ok=True)
        key = self._plan.missions[task.mission].name, self._plan.entries[task.entry].label, episode
        written = worlds.save_replay(slot, str(folder / episode_file_name(key)))
        return None if written is None else os.path.relpath(written, folder.parent)

    def _how_chosen(self, task: Task, runner: Runner) -> str:
        """Say where agents chose their actions."""
        strategies = set(self._settings.strategies(self._plan.entries[task.entry]))
        return str(getattr(runner, "reason", " and ".join(sorted(strategies))))

    def _worlds_of(self, mission: int, count: int, draws: frozenset[str] | None = frozenset()) -> LocalWorlds:
        """Return a mission's worlds, with private copies of the generators that they draw from (`None`: watched)."""
        return LocalWorlds(partial(self._world, mission), count, draws)

    def _world(self, mission: int, slot: int) -> AgentWorld:
        worlds = self._worlds.setdefault(mission, {})
        if slot not in worlds:
            tree = SeedTree(0).child("construct", slot)
            with trace.span("make world"), self._loading():
                make = self._plan.missions[mission].make
                made = PrivateGenerators(tree).run_repeatable(make, undo=lambda first: first.close())
                worlds[slot] = traced_world(as_agents(made, self._plan.turns))
        return worlds[slot]

    def _forget_worlds(self, mission: int) -> None:
        for world in self._worlds.pop(mission, {}).values():
            # Nobody needs it any more, and what it raises here must not hide why it is let go.
            with suppress(Exception, SystemExit):
                world.close()

    def _runner(self, task: Task, facts: Facts, strategy: str | None, *, guarded: bool) -> Runner:
        key = (task.mission, task.entry, self._cores, strategy, guarded)
        if key not in self._runners:
            self._forget_runners()  # tasks come mission by mission: what is done is not needed again
            spec_of_world = self._worlds_of(task.mission, 1).spec
            entry, settings = self._plan.entries[task.entry], self._settings
            plans = self._plan.policy_plans(task.entry, facts, guarded=guarded)
            strategies = settings.strategies(entry) if strategy is None else [strategy] * len(entry.specs)
            apart = strategy == "processes"
            # A policy that crashes or exceeds its time must not take the user's program along, nor the other agents.
            timed = settings.limits.action_seconds is not None
            takes_part = self._port.pickles and not timed and not apart
            cores = min(len(facts.agents), _MOST_APART) if apart else self._cores
            runner = make_runner(plans, spec_of_world, strategies, cores, takes_part=takes_part, timed=timed)
            self._runners[key] = traced_runner(runner)
        return self._runners[key]

    def _forget_runners(self) -> None:
        while self._runners:
            self._runners.popitem()[1].close()

    def close(self) -> None:
        self._forget_runners()
        for mission in list(self._worlds):
            self._forget_worlds(mission)
