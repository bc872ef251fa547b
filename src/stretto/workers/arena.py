"""Arena: memory without a name that the caller owns and its workers see, arrays in it, and what the system refuses."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from stretto.errors import ResourceError, resources

_FIXED = 0x10
"""Linux's MAP_FIXED, which Python has no name for: the new mapping takes the place of the one that is there."""

_mmap = ctypes.CDLL(None, use_errno=True).mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

ALIGNMENT = 64  # a cache line: two fields never share one


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a layout."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    offset: int


def lay_out(shapes: Sequence[tuple[tuple[int, ...], np.dtype[np.generic]]], offset: int = 0) -> tuple[list[Field], int]:
    """Place arrays one behind the other, from `offset` on; return their fields and where they end."""
    fields = []
    for shape, dtype in shapes:
        fields.append(Field(shape, dtype, offset))
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return fields, max(offset, ALIGNMENT)


class Arena:
    """Memory that is passed on by descriptor, so that nothing has a name and nothing can leak.

    It starts empty and is given its size once, by the caller, when the spaces are known; workers that were started
    before see it then. In one process (`shared=False`) it is plain memory.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory: mmap.mmap | bytearray | None = None

    @classmethod
    def create(cls, shared: bool) -> Arena:
        return cls(anonymous_file("stretto-arrays") if shared else -1)

    def allocate(
        self,
        size: int,
        what: str = "the arrays of these environments",
        remedy: str = "use fewer environments or smaller observations",
        *,
        end: int = 0,
    ) -> None:
        """Give the arena its size; `what` and `remedy` are for the sentence that refuses.

        If `end` is more, there is no memory behind the bytes up to it, until `fill` puts some there.

        Raises:
            ResourceError: if the machine has less memory free than that.
        """
        free = _free_memory()
        if size > free:
            raise ResourceError(
                f"{what} take {size / 1e9:.1f} GB and must fit into memory, which has {free / 1e9:.1f} GB free; {remedy}"
            )
        if self.fd < 0 and end <= size:
            self._memory = bytearray(size)
            return
        if self.fd < 0:
            self.fd = anonymous_file("stretto-arrays")
        reserve(self.fd, size)
        if end > size:
            os.ftruncate(self.fd, end)

    def fill(self, span: range) -> bool:
        """Put memory behind bytes that have none yet; return whether the machine has enough."""
        if len(span) > _free_memory():
            return False
        try:
            os.posix_fallocate(self.fd, span.start, len(span))
        except OSError:
            return False
        return True

    def view(self, fields: Sequence[Field]) -> list[np.ndarray]:
        """Return the arrays of a layout; they keep the memory alive."""
        memory = self.memory()
        return [np.ndarray(field.shape, field.dtype, memory, field.offset) for field in fields]

    def memory(self) -> mmap.mmap | bytearray:
        """Return what all of it lies in; whoever has that keeps it alive."""
        if self._memory is None:
            self._memory = mmap.mmap(self.fd, 0)
        return self._memory

    def part(self) -> None:
        """Keep what is written here from now on to this process, and to each that is forked off.

        The arrays stay where they are. Whoever else sees the arena goes on seeing it as it is now.
        """
        memory = self.memory()
        assert isinstance(memory, mmap.mmap)
        address = np.ndarray(1, np.uint8, memory).ctypes.data
        found = _mmap(address, len(memory), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _FIXED, self.fd, 0)
        if found != address:
            raise OSError(ctypes.get_errno(), "memory could not be parted from that of other processes")

    def close(self) -> None:
        """Drop the descriptor; arrays that somebody still holds stay valid."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1
        self._memory = None


def _free_memory() -> int:
    """Return the bytes that may still be used: the machine's, or those of this process's control group if fewer."""
    free = int(psutil.virtual_memory().available)
    try:
        folder = Path("/sys/fs/cgroup")
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return free if limit == "max" else min(free, max(0, int(limit) - int(used)))
    except (OSError, ValueError):
        return free


def anonymous_file(name: str) -> int:
    """Return a descriptor of memory without a name (where there is none: of a file that is unlinked at once)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    fd, path = tempfile.mkstemp(prefix=name)
    Path(path).unlink()
    return fd


def reserve(fd: int, size: int) -> None:
    """Make `fd` `size` bytes long with memory behind every byte: a later lack of it would be a SIGBUS.

    Raises:
        ResourceError: if there is not that much.
    """
    with resources(f"{size / 1e6:.1f} MB of shared memory"):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            os.ftruncate(fd, size)
