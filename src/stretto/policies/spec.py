"""From what a user writes to a spec: which policy, and how to build it, in a form that travels to workers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from stretto.errors import UsageError
from stretto.identity.source import find_module
from stretto.importing import not_importable
from stretto.missions import cogames
from stretto.policies.foreign import FILES, is_sb3_file, is_sb3_model, is_torch_module, saved_model
from stretto.policies.registry import FORMS, is_known, registered
from stretto.registry import near
from stretto.settings import parse_settings

STRATEGIES = ("sequential", "threads", "processes", "batched", "adaptive")
DEFAULT_STRATEGY = "adaptive"

TRAINED = "stretto.policies.trained:Trained"
"""What plays the agents of a training run."""

_KEYS = ("name", "data", "proportion", "strategy")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which policy, and how to build it; small, and the same in every process.

    `name` labels results: what the user wrote, or what `name=` in it says. `target` is `module:Class`,
    `/absolute/file.py:Class`, or the class or callable itself. `proportion` is the policy's share of the agents in a mix.
    `device` is given to a policy whose constructor takes one, and `deterministic` is asked of torch in every process that
    loads it. `text` is what the user wrote for it on a command line, if that was anything. `any_data`: the policy's own code
    reads its data, whatever kind of file that is.
    """

    name: str
    target: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    data: str | None = None
    proportion: float = 1.0
    strategy: str | None = None
    device: str | None = None
    deterministic: bool = False
    text: str = field(default="", compare=False)
    any_data: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.proportion) and self.proportion > 0):
            raise UsageError(f"proportion must be a number above 0, got {self.proportion}; leave it out for 1")
        if self.strategy is not None and self.strategy not in STRATEGIES:
            raise UsageError(
                f"strategy must be one of {', '.join(STRATEGIES)}, got {self.strategy!r}{near(self.strategy, STRATEGIES)}"
            )
        suffix = Path(self.data or "").suffix
        known = self.any_data or suffix == ".safetensors" or FILES.get(suffix) == self.target
        if self.data is not None and not known:
            raise UsageError(
                f"data must be a .safetensors file, since others (pickles) can run code when they are loaded, "
                f"got {self.data!r}; save the weights with safetensors"
            )

    @classmethod
    def of(cls, policy: Any, program: str = "") -> PolicySpec:
        """Return the spec of a text, of a run's folder, of a policy's class, or of a callable `observation -> action`.

        A callable is shared by all agents of a worker: what it returns may depend on the observation alone.
        """
        if isinstance(policy, PolicySpec):
            return policy
        if isinstance(policy, (str, Path)):
            return parse_policy(str(policy), program=program)
        name = getattr(policy, "__name__", type(policy).__name__)
        if is_sb3_model(policy):
            return cls(name, FILES[".zip"], {"content": saved_model(policy)})
        kind_of(policy, name)
        return cls(name, policy)


def find_policies(policies: Any, program: str = "") -> list[PolicySpec]:
    """Return the specs of a policy or of a list of them: texts, classes, functions or specs.

    Where all missions are of one `program`, texts mean what they mean there, if they mean anything.
    """
    several = policies if isinstance(policies, (list, tuple)) else [policies]
    return [PolicySpec.of(one, program) for one in several]


class PolicyKind(Enum):
    """What the code of a policy is."""

    TEAM = auto()  # a class with agent_policy: what agents share
    MODULE = auto()  # a module of torch, or a class of such
    AGENT = auto()  # a class with step or __call__: one agent in one episode
    FUNCTION = auto()  # from observation to action


def kind_of(found: Any, name: str) -> PolicyKind:
    """Say what kind of policy `found` is; anything else is refused."""
    if is_torch_module(found) and not hasattr(found, "agent_policy"):
        return PolicyKind.MODULE
    if not isinstance(found, type):
        if callable(found) and not hasattr(found, "agent_policy"):
            return PolicyKind.FUNCTION
    elif hasattr(found, "agent_policy"):
        return PolicyKind.TEAM
    elif hasattr(found, "step") or any("__call__" in vars(base) for base in found.__mro__):
        return PolicyKind.AGENT
    remedy = f"pass such a class or function, or a text: {FORMS}"
    if not isinstance(found, type) and (hasattr(found, "step") or hasattr(found, "agent_policy")):
        kind = type(found).__name__
        remedy = f"pass {kind} itself, or the text 'class=file.py:{kind},kw.x=1' if it takes arguments, or a function"
    raise UsageError(
        f"a policy is a class with agent_policy, step or __call__, or a function from observation to action, "
        f"got {name!r}, {'a class without any' if isinstance(found, type) else f'an object of {type(found).__name__}'}; "
        f"{remedy}"
    )


def with_arguments(spec: PolicySpec, missing: Sequence[str]) -> str:
    """Say how to give a policy arguments that it lacks."""
    settings = "".join(f",kw.{name}=..." for name in missing)
    if isinstance(spec.target, str):
        return f"write {spec.text or spec.target}{settings}"
    return f"write 'class=file.py:{getattr(spec.target, '__name__', 'Class')}{settings}', or give them defaults"


def parse_policy(text: str, *, allow_import: bool = True, program: str = "") -> PolicySpec:
    """Return what `text` names: a known name, `pkg.module:Class` or `file.py:Class`, perhaps with settings behind it.

    A folder of a training run is its newest checkpoint; `folder#agent` is one agent of it, whom all agents act like.
    Files are looked up from the current folder. Values of `kw.` are Python literals where they can be, else text.
    Without `allow_import` only known names pass, so that a file from elsewhere cannot have code run.
    """
    label = text.strip()
    if program == cogames.PROGRAM and allow_import and (found := _of_cogames(label)) is not None:
        return found
    settings = parse_settings(label, "policy", "class", _KEYS)
    values = settings.values
    try:
        proportion = float(values.get("proportion", 1))
    except ValueError:
        raise UsageError(f"proportion must be a number above 0, got {values['proportion']!r} in {label!r}") from None
    kwargs, data = dict(settings.kwargs), values.get("data")
    if (run := _trained(settings.name)) is not None:
        target, agent, data = run
        kwargs |= agent
    elif (file := _network_file(settings.name, allow_import)) is not None:
        target, data = file
    else:
        try:
            target = _target(settings.name, allow_import)
        except UsageError as error:
            offered = near(settings.name, cogames.policy_names()) if program == cogames.PROGRAM else ""
            raise UsageError(f"{error}{offered and f'{offered} (of cogames)'}") from None
    spec = PolicySpec(
        values.get("name", label),
        target,
        kwargs,
        None if data is None else _absolute(data),
        proportion,
        values.get("strategy"),
        text=label,
    )
    if spec.data is not None:
        _check_exists(spec.data, "data")
    return spec


def _of_cogames(label: str) -> PolicySpec | None:
    """Return what a text means to cogames, if anything; two settings beside its own are ours."""
    ours, theirs = dict[str, str](), list[str]()
    for item in label.split(","):
        key, _, value = item.partition("=")
        if key.strip() in ("name", "strategy") and value:
            ours[key.strip()] = value.strip()
        else:
            theirs.append(item)
    found = cogames.find_policy(",".join(theirs), None)
    if found is None:
        return None
    name, strategy = ours.get("name", label), ours.get("strategy")
    return PolicySpec(
        name, found.target, found.kwargs, found.data, found.proportion, strategy, text=label, any_data=True
    )


def _trained(name: str) -> tuple[str, dict[str, Any], str] | None:
    """Return target, arguments and weights of `FOLDER` or `FOLDER#agent`; `None` if that is no folder."""
    folder, _, agent = name.partition("#")
    if not folder or is_known(name) or not Path(folder).expanduser().is_dir():
        return None
    from stretto.policies.torch_settings import torch_installed
    from stretto.run_checkpoints import POLICIES, newest_checkpoint

    if not torch_installed():
        raise UsageError(
            f"agents that have learned need torch, which is not installed, got {name}; run pip install 'stretto[train]'"
        )
    files = newest_checkpoint(Path(folder).expanduser(), only=(POLICIES,))
    return TRAINED, {"agent": agent} if agent else {}, str(files[POLICIES])


def _network_file(name: str, allow_import: bool) -> tuple[str, str] | None:
    """Return what plays by a network in a file, and the file; `None` if a text names none."""
    target = FILES.get(Path(name).suffix)
    if target is None or is_known(name):
        return None
    _check_exists(_absolute(name), "the file of a policy")
    if Path(name).suffix == ".zip" and not is_sb3_file(_absolute(name)):
        raise UsageError(f"a policy in a .zip file is a model that Stable-Baselines3 has saved, and {name} is none")
    if not allow_import and Path(name).suffix != ".onnx":
        raise UsageError(
            f"a policy that a file names must be a known name, since others can run code when they are loaded, got "
            f"{name!r}; pass --allow-import if you trust the file"
        )
    return target, name


def _target(name: str, allow_import: bool) -> str:
    """Return `module:Class` or `/absolute/file.py:Class`."""
    where, colon, attribute = name.rpartition(":")
    if not colon:
        return registered(name)
    if not allow_import:
        raise UsageError(
            f"a policy that a file names must be a known name, since others import code, got {name!r}; "
            f"pass --allow-import if you trust the file"
        )
    if not all(part.isidentifier() for part in attribute.split(".")):
        raise UsageError(
            f"a class stands after the last colon of a policy, got {name!r}; write {where or 'module'}:Class"
        )
    if where.endswith(".py"):
        _check_exists(_absolute(where), "the file of a policy")
        return f"{_absolute(where)}:{attribute}"
    if not all(part.isidentifier() for part in where.split(".")):
        raise UsageError(f"a policy is {FORMS}; got {name!r}, where {where!r} names no module and no .py file")
    # Workers also look for modules beside the files that they load. What only they would find is on no record.
    if where not in sys.modules and find_module(where) is None:
        raise not_importable(where, "policy")
    return name


def _absolute(path: str) -> str:
    # A worker may run in another folder.
    return str(Path(path).expanduser().resolve())


def _check_exists(path: str, role: str) -> None:
    if not Path(path).is_file():
        raise UsageError(f"{role} must exist, got {path}; write a path from the current folder, or an absolute one")
