"""Frames: pickled objects over a socket, or objects handed over within a process."""

from __future__ import annotations

import collections
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Protocol

import cloudpickle

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


class Disconnected(Exception):
    """The other side is gone, or did not take a frame in time."""


def dump(value: object, by_value: bool = False) -> bytes:
    """Pickle `value`; by value, also what only the sender's main module defines.

    Plain pickle is ten times faster, but writes the classes of `__main__` as a name that the receiver cannot resolve.
    """
    if by_value:
        return bytes(cloudpickle.dumps(value, protocol=5))
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:  # whatever a __reduce__ raises: cloudpickle may still know a way, and has its own say if not
        return bytes(cloudpickle.dumps(value, protocol=5))


class Mail(Protocol):
    """One end of a two-way connection that carries objects in order."""

    def send(self, value: object, *, by_value: bool = False) -> None: ...
    def receive(self) -> Any: ...
    def close(self) -> None: ...


class LocalMail:
    """Both ends live in one process: objects are handed over as they are."""

    def __init__(self, outgoing: collections.deque[Any], incoming: collections.deque[Any]) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    @classmethod
    def pair(cls) -> tuple[LocalMail, LocalMail]:
        one: collections.deque[Any] = collections.deque()
        other: collections.deque[Any] = collections.deque()
        return cls(one, other), cls(other, one)

    def send(self, value: object, *, by_value: bool = False) -> None:
        self._outgoing.append(value)

    def receive(self) -> Any:
        # A frame is sent before the control words announce it, so it is there when somebody looks for it.
        return self._incoming.popleft()

    def close(self) -> None:
        pass


class SocketMail:
    """The worker's end: blocking, because a worker has nothing else to do; the caller always drains its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def send(self, value: object, *, by_value: bool = False) -> None:
        data = dump(value, by_value)
        self._socket.sendall(_LENGTH.pack(len(data)) + data if len(data) < _CHUNK else _LENGTH.pack(len(data)))
        if len(data) >= _CHUNK:
            self._socket.sendall(data)

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return pickle.loads(self._exactly(length))

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                raise Disconnected("the caller has gone")
            got += count
        return data

    def close(self) -> None:
        self._socket.close()


class CallerMail:
    """The caller's end: never blocks for longer than the other side lives and the deadline allows.

    While it waits to send it also takes in what arrives, so that two sides which send at once cannot block each other.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._buffer = bytearray()
        self._inbox: collections.deque[Any] = collections.deque()
        self.fd = connection.fileno()

    def send(
        self,
        value: object,
        *,
        by_value: bool = False,
        alive: Callable[[], bool] = lambda: True,
        timeout: float | None = None,
    ) -> None:
        data = dump(value, by_value)
        view = memoryview(_LENGTH.pack(len(data)) + data)
        deadline = None if timeout is None else time.monotonic() + timeout
        while view:
            try:
                view = view[self._socket.send(view[:_CHUNK]) :]
            except BlockingIOError:
                self._wait_writable(alive, deadline)
            except OSError as error:
                raise Disconnected(f"the worker has gone: {error}") from None

    def _wait_writable(self, alive: Callable[[], bool], deadline: float | None) -> None:
        poller = select.poll()
        poller.register(self.fd, select.POLLOUT | select.POLLIN)
        for _, event in poller.poll(50):
            if event & select.POLLIN:
                self.drain()
        if not alive():
            raise Disconnected("the worker has gone")
        if deadline is not None and time.monotonic() > deadline:
            raise Disconnected("the worker does not read its mail")

    def drain(self) -> int:
        """Take in what has arrived, without waiting; return the number of whole frames that it completed."""
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, ConnectionResetError):
                break
            if not data:
                break
            self._buffer += data
        return self._parse()

    def _parse(self) -> int:
        offset, frames = 0, 0
        view = memoryview(self._buffer)
        try:
            while len(view) - offset >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, offset)
                if len(view) - offset - _LENGTH.size < length:
                    break
                offset += _LENGTH.size
                self._inbox.append(pickle.loads(view[offset : offset + length]))
                offset += length
                frames += 1
        finally:
            view.release()
        if offset:
            del self._buffer[:offset]
        return frames

    def waiting(self) -> bool:
        """Whether a whole frame has arrived that was not taken yet."""
        return bool(self._inbox)

    def receive(self) -> Any:
        """Return the next frame; `waiting` has said that there is one."""
        return self._inbox.popleft()

    def close(self) -> None:
        self._socket.close()
        self.fd = -1
