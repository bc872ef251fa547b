"""Every exception and warning that Stretto raises.

StrettoError
├── UsageError (ValueError)      the caller asked for something that cannot be
│   ├── InvalidLayout            numbers of workers and environments that do not fit
│   ├── InvalidSpace             spaces that differ between slots, or have no batch
│   ├── InvalidAction            an action that its space does not contain
│   ├── LateImport               torch was imported by a call that drew from it at once
│   └── DamagedCheckpoint        a file or folder is not what was written
├── ClosedError                  used after close(); also gymnasium's ClosedEnvironmentError
├── ResetNeeded                  stepped where only a reset can go on; also gymnasium's ResetNeeded
├── ResourceError                the machine has too little memory, processes or descriptors
├── SnapshotHeld                 experience could not be written in time, because a snapshot still needs the old
├── WorldError                   the world (or a function run beside it) is at fault; has a `place`
│   ├── WorldFailed              it raised; the remote traceback is in the message
│   ├── WorldHung                it did not answer within its limit; its stack is in the message
│   └── InvalidOutput            it returned what its space does not allow
├── PolicyError                  a policy is at fault; has the number of the `policy` and the `agent`
│   ├── PolicyFailed             it raised
│   ├── PolicyOverdue            it struck its deadline
│   └── PolicyLost               the process that it ran in died, or hung and was ended
└── WorkerError
    ├── WorkerDied               a process exited, again and again or with on_crash="raise"
    └── LauncherFailed           processes cannot be started at all

StrettoWarning (UserWarning)
├── SlotTruncated                an episode was lost with its worker
├── GlobalsChanged               a global that worlds read has changed, and only some slots see it
├── FewerWorkers                 the machine allows fewer workers than were asked for
├── NodeLeftOut                  a node of a cluster computes differently, and is not used
├── ReadAsOldGym                 a world has the API of old gym; how it is read
├── LearnerStopped               an agent's loss is not finite; it learns no more
└── BlocksMatter                 bits depend on which agents are computed together
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import gymnasium


@dataclass(frozen=True, slots=True)
class Place:
    """Where something happened; `None` where it does not apply."""

    doing: str
    worker: int | None = None
    slot: int | None = None
    mission: str | None = None
    policy: str | None = None
    agent: str | None = None
    episode: int | None = None
    step: int | None = None
    seed: int | None = None
    node: str | None = None  # of a cluster

    def __str__(self) -> str:
        names = ("slot", "worker", "node", "mission", "policy", "agent", "episode", "step", "seed")
        known = [f"{name} {value}" for name in names if (value := getattr(self, name)) is not None]
        return f"while {self.doing} ({', '.join(known)})" if known else f"while {self.doing}"

    @property
    def label(self) -> str:
        """What stands before a line that was printed there: the slot; or the mission, the policy and the episode."""
        where = [] if self.node is None else [f"node {self.node}", f"worker {self.worker}"]
        if self.slot is not None:
            return f"[{', '.join([*where, f'slot {self.slot}'])}] "
        episode = None if self.episode is None else f"episode {self.episode}"
        known = [part for part in (*where, self.mission, self.policy, episode) if part is not None]
        return f"[{', '.join(known)}] " if known else ""


class StrettoError(Exception):
    """The root of all that Stretto raises; the first of its arguments is the message."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UsageError(StrettoError, ValueError):
    """A value that cannot work; the message has the rule, the value and the remedy."""


class InvalidLayout(UsageError):
    """Numbers of environments and workers that do not fit together."""


class InvalidSpace(UsageError):
    """Spaces that differ between slots, or that cannot be batched."""


class InvalidAction(UsageError):
    """An action that its space does not contain; nothing was sent. `slot` is whose it was, if that is known."""

    slot: int | None = None


class LateImport(UsageError):
    """A call imported torch and drew from it at once: its numbers would depend on what else runs in the process."""


class DamagedCheckpoint(UsageError):
    """A file or a folder that is not what was written: another one, such as the checkpoint before, may be whole."""


class ClosedError(StrettoError, gymnasium.error.ClosedEnvironmentError):
    """The object was used after `close()`."""


class ResetNeeded(StrettoError, gymnasium.error.ResetNeeded):
    """The state is unknown after a failure or an interruption; only `reset()` or `close()` can go on."""


class ResourceError(StrettoError):
    """The machine has too little of something, and doing with less would not work."""


class SnapshotHeld(StrettoError):
    """A snapshot still needs what new experience would overwrite; nothing was written, so it can be tried again."""


class WorldError(StrettoError):
    """A world is at fault; `place` says which one and when."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message, place)
        self.message, self.place = message, place


class WorldFailed(WorldError):
    """A world raised; `remote_traceback` is the text of its traceback."""

    def __init__(self, message: str, place: Place, remote_traceback: str = "") -> None:
        super().__init__(message, place)
        self.args = (message, place, remote_traceback)
        self.remote_traceback = remote_traceback


class WorldHung(WorldError):
    """A world did not answer in time; `stack` is where its Python code stood."""

    def __init__(self, message: str, place: Place, stack: str = "") -> None:
        super().__init__(message, place)
        self.args = (message, place, stack)
        self.stack = stack


class InvalidOutput(WorldError):
    """A world returned a value that its space does not allow."""


class PolicyError(StrettoError):
    """A policy is at fault: number `policy` of those that were given, when it acted for `agent` in `episode`, if known."""

    episode: Hashable = None

    def __init__(self, message: str, policy: int, agent: str) -> None:
        super().__init__(message, policy, agent)
        self.policy, self.agent = policy, agent


class PolicyFailed(PolicyError):
    """A policy raised; `raised` is the name of what it raised and the text of its traceback, in whichever process.

    If it acted for several agents `together`, it may have been any of them, and `agent` is the first.
    """

    together = False

    def __init__(self, message: str, policy: int, agent: str, raised: tuple[str, str] | None = None) -> None:
        super().__init__(message, policy, agent)
        self._raised = raised

    @property
    def raised(self) -> tuple[str, str]:
        """The class and the traceback of what the policy raised."""
        if self._raised is None:
            cause = self.__cause__ or self
            self._raised = type(cause).__name__, users_traceback(cause)
        return self._raised

    def __reduce__(self) -> tuple[Any, ...]:
        # A cause is not pickled with an exception.
        arguments = self.args[0], self.policy, self.agent, self.raised
        return type(self), arguments, {name: value for name, value in vars(self).items() if name != "_raised"}


class PolicyOverdue(PolicyError):
    """A policy struck its deadline."""


class PolicyLost(PolicyError):
    """The process that a policy ran in died, or hung and was ended: from the start of the episode it may work."""


class WorkerError(StrettoError):
    """A worker, not the code in it, is at fault."""


class WorkerDied(WorkerError):
    """A worker's process exited and was not, or could not be, recovered; `ended` says how."""

    def __init__(self, message: str, place: Place, restarts: int = 0, ended: str = "") -> None:
        super().__init__(message, place, restarts, ended)
        self.message, self.place, self.restarts, self.ended = message, place, restarts, ended


class LauncherFailed(WorkerError):
    """The process that starts the workers could not be started."""


class StrettoWarning(UserWarning):
    """The root of all warnings of Stretto."""


class SlotTruncated(StrettoWarning):
    """An episode could not be recovered after its worker died, and was truncated."""


class GlobalsChanged(StrettoWarning):
    """A value that worlds read has changed since they were made: the caller's share sees it, and workers do not."""


class NodeLeftOut(StrettoWarning):
    """A node of a cluster does not give the same numbers as the others, or has other code; it is not used."""


class FewerWorkers(StrettoWarning):
    """The machine allows fewer workers than were asked for; results are the same."""


class WorldCarriesOver(StrettoWarning):
    """A world carries something from one episode into the next, so that results depend on who played in it before."""


class CheckpointSkipped(StrettoWarning):
    """A checkpoint is damaged, or could not be written; the one before it counts."""


class BlocksMatter(StrettoWarning):
    """On this machine, the last bits of what an agent learns depend on which agents are computed together."""


class LearnerStopped(StrettoWarning):
    """An agent learns no more, because its loss is not finite; the others go on."""


class NotResumable(StrettoWarning):
    """A run has something that cannot be saved exactly in the middle of an episode; nobody can go on with it."""


class RunsHere(StrettoWarning):
    """Something that was to run in another process cannot be sent there, and runs in the caller's."""


class TurnsInOrder(StrettoWarning):
    """Agents of a policy cannot choose before it is their turn, because they could not choose again; results are the same."""


class SaidOnce(StrettoWarning):
    """What every process that makes a world would say; it is said once, and with no slot."""


class ReadAsOldGym(SaidOnce):
    """A world has the API of old gym, and this is how it is read."""


_said: set[str] = set()


def is_news(message: str) -> bool:
    """Whether this was not said before in this process; it counts as said from now on."""
    if message in _said:
        return False
    _said.add(message)
    return True


def warn_once(message: str, category: type[SaidOnce]) -> None:
    """Warn, pointing at the code that called Stretto, unless that was said before."""
    if is_news(message):
        warnings.warn(message, category, stacklevel=user_stacklevel() + 1)


def users_traceback(error: BaseException) -> str:
    """Return the text of a traceback without our calls that led there: these depend on how an episode is played.

    Ours are those of modules that call users' code, which say so themselves: `__calls_user_code__ = True`.
    """
    found = error.__traceback__
    while found is not None and found.tb_frame.f_globals.get("__calls_user_code__"):
        found = found.tb_next
    return "".join(traceback.format_exception(type(error), error, found or error.__traceback__))


def user_stacklevel() -> int:
    """Return the `stacklevel` with which a warning points at the code that called Stretto, however deep it comes from."""
    level = 0
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  inspect.currentframe would do the same, slower
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "stretto":
        level, frame = level + 1, frame.f_back
    return level


_SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS}  # descriptors
    | {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EFBIG, errno.EDQUOT}  # processes and memory
)


@contextmanager
def resources(what: str) -> Iterator[None]:
    """Turn a lack of descriptors, processes or memory in the body into a `ResourceError`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise ResourceError(
            f"{what} would take more descriptors, processes or memory than the system allows ({os.strerror(error.errno)}); "
            f"use fewer workers or environments, or raise the limit (see `ulimit -a`)"
        ) from None
