"""A mission: a world to be played, how it is made, and what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stretto.missions.cogames import PROGRAM as COGAMES
from stretto.missions.makers import FactoryMaker, Maker
from stretto.settings import settings_text

_OPTIONS = ("cogs", "map_seed")
"""The keyword arguments that have an option of the command line."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a user wrote for a mission: its name, perhaps with settings, and the changes that were asked for beside it."""

    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    variants: tuple[str, ...] = ()
    allow_import: bool = False

    def words(self) -> list[str]:
        """Return the options of `stretto eval`."""
        settings = {f"kw.{name}": value for name, value in self.kwargs.items() if name not in _OPTIONS}
        words = ["-m", settings_text(self.name, settings)]
        for variant in self.variants:
            words += ["--variant", variant]
        for name in _OPTIONS:
            if name in self.kwargs:
                words += [f"--{name.replace('_', '-')}", str(self.kwargs[name])]
        return words + (["--allow-import"] if self.allow_import else [])

    def arguments(self) -> list[str]:
        """Return the arguments of `stretto.evaluate`, the mission first."""
        changes = [f"variants={list(self.variants)!r}"] if self.variants else []
        changes += [f"{name}={self.kwargs[name]!r}" for name in _OPTIONS if name in self.kwargs]
        if others := {name: value for name, value in self.kwargs.items() if name not in _OPTIONS}:
            changes.append(f"env_kwargs={others!r}")
        return [repr(self.name), *changes]


@dataclass(frozen=True, slots=True)
class Mission:
    """A world to be played, and under which name. `make` is called in whichever process plays it.

    Episodes follow from the name and the seed of an evaluation, so the name must not depend on where code lies.
    `source` says how a user asked for it; a mission that was made in Python has none. `program` is the one whose mission it
    is, if that has policies of its own.
    """

    name: str
    make: Maker
    summary: str = field(default="", compare=False)
    max_steps: int | None = None
    has_default_action: bool = False
    default_action: Any = None
    details: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = field(default=None, compare=False)
    program: str = ""

    def lasting(self, steps: int | None) -> Mission:
        """Return the mission whose world knows that its episodes end after so many steps, if it can be told that."""
        if steps is None or self.program != COGAMES or not isinstance(self.make, FactoryMaker):
            return self
        told = {"max_steps": steps}
        make = replace(self.make, kwargs={**self.make.kwargs, **told})
        return replace(self, make=make, details={**self.details, **told})

    def make_with(self, render_mode: str | None) -> Maker:
        """Return what makes the world so that it can be looked at, if it can."""
        rendering = getattr(self.make, "rendering", None)
        made: Maker = self.make if render_mode is None or rendering is None else rendering(render_mode)
        return made


def program_of(missions: Iterable[Mission]) -> str:
    """Return the program whose missions all of these are, or nothing if there is no such program."""
    programs = {mission.program for mission in missions}
    return programs.pop() if len(programs) == 1 else ""
