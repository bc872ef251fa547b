"""The log of a run: what happens in it, with the process, the thread and the agent that it happens to."""

from __future__ import annotations

import logging
from pathlib import Path

LOGGER = logging.getLogger("stretto.training")
"""What a run logs. A record's `agent` is whom it is about: pass it as `extra`. Learning itself is told at DEBUG."""

LOGGER.addHandler(logging.NullHandler())  # else Python would print errors on stderr where nobody has asked for a log

LOG = "run.log"

FORMAT = "%(asctime)s %(levelname)s process %(process)d, thread %(threadName)s, agent %(agent)s: %(message)s"


class AgentFormatter(logging.Formatter):
    """Writes process, thread and agent of a record; a dash where it is about no agent."""

    def __init__(self) -> None:
        super().__init__(FORMAT, defaults={"agent": "-"})


class _File(logging.FileHandler):
    """A file to write into. What cannot be written, as on a full disk, is left out; the run itself tells of that."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  as logging calls it
        pass


class LogFile:
    """Writes what runs log to a file, until it is closed."""

    def __init__(self, folder: Path) -> None:
        self._handler = _File(folder / LOG, encoding="utf-8")
        self._handler.setFormatter(AgentFormatter())
        self._level = LOGGER.level
        if self._level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Write no more; may be called twice."""
        LOGGER.removeHandler(self._handler)
        LOGGER.setLevel(self._level)
        self._handler.close()
