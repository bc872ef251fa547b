"""A view of an arena that can be given away: what is written into it stays there and does not reach the arena."""

from __future__ import annotations

import functools
import mmap
import os
import resource

import numpy as np

from stretto.workers.arena import Arena, Field

PAGE = mmap.PAGESIZE

_POPULATE_WRITE = 23
"""Linux's MADV_POPULATE_WRITE, which Python has no name for; since Linux 5.14."""


class PrivateView:
    """The arrays of an arena as they are, until whoever has one writes into it (copy on write).

    A page that was written into no longer shows what happens in the arena, until it is forgotten.
    """

    def __init__(self, arena: Arena) -> None:
        shared = arena.memory()
        assert isinstance(shared, mmap.mmap)
        self._shared, self._memory = shared, mmap.mmap(arena.fd, 0, access=mmap.ACCESS_COPY)
        self._first = np.ndarray(1, np.uint8, self._memory).ctypes.data // PAGE

    def array(self, field: Field) -> np.ndarray:
        """Return an array of a layout."""
        return np.ndarray(field.shape, field.dtype, self._memory, field.offset)

    def written(self, span: range) -> int:
        """Return how many pages were written into; `span` is of whole pages."""
        first, count = span.start // PAGE, len(span) // PAGE
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = np.frombuffer(os.pread(pagemap, 8 * count, 8 * (self._first + first)), np.uint64)
        finally:
            os.close(pagemap)
        if len(entries) < count:
            return count
        # The topmost bits of an entry: there, swapped, of a file. What was written into is of no file.
        kinds = entries >> np.uint64(61)
        return int(np.count_nonzero((kinds == 0b100) | (kinds == 0b010)))

    def forget(self, span: range) -> None:
        """Drop what was written into pages: they show the arena again."""
        self._memory.madvise(mmap.MADV_DONTNEED, span.start, len(span))

    def keep(self, span: range) -> None:
        """Keep pages as they are now, as if each had been written into, until they are forgotten."""
        self._memory.madvise(_POPULATE_WRITE, span.start, len(span))

    def free(self, span: range) -> None:
        """Take the memory behind pages away, in the arena too; all see zeros there, but for what was written or kept."""
        self._shared.madvise(mmap.MADV_REMOVE, span.start, len(span))


def faults() -> int:
    """Return how often this process found a page missing, or wrote into one that it has to copy first."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


@functools.cache
def works_here() -> bool:
    """Whether all of this can be relied on: on Linux since 5.14, where /proc is there."""
    arena = Arena.create(shared=True)
    try:
        arena.allocate(2 * PAGE)
        return _shows_and_keeps(arena)
    except (OSError, ValueError, AttributeError):
        return False
    finally:
        arena.close()


def _shows_and_keeps(arena: Arena) -> bool:
    """Try all of it once with two pages."""
    pages, field = range(2 * PAGE), Field((2, PAGE), np.dtype(np.uint8), 0)
    (ours,), view = arena.view([field]), PrivateView(arena)
    theirs = view.array(field)
    ours[:, 0] = 1
    shown = theirs[:, 0].tolist() == [1, 1] and view.written(pages) == 0
    before = faults()
    theirs[1, 0] = 2
    noticed = faults() != before and view.written(pages) == 1
    ours[:, 0] = 3
    apart = theirs[:, 0].tolist() == [3, 2] and ours[:, 0].tolist() == [3, 3]
    view.forget(pages)
    back = theirs[:, 0].tolist() == [3, 3] and view.written(pages) == 0
    view.keep(pages)
    ours[:, 0] = 4
    kept = theirs[:, 0].tolist() == [3, 3] and view.written(pages) == 2
    view.forget(pages)
    arena.part()
    ours[:, 0] = 5
    parted = theirs[:, 0].tolist() == [4, 4] and ours[:, 0].tolist() == [5, 5]
    return shown and noticed and apart and back and kept and parted
