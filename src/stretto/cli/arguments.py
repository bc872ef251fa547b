"""What was asked for on a command line, kept in the folder of a run, so that `--resume DIR` alone goes on with it.

What a command asks for is a frozen dataclass, each of whose fields has the name of an option, and its default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from stretto.checkpoint import atomic_write
from stretto.errors import ResourceError, UsageError
from stretto.plain_records import record_from
from stretto.run_folder import RunKind, no_folder

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ARGUMENTS = "arguments.json"

A = TypeVar("A", bound="DataclassInstance")


def asked_for(form: type[A], context: typer.Context, values: Mapping[str, Any], kind: RunKind) -> A:
    """Return what options ask for; with `--resume` and no mission or policy, what was asked for in that folder.

    Values that are None were not given.
    """
    names = [one.name for one in fields(form)]
    asked = form(**{name: values[name] for name in names if values[name] is not None})
    if values["resume"] is None or values["mission"] or values["policy"]:
        return asked
    now = {name: getattr(asked, name) for name in names if is_given(context, name)}
    return replace(begun_with(form, values["resume"], kind), **now)


def is_given(context: typer.Context, option: str) -> bool:
    """Whether an option stands on the command line, be it with its default."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def begun_with(form: type[A], folder: Path, kind: RunKind) -> A:
    """Return what was asked for in the run that was begun in a folder."""
    if not folder.exists():
        raise no_folder(folder, kind)
    try:
        return record_from(form, json.loads((folder / ARGUMENTS).read_bytes()))
    except (OSError, ValueError, RecursionError):
        raise UsageError(
            f"--resume alone needs a readable {ARGUMENTS}, and {folder} has none; name the missions and policies of the "
            f"{kind.noun} again, beside --resume {folder}"
        ) from None


def keep_arguments(asked: DataclassInstance, folder: Path, kind: RunKind, *, resume: bool) -> None:
    """Write what is asked for into a folder; where a run goes on, only its number of units changes there."""
    kept = asked
    if resume:
        with suppress(UsageError):  # what is damaged, or was not there, is written anew
            kept = replace(begun_with(type(asked), folder, kind), **{kind.units: getattr(asked, kind.units)})
    try:
        atomic_write(folder / ARGUMENTS, json.dumps(asdict(kept), indent=1) + "\n")
    except OSError as error:
        raise ResourceError(f"{folder / ARGUMENTS} could not be written: {error.strerror}; make room") from None
