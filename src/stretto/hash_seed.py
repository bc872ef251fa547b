"""The hash seed: it decides in which order a set of strings is walked, and is another in every Python that is started.

Workers have a fixed one, so that all of them agree. Whoever compares worlds in the caller with worlds in workers needs
the same there. Imports nothing heavy: the command line asks before it imports anything else.
"""

from __future__ import annotations

import os
import sys

NAME = "PYTHONHASHSEED"

REMEDY = (
    f"strings have other hashes in this process than in its workers, so that a world that walks over a set of strings goes "
    f"another way here: walk over sorted(...), or start Python with {NAME}=0"
)


def workers_hash_seed() -> str:
    """Return the seed of all workers, of this launcher and of the next: the caller's own, if it was given one."""
    seed = os.environ.get(NAME, "random")
    return "0" if seed in ("", "random") else seed


def differs_here() -> bool:
    """Whether strings have other hashes in this process than in its workers."""
    return bool(sys.flags.hash_randomization) and os.environ.get(NAME) != workers_hash_seed()


def hint() -> str:
    """Return what may explain, and mend, that a world goes another way in a worker; nothing if it is not that."""
    return f"; {REMEDY}" if differs_here() else ""


def take_workers_seed() -> None:
    """Start this program again with its workers' hash seed, unless it has that. The process stays the same one."""
    if differs_here() and not sys.flags.ignore_environment and sys.executable:
        os.environ[NAME] = workers_hash_seed()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
