"""Frames: pickled objects over a socket, or objects handed over within a process."""

from __future__ import annotations

import collections
import pickle
import socket
import struct
import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import cloudpickle

_HEAD = struct.Struct("<Qq")
"""The length of a frame, and a number: of the request that it answers (0: it answers none), or a request's code."""

_CHUNK = 1 << 20

_MOST_READ = 1 << 16

_MAIN, _SPAWNED_MAIN = b"__main__", b"__mp_main__"


class Sent:
    """A dataclass with slots that is often sent: its fields are pickled as arguments, in a third of the time."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        names: tuple[str, ...] = self.__slots__
        return type(self), tuple([getattr(self, name) for name in names])


class Disconnected(Exception):
    """The other side has gone."""


def dump(value: object, by_value: bool = False) -> bytes:
    """Pickle `value`; by value, also what only the sender's main module defines.

    Plain pickle is ten times faster, but writes the classes of `__main__` as a name that the receiver cannot resolve:
    where that name appears it is by value after all.
    """
    if not by_value:
        try:
            data = pickle.dumps(value, protocol=5)
            if _MAIN not in data and _SPAWNED_MAIN not in data:
                return data
        except Exception:  # noqa: BLE001, S110  whatever a __reduce__ raises: cloudpickle may still know a way, and has its own say if not
            pass
    main = sys.modules["__main__"]
    if main.__name__ == "__mp_main__":  # what multiprocessing calls it in a process that it has spawned
        cloudpickle.register_pickle_by_value(main)
    return bytes(cloudpickle.dumps(value, protocol=5))


def unsendable(value: object) -> str | None:
    """Say in half a sentence why something cannot be sent to another process, if it cannot."""
    try:
        dump(value, by_value=True)
    except Exception as error:  # noqa: BLE001  whatever the __reduce__ of something in it raises
        return f"{type(error).__name__}: {error}"
    return None


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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A frame that cannot be unpickled here; `text` is the traceback of the attempt."""

    number: int
    text: str


class Mail(Protocol):
    """The worker's end of a connection that carries objects in order."""

    def send(self, value: object, number: int = 0) -> None:
        """Send something to the caller; `number` is that of the request that it answers."""

    def receive(self, number: int) -> Any:
        """Return the message of request `number`."""


class LocalMail:
    """Both ends live in one process: objects are handed over as they are.

    Messages to the worker lie under their request's number: one that an interruption kept from being announced is
    replaced by the next, which has the same number.
    """

    def __init__(self) -> None:
        self._messages: dict[int, Any] = {}
        self._frames: collections.deque[Any] = collections.deque()

    def post(self, message: object, number: int) -> None:
        """Give the worker the message of request `number`; it must be there before the request is announced."""
        self._messages[number] = message

    def receive(self, number: int) -> Any:
        return self._messages.pop(number)

    def send(self, value: object, number: int = 0) -> None:
        self._frames.append(value)

    def collect(self) -> list[Any]:
        """Return what the worker has sent since the last call."""
        return [self._frames.popleft() for _ in range(len(self._frames))]


class SocketMail:
    """The worker's end: blocking, because a worker has nothing else to do; the caller always drains its end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._length: int | None = None  # of the message whose code was read already
        self._held = bytearray()  # what goes with the next frame
        self.holds_answers = False  # a short one goes with the next frame: whoever reads is woken up once

    def send(self, value: object, number: int = 0) -> None:
        data = dump(value)
        self._held += _HEAD.pack(len(data), number)
        whole = len(data) < _CHUNK
        if whole:
            self._held += data
        if not (whole and number and self.holds_answers):
            self._socket.sendall(self._held)
            self._held = bytearray()
        if not whole:
            self._socket.sendall(data)

    def receive(self, number: int = 0) -> Any:
        if self._length is None:
            self.next_code()
        length, self._length = self._length or 0, None
        return pickle.loads(self._exactly(length))

    def next_code(self) -> int:
        """Return the number that the next message was posted with; `receive` then returns that message."""
        self._length, code = _HEAD.unpack(self._exactly(_HEAD.size))
        return int(code)

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                raise Disconnected("the caller has gone")
            got += count
        return data


class Frames:
    """What has arrived on a connection: bytes are put in as they come, and whole frames are taken out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def put(self, data: bytes) -> None:
        """Add what has arrived."""
        self._buffer += data

    def take(self) -> list[Any]:
        """Return the whole frames that have arrived since the last call."""
        frames, offset = [], 0
        view = memoryview(self._buffer)
        try:
            while len(view) - offset >= _HEAD.size:
                length, number = _HEAD.unpack_from(view, offset)
                end = offset + _HEAD.size + length
                if len(view) < end:
                    break
                frames.append(load(view[offset + _HEAD.size : end], number))
                offset = end
        finally:
            view.release()
        if offset:
            del self._buffer[:offset]
        return frames


def framed(data: bytes, code: int = 0, length: int | None = None) -> bytes:
    """Return a message that `dump` made as it is sent to a worker; or its head, if `length` bytes of it follow."""
    return _HEAD.pack(len(data) if length is None else length, code) + data


class CallerMail:
    """The caller's end: it never waits.

    What the other side has no room for yet is kept and sent by a later `flush`, so that a worker which does not read
    its mail, because it is busy or hangs, keeps nobody else waiting.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._outbox: collections.deque[memoryview] = collections.deque()  # what waits for room
        self.frames = Frames()
        self.fd = connection.fileno()
        self.ended = False  # the other side has closed its end: nothing will arrive any more

    @property
    def unsent(self) -> bool:
        """Whether something waits for room."""
        return bool(self._outbox)

    def post(self, data: bytes, code: int = 0) -> None:
        """Send what `dump` made, now or as soon as there is room for it."""
        self._outbox.append(memoryview(framed(data, code)))
        self.flush()

    def flush(self) -> None:
        """Send what there is room for."""
        outbox = self._outbox
        while outbox:
            try:
                sent = self._socket.send(outbox[0][:_CHUNK])
            except BlockingIOError:
                return
            except OSError:  # nobody is left to read it; whoever waits for the worker will see that
                outbox.clear()
                return
            outbox[0] = outbox[0][sent:]
            if not outbox[0]:
                outbox.popleft()

    def drain(self) -> bool:
        """Take in what has arrived, without waiting; return whether anything had."""
        arrived = False
        while not self.ended:
            try:
                data = self._socket.recv(_MOST_READ)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            self.ended = not data
            self.frames.put(data)
            arrived = arrived or bool(data)
            if len(data) < _MOST_READ:  # that was all: to hear so once more would take a system call
                break
        return arrived

    def close(self) -> None:
        self._socket.close()
        self.fd, self.ended = -1, True


def load(data: memoryview, number: int) -> Any:
    """Return what a frame holds that answers request `number`."""
    try:
        return pickle.loads(data)
    except Exception:  # noqa: BLE001  whatever a foreign __setstate__ or a missing module raises: the request must have its answer
        return Unreadable(number, traceback.format_exc())
    finally:
        data.release()
