"""A second thread that kills workers in the middle of whatever they do."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import threading
import time
from typing import Any

from stretto.workers.launcher import launcher


class Killer:
    """Kills a worker, now and then the launcher (a new one takes 0.4 s), a random while after each call of `strike_soon`.

    The moments are drawn from `seed`; what they hit depends on the machine, and must not matter.
    """

    def __init__(self, envs: Any, seed: int, longest_delay: float = 3e-3, launcher_share: float = 0.04) -> None:
        self._envs, self._random = envs, random.Random(seed)
        self._longest_delay, self._launcher_share = longest_delay, launcher_share
        self._orders: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="killer")
        self.kills = 0

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.put(None)
        self._thread.join()

    def strike_soon(self) -> None:
        self._orders.put(self._random.uniform(0, self._longest_delay))

    def _run(self) -> None:
        while (delay := self._orders.get()) is not None:
            time.sleep(delay)
            victims = self._envs.worker_pids
            if self._random.random() < self._launcher_share and launcher().pid is not None:
                victims = [launcher().pid]
            if victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._random.choice(victims), signal.SIGKILL)
                    self.kills += 1
