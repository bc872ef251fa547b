"""Scheduler: a plan being played. What dies or hangs is tried again, and told by name if that does not help."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Self

from stretto.errors import Place, UsageError, WorkerDied, WorldHung
from stretto.evaluation.plan import Facts, Plan, PlaySettings, Task
from stretto.evaluation.playing.episode_worker import MARGIN_SECONDS, EpisodeWorkerFactory
from stretto.evaluation.playing.episodes import Played, failure_of, how_lost
from stretto.evaluation.playing.loading import LOADING_SECONDS
from stretto.evaluation.playing.messages import FirstSteps, Look, LookAtPicture, PlayTask, Ready
from stretto.evaluation.playing.reproduce import reproduce
from stretto.evaluation.playing.task_queue import TaskQueue
from stretto.evaluation.playing.tracebacks import without_addresses
from stretto.evaluation.progress import RunningTask
from stretto.evaluation.records import LARGEST, EpisodeFailure, EpisodeRecord, split_statistics
from stretto.workers.agreement import leave_out_who_differs
from stretto.workers.base import Backend
from stretto.workers.cluster import Cluster
from stretto.workers.launcher import launcher
from stretto.workers.requests import Request
from stretto.workers.supervisor import Supervisor

ATTEMPTS = 3
"""How often an episode is begun whose worker dies or hangs, before it counts as failed."""

TOGETHER_SECONDS = 0.05
"""For about how long a worker plays what it is given at a time, if that is several short episodes."""

_LEAST_SECONDS = 1e-4

NOT_FINITE = "RewardNotFinite"
"""The kind of failure of an episode whose rewards add up to no number that could be compared."""


class Scheduler:
    """A plan being played by so many workers. Results are kept by key; the order in which they come changes nothing."""

    def __init__(
        self,
        plan: Plan,
        settings: PlaySettings,
        backend: Backend,
        workers: int = 1,
        on_episode: Callable[[EpisodeRecord], None] = lambda _: None,
    ) -> None:
        self._plan, self._settings, self._on_episode = plan, settings, on_episode
        launcher().preload(EpisodeWorkerFactory.__module__)  # and all that it imports: no worker has to
        self._supervisor = Supervisor(backend, native_threads=plan.native_threads)
        factory = EpisodeWorkerFactory(plan, settings)  # one for all: it travels once to each node of a cluster
        for _ in range(workers):
            self._supervisor.add_seat(factory)
        self._queue = TaskQueue(self._supervisor, Ready(), LOADING_SECONDS)
        self.records: dict[tuple[int, int, int], EpisodeRecord] = {}
        self.digests: dict[tuple[int, int, int], list[dict[str, tuple[int, int, float]]]] = {}
        self._facts: dict[tuple[int, int], Facts] = {}
        self._attempts: dict[Task, int] = {}
        self._began: dict[Task, float] = {}
        self._apart: set[Task] = set()
        self._broken: dict[tuple[int, int], BaseException] = {}
        self._seconds: dict[tuple[int, int], float] = {}  # of an episode in the last task of a mission and an entry
        self._cores = self._workers = 1
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.close()
        if self._cluster is not None:
            self._cluster.use_all()

    def compare_nodes(self, cluster: Cluster) -> str:
        """Let each node play the first steps; use those that give the same numbers as most, and return their digest."""
        self._cluster = cluster
        limit = self._settings.limits.silence_seconds(1)
        return leave_out_who_differs(self._supervisor, cluster, FirstSteps(), "playing the first steps", limit)

    def look(self, *, strict: bool = True) -> dict[tuple[int, int], Facts]:
        """Find out what the plan has to know of its missions and policies.

        Where a worker dies it is looked at again; where the policy seems to be the reason, without letting it act: its
        episodes will tell. What was asked for wrongly is raised at once, and so is all else if it is `strict` or if
        nothing at all can be played; otherwise the episodes of a mission with a policy that cannot be built fail.
        """
        looks: dict[tuple[int, int], int] = {}

        def message(look: Look) -> tuple[object, str, float | None]:
            return look, "looking", self._settings.limits.silence_seconds(1)

        def take(look: Look, answer: Request) -> list[Look]:
            pair = look.mission, look.entry
            if answer.error is None:
                self._facts[pair] = answer.value
                return []
            looks[pair] = looks.get(pair, 0) + 1
            if not answer.lost or not look.acting:
                self._broken[pair] = self._why_unplayable(pair, answer)
                if strict or isinstance(answer.error, UsageError) or not isinstance(answer.error, Exception):
                    raise self._broken[pair]
                return []
            again = looks[pair] < ATTEMPTS and not isinstance(answer.error, WorldHung)
            return [replace(look, acting=again)]

        self._queue.do([Look(*pair) for pair in self._plan.pairs()], message, take)
        if not self._facts:
            raise next(iter(self._broken.values()))
        for pair in self._broken:
            count = len(self._plan.entries[pair[1]].specs)
            self._facts[pair] = Facts((), (frozenset(),) * count, (False,) * count)
        return self._facts

    def looked(self, other: Scheduler) -> dict[tuple[int, int], Facts]:
        """Take over what another scheduler of the same plan has found out."""
        self._facts, self._broken = other._facts, other._broken
        return self._facts

    def look_at_pictures(self) -> dict[str, str]:
        """Return the missions that cannot be filmed by name, and why not."""
        found: dict[str, str] = {}

        def message(look: LookAtPicture) -> tuple[object, str, float | None]:
            return look, "drawing", self._settings.limits.silence_seconds(1)

        def take(look: LookAtPicture, answer: Request) -> list[LookAtPicture]:
            name = self._plan.missions[look.mission].name
            if answer.lost:
                found[name] = how_lost("a process that draws it", _error(answer), None)[0]
            elif why := str(answer.value or "") if answer.error is None else failure_of(answer.error).message:
                found[name] = why
            return []

        self._queue.do([LookAtPicture(mission) for mission in range(len(self._plan.missions))], message, take)
        return found

    def _why_unplayable(self, pair: tuple[int, int], answer: Request) -> BaseException:
        """Return why a mission cannot be played by a policy at all."""
        assert answer.error is not None
        mission, entry = self._plan.missions[pair[0]].name, self._plan.entries[pair[1]].label
        if not answer.lost:
            if isinstance(answer.error, UsageError) and mission not in str(answer.error):
                answer.error.args = (f"{answer.error} (for {mission} with {entry})", *answer.error.args[1:])
            return answer.error
        what = f"the process that makes {mission} and loads {entry}"
        message, text = how_lost(what, answer.error, self._settings.limits.hang_seconds)
        died = WorkerDied(message, Place("looking at what is played"))
        died.add_note(text)
        return died

    def play(self, tasks: Iterable[Task], workers: int | None = None, cores: int = 1) -> None:
        """Play tasks until none is left, on so many workers (default: all), each with so many cores."""
        self._cores = cores
        playable = []
        for task in tasks:
            if (task.mission, task.entry) in self._broken:
                for episode in task.episodes:
                    self._keep(task, episode, Played(failure=self._why_broken(task)))
            else:
                playable.append(task)
        self._workers = workers or len(self._supervisor.seats)
        self._queue.do(playable, self._message, self._take, workers, self._next)

    def _next(self, waiting: deque[Task]) -> Task:
        """Take the next task; several short episodes become one, but so few that no worker has to wait long at the end."""
        first = waiting.popleft()
        most = min(
            int(TOGETHER_SECONDS / self._seconds.get((first.mission, first.entry), TOGETHER_SECONDS)),
            math.ceil(len(waiting) / (2 * self._workers)),
        )
        episodes = list(first.episodes)
        if len(episodes) == 1 and first not in self._attempts:
            while len(episodes) < most and waiting and self._goes_with(first, waiting[0]):
                episodes += waiting.popleft().episodes
        return first if len(episodes) == len(first.episodes) else replace(first, episodes=tuple(episodes), in_turn=True)

    def _goes_with(self, first: Task, task: Task) -> bool:
        same = (task.mission, task.entry) == (first.mission, first.entry)
        return same and len(task.episodes) == 1 and task not in self._attempts

    def running(self) -> list[RunningTask]:
        """Return what is played now; may be called from any thread."""
        found, now = [], time.monotonic()
        for request, task in self._queue.given:
            worker = request.seat.worker
            if isinstance(task, Task) and worker is not None and task in self._began:
                names = self._plan.missions[task.mission].name, self._plan.entries[task.entry].label
                with suppress(ValueError):  # the worker was ended just now, and its memory is gone
                    # Beginning an episode is counted, too; of episodes in turn, nobody knows in which one it is.
                    steps = 0 if task.in_turn else max(0, worker.progress[1] - 1)
                    found.append(RunningTask(*names, task.episodes, steps, now - self._began[task]))
        return found

    def _why_broken(self, task: Task) -> EpisodeFailure:
        """Say why a mission cannot be played with a policy; the world it is that fails if it fails with all of them."""
        error = self._broken[task.mission, task.entry]
        names = f"{self._plan.missions[task.mission].name} with {self._plan.entries[task.entry].label}"
        failure, specs = failure_of(error), self._plan.entries[task.entry].specs
        message = f"{names} cannot be played: {failure.message.partition(chr(10))[0]}"
        everybody = all((task.mission, entry) in self._broken for entry in range(len(self._plan.entries)))
        return replace(failure, message=message, policy=specs[0].name if len(specs) == 1 and not everybody else None)

    def _message(self, task: Task) -> tuple[object, str, float | None]:
        self._attempts[task] = self._attempts.get(task, 0) + 1
        self._began[task] = time.monotonic()
        message = PlayTask(task, self._facts[task.mission, task.entry], self._cores, task in self._apart)
        return message, "playing", self._wait_seconds(task)

    def _limit(self, task: Task) -> float | None:
        """Return for how long a worker may be silent while it plays a task, as the user has it."""
        agents = len(self._facts[task.mission, task.entry].agents) * (1 if task.in_turn else len(task.episodes))
        return self._settings.limits.silence_seconds(agents)

    def _wait_seconds(self, task: Task) -> float | None:
        """Return when a worker is ended that plays a task in silence: after those below it, which tell whose fault it is."""
        limit = self._limit(task)
        strategies = self._settings.strategies(self._plan.entries[task.entry])
        below = task in self._apart or "processes" in strategies or "adaptive" in strategies
        return limit if limit is None or not below else limit + MARGIN_SECONDS

    def _take(self, task: Task, answer: Request) -> list[Task]:
        """Take an answer in; return what has to be played (again)."""
        if answer.error is None:
            worker = answer.seat.worker
            return self._take_played(task, answer.value, None if worker is None else worker.node)
        if len(task.episodes) > 1:  # one of them is at fault: each for itself, in batches of the same shape
            return task.singles
        error = answer.error
        if not answer.lost:
            self._keep(task, task.episodes[0], Played(failure=failure_of(error)))
            return []
        # Policies that run elsewhere are told by themselves: then it was the world.
        what = "the world's process" if task in self._apart else "the process of the world and its policies"
        message, text = how_lost(what, error, self._limit(task))
        step = answer.position or None  # beginning an episode counts: with one step done, it was in the second
        failure = EpisodeFailure(type(error).__name__, message, step=step, traceback=text)
        return self._lost(task, Played(failure=failure))

    def _take_played(self, task: Task, results: Sequence[Played], node: str | None) -> list[Task]:
        seconds = (time.monotonic() - self._began[task]) / len(results)
        self._seconds[task.mission, task.entry] = max(seconds, _LEAST_SECONDS)
        for played in results:
            played.node = node
        if len(task.episodes) == 1 and _is_lost(results[0]):
            return self._lost(task, results[0])
        again = []
        for episode, played in zip(task.episodes, results, strict=True):
            if _is_lost(played):  # the last one left of those played in step
                again.append(Task(task.mission, task.entry, (episode,)))
            else:
                self._keep(task, episode, played)
        return again

    def _lost(self, task: Task, played: Played) -> list[Task]:
        """Return an episode whose process died or hung, to be played again, unless it was tried often enough.

        The last attempt, and any after a hang, has the policies in processes of their own: these say whose it was.
        """
        assert played.failure is not None
        tried = self._attempts[task]
        if tried < ATTEMPTS:
            if tried == ATTEMPTS - 1 or played.failure.kind == WorldHung.__name__:
                self._apart.add(task)
            return [task]
        played.failure = replace(played.failure, message=f"{played.failure.message} (tried {ATTEMPTS} times)")
        self._keep(task, task.episodes[0], played)
        return []

    def _keep(self, task: Task, episode: int, played: Played) -> None:
        plan, entry = self._plan, self._plan.entries[task.entry]
        begun = plan.episode(task.mission, task.entry, episode, self._facts[task.mission, task.entry].agents)
        mission = plan.missions[task.mission]
        failure = played.failure or _no_result(mission.name, played)
        if failure is not None:
            # What dies while it is made is told as such: no episode of it was ever played in a process of its own.
            apart = failure.lost and (task.mission, task.entry) not in self._broken
            again = reproduce(plan, self._settings.limits, mission, entry, episode, apart=apart)
            message, text = without_addresses(failure.message), without_addresses(failure.traceback)
            failure = replace(failure, message=message, traceback=text, reproduce=again)
        statistics, by_agent = split_statistics(played.statistics)
        record = EpisodeRecord(
            mission=mission.name,
            label=entry.label,
            episode=episode,
            seed=begun.seed,
            steps=played.steps,
            rewards=played.rewards if failure is None else {},
            policies={agent: entry.specs[policy].name for agent, policy in begun.policies.items()},
            statistics=statistics,
            agent_statistics=by_agent,
            overdue=played.overdue,
            failure=failure,
            timing={
                "seconds": played.world_seconds + played.policy_seconds,
                "world_seconds": played.world_seconds,
                "policy_seconds": played.policy_seconds,
                "attempts": self._attempts.get(task, 1),
                "strategy": played.strategy,
                **({} if played.replay is None else {"replay": played.replay}),
                **({} if played.node is None else {"node": played.node}),
                **(played.asking._asdict() if played.asking.turns else {}),
            },
        )
        self.records[task.mission, task.entry, episode] = record
        self.digests[task.mission, task.entry, episode] = played.digests
        self._on_episode(record)


def _error(answer: Request) -> BaseException:
    assert answer.error is not None
    return answer.error


def _is_lost(played: Played) -> bool:
    return played.failure is not None and played.failure.lost


def _no_result(mission: str, played: Played) -> EpisodeFailure | None:
    """Return what is wrong with the rewards of an episode that went well otherwise, if anything is."""
    for agent, total in played.rewards.items():
        if not abs(total) <= LARGEST:  # nor is NaN
            message = (
                f"the rewards of an agent must add up to a number from -{LARGEST:g} to {LARGEST:g}, got {total} for {agent} "
                f"on {mission}; let the world's step return finite rewards"
            )
            return EpisodeFailure(NOT_FINITE, message, agent=agent)
    return None
