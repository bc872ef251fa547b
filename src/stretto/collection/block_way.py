"""BlockWay: trials in all slots of a vector environment at once, step by step, with policies in the caller."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from stretto.collection.collector import CappedStage, Queue
from stretto.collection.experience import Rollout
from stretto.collection.look import Choosing, tell_who_is_in_order
from stretto.collection.ready_first import Calls, ReadyFirstWorlds
from stretto.collection.turn_stage import Turns, stage_of
from stretto.collection.worlds import BlockWorlds
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.policies.strategies import make_runner
from stretto.run_trace import traced_runner, traced_worlds

WARM_SECONDS, LOOK_SECONDS = 0.1, 0.3
"""How long each way to wait is tried before `"auto"` decides: at first worlds are checked, and code is loaded."""

LEAST_SECONDS = 3e-4
"""Ready-first is not tried where a step of all worlds takes less: it cannot pay."""


class BlockWay:
    """Plays trials in all slots of a vector environment at once, with policies in the caller.

    With `"auto"` that is in lockstep first, then ready-first, and from then on in the way that did more steps in its time.
    """

    def __init__(
        self, envs: VectorEnv | MultiAgentVectorEnv, choosing: Choosing, wait: str, *, owns_envs: bool
    ) -> None:
        self._envs, self._owns_envs = envs, owns_envs
        self._lockstep = lockstep = BlockWorlds(envs)
        plans, followed = choosing.plans(lockstep.spec)
        self._calls = Calls.of(plans, choosing.act_rows)
        worlds = ReadyFirstWorlds(envs, self._calls) if wait == "ready-first" else lockstep
        with choosing.native.capped():
            self._runner = make_runner(plans, lockstep.spec, [choosing.strategy] * len(plans), 1)
        tell_who_is_in_order(plans)
        turns = Turns.of(choosing.turns, plans)
        self._stage = stage_of(traced_worlds(worlds), traced_runner(self._runner), followed, turns=turns)
        self._capped = CappedStage(self._stage, choosing.native)
        workers = envs.engine.supervisor
        may_choose = wait == "auto" and len(workers.remote) > 0 and workers.backend.pickles
        self._choice = self._choose() if may_choose else None

    def play(self, queue: Queue) -> Generator[Rollout]:
        """Play what is in the queue."""
        if self._calls is not None and self._calls.planned:
            queue.rows = self._calls.rows
        for rollout in queue.play(self._capped):
            yield rollout
            if self._choice is not None and next(self._choice, True):
                self._choice = None

    def _choose(self) -> Iterator[bool]:
        """Try both ways to wait, a step of this at a time; it ends when one of them is chosen."""
        stage = self._stage
        lockstep = yield from self._rate()
        if (stage.seconds - stage.policy_seconds) / stage.advances < LEAST_SECONDS:
            return
        ready_first = ReadyFirstWorlds(self._envs, self._calls)
        stage.use(ready_first)
        if (yield from self._rate()) < lockstep:
            ready_first.together = True
            stage.use(self._lockstep)

    def _rate(self) -> Generator[bool, None, float]:
        """Return how many steps a second are done from now on."""
        stage = self._stage
        until = stage.seconds + WARM_SECONDS
        while stage.seconds < until:
            yield False
        steps, began = stage.steps, stage.seconds
        while stage.seconds - began < LOOK_SECONDS:
            yield False
        return (stage.steps - steps) / (stage.seconds - began)

    def close(self) -> None:
        """Let go of policies, and of the environments unless they are the user's; may be called twice."""
        self._runner.close()
        if self._owns_envs:
            self._envs.close()
