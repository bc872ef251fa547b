"""How one episode is played again, alone: a command line, or, where that has no words for it, a line of Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stretto.core import SEQUENTIAL, SIMULTANEOUS, SPECULATIVE
from stretto.episode_steps import TimeLimits
from stretto.errors import UsageError
from stretto.evaluation.plan import HANG_SECONDS, Entry, Plan
from stretto.missions.mission import Mission
from stretto.policies.spec import PolicySpec, parse_policy


def reproduce(plan: Plan, limits: TimeLimits, mission: Mission, entry: Entry, episode: int, *, apart: bool) -> str:
    """Return a command line that plays an episode again; `apart`: in a process of its own, since that may die or hang.

    The strategy is not in it: it changes no result, and records do not depend on it. A mission or a policy that was given
    in Python has no name on a command line; then it is a call of `evaluate`.
    """
    options: dict[str, Any] = {
        "mix": len(entry.specs) > 1,
        "turns": {SIMULTANEOUS: None, SPECULATIVE: SEQUENTIAL}.get(plan.turns, plan.turns),
        "seed": plan.seed,
        "episode_seeds": None
        if plan.episode_seeds is None
        else [int(one) for one in plan.episode_seeds[: episode + 1]],
        "steps": plan.max_steps,
        "action_timeout_ms": _milliseconds(limits.action_seconds),
        "overage_ms": _milliseconds(limits.overage_seconds or None) if limits.action_seconds else None,
        "hang_seconds": limits.hang_seconds if limits.hang_seconds != HANG_SECONDS else None,
        "native_threads": plan.native_threads if plan.native_threads != 1 else None,
        "device": entry.specs[0].device,
        "deterministic": entry.specs[0].deterministic,
        "jobs": int(apart),
    }
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    if plan.episode_tasks is not None:
        given["tasks"] = _Named("<tasks>")
    if mission.source is None or plan.episode_tasks is not None or not all(map(_has_words, entry.specs)):
        return f"in Python: {_call(mission, entry, episode, given)}"
    words = ["stretto", "eval", *mission.source.words()]
    for spec in entry.specs:
        words += ["-p", spec.text]
    for name, value in {**given, "only": episode}.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join(words)


class _Named(str):
    """Stands in a call for what has to be looked up in the user's program."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 6)


def _has_words(spec: PolicySpec) -> bool:
    """Whether its text, on a command line, means just this policy."""
    try:
        named = parse_policy(spec.text)
    except UsageError:
        return False
    return replace(named, device=spec.device, deterministic=spec.deterministic) == spec


def _call(mission: Mission, entry: Entry, episode: int, given: Mapping[str, Any]) -> str:
    arguments = [f"<mission {mission.name}>"] if mission.source is None else mission.source.arguments()
    first, *changes = arguments
    policies = ", ".join(map(_in_python, entry.specs))
    rest = [f"{name}={value!r}" for name, value in given.items()]
    rest += [f"episodes={episode + 1}", f"only=[{episode}]"]
    return f"stretto.evaluate({', '.join([first, f'[{policies}]', *changes, *rest])})"


def _in_python(spec: PolicySpec) -> str:
    """Return what stands for a policy in a program; in angle brackets what has to be looked up there."""
    if _has_words(spec):
        return repr(spec.text)
    if isinstance(spec.target, str) or not spec.name.isidentifier():
        return f"<policy {spec.name}>"
    plain = replace(spec, device=None, deterministic=False)
    return spec.name if PolicySpec.of(spec.target) == plain else f"<policy {spec.name}>"
