"""The command `stretto`: its subcommands, and what becomes of errors and of Ctrl-C."""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import gymnasium
import typer

import stretto
from stretto.cli.options import BAD_USAGE, DONE, FAILED, INTERRUPTED, RENAMED
from stretto.cli.text import say, users_frames
from stretto.errors import InvalidAction, PolicyFailed, StrettoError, UsageError

# Typer either brings a copy of click or uses the one installed; its errors are reached through the one it exports.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_BadCommandLine: Any = typer.BadParameter.__base__

COMMANDS = {
    "eval": "stretto.cli.eval:evaluate_command",
    "collect": "stretto.cli.collect:collect_command",
    "train": "stretto.cli.train:train_command",
    "sweep": "stretto.cli.sweep:sweep_command",
    "report": "stretto.cli.runs:report_command",
    "compare": "stretto.cli.runs:compare_command",
    "missions": "stretto.cli.missions:missions_command",
    "policies": "stretto.cli.policies:policies_command",
    "describe": "stretto.cli.describe:describe_command",
    "play": "stretto.cli.play:play_command",
    "verify": "stretto.cli.verify:verify_command",
    "bench": "stretto.cli.bench:bench_command",
}
"""Each in a module of its own, which imports what it needs."""


def make_app(word: str = "") -> typer.Typer:
    """Return the application: with this command alone, or with all of them if the word is no command."""
    app = typer.Typer(
        name="stretto",
        help="Reinforcement-learning worlds in parallel, with the same answer at any width.",
        add_completion=False,
        no_args_is_help=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in [word] if word in COMMANDS else COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        app.command(name)(getattr(importlib.import_module(module), function))
    app.callback(invoke_without_command=True)(_root)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"stretto {stretto.__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 something failed, 2 bad usage, 130 interrupted."""
    try:
        words = list(_with_values(sys.argv[1:] if arguments is None else arguments))
        code = make_app(words[0] if words else "")(args=words, prog_name="stretto", standalone_mode=False, obj=words)
        sys.stdout.flush()
    except _BadCommandLine as error:
        message = error.format_message().rstrip(".")
        if (renamed := RENAMED.get(getattr(error, "option_name", ""))) is not None:
            message = f"No such option: {error.option_name} (it is called {renamed})"
        return _say(f"{message}{' See' if message.endswith('?') else '; see'}: {_help_of(error)}", BAD_USAGE)
    except InvalidAction as error:  # of the user's policy: the command was right
        return _say(_with_notes(error), FAILED)
    except (UsageError, gymnasium.error.Error) as error:
        return _say(_with_notes(error), BAD_USAGE)
    except StrettoError as error:
        say(f"stretto: {_with_notes(error)}")
        if isinstance(error, PolicyFailed):
            print(users_frames(error), end="", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception as error:
        if hasattr(error, "place"):
            say(
                f"stretto: code of a mission or a policy raised {type(error).__name__}: {_with_notes(error, error.place)}"
            )
            print(users_frames(error), end="", file=sys.stderr)
        elif isinstance(error, BrokenPipeError):
            # Whoever read our output has enough; nothing more can be said there, not even when the interpreter flushes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif isinstance(error, OSError) and error.errno in _FULL:
            where = error.filename or "a file, or what this command prints"
            say(f"stretto: {where} could not be written: {error.strerror}; make room, and run the command again")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter would try it again
        else:
            raise  # a mistake of ours
        return FAILED
    return _say("interrupted", INTERRUPTED) if code == INTERRUPTED else int(code or DONE)


def _with_values(words: list[str]) -> Iterator[str]:
    """Give `--trace` an empty value where it has none: the parser knows only options that never or always have one."""
    for word, following in itertools.pairwise([*words, "-"]):
        yield f"{word}=" if word == "--trace" and following.startswith("-") else word


def _with_notes(error: BaseException, place: object = "") -> str:
    """Return what an error says, its place, and what was noted of it in a few words, such as "in rollout 3"."""
    told = f"{error} {place}".rstrip()
    notes = dict.fromkeys(one for one in getattr(error, "__notes__", ()) if "\n" not in one and one not in told)
    return "; ".join([told, *notes])


def _help_of(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "stretto"
    return f"{path} --help"


def _say(text: str, code: int) -> int:
    say(f"stretto: {text}")
    return code
