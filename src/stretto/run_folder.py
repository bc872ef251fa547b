"""RunFolder: the folder that a run is kept in, so that a killed one can go on, and nothing else is taken for it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from stretto.checkpoint import Content, atomic_write_all
from stretto.errors import ResourceError, UsageError
from stretto.identity.installation import installation
from stretto.identity.record import Record, differences
from stretto.missions.identity import identify_mission
from stretto.missions.mission import Mission
from stretto.policies.identity import identify_policy
from stretto.policies.spec import PolicySpec

PLAN = "plan.json"

IDENTITY, CHANGES = "identity", "accepted_changes"
"""Keys of a plan: what everything is, and what was something else when earlier parts of the run were made."""

TIMING, INVOCATIONS = "timing", "invocations"
"""The key of a plan for what two runs of it may differ in, and in there, of each time it was begun or resumed."""

_MOST_CHANGES = 3  # that a sentence names


@dataclass(frozen=True, slots=True)
class RunKind:
    """What a kind of run is called, what it consists of (its `units`), and which command goes on with it.

    A plan has the number of units under their name; it is the one thing in which a run that goes on may ask for more.
    """

    noun: str
    a_noun: str
    units: str
    command: str


class RunFolder:
    """A folder with a plan, which one program at a time writes into.

    Nothing is written before `begin`: a run that is refused until then leaves the folder as it was. `plan` is what
    describes what is in the folder: until `begin`, the plan of the run that goes on.

    Args:
        folder: where; `opening` makes it if it is not there.
        plan: describes the run, in plain values.
        kind: what is kept there.
    """

    def __init__(self, folder: str | Path, plan: Mapping[str, Any], kind: RunKind) -> None:
        self.path, self.kind = Path(folder), kind
        self._now: dict[str, Any] = json.loads(json.dumps(plan))
        self.plan: dict[str, Any] = self._now
        self._lock, self._made = -1, False

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Lock the folder, and let the body see what is there; it is closed again if the body refuses that.

        Raises:
            UsageError: if the folder cannot be written to, or another program does so now.
        """
        try:
            self._made = not self.path.exists()
            self.path.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._lock = locked(self.path)
            yield
        except OSError as error:
            self.close()
            raise UsageError(
                f"{self.kind.a_noun} is kept in a folder that can be written to, got {self.path}: {error.strerror}; "
                f"choose another"
            ) from None
        except BaseException:
            self.close()
            raise

    def check_new(self, *, begun: bool) -> None:
        """Refuse a folder that holds a run already: it has a plan, or something else shows that one was `begun`."""
        if begun or (self.path / PLAN).exists():
            raise UsageError(
                f"{self.path} holds {self.kind.a_noun} that was begun; choose another folder, or go on with --resume "
                f"{self.path}"
            )

    def check_same(self) -> None:
        """Refuse to go on with a run that had another plan; code, weights and versions are looked at in `take_changes`."""
        if self._made:
            raise no_folder(self.path, self.kind)
        self.plan = begun = read_plan(self.path, self.kind)
        noun, units = self.kind.noun, self.kind.units
        if units in self._now and units not in begun:
            raise UsageError(
                f"there is no {noun} to go on with in {self.path}: its {PLAN} is that of another kind of run; choose another "
                f"folder"
            )
        for key in sorted({*begun, *self._now} - {IDENTITY, CHANGES, TIMING}):
            was, wanted = begun.get(key), self._now.get(key)
            if key == units and isinstance(was, int) and isinstance(wanted, int) and was <= wanted:
                continue
            if was != wanted:
                remedy = "ask for as many or more" if key == units else "ask for the same"
                named, was, wanted = _difference(key, was, wanted)
                raise UsageError(
                    f"only the same {noun} can be gone on with, and {named} was {was!r} in {self.path} and is "
                    f"{wanted!r} now; {remedy}, or choose another folder"
                )
        if TIMING in self._now:
            invocations = [*begun.get(TIMING, {}).get(INVOCATIONS, []), *self._now[TIMING][INVOCATIONS]]
            self._now[TIMING] = {INVOCATIONS: invocations}

    def take_changes(self, done: int, *, accepted: bool) -> None:
        """Refuse to go on, after so many units, if code, weights or versions have changed; or put that on record.

        Raises:
            UsageError: if something has changed that was not `accepted`.
        """
        before = self.plan.get(CHANGES, [])
        changes = list(changes_since(self.plan.get(IDENTITY, {}), self._now[IDENTITY])) if IDENTITY in self._now else []
        if changes and not accepted:
            named = "; ".join(changes[:_MOST_CHANGES])
            more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
            raise UsageError(
                f"{self.kind.units} of one {self.kind.noun} must be played by the same code, but since {self.path} was "
                f"begun, {named}{more}; undo that, choose another folder, or go on with --accept-changes (in Python "
                f"accept_changes=True), which the report will say"
            )
        if changes or before:
            now = {self.kind.units: done, "changes": changes}
            self._now[CHANGES] = [*before, *([now] if changes else [])]

    def begin(self, contents: Mapping[str, Content] | None = None) -> None:
        """Write the plan, and other files beside it: from now on this is a run that can be gone on with.

        Raises:
            ResourceError: if it cannot be written.
        """
        files = {self.path / name: content for name, content in (contents or {}).items()}
        try:
            atomic_write_all({**files, self.path / PLAN: json.dumps(self._now, sort_keys=True, indent=1) + "\n"})
        except OSError as error:
            raise self.unwritten("the plan", error, "choose another folder, or make room") from None
        self.plan = self._now

    def unwritten(self, what: str, error: OSError, remedy: str | None = None) -> ResourceError:
        """Return what is raised where something cannot be written, as on a full disk."""
        usual = (
            f"what was written stays good: make room, and go on with stretto {self.kind.command} --resume {self.path}"
        )
        return ResourceError(f"{what} could not be written into {self.path}: {error.strerror}; {remedy or usual}")

    def close(self) -> None:
        """Let others write; leave no folder that has nothing in it. May be called twice."""
        if self._lock >= 0:
            if self._made:
                with suppress(OSError):  # it is not empty
                    self.path.rmdir()
            os.close(self._lock)
        self._lock = -1


def locked(folder: Path) -> int:
    """Return a descriptor that keeps others from writing into a folder until it is closed, or its process ends."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise UsageError(
            f"another program writes into {folder} just now; wait for it, or choose another folder"
        ) from None
    except OSError:  # a file system that knows no locks
        return fd
    return fd


def invoked_now(command: str | None, **more: str) -> dict[str, Any]:
    """Return the `TIMING` of a run that begins now, with the command line that asked for it, if there is one, and more."""
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return {INVOCATIONS: [{"began": began, **({"command": command} if command else {}), **more}]}


def no_folder(folder: Path, kind: RunKind) -> UsageError:
    """Return what is raised where a run should be resumed whose folder is not there."""
    return UsageError(
        f"{kind.a_noun} is resumed from its folder, and {folder} does not exist; name the folder of --out"
    )


def read_plan(folder: Path, kind: RunKind) -> dict[str, Any]:
    """Return what describes the run that was begun in a folder.

    Raises:
        UsageError: if there is none, or it is damaged.
    """
    try:
        plan = json.loads((folder / PLAN).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        plan = None
    if not _is_plan(plan):
        raise UsageError(
            f"{kind.a_noun} has a readable {PLAN}, and {folder} has none; put it back from a copy, or begin again in another "
            f"folder"
        )
    return cast(dict[str, Any], plan)


def _is_plan(plan: Any) -> bool:
    if not isinstance(plan, dict):
        return False
    mappings, lists = [plan.get(TIMING, {}), plan.get(IDENTITY, {})], [plan.get(CHANGES, [])]
    if isinstance(mappings[0], dict):
        lists.append(mappings[0].get(INVOCATIONS, []))
    return all(isinstance(one, dict) for one in mappings) and all(isinstance(one, list) for one in lists)


# --- identity -------------------------------------------------------------------------------------------------


def identity_of(missions: Iterable[Mission], policies: Iterable[PolicySpec]) -> dict[str, Any]:
    """Return what everything is that results depend on, in plain values."""
    found: dict[str, Record] = {}
    for spec in policies:
        record, name, count = identify_policy(spec), spec.name, 1
        while found.setdefault(name, record) != record:  # functions of one name
            count += 1
            name = f"{spec.name} ({count})"
    return {
        "missions": {mission.name: identify_mission(mission) for mission in missions},
        "policies": found,
        "installation": installation(),
    }


def changes_since(begun: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield, in words, what is something else now than in the identity that a run was begun with."""
    if not begun:
        yield "what it was begun with is not on record"
        return
    for part, whose in (("missions", "the mission "), ("policies", "the policy ")):
        for name in now[part]:
            for change in differences(begun.get(part, {}).get(name, {}), now[part][name]):
                yield f"of {whose}{name}, {change}"
    yield from differences({"installation": begun.get("installation", {})}, {"installation": now["installation"]})


def changes_told(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each time that a run was gone on with although something had changed."""
    for one in plan.get(CHANGES, []):
        ((units, done),) = ((key, value) for key, value in one.items() if key != "changes")
        yield f"after {done} {units} it went on with changes: {'; '.join(one['changes'])}"


def _difference(key: str, was: Any, wanted: Any) -> tuple[str, Any, Any]:
    """Return where two values differ, with dots for what is inside, and what is there; of several places the first."""
    if isinstance(was, Mapping) and isinstance(wanted, Mapping):
        for inner in sorted({*was, *wanted}):
            if was.get(inner) != wanted.get(inner):
                return _difference(f"{key}.{inner}", was.get(inner), wanted.get(inner))
    return key, was, wanted
