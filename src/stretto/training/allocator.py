"""The C library's allocator, told to keep what learning frees and will need again with the next batch."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as in glibc's malloc.h

KEPT_BYTES = 256 << 20
"""At most so much freed memory at the end of the heap is kept."""

LARGEST_KEPT_BYTES = 32 << 20
"""Larger arrays still go back to the system when they are freed. glibc allows no more."""


@cache
def keep_freed_memory() -> bool:
    """Keep freed memory in this process from now on; return whether that is possible (with glibc it is).

    An update allocates and frees some arrays of about 1 MB. Without this, each comes from the system and goes back to it:
    with 8 agents and batches of 256 that is 400 page faults and a sixth of the time of an update.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES)) and bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
