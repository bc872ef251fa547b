"""Loading a policy inside the process that asks it: importing its code, building it, giving it weights."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, cast

import numpy as np

from stretto.core import Action, AgentId, AgentPolicy, MultiAgentPolicy, Observation, WorldSpec
from stretto.errors import UsageError
from stretto.importing import check_parameters, imported, parameters_of
from stretto.policies.agent_reset import reset_policy
from stretto.policies.foreign import TORCH_MODULE
from stretto.policies.spec import PolicyKind, PolicySpec, kind_of, with_arguments
from stretto.policies.torch_settings import ask_for_determinism

__calls_user_code__ = True


def load_policy(spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    """Import and build a policy for `world`; code that chooses for one agent alone is wrapped.

    A class with `agent_policy` is built with the world, as its parameter `world`, and the kwargs. One with `step` or
    `__call__` is built with the kwargs for every agent and episode, and given `world` and `agent` if its constructor has
    parameters of these names. Both are given the spec's `device` in this way.
    """
    if spec.deterministic:
        ask_for_determinism()  # before any of its code runs
    found = spec.target
    if isinstance(found, str):
        where, _, name = found.rpartition(":")
        found = imported(where, name, "policy")
    if _is_of_cogames(found):
        return _load_of_cogames(found, spec, world)
    kind = kind_of(found, spec.name)
    if spec.data is not None and kind is not PolicyKind.MODULE and not callable(getattr(found, "load", None)):
        raise UsageError(f"data is given to a policy's load(path), which {spec.name!r} does not have; leave data out")
    match kind:
        case PolicyKind.TEAM:
            return _load_team(found, spec, world)
        case PolicyKind.MODULE:
            return _load_module(found, spec, world)
        case PolicyKind.AGENT:
            return _load_agents(found, spec, world)
        case PolicyKind.FUNCTION:
            return _load_function(found, spec, world)


def _load_team(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    named = _world_parameter(found)
    arguments = {**_offered(found, device=spec.device), **spec.kwargs}
    check_parameters(found, spec.kwargs, spec.name, without=(named or "",))
    args, arguments = ((world,), arguments) if named is None else ((), {named: world, **arguments})
    _check_arguments(found, spec, args, arguments)
    return cast(MultiAgentPolicy, _with_data(found(*args, **arguments), spec))


def _is_of_cogames(found: Any) -> bool:
    """Whether this is the class of a policy of cogames; nothing is imported for it."""
    if "mettagrid.policy.policy" not in sys.modules:
        return False
    from stretto.policies.cogames import is_theirs

    return is_theirs(found)


def _load_of_cogames(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    from stretto.policies.cogames import as_ours

    arguments = {**_offered(found, device=spec.device), **spec.kwargs}

    def make(interface: Any) -> Any:
        made = found(interface, **arguments)
        if spec.data is not None:
            made.load_policy_data(spec.data)
        return made

    return as_ours(world, make, spec.name)


def _world_parameter(found: Any) -> str | None:
    """Return the name of the parameter that is given the world; `None` if the first one is, whatever it is called.

    That is one called `world` or annotated as a `WorldSpec`. A first one of another name could mean anything.
    """
    parameters = inspect.signature(found).parameters.values()
    for one in parameters:
        if one.name == "world" or _annotated(one.annotation):
            return None if one.kind is one.POSITIONAL_ONLY else one.name
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return "world"
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    others = [one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in parameters]
    raise UsageError(
        f"a policy with agent_policy is given the world as its parameter 'world', which {found.__name__} does not have; "
        f"write def __init__(self, {', '.join(['world', *others])})"
    )


def _annotated(annotation: Any) -> bool:
    return annotation is WorldSpec or (isinstance(annotation, str) and annotation.rpartition(".")[2] == "WorldSpec")


def _load_module(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    if isinstance(found, type):
        arguments = {**_offered(found, world=world), **spec.kwargs}
        check_parameters(found, spec.kwargs, spec.name)
        _check_arguments(found, spec, (), arguments)
        make = functools.partial(found, **arguments)
    else:
        check_parameters(lambda: None, spec.kwargs, spec.name)
        make = functools.partial(_itself, found)
    plays = imported(*TORCH_MODULE, "policy")
    return cast(MultiAgentPolicy, _with_data(plays(world, make, device=spec.device or "cpu"), spec))


def _itself(found: Any) -> Any:
    return found


def _load_agents(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    arguments = {**_offered(found, world=world, agent="", device=spec.device), **spec.kwargs}
    takes_agent = "agent" in arguments and "agent" not in spec.kwargs

    def make(agent: AgentId) -> Any:
        made = _with_data(found(**{**arguments, "agent": agent} if takes_agent else arguments), spec)
        return made if hasattr(made, "step") else _Calling(made)

    check_parameters(found, spec.kwargs, spec.name)
    _check_arguments(found, spec, (), arguments)
    return _Separate(world, make)


def _load_function(found: Any, spec: PolicySpec, world: WorldSpec) -> MultiAgentPolicy:
    check_parameters(found, spec.kwargs, spec.name, without=(parameters_of(found) or ("",))[:1])
    function = _with_data(found, spec)
    if spec.kwargs or not isinstance(function, FunctionType) or hasattr(function, "reset"):
        # A partial has no reset: one agent's new episode is no reason to reset what all agents share. It costs 0.2 µs a call.
        function = functools.partial(function, **spec.kwargs)
    return FunctionPolicy(world, _Calling(function))


def _offered(found: Any, **values: Any) -> dict[str, Any]:
    """Return those values that there are and that a constructor has arguments for."""
    names = inspect.signature(found).parameters
    return {name: value for name, value in values.items() if name in names and value is not None}


def _with_data(made: Any, spec: PolicySpec) -> Any:
    if spec.data is not None:
        made.load(spec.data)
    return made


def _check_arguments(found: Any, spec: PolicySpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse to build a policy without arguments that it needs."""
    signature = inspect.signature(found)
    given = signature.bind_partial(*args, **kwargs).arguments
    needed = (one for one in signature.parameters.values() if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY})
    missing = [one.name for one in needed if one.default is one.empty and one.name not in given]
    if missing:
        raise UsageError(
            f"a policy needs all arguments of its constructor that have no default, got no {', '.join(missing)} for "
            f"{spec.name!r}; {with_arguments(spec, missing)}"
        )


class _Separate(MultiAgentPolicy):
    """Agents that share nothing that Stretto knows of."""

    def __init__(self, world: WorldSpec, make: Callable[[AgentId], Any]) -> None:
        super().__init__(world)
        self._make = make

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return cast(AgentPolicy, self._make(agent))


class FunctionPolicy(MultiAgentPolicy):
    """A function as the policy of all agents: it is never reset, and is given nothing that it could draw from."""

    def __init__(self, world: WorldSpec, calling: AgentPolicy) -> None:
        super().__init__(world)
        self._calling = calling

    def agent_policy(self, agent: AgentId) -> AgentPolicy:
        return self._calling


class _Function:
    """Stands for any plain function."""

    stateless = True


class _Calling(AgentPolicy):
    """A callable as the policy of one agent."""

    def __init__(self, function: Callable[[Observation], Action]) -> None:
        self._function = function

    @property
    def chooser(self) -> Any:
        """What chooses: it says itself whether it is stateless, or how it is restored."""
        function: Any = self._function
        function = function.func if isinstance(function, functools.partial) else function
        return _Function if isinstance(function, FunctionType) and not hasattr(function, "reset") else function

    def reset(self, rng: np.random.Generator) -> None:
        reset_policy(self._function, rng)

    @property
    def step(self) -> Callable[[Observation], Action]:  # the function itself: a call less a step
        return self._function
