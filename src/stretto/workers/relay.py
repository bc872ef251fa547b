"""Relay: what a Ray actor does for workers. It starts their processes on its node, and carries bytes to and from them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto import hash_seed
from stretto.identity.installation import installation
from stretto.workers.spawned import SpawnedProcess

_MOST_BYTES = 1 << 22
"""How much comes back in one answer at most."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a relay runs; `boot` names the machine since it was started, and with that its clock and its processes."""

    node_id: str
    boot: str
    installation: dict[str, str]


class Relay:
    """Holds the processes of workers, each by its number, and gives back what they say.

    An actor is busy for half a second before it can do anything, and a process is there in 10 ms. So an actor outlives the
    processes of the workers that it serves, one after the other.
    """

    def __init__(self, seed: str) -> None:
        """Let all processes have the hash seed of those on other nodes."""
        os.environ[hash_seed.NAME] = seed
        self._lives: dict[int, asyncio.Task[_Life]] = {}

    async def host(self) -> Host:
        """Say where this is."""
        import ray

        return Host(ray.get_runtime_context().get_node_id(), boot_of_this_machine(), installation())

    async def stay(self) -> None:
        """Never return: whoever has called this hears of the end of the actor."""
        await asyncio.Event().wait()

    async def clock(self) -> int:
        """Return this machine's time, in nanoseconds since whenever."""
        return time.monotonic_ns()

    async def missing(self, modules: Sequence[str], import_path: Sequence[str]) -> list[str]:
        """Return those of the caller's modules that cannot be imported here, with its import path and with ours."""
        before = list(sys.path)
        sys.path[:] = [*import_path, *before]
        try:
            importlib.invalidate_caches()
            return [name for name in modules if not _is_here(name)]
        finally:
            sys.path[:] = before

    async def begin(self, life: int) -> int:
        """Start a process, unless that was done already; return its id."""
        return (await self._life(life)).process.pid

    async def exchange(self, life: int, number: int, *parts: bytes) -> tuple[int, bytes]:
        """Give a process the message with this number, of 1, 2, and so on; return what it says next, numbered too.

        Messages reach the process in the order of their numbers. No bytes: it has ended, and everything was said.
        """
        return await (await self._life(life)).exchange(number, parts)

    async def stack(self, life: int) -> str:
        """Return where a process's Python code stands now."""
        return await asyncio.to_thread((await self._life(life)).process.stack)

    async def end(self, life: int) -> str:
        """End a process if it has not ended; say how that came."""
        found = await self._life(life)
        del self._lives[life]
        return await asyncio.to_thread(found.end)

    def _life(self, life: int) -> asyncio.Task[_Life]:
        # Whichever call comes first: those with large arguments wait for these, and others overtake them.
        if life not in self._lives:
            self._lives[life] = asyncio.create_task(_Life.begun())
        return self._lives[life]


class _Life:
    """A process, and the connection to it."""

    def __init__(self, process: SpawnedProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.process, self._reader, self._writer = process, reader, writer
        self._early: dict[int, tuple[bytes, ...]] = {}
        self._next, self._said = 1, 0
        self._turn = asyncio.Lock()

    @classmethod
    async def begun(cls) -> _Life:
        process = await asyncio.to_thread(SpawnedProcess, {})
        reader, writer = await asyncio.open_connection(sock=process.connection, limit=_MOST_BYTES)
        return cls(process, reader, writer)

    async def exchange(self, number: int, parts: tuple[bytes, ...]) -> tuple[int, bytes]:
        self._early[number] = parts
        while self._next in self._early:
            for part in self._early.pop(self._next):
                if not self._writer.is_closing():
                    self._writer.write(part)
            self._next += 1
        async with self._turn:
            try:
                said = await self._reader.read(_MOST_BYTES)
            except ConnectionError:  # it ended before it had read everything
                said = b""
            self._said += 1
            return self._said, said

    def end(self) -> str:
        words = self.process.last_words()
        self._writer.transport.abort()
        self.process.let_go()
        return words


def _is_here(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the package that it is in is not here; or it has been made by hand
        return False


def boot_of_this_machine() -> str:
    """Return what no other machine has, nor this one after a restart; processes that see others have another one, too."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115  it is no path
    except OSError:
        return ""
