"""Runners: where agents choose their actions. All of them compute the same, through one `Actors` each or several."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from stretto.budget import NativeThreads
from stretto.core import AgentId, BlockAnswer, EpisodeKey, WorldSpec
from stretto.policies.actors import Actors
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import Block, Chooser, Decision, Question, Team


class InPlace:
    """In the caller's thread: all agents in one call (`batched`), or one after the other."""

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec, *, batched: bool) -> None:
        self._actors = Actors(plans, world)
        self._batched = batched
        self._questions: Sequence[Question] = ()
        self.drawn, self.batches, self.probe_rows = self._actors.drawn, self._actors.batches, self._actors.probe_rows
        self.begin, self.publish = self._actors.begin, self._actors.publish
        self.function = self._actors.function
        self.why_not_again, self.take_back = self._actors.why_not_again, self._actors.take_back

    def choosers(self, episode: EpisodeKey) -> Mapping[AgentId, Chooser] | None:
        return self._actors.choosers(episode)

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> Team | None:
        return self._actors.team(who) if self._batched else None

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._actors.prepare(questions)

    def replies(self) -> list[Decision]:
        if self._batched:
            return self._actors.act(self._questions)
        return [self._actors.act([question])[0] for question in self._questions]

    def act_block(self, block: Block, limit_seconds: float | None = None) -> BlockAnswer:
        return self._actors.act_block(block)

    def end(self, episode: EpisodeKey) -> frozenset[str]:
        self._actors.end(episode)
        return frozenset()

    def close(self) -> None:
        pass


class Threads(InPlace):
    """In threads of this process: for policies that wait, or that compute outside of the interpreter's lock.

    Policies that draw from global generators take turns: these are one for all threads. A policy with `step_batch`
    chooses for all its agents in one thread.
    """

    def __init__(self, plans: Sequence[PolicyPlan], world: WorldSpec, *, threads: int) -> None:
        super().__init__(plans, world, batched=True)
        self._threads = _DaemonThreads(threads, NativeThreads(max(plan.native_threads for plan in plans)))
        self._pending: list[tuple[list[int], Future[list[Decision]]]] = []

    def choosers(self, episode: EpisodeKey) -> None:
        return None

    def team(self, who: Sequence[tuple[EpisodeKey, AgentId]]) -> None:
        return None

    def ask(self, questions: Sequence[Question], limit_seconds: float | None = None) -> None:
        self._questions = questions
        self._actors.prepare(questions)
        self._pending = [
            (group, self._threads.submit(partial(self._actors.act, [questions[i] for i in group])))
            for group in self._actors.groups(questions)
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
        return [found[i] for i in range(len(self._questions))]

    def close(self) -> None:
        self._threads.close()


class _DaemonThreads:
    """Threads that call functions for others. Nobody waits for them at the program's end: one of them may hang."""

    def __init__(self, count: int, native: NativeThreads) -> None:
        self._native = native
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
                self._native.cap_thread()  # each time: a policy may have imported torch since
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  whoever waits for the result has to know
                future.set_exception(error)
            del future, function, task

    def close(self) -> None:
        for _ in range(self._count):
            self._work.put(None)
        self._count = 0
