"""The options of `make_vec` that whole rollouts have, too, and which of them they cannot honour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

from stretto.envs.arguments import check_known, check_limits, check_whole, check_words
from stretto.envs.make import make_vec
from stretto.workers.backends import BACKENDS

_OWN = ("id_or_factory", "num_envs", "copy", "tasks", "first_slot", "misplaced")
"""Parameters of `make_vec` that a collection fills in itself."""

_USUAL_LIMIT = 60.0
_LIMITS = {"start_timeout", "reset_timeout", "step_timeout"}

_REPLAYS_ALONE = "replay_limit"
"""It limits what is kept for a replay. Whole rollouts are begun again, for which nothing need be kept."""


@dataclass(frozen=True, slots=True)
class WholeOptions:
    """What `make_vec` calls by these names, for workers that play whole rollouts.

    `limit_seconds` is how long nothing may happen, while a world is made, reset or stepped.
    """

    backend: str = "auto"
    transport: str = "shared"
    workers: int | None = None
    isolate: bool = False
    global_rng: str = "auto"
    checks: str = "first"
    on_crash: str = "replay"
    max_restarts: int = 3
    native_threads: int = 1
    limit_seconds: float | None = _USUAL_LIMIT

    def __post_init__(self) -> None:
        check_words(
            backend=(self.backend, ("auto", *BACKENDS)),
            transport=(self.transport, ("shared", "message")),
            on_crash=(self.on_crash, ("replay", "truncate", "raise")),
            checks=(self.checks, ("first", "always", "off")),
            global_rng=(self.global_rng, ("auto", "private", "shared")),
        )
        check_whole(
            workers=(1 if self.workers is None else self.workers, 1),
            native_threads=(self.native_threads, 1),
            max_restarts=(self.max_restarts, 0),
        )

    @property
    def restarts(self) -> int:
        """How often a rollout is begun again whose worker died."""
        return 0 if self.on_crash == "raise" else self.max_restarts


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what `make_vec` does not have, and what a collection decides itself."""
    known = [name for name in signature(make_vec).parameters if name not in _OWN]
    check_known({name: value for name, value in options.items() if name not in known}, known, "collect")


def whole_options(options: Mapping[str, Any]) -> tuple[WholeOptions, str]:
    """Return the options of whole rollouts, and the one that these cannot honour, or nothing."""
    names = {one.name for one in fields(WholeOptions)}
    limits = {name: options[name] for name in _LIMITS if name in options}
    check_limits(**limits)
    limit = None if None in limits.values() else max(limits.values(), default=_USUAL_LIMIT)
    found = WholeOptions(limit_seconds=limit, **{name: value for name, value in options.items() if name in names})
    defaults = signature(make_vec).parameters
    others = (name for name in options if name not in names | _LIMITS and name != _REPLAYS_ALONE)
    unfit = [f"{name}={options[name]!r}" for name in others if options[name] != defaults[name].default]
    if found.backend == "thread":
        unfit.append("backend='thread'")
    if found.on_crash == "truncate":
        unfit.append("on_crash='truncate'")
    return found, ", ".join(unfit)
