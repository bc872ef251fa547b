"""A service that does what it is told, in tests of whoever tells it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from stretto.workers.base import Port


@dataclass(frozen=True)
class Do:
    what: str
    value: Any = None


class Servant:
    """Adds up, returns, raises, prints, and runs functions. A signal adds its code; an odd one returns the sum."""

    def __init__(self, port: Port) -> None:
        self.port, self.sum = port, 0

    def handle(self, message):
        match message:
            case Do("add", value):
                self.sum += value
                return self.sum
            case Do("return", value):
                return value
            case Do("raise"):
                raise KeyError("no such thing")
            case Do("say", words):
                print(words)
                return None
            case Do("run", function):
                return function()
            case Do("work", beats):
                for _ in range(beats):
                    time.sleep(0.05)
                    self.port.beat()
                return "done"
            case _:
                raise AssertionError(f"no such message: {message!r}")

    def signal(self, code):
        self.sum += code
        return self.sum if code % 2 else None

    def close(self):
        pass


def refuse(port: Port) -> Servant:
    """Stand for a service that cannot be made."""
    raise ValueError("this servant cannot be made")
