"""Sending what worlds return to another process, and saying whose it is if that cannot be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from stretto.envs.infos import Table
from stretto.envs.messages import Extras
from stretto.spaces import SpaceLayout
from stretto.workers.base import Reply
from stretto.workers.mail import Mail, dump


class BlamingMail:
    """A worker's mail that calls `blame(value, error)` with an answer that could not be sent.

    A pickle of all slots' infos says what is wrong with one of them, but not with whose: only who looks at each finds out.
    """

    def __init__(self, mail: Mail, blame: Callable[[object, Exception], None]) -> None:
        self._mail, self._blame = mail, blame

    def send(self, value: object, number: int = 0) -> None:
        try:
            self._mail.send(value, number)
        except Exception as error:
            if isinstance(value, Reply):
                self._blame(value.value, error)
            raise

    def receive(self, number: int) -> Any:
        return self._mail.receive(number)


def parts_of(extras: Extras, observations: SpaceLayout) -> Iterator[tuple[int, str, Any]]:
    """Yield all that may not be picklable in what a reset or a step has to say: slot, name and value."""
    if not isinstance(extras.infos, Table):
        for slot, info in extras.infos or ():
            yield slot, "info", info
    for leaf, slot, value in extras.objects:
        yield slot, f"observation{observations.loose[leaf].name}", value


def unpicklable(name: str, value: Any, depth: int = 8) -> tuple[str, Exception] | None:
    """Return the name of the innermost part of a value that cannot be pickled, and why; `None` if all of it can.

    Parts of parts are looked at down to `depth`: a value may contain itself.
    """
    try:
        dump(value)
    except Exception as error:  # noqa: BLE001  anything may happen in a foreign __reduce__
        for key, part in _parts(value) if depth else ():
            found = unpicklable(f"{name}[{key!r}]", part, depth - 1)
            if found is not None:
                return found
        return name, error
    return None


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()
