"""What code in a worker prints, logs and warns of reaches the caller's, with the slot or the episode that it came from."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TextIO

from stretto.errors import Place, SaidOnce, is_news
from stretto.workers.base import Output, Port
from stretto.workers.mail import dump

_LONGEST_LINE = 1 << 16
"""A line that is longer (a progress bar that never ends one) is sent in pieces."""

_STANDARD_FIELDS = frozenset(logging.makeLogRecord({}).__dict__)


class _Forwarder(io.TextIOBase):
    """Stands for `sys.stdout` or `sys.stderr` in a worker; sends whole lines.

    What a slot has begun to write waits for the end of its line, whatever other slots write meanwhile; a line that is
    never ended is sent, as one of its own, when the worker ends. It is lost if the worker dies, unless a replay writes
    it again. What runs in the caller's own process (its share of the worlds, threads) writes into its streams directly,
    as all of its code does.
    """

    encoding = "utf-8"

    def __init__(self, port: Port, kind: str, plain: TextIO) -> None:
        self._port, self._kind, self._plain = port, kind, plain
        self._unended: dict[str, tuple[str, Place]] = {}  # by the label of their places
        self._lock = threading.RLock()  # a world's own threads may print

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._plain.fileno()

    @property
    def buffer(self) -> BinaryIO:
        """For code that writes bytes; those go to the caller's stream as they are."""
        return self._plain.buffer

    def write(self, text: str) -> int:
        place = self._port.place()
        key = place.label
        with self._lock:
            begun, _ = self._unended.pop(key, ("", place))
            whole, newline, rest = (begun + text).rpartition("\n")
            if newline:
                self._send(whole, place)
            if len(rest) > _LONGEST_LINE:
                self._send(rest, place)
            elif rest:
                self._unended[key] = rest, place
        return len(text)

    def flush(self) -> None:
        # Part of a line waits for its end, or print(..., end="", flush=True) would cut lines of several slots up.
        pass

    def finish(self) -> None:
        """Send the lines that were begun and not ended."""
        while self._unended:
            _, (line, place) = self._unended.popitem()
            self._send(line, place)

    def _send(self, lines: str, place: Place) -> None:
        _send(self._port, self._kind, f"{lines}\n", place)


class _LogForwarder(logging.Handler):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self._port = port

    def emit(self, record: logging.LogRecord) -> None:
        _send(self._port, "log", _portable(record), self._port.place())


def _portable(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record that can travel: what somebody added to it and cannot be pickled arrives as text."""
    fields = dict(record.__dict__)
    fields.update(msg=record.getMessage(), args=None, exc_info=None)
    if record.exc_info:
        fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
    for name in fields.keys() - _STANDARD_FIELDS:
        try:
            dump(fields[name])
        except Exception:  # noqa: BLE001  whatever its own way of being pickled raises
            fields[name] = repr(fields[name])
    return logging.makeLogRecord(fields)


def _send(port: Port, kind: str, content: Any, place: Place) -> None:
    if port.muted:
        return
    output = Output(kind, content, place, port.serving)
    if port.held is None:
        port.send(output)
    else:
        port.held.append(output)


@contextmanager
def held_back(port: Port) -> Iterator[None]:
    """Hold back what the body puts out in a worker, and show it only if the body raises.

    What a process held back that dies is lost with it. The caller's own process prints directly, as ever: a debugger in it
    must be seen.
    """
    port.held = held = list[Output]()
    try:
        yield
    except BaseException:
        for output in held:
            port.send(output)
        raise
    finally:
        port.held = None


def forward_output(port: Port, levels: Mapping[str, int]) -> Callable[[], None]:
    """Send all output of this worker through `port` from now on; return what sends lines that were not ended."""
    out, err = _Forwarder(port, "stdout", sys.stdout), _Forwarder(port, "stderr", sys.stderr)
    handler = _LogForwarder(port)
    plain = sys.stdout, sys.stderr, warnings.showwarning
    sys.stdout, sys.stderr = out, err
    logging.root.addHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    warnings.simplefilter("default")  # the caller's own filters decide what is shown

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        _send(port, "warning", (str(message), category, filename, lineno), port.place())

    warnings.showwarning = show

    def give_back() -> None:
        # A process that a world forks off must not write into our connection.
        sys.stdout, sys.stderr, warnings.showwarning = plain
        logging.root.removeHandler(handler)

    os.register_at_fork(after_in_child=give_back)

    def finish() -> None:
        out.finish()
        err.finish()

    return finish


def deliver_all(outputs: Iterable[Output]) -> None:
    """Show, in the caller, what workers put out, in the order of the slots: whose mail came first depends on the workers."""
    raised = []
    for output in sorted(outputs, key=lambda output: -1 if output.place.slot is None else output.place.slot):
        try:
            _deliver(output)
        except Exception as error:  # noqa: BLE001  a warning that the caller's filters turn into an error: the rest is shown too
            raised.append(error)
    if raised:
        raise raised[0]


def _deliver(output: Output) -> None:
    label = output.place.label
    content: Any = output.content
    match output.kind:
        case "stdout" | "stderr":
            stream = sys.stdout if output.kind == "stdout" else sys.stderr
            stream.write("".join(f"{label}{line}\n" for line in content.splitlines()))
            stream.flush()
        case "log":
            content.slot = output.place.slot
            content.msg = label + content.msg
            logger = logging.getLogger(content.name)
            if logger.isEnabledFor(content.levelno):
                logger.handle(content)
        case "warning":
            message, category, filename, lineno = content
            if issubclass(category, SaidOnce):
                if not is_news(message):
                    return
                label = ""
            # The slot stands at the end: filters compare how a message begins, and must know it as it was.
            warnings.warn_explicit(f"{message} {label}".rstrip(), category, filename, lineno)
        case _:
            raise AssertionError(f"no such output: {output.kind}")
