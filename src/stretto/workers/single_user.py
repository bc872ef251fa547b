"""SingleUser: a vector environment is used by one thread at a time, and a second one is told so."""

from __future__ import annotations

from threading import RLock
from typing import NoReturn

from stretto.errors import UsageError


class SingleUser:
    """Stands around each call: `with alone`. A step does by hand what the two functions below do for 0.2 µs more.

    Nobody waits: whoever comes while another thread is inside gets an error instead of its results. The thread that is
    inside may come again, and has left when it has left as often as it came.
    """

    def __init__(self) -> None:
        lock = RLock()
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> None:
        if not self.acquire(False):
            self.refuse()

    def __exit__(self, *_: object) -> None:
        self.release()

    def refuse(self) -> NoReturn:
        """Raise because another thread is inside."""
        raise UsageError(
            "a vector environment can be used by one thread at a time, and another thread is in the middle of a call; let "
            "them take turns, or make a vector environment for each"
        )
