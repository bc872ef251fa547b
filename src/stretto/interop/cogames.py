"""Agents of cogames' policies that choose side by side in cogames' own programs: our strategies, by names known there.

    from stretto.interop.cogames import PerAgentProcessWrapper, WrappedMultiAgentPolicy

    policy = WrappedMultiAgentPolicy(StarterPolicy(env_info), PerAgentProcessWrapper)

On a command line, `cogames eval -p class=stretto.interop.cogames.SideBySide,kw.policy=starter` does the same. Stretto's own
commands need none of this: there, where agents choose is an option.
"""

from __future__ import annotations

import pickle
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from mettagrid.policy.loader import initialize_or_load_policy
from mettagrid.policy.policy import AgentPolicy, MultiAgentPolicy, PolicySpec
from mettagrid.policy.policy_env_interface import PolicyEnvInterface
from mettagrid.simulator.interface import AgentObservation
from mettagrid.types import Action

from stretto.adapters.cogames.tokens import LazyObservation
from stretto.adapters.cogames.world import choices_of, described
from stretto.budget import default_budget
from stretto.core import MultiAgentPolicy as OurPolicy
from stretto.core import WorldSpec
from stretto.errors import RunsHere, UsageError, user_stacklevel
from stretto.policies.cogames import as_ours
from stretto.policies.policy_plan import PolicyPlan
from stretto.policies.questions import AgentEpisode, Question, Runner
from stretto.policies.spec import PolicySpec as OurSpec
from stretto.policies.strategies import make_runner
from stretto.seeding import GLOBAL_GENERATORS, SeedTree
from stretto.spaces import Array
from stretto.workers.mail import dump


class _PerAgent(AgentPolicy):  # type: ignore[misc]  # mettagrid need not be installed where types are checked
    """One agent of a wrapped policy, for cogames' rollouts: they ask all agents of a policy together if they can."""

    strategy: ClassVar[str]

    def __init__(self, team: WrappedMultiAgentPolicy, number: int) -> None:
        super().__init__(team.policy_env_info)
        self.team, self._number = team, number

    def reset(self, simulation: Any = None) -> None:
        self.team.begin_anew()

    def can_step_group(self, policies: Sequence[AgentPolicy]) -> bool:
        return all(isinstance(one, _PerAgent) and one.team is self.team for one in policies)

    def step_group(self, observations: list[tuple[int, AgentObservation]]) -> list[Action]:
        return self.team.choose(observations)

    def step(self, obs: AgentObservation) -> Action:
        return self.team.choose([(self._number, obs)])[0]


class PerAgentProcessWrapper(_PerAgent):
    """Agents choose in other processes, where their state stays."""

    strategy = "processes"


PerAgentSubprocessWrapper = PerAgentProcessWrapper


class PerAgentThreadWrapper(_PerAgent):
    """Agents choose in threads, for policies that wait or leave the interpreter to others."""

    strategy = "threads"


class PerAgentBatchWrapper(_PerAgent):
    """Agents choose in one call of `step_batch`, where the policy treats every row by itself."""

    strategy = "batched"


class WrappedMultiAgentPolicy(MultiAgentPolicy):  # type: ignore[misc]  # as above
    """A policy of cogames whose agents choose where the wrapper says; what they choose is the same everywhere.

    Each episode begins with a fresh copy of the policy, as it was when it was wrapped, and with generators of its own. A
    policy that cannot be pickled chooses in this process, and a warning says why.
    """

    def __init__(
        self,
        policy: MultiAgentPolicy,
        wrapper: type[_PerAgent] = PerAgentProcessWrapper,
        *,
        cores: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(policy.policy_env_info)
        self._wrapper, self._seed, self._episode, self._begun = wrapper, seed, 0, False
        self._world = described(policy.policy_env_info)
        self._names = choices_of(policy.policy_env_info)
        target, strategy = _copying(policy, wrapper.strategy)
        spec = OurSpec(type(policy).__name__, _Copied, {"make": target})
        # Which global generators it draws from was not looked at, so each agent has all of them.
        plan = PolicyPlan(spec, frozenset(GLOBAL_GENERATORS), len(self._world.agents), seed, interchangeable=True)
        self._runner: Runner = make_runner([plan], self._world, [strategy], cores or default_budget().free)
        self._finalizer = weakref.finalize(self, self._runner.close)

    def agent_policy(self, agent_id: int) -> AgentPolicy:
        return self._wrapper(self, agent_id)

    def begin_anew(self) -> None:
        """Let the next step be the first of an episode."""
        self._begun = False

    def choose(self, observations: Sequence[tuple[int, AgentObservation]]) -> list[Action]:
        """Return what agents do, asked side by side."""
        if not self._begun:
            self._begin()
        agents = self._world.agents
        self._runner.ask([Question(self._episode, agents[i], 0, self._array(seen)) for i, seen in observations])
        return [self._action(decision.action) for decision in self._runner.replies()]

    def _begin(self) -> None:
        if self._episode:
            self._runner.end(self._episode)
        self._episode, self._begun = self._episode + 1, True
        tree = SeedTree(self._seed).child("episode", self._episode)
        agents = enumerate(self._world.agents)
        self._runner.begin([AgentEpisode(self._episode, one, 0, tree.child("policy", one), i) for i, one in agents])

    def _array(self, seen: AgentObservation) -> Array:
        if isinstance(seen, LazyObservation):
            return seen.raw
        array = np.full(self.policy_env_info.observation_shape, 255, np.uint8)
        if seen.tokens:
            array[: len(seen.tokens)] = [tuple(token.raw_token) for token in seen.tokens]
        return array

    def _action(self, code: int) -> Action:
        primary, vibe = self._names[code]
        if vibe is not None and primary == self._names[0][0]:
            return Action(name=vibe)
        return Action(name=primary, vibe=vibe)

    def close(self) -> None:
        """End the processes and threads; may be called twice."""
        self._finalizer()


class SideBySide(WrappedMultiAgentPolicy):
    """A policy by its name, wrapped: for command lines of cogames, as in `class=...SideBySide,kw.policy=starter`."""

    def __init__(
        self, policy_env_info: PolicyEnvInterface, policy: str, strategy: str = "processes", **kwargs: Any
    ) -> None:
        wrappers = {one.strategy: one for one in (PerAgentProcessWrapper, PerAgentThreadWrapper, PerAgentBatchWrapper)}
        if strategy not in wrappers:
            raise UsageError(f"strategy must be one of {', '.join(wrappers)}, got {strategy!r}")
        inner = initialize_or_load_policy(policy_env_info, PolicySpec(class_path=policy, init_kwargs=kwargs))
        super().__init__(inner, wrappers[strategy])


class _Copied(OurPolicy):
    """Builds our form of a policy from copies of the one that was wrapped."""

    def __new__(cls, world: WorldSpec, make: Callable[[PolicyEnvInterface], Any]) -> OurPolicy:  # type: ignore[misc]
        return as_ours(world, make, "a wrapped policy")


def _copying(policy: MultiAgentPolicy, strategy: str) -> tuple[Callable[[PolicyEnvInterface], Any], str]:
    """Return what gives copies of a policy, and where it can choose."""
    try:
        return partial(_unpickled, dump(policy)), strategy
    except Exception as error:  # noqa: BLE001  whatever the __reduce__ of something in it raises
        why = f"agents choose in this process, because the policy cannot be sent to others: {type(error).__name__}: {error}"
        warnings.warn(RunsHere(why), stacklevel=user_stacklevel())
        return lambda _: policy, "batched"


def _unpickled(data: bytes, _: PolicyEnvInterface) -> Any:
    return pickle.loads(data)
