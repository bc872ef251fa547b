"""A world that ends its process in the middle of a run, once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium

MARK = "TEST_KILLED_RUNS_MARK"
"""The variable of the environment that names the file which says that a process was ended."""


class DiesOnce(gymnasium.Wrapper):
    """Ends its process in its step `at`, unless that has happened before."""

    def __init__(self, env: gymnasium.Env, at: int) -> None:
        super().__init__(env)
        self._mark, self._steps, self._at = Path(os.environ[MARK]), 0, at

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == self._at and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def dies_early() -> gymnasium.Env:
    return DiesOnce(gymnasium.make("CartPole-v1"), 20)


def dies_late() -> gymnasium.Env:
    return DiesOnce(gymnasium.make("CartPole-v1"), 90)
