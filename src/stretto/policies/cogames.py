"""Policies of cogames as ours: fresh in every episode, seeded, with tokens or with mettagrid's own arrays."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mettagrid.policy import policy as theirs
from mettagrid.policy.policy_env_interface import PolicyEnvInterface

from stretto.adapters.cogames.tokens import LazyObservation, TokenTable
from stretto.adapters.cogames.world import ENVIRONMENT, choices_of
from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import UsageError
from stretto.seeding import PrivateGenerators, SeedTree
from stretto.spaces import Array

__calls_user_code__ = True

_PROBE_STEPS = 3
_PROBE_TOKENS = 40

Make = Callable[[PolicyEnvInterface], Any]
"""Builds a policy of cogames for a mission, with its weights."""


def is_theirs(found: Any) -> bool:
    """Whether this is the class of a policy of cogames."""
    return isinstance(found, type) and issubclass(found, theirs.MultiAgentPolicy)


def as_ours(world: WorldSpec, make: Make, name: str) -> MultiAgentPolicy:
    """Return a policy of cogames as one of ours.

    A policy whose `step_batch` treats every row by itself, and keeps nothing, is given the arrays of many agents and
    episodes in one call. It says so with `rows_interchangeable = True`, or a probe finds out. Every other one is asked
    agent by agent, as cogames' own evaluation does, and built anew for every episode.
    """
    interface = world.facts.get(ENVIRONMENT)
    if interface is None:
        raise UsageError(f"a policy of cogames plays missions of cogames alone, got {name!r} for another world")
    agents = _Agents(world, interface, make)
    first = agents.build()
    if type(first).step_batch is theirs.MultiAgentPolicy.step_batch:
        return agents
    declared = getattr(first, "rows_interchangeable", None)
    if declared if declared is not None else _treats_rows_alone(first, interface):
        return _Rows(world, first)
    return agents


class FromBundle(MultiAgentPolicy):
    """The policy of what cogames calls a bundle: a folder or a zip file with a policy's class, settings and weights."""

    def __new__(cls, world: WorldSpec, bundle: str) -> MultiAgentPolicy:  # type: ignore[misc]
        def make(interface: PolicyEnvInterface) -> Any:
            from mettagrid.policy.loader import initialize_or_load_policy

            return initialize_or_load_policy(interface, read_bundle(bundle))

        return as_ours(world, make, bundle)


def read_bundle(bundle: str) -> Any:
    """Return cogames' spec of what is in a bundle."""
    if "://" in bundle:
        from mettagrid.util.uri_resolvers.schemes import policy_spec_from_uri

        return policy_spec_from_uri(bundle)
    from mettagrid.policy.prepare_policy_spec import DEFAULT_POLICY_CACHE_DIR, load_policy_spec_from_path

    path, place = Path(bundle), None
    if path.is_file():  # unpacked by what it holds: one that was changed since is unpacked anew
        place = DEFAULT_POLICY_CACHE_DIR / f"stretto-{hashlib.sha256(path.read_bytes()).hexdigest()}.d"
    return load_policy_spec_from_path(path, force_dest=place)


class _Agents(MultiAgentPolicy):
    """Asks agent by agent. The object that agents share is built anew in every episode: it may keep them, and more."""

    def __init__(self, world: WorldSpec, interface: PolicyEnvInterface, make: Make) -> None:
        super().__init__(world)
        self._interface, self._make = interface, make
        self._numbers = {agent: number for number, agent in enumerate(world.agents)}
        self._table = TokenTable(interface.obs_features)
        self._codes = _Codes(interface)
        # Drawn while a policy is loaded, when the generators are the same in every process.
        self._tree = SeedTree(random.getrandbits(63)).child("cogames")
        self._shared: Any = None

    def build(self) -> Any:
        """Return the object that the agents of an episode share: the same one each time, whatever it draws."""
        made = PrivateGenerators(self._tree, probation=1 << 62).run_repeatable(self._make, self._interface)
        if not isinstance(made, theirs.MultiAgentPolicy):
            raise UsageError(f"a policy of cogames is a MultiAgentPolicy, got {type(made).__name__}")
        return made

    def begin_episode(self, episode: Any) -> None:
        self._shared = None

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        if self._shared is None:
            self._shared = self.build()
        number = self._numbers[agent]
        return _Agent(self._shared.agent_policy(number), number, self._table, self._codes)


class _Agent(AgentPolicy):
    """One agent of a policy of cogames."""

    def __init__(self, inner: Any, number: int, table: TokenTable, codes: _Codes) -> None:
        self._inner, self._number, self._table, self._codes = inner, number, table, codes
        self._step = inner.step

    def reset(self, rng: np.random.Generator) -> None:
        super().reset(rng)
        self._inner.reset()
        _seed_generators(self._inner, rng)

    def step(self, observation: Observation) -> Action:
        action = self._step(LazyObservation(self._number, observation, self._table))
        if action.talk is not None:
            raise ValueError(f"agents cannot talk in this mission, got the talk {action.talk!r}")
        return self._codes[action.name if action.vibe is None else (action.name, action.vibe)]


class _Codes(dict[Any, int]):
    """The numbers of actions, by name, or by name and vibe."""

    def __init__(self, interface: PolicyEnvInterface) -> None:
        super().__init__({choice: code for code, choice in enumerate(choices_of(interface))})
        self.update({name: code for code, name in enumerate(interface.all_action_names)})

    def __missing__(self, name: Any) -> int:
        known = ", ".join(one for one in self if isinstance(one, str))
        raise ValueError(f"an action must be one of {known}, got {name!r}")


def _seed_generators(agent: Any, rng: np.random.Generator) -> None:
    """Seed the generators that an agent, or what it is made of, keeps as attributes: these were seeded by the clock."""
    for owner in (agent, getattr(agent, "_base_policy", None)):
        for name, value in sorted(getattr(owner, "__dict__", {}).items()):
            if isinstance(value, np.random.Generator):
                setattr(owner, name, np.random.default_rng(rng.integers(1 << 63)))
            elif type(value) is random.Random:
                value.seed(int(rng.integers(1 << 63)))


# ---- mettagrid's own arrays ----


class _Rows(MultiAgentPolicy):
    """Asks for many agents, of one episode or of several, in one call: each has a row of the array."""

    rows_interchangeable = True

    def __init__(self, world: WorldSpec, inner: Any) -> None:
        super().__init__(world)
        self._inner = inner
        self._row = _Row(self)

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return self._row

    def step_batch(self, agent_policies: Sequence[AgentPolicy], observations: Sequence[Observation]) -> list[int]:
        return _ask(self._inner, np.stack(observations))


class _Row(AgentPolicy):
    """An agent of which nothing is known but its row."""

    def __init__(self, policy: _Rows) -> None:
        self._policy = policy

    def reset(self, rng: np.random.Generator) -> None:
        pass

    def step(self, observation: Observation) -> Action:
        return self._policy.step_batch([self], [observation])[0]


def _ask(inner: Any, seen: Array) -> list[int]:
    """Return the number of each row's action: cogames counts all actions by name, primary ones first, and so do we."""
    actions = np.zeros(len(seen), np.int32)
    inner.step_batch(seen, actions)
    return actions.tolist()


def _treats_rows_alone(inner: Any, interface: PolicyEnvInterface) -> bool:
    """Whether a policy's rows can be asked in any order and number, one episode's beside another's.

    In doubt it is no: actions that are drawn, state that changes or that nobody can look at, a call that fails.
    """
    guard = PrivateGenerators(SeedTree(0).child("probe"), probation=1 << 62)
    try:
        same = guard.run_repeatable(_same_in_all_rows, inner, interface)
    except (Exception, SystemExit):  # noqa: BLE001  it is asked in another way then
        return False
    return same and not guard.drawn


def _same_in_all_rows(inner: Any, interface: PolicyEnvInterface) -> bool:
    before = pickle.dumps(inner)
    rng = np.random.default_rng(0)
    seen = [_made_up(interface, rng) for _ in range(_PROBE_STEPS)]
    done = [_ask(inner, one.copy()) for one in seen]
    order = rng.permutation(interface.num_agents)
    return (
        [_ask(inner, one.copy()) for one in reversed(seen)] == done[::-1]
        and _ask(inner, np.concatenate(seen)) == [action for one in done for action in one]
        and _ask(inner, seen[0][order]) == [done[0][i] for i in order]
        and pickle.dumps(inner) == before
    )


def _made_up(interface: PolicyEnvInterface, rng: np.random.Generator) -> Array:
    """Return what the agents of an episode might see."""
    features = [feature.id for feature in interface.obs_features]
    seen = np.full((interface.num_agents, *interface.observation_shape), 255, np.uint8)
    tokens = seen[:, :_PROBE_TOKENS]
    tokens[...] = rng.integers(0, 255, tokens.shape)
    tokens[..., 1] = rng.choice(features, tokens.shape[:2])
    return seen
