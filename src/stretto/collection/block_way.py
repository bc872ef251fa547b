"""BlockWay: trials in all slots of a vector environment at once, step by step, with policies in the caller."""

from __future__ import annotations

from collections.abc import Generator

from stretto.collection.collector import CappedStage, Queue
from stretto.collection.experience import Rollout
from stretto.collection.look import Choosing
from stretto.collection.stage import BlockStage
from stretto.collection.worlds import BlockWorlds, ReadyFirstWorlds
from stretto.envs.multiagent import MultiAgentVectorEnv
from stretto.envs.vector import VectorEnv
from stretto.policies.strategies import make_runner
from stretto.run_trace import traced_runner, traced_worlds

LOOK_SECONDS = 0.3
"""How long policies and worlds are looked at in lockstep before `"auto"` decides how to wait."""

LEAST_SECONDS, POLICY_SHARE = 3e-4, 0.2
"""Ready-first pays where a step of all worlds takes longer than this, and policies have more than this share of the time."""


class BlockWay:
    """Plays trials in all slots of a vector environment at once, with policies in the caller.

    With `"auto"` that is in lockstep first, and ready-first from then on where it is seen to pay.
    """

    def __init__(
        self, envs: VectorEnv | MultiAgentVectorEnv, choosing: Choosing, wait: str, *, owns_envs: bool
    ) -> None:
        self._envs, self._owns_envs = envs, owns_envs
        self._worlds = worlds = ReadyFirstWorlds(envs) if wait == "ready-first" else BlockWorlds(envs)
        self._undecided = (
            wait == "auto" and len(envs.engine.supervisor.remote) > 0 and envs.engine.supervisor.backend.pickles
        )
        plans, followed = choosing.plans(worlds.spec)
        with choosing.native.capped():
            self._runner = make_runner(plans, worlds.spec, [choosing.strategy] * len(plans), 1)
        self._stage = BlockStage(traced_worlds(worlds), traced_runner(self._runner), followed)
        self._capped = CappedStage(self._stage, choosing.native)

    def play(self, queue: Queue) -> Generator[Rollout]:
        """Play what is in the queue."""
        for rollout in queue.play(self._capped):
            yield rollout
            if self._undecided and self._stage.seconds > LOOK_SECONDS:
                self._decide()

    def _decide(self) -> None:
        """Go on ready-first if policies take so much of the time that to step worlds meanwhile pays."""
        self._undecided, stage = False, self._stage
        in_worlds = (stage.seconds - stage.policy_seconds) / stage.advances
        if in_worlds > LEAST_SECONDS and stage.policy_seconds > POLICY_SHARE * stage.seconds:
            ready_first = ReadyFirstWorlds(self._envs)
            ready_first.take_over(self._worlds)
            stage.use(traced_worlds(ready_first))

    def close(self) -> None:
        """Let go of policies, and of the environments unless they are the user's; may be called twice."""
        self._runner.close()
        if self._owns_envs:
            self._envs.close()
