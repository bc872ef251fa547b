"""SingleUser: a vector environment is used by one thread at a time, and a second one is told so."""

from __future__ import annotations

from threading import get_ident
from typing import NoReturn

from stretto.errors import UsageError


class SingleUser:
    """Stands around each call: `with alone`.

    Not a lock: nobody waits, and whoever comes while another thread is inside gets an error instead of its results.
    `inside` is that thread, 0 if there is none. Between looking at it and setting it no other thread can run, as long
    as no function is called there. A step, where the two functions below would cost 0.2 µs, does the same by hand.

    A thread that is inside may come again; it has left when it has left as often as it came, which `nested` counts.
    """

    __slots__ = ("inside", "nested")

    def __init__(self) -> None:
        self.inside = self.nested = 0

    def __enter__(self) -> None:
        me = get_ident()
        if not self.inside:
            self.inside, self.nested = me, 0
        elif self.inside == me:
            self.nested += 1
        else:
            self.refuse()

    def __exit__(self, *_: object) -> None:
        if self.nested:
            self.nested -= 1
        else:
            self.inside = 0

    def refuse(self) -> NoReturn:
        """Raise because another thread is inside."""
        raise UsageError(
            "a vector environment can be used by one thread at a time, and another thread is in the middle of a call; let "
            "them take turns, or make a vector environment for each"
        )
