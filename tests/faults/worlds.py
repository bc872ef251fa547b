"""Worlds that go wrong at moments of the test's choosing."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.worlds import Drift, GlobalDrift, Result, Start, World


def end_process(how: str) -> None:
    """End this process: "sigkill", "segfault" (a real one) or "exit"."""
    match how:
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case _:
            raise ValueError(how)
    threading.Event().wait()  # a signal may take a moment to arrive


class Schedule:
    """Moments at which something happens, each once, in order, however many processes come by.

    A moment is a text such as "step 5". Those that have passed are files in `folder`.
    """

    def __init__(self, folder: str | Path, moments: tuple[str, ...]) -> None:
        self.folder, self.moments = str(folder), moments

    def due(self, moment: str) -> bool:
        """Whether it is this moment's turn; if so, it has passed from now on."""
        if moment not in self.moments:
            return False
        passed = len(list(Path(self.folder).iterdir()))
        if passed >= len(self.moments) or self.moments[passed] != moment:
            return False
        Path(self.folder, f"{passed}").touch()
        return True


class _LateArray:
    """An observation that does something only when it is written into an array."""

    def __init__(self, array: Any, act: Callable[[], None]) -> None:
        self.array, self.act = array, act

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self.act()
        return self.array


class _LatePickle:
    """A value that does something only when it is pickled; elsewhere it is 7."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def __reduce__(self) -> Any:
        self.act()
        return (int, (7,))


class Scheduled(Drift):
    """Does `act()` at scheduled moments.

    "build", "reset 2" (the second of its life), "step 5" (of its life), "write 5" (while the row of that step is
    written), "send 5" (while its infos are sent) and "close". Otherwise a `Drift`: its life is the same in every process.
    """

    def __init__(self, schedule: Schedule, act: Callable[[], None], length: int = 6) -> None:
        super().__init__(length)
        self.schedule, self.act = schedule, act
        self.resets_done = self.steps_done = 0
        self._at("build")

    def _at(self, moment: str) -> None:
        if self.schedule.due(moment):
            self.act()

    def reset(self, **keywords: Any) -> Start:
        self.resets_done += 1
        self._at(f"reset {self.resets_done}")
        return super().reset(**keywords)

    def step(self, action: Any) -> Result:
        self.steps_done += 1
        number = self.steps_done
        self._at(f"step {number}")
        observation, reward, terminated, truncated, info = super().step(action)
        if f"write {number}" in self.schedule.moments:
            observation = _LateArray(observation, lambda: self._at(f"write {number}"))
        if f"send {number}" in self.schedule.moments:
            info = {**info, "late": _LatePickle(lambda: self._at(f"send {number}"))}
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        self._at("close")
        super().close()


class Mortal(Scheduled):
    """Ends its process at scheduled moments."""

    def __init__(self, schedule: Schedule, how: str = "sigkill", length: int = 6) -> None:
        super().__init__(schedule, lambda: end_process(how), length)


class OwnGenerator(World):
    """A walk driven by a `random.Random` of its own, of which nobody else knows; it has no `np_random`."""

    def __init__(self, length: int = 8) -> None:
        super().__init__()
        self.length = length
        self.generator = random.Random()
        self.at = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Start:
        if seed is not None:
            self.generator.seed(seed)
        self.steps = 0
        self.at = self.generator.random()
        return self.see(), {"lucky": self.generator.random() < 0.5}

    def see(self) -> Any:
        return np.array([self.steps, self.at])

    def move(self, action: Any) -> Result:
        self.at += self.generator.gauss(0, 1 + int(action))
        over = self.generator.random() < 1 / self.length
        return self.see(), self.at, over, False, {}


class Unrepeatable(World):
    """Observes a number that no seed decides."""

    def see(self) -> Any:
        return np.array([self.steps, float.fromhex(os.urandom(4).hex())])


class RaisesWhenReplayed(Drift):
    """Raises at step 3, unless it is the first that gets there: that one leaves a mark in `folder`."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(1000)
        self.mark = Path(folder, "was here")

    def move(self, action: Any) -> Result:
        if self.steps == 3:
            if self.mark.exists():
                raise ValueError("not again")
            self.mark.touch()
        return super().move(action)


class Adjustable(Drift):
    """A `Drift` whose pace others set, multiply and draw from."""

    def __init__(self, length: int = 1000) -> None:
        super().__init__(length)
        self.pace = 1.0

    def scale(self, factor: float) -> float:
        self.pace *= factor
        return self.pace

    def draw(self) -> float:
        """Change the world's own random stream."""
        return float(self.np_random.random())

    def move(self, action: Any) -> Result:
        observation, reward, *rest = super().move(action)
        return observation, reward * self.pace, *rest


class Parent(Drift):
    """Has processes of its own: one by `multiprocessing` that it asks at every step, one by `subprocess` that sleeps."""

    def __init__(self, folder: str | Path, length: int = 1000) -> None:
        super().__init__(length)
        context = multiprocessing.get_context("fork")
        self.ours, theirs = context.Pipe()
        self.child = context.Process(target=_double, args=(theirs,), daemon=True)
        self.child.start()
        self.sleeper = subprocess.Popen(["sleep", "600"])
        Path(folder, f"{os.getpid()}").write_text(f"{self.child.pid} {self.sleeper.pid}")

    def move(self, action: Any) -> Result:
        self.ours.send(int(action))
        observation, _, *rest = super().move(action)
        return observation, float(self.ours.recv()), *rest

    def close(self) -> None:
        self.child.terminate()
        self.child.join()
        self.sleeper.terminate()
        self.sleeper.wait()


def _double(connection: Any) -> None:
    while True:
        connection.send(2 * connection.recv())


class Talker(Drift):
    """Says what it does, in every way there is, when it is built and at every step."""

    def __init__(self, length: int = 1000) -> None:
        super().__init__(length)
        self._say("built")

    def move(self, action: Any) -> Result:
        self._say(f"step {self.steps}")
        return super().move(action)

    def _say(self, what: str) -> None:
        print(f"out: {what}")
        print(f"err: {what}", file=sys.stderr)
        logging.getLogger("tests.talker").warning("log: %s", what)
        warnings.warn(f"warn: {what}", UserWarning, stacklevel=2)


class Wide(World):
    """An observation of `size` bytes that tells the step."""

    def __init__(self, size: int) -> None:
        super().__init__()
        from gymnasium import spaces

        self.observation_space = spaces.Box(0, 255, (size,), np.uint8)
        self.size = size

    def see(self) -> Any:
        return np.full(self.size, self.steps % 256, np.uint8)


class Knobs:
    """What can be turned in any world."""

    pace = 1.0

    def scale(self, factor: float) -> float:
        self.pace *= factor
        return self.pace

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward * self.pace, *rest


class OwnGeneratorWithKnobs(Knobs, OwnGenerator):
    pass


class GlobalDriftWithKnobs(Knobs, GlobalDrift):
    pass
