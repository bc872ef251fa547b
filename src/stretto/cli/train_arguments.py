"""What `stretto train` is asked for; and what a run was begun with, so that `--resume DIR` alone goes on with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import typer

from stretto.cli.arguments import begun_with, is_given
from stretto.errors import UsageError
from stretto.missions.mission import Mission
from stretto.missions.resolve import find_missions
from stretto.run_folder import RunKind
from stretto.training.config import config_of, plain, read_config, settings_of
from stretto.training.settings import Config

A = TypeVar("A", bound="Asked")

IN_ONE_THREAD: dict[str, Any] = {
    "parallel": {"enabled": False, **dict.fromkeys(("parallel_training", "num_workers", "use_threads"))},
    "learner_set": None,
}
"""The settings that `--debug` puts in place of others; weights are the same."""


@dataclass(frozen=True)
class Asked:
    """A mission, a seed and all settings of a run, as plain values. Fields have the names of options.

    `steps` are apart from the other settings: a run may go on with more.
    """

    mission: str | None = None
    variant: list[str] = field(default_factory=list)
    cogs: int | None = None
    map_seed: int | None = None
    max_steps: int | None = None
    seed: int = 0
    data: str | None = None
    steps: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def missions(self, *, allow_import: bool) -> list[Mission]:
        """Return the mission that is named."""
        if not self.mission:
            raise UsageError("a mission (-m) is needed; see: stretto missions")
        of_world: dict[str, Any] = {"cogs": self.cogs, "variants": self.variant, "map_seed": self.map_seed}
        return find_missions([self.mission], allow_import=allow_import, **of_world)

    def settled(self, mission: Mission, layers: Sequence[Mapping[str, Any]]) -> tuple[Self, Config]:
        """Return all settings, with layers over those that a run was begun with, and what is asked for with them."""
        before = {**self.config, "steps": self.steps} if self.config else {}
        settled = config_of(mission.name, before, *layers)
        config = {name: value for name, value in plain(settled).items() if name != "steps"}
        return replace(self, config=config, steps=settled.steps), settled


def asked_with(
    context: typer.Context, values: Mapping[str, Any], resume: Path | None, form: type[A], kind: RunKind
) -> A:
    """Return what options ask for beside settings; with `--resume` and no mission, over what that run was begun with."""
    names = [one.name for one in fields(form) if one.name not in ("steps", "config")]
    given = {name: values[name] for name in names if name in values and is_given(context, name)}
    if resume is None or values["mission"]:
        return form(**given)
    return replace(begun_with(form, resume, kind), **given)


def layers_of(values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings that options give, in the order in which they count: a file, `--set`, and options of their own."""
    names = {"learner": "learner", "steps": "steps", "envs": "num_envs", "turns": "turns", "device": "device"}
    given: dict[str, Any] = {key: values[name] for name, key in names.items() if values.get(name) is not None}
    if values["eval_every"] is not None:
        given["evaluation"] = {"every": values["eval_every"]}
    file = {} if values["config"] is None else read_config(values["config"])
    layers: list[Mapping[str, Any]] = [file, settings_of(values["settings"] or ()), given]
    return [*layers, IN_ONE_THREAD] if values.get("debug") else layers
