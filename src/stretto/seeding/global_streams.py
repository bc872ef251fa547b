"""Streams that take the place of a global generator: of `random`, of `numpy.random`, and of torch."""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

_numpy_random: Any = np.random  # its types leave out get_bit_generator and set_bit_generator


class Stream(ABC):
    """A private stream of one global generator.

    Until something is drawn from it there is no `position`, and the seed alone is kept: a position of `random` takes
    25 kB, torch's 5 kB, and numpy's 3 kB.
    """

    def __init__(self, seed: int, position: Any = None) -> None:
        self.seed, self.position = seed, position
        self._mark: int | None = None

    @staticmethod
    @abstractmethod
    def read() -> Any:
        """Return the position of the global generator."""

    @staticmethod
    @abstractmethod
    def write(position: Any) -> None:
        """Put the global generator at a position."""

    @staticmethod
    def mark(position: Any) -> int:
        """Return a number that tells positions apart."""
        return hash(position)

    @abstractmethod
    def start(self) -> None:
        """Put the global generator at the start of this stream."""

    def state(self) -> tuple[int, Any]:
        """Return the seed and the position, as something that can be sent and does not change."""
        return self.seed, self.position

    def swap_in(self, *, watched: bool) -> Callable[[], bool]:
        """Put this stream in place of the global generator; return what takes it out and says whether it was used.

        One that is not `watched` counts as used: to find that out costs as much as a few draws.
        """
        outer = self.read()
        if self.position is None:
            self.start()
        else:
            self.write(self.position)
        if watched and self._mark is None:
            self._mark = self.mark(self.read())

        def swap_out() -> bool:
            now = self.read()
            self.write(outer)
            used = not watched or self.mark(now) != self._mark
            if used:
                self.position, self._mark = now, None
            return used

        return swap_out


class RandomStream(Stream):
    """A position is all of its state."""

    @staticmethod
    def read() -> Any:
        return random.getstate()

    @staticmethod
    def write(position: Any) -> None:
        random.setstate(position)

    def start(self) -> None:
        random.seed(self.seed)


class NumpyStream(Stream):
    """A position is the bit generator, which a world may itself replace, and all of numpy's state.

    That holds the second of two normal numbers, which numpy draws at once. To read it takes 22 µs, ten times as long
    as all the rest.
    """

    def __init__(self, seed: int, position: Any = None) -> None:
        if position is not None:
            generator = getattr(np.random, position["bit_generator"])()
            generator.state = position
            position = generator, position
        super().__init__(seed, position)
        self._fresh: Any = None

    def state(self) -> tuple[int, Any]:
        return self.seed, None if self.position is None else self.position[1]

    @staticmethod
    def read() -> Any:
        return _numpy_random.get_bit_generator(), _numpy_random.get_state(legacy=False)

    @staticmethod
    def write(position: Any) -> None:
        generator, state = position
        _numpy_random.set_bit_generator(generator)
        if state["has_gauss"]:
            _numpy_random.set_state(state)

    @staticmethod
    def mark(position: Any) -> int:
        state = position[1]
        inner = state["state"]
        words = (inner["pos"], inner["key"].tobytes()) if state["bit_generator"] == "MT19937" else repr(inner)
        return hash((words, state["has_gauss"], state["gauss"]))

    def start(self) -> None:
        if self._fresh is None:
            self._fresh = np.random.MT19937(self.seed)  # 60 µs; it is as fresh as before if nothing is drawn from it
        _numpy_random.set_bit_generator(self._fresh)


class TorchStream(Stream):
    """A position is bytes: a caller that keeps one for a worker need not import torch to read it."""

    @staticmethod
    def read() -> bytes:
        return bytes(sys.modules["torch"].default_generator.get_state().numpy())

    @staticmethod
    def write(position: bytes) -> None:
        torch = sys.modules["torch"]
        torch.default_generator.set_state(torch.frombuffer(bytearray(position), dtype=torch.uint8))

    def start(self) -> None:
        sys.modules["torch"].default_generator.manual_seed(self.seed)

    @staticmethod
    def is_imported() -> bool:
        """Whether there is a generator: while torch is being imported there is none yet."""
        return hasattr(sys.modules.get("torch"), "default_generator")

    @staticmethod
    def is_untouched() -> bool:
        """Whether torch's generator is as its import left it: seeded with 64 random bits, and nothing drawn.

        A seed that has 32 bits or fewer was set by somebody.
        """
        torch = sys.modules["torch"]
        seed = torch.default_generator.initial_seed()
        return seed >> 32 != 0 and TorchStream.read() == bytes(torch.Generator().manual_seed(seed).get_state().numpy())


STREAMS: dict[str, type[Stream]] = {"random": RandomStream, "numpy": NumpyStream, "torch": TorchStream}
