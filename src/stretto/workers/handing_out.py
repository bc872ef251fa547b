"""What a caller may keep of shared arrays: copies in memory that is used again, or the arrays while nobody else has them."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from stretto.spaces import Array
from stretto.workers.arena import Arena, Field
from stretto.workers.private_view import PAGE, PrivateView, faults

LARGE_BYTES = 1 << 16
"""Below this a fresh copy is as fast. Above it most of the time goes into pages that the system clears first."""

HANDED_OUT_BYTES = 1 << 20
"""Smaller arrays are copied: to see that one can be handed out takes 3 to 15 µs.

Serial steps of 16 worlds that do nothing but return a frame, with a page fault after each (without): 512 kB 52 (29) µs in
place of 48 (30), 1 MB 65 (40) in place of 71 (52), 8 MB 471 (381) in place of 825 (750).
"""

_KEPT = 4

_WRITTEN_SHARE = 1 / 32
"""Who writes into a larger share of what was handed out gets copies: a page that is written into costs 3 µs, and to copy
one 0.1 to 0.25 µs."""


def _references_of_an_unused() -> int:
    """Count the references to an array that only our list has: it differs between versions of Python."""
    for kept in [np.zeros(1)]:
        return sys.getrefcount(kept)
    raise AssertionError("unreachable")


_UNUSED = _references_of_an_unused()


def _nobody_has(arrays: Sequence[Array]) -> bool:
    """Whether only a list of ours has these arrays. Views, tensors and memoryviews of one count as references to it."""
    for kept in arrays:  # noqa: SIM110  in a generator there would be other references
        if sys.getrefcount(kept) != _UNUSED:
            return False
    return True


class Copier:
    """Copies one array again and again; a caller that keeps a copy keeps it for good."""

    def __init__(self) -> None:
        self._kept: list[list[Array]] = []

    def copy(self, array: Array) -> Array:
        """Return a copy that nobody else has."""
        if array.nbytes < LARGE_BYTES:
            return array.copy()
        for kept in self._kept:
            if _nobody_has(kept):
                np.copyto(kept[0], array)
                return kept[0].view()
        fresh = array.copy()
        if len(self._kept) >= _KEPT:
            return fresh
        self._kept.append([fresh])
        # A view: who changes its shape, or forbids to write into it, does so to no other copy.
        return fresh.view()


def copiers(arrays: Sequence[Array]) -> list[Copier]:
    """Return a copier for each array."""
    return [Copier() for _ in arrays]


class HandingOut:
    """Gives users the arrays of a buffer in place of copies, and says which buffer can be written into.

    A buffer whose arrays somebody has is not written until they are gone. What its holder writes into them is not seen by
    us (`PrivateView`), so rows are always what worlds have observed. There are as many buffers as are held at once, and
    one or two more. Once all there can be are held, one is detached: its holder gets memory of their own, and users get
    copies until they have let go of something.

    Buffers lie in whole pages, `spans`. The first `there` have memory already. `fields` are what is handed out of each.
    With `one_process` nobody else ever writes into them.
    """

    def __init__(
        self,
        arena: Arena,
        spans: Sequence[range],
        fields: Sequence[Mapping[int, Field]],
        *,
        there: int,
        one_process: bool,
    ) -> None:
        self._arena, self._spans, self._one_process = arena, spans, one_process
        self._view = view = PrivateView(arena)
        self._leaves = list(fields[0])
        self._arrays = [[view.array(field) for field in of_buffer.values()] for of_buffer in fields]
        self._there = there
        self._detached: set[int] = set()
        self._clean_since = [-1] * len(spans)
        self._given = self._written = 0  # pages
        self._stopped = self._parted = False
        self._owner = os.getpid()
        _handing_out.add(self)

    def free(self, last: int) -> int:
        """Return a buffer that can be written into, other than the one that has the `last` rows."""
        there = [buffer for buffer in range(self._there) if buffer != last]
        for buffer in there:
            if _nobody_has(self._arrays[buffer]):
                return buffer
        if self._parted:
            return there[0]
        if self._there < len(self._spans) and self._arena.fill(self._spans[self._there]):
            self._there += 1
            return self._there - 1
        found = next((buffer for buffer in there if buffer in self._detached), there[0])
        self._detach(found)
        return found

    def is_free(self, buffer: int) -> bool:
        """Whether a buffer can be written into: nobody sees it."""
        return buffer in self._detached or _nobody_has(self._arrays[buffer])

    def give(self, buffer: int) -> Mapping[int, Array]:
        """Return arrays of a buffer for a user to keep, by leaf; all others have to be copied."""
        if self._stopped or not _nobody_has(self._arrays[buffer]) or not self._shows_what_we_wrote(buffer):
            return {}
        return {leaf: array.view() for leaf, array in zip(self._leaves, self._arrays[buffer], strict=True)}

    def _shows_what_we_wrote(self, buffer: int) -> bool:
        """See to it that a view shows what we wrote, if others write into it so seldom that this pays.

        Who writes into one of its pages for the first time causes a fault. Where there was none there is nothing to look
        for, which takes 50 µs with 6.5 MB.
        """
        span, now = self._spans[buffer], faults()
        self._given += len(span) // PAGE
        try:
            if buffer in self._detached:
                self._view.forget(span)
                self._detached.discard(buffer)
            elif now != self._clean_since[buffer] and (written := self._view.written(span)):
                self._view.forget(span)
                self._written += written
                self._stopped = self._written > _WRITTEN_SHARE * self._given
        except OSError:  # for one, somebody has locked all memory (mlockall)
            self._stopped = True
        self._clean_since[buffer] = now
        return not self._stopped

    def _detach(self, buffer: int) -> None:
        """Let whoever has arrays of a buffer keep them as they are, whatever is written there next."""
        if buffer not in self._detached:
            self._view.keep(self._spans[buffer])
            self._detached.add(buffer)

    def before_fork(self) -> None:
        """See to it that what is held changes neither here nor in a process that is forked off, whoever steps worlds.

        Serial environments can be stepped in both. So they part, and users get copies from then on.
        """
        if self._parted:
            return
        if self._one_process:
            self._arena.part()
            self._parted = self._stopped = True
            self._detached.update(range(len(self._spans)))
            return
        for buffer in range(self._there):
            if not self.is_free(buffer):
                self._detach(buffer)

    def close(self) -> None:
        """Let go of everything but what users have: that stays with them."""
        _handing_out.discard(self)
        if self._parted or os.getpid() != self._owner:
            return  # the memory belongs to several processes, or to the one that this one was forked from
        for span, arrays in zip(self._spans, self._arrays, strict=True):
            if _nobody_has(arrays):
                self._view.free(span)  # else what is held would keep the memory of all buffers


_handing_out: weakref.WeakSet[HandingOut] = weakref.WeakSet()


def _before_fork() -> None:
    for one in list(_handing_out):
        one.before_fork()


os.register_at_fork(before=_before_fork)
