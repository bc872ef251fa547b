"""What code in a worker prints, logs and warns of reaches the caller's, with the slot that it came from."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from typing import Any, TextIO

from stretto.workers.base import Output, Port


class _Forwarder(io.TextIOBase):
    """Stands for `sys.stdout` or `sys.stderr` in a worker; sends whole lines."""

    def __init__(self, port: Port, kind: str) -> None:
        self._port, self._kind, self._line = port, kind, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        if lines:
            self._send("\n".join(lines) + "\n")
        return len(text)

    def flush(self) -> None:
        # Part of a line waits for its end, or print(..., end="", flush=True) would cut lines of several slots up.
        pass

    def finish(self) -> None:
        if self._line:
            self._send(self._line + "\n")
            self._line = ""

    def _send(self, text: str) -> None:
        _send(self._port, self._kind, text)


class _LogForwarder(logging.Handler):
    def __init__(self, port: Port) -> None:
        super().__init__()
        self._port = port

    def emit(self, record: logging.LogRecord) -> None:
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        _send(self._port, "log", record)


def _send(port: Port, kind: str, content: Any) -> None:
    if not port.muted:
        port.send(Output(kind, content, port.place().slot))


def forward_output(port: Port, log_level: int) -> None:
    """Send all output of this worker through `port` from now on."""
    out, err = _Forwarder(port, "stdout"), _Forwarder(port, "stderr")
    handler = _LogForwarder(port)
    plain = sys.stdout, sys.stderr, warnings.showwarning
    sys.stdout, sys.stderr = out, err  # type: ignore[assignment]
    logging.root.addHandler(handler)
    logging.root.setLevel(log_level)
    warnings.simplefilter("default")  # the caller's own filters decide what is shown

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        _send(port, "warning", (str(message), category, filename, lineno))

    warnings.showwarning = show

    def give_back() -> None:
        # A process that a world forks off must not write into our connection.
        sys.stdout, sys.stderr, warnings.showwarning = plain
        logging.root.removeHandler(handler)

    os.register_at_fork(after_in_child=give_back)


def deliver(output: Output) -> None:
    """Show, in the caller, what a worker put out."""
    label = "" if output.slot is None else f"[slot {output.slot}] "
    content: Any = output.content
    match output.kind:
        case "stdout" | "stderr":
            stream = sys.stdout if output.kind == "stdout" else sys.stderr
            stream.write("".join(f"{label}{line}\n" for line in content.splitlines()))
            stream.flush()
        case "log":
            content.slot = output.slot
            content.msg = label + content.msg
            logger = logging.getLogger(content.name)
            if logger.isEnabledFor(content.levelno):
                logger.handle(content)
        case "warning":
            message, category, filename, lineno = content
            warnings.warn_explicit(label + message, category, filename, lineno)
