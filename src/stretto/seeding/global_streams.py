"""Streams that take the place of a global generator: of `random`, of `numpy.random`, and of torch."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from stretto.seeding.generator_memory import (
    STATE_BYTES,
    Twister,
    numpy_words,
    read_numpy,
    read_random,
    seeded_words,
    shown_memory,
    state_told,
    use_of_others,
    write_numpy,
    write_random,
)


class Stream(ABC):
    """A private stream of one global generator.

    Until something is drawn from it there is no `position`, and it can be made again from the seed.
    """

    def __init__(self, seed: int, position: Any = None) -> None:
        self.seed, self.position = seed, position
        self._start: Any = None

    @staticmethod
    @abstractmethod
    def read() -> Any:
        """Return the position of the global generator."""

    @staticmethod
    @abstractmethod
    def write(position: Any) -> None:
        """Put the global generator at a position."""

    @staticmethod
    def mark(position: Any) -> Any:
        """Return what tells a position from others that the same generator has later."""
        return position

    @abstractmethod
    def start(self) -> Any:
        """Return the position at which this stream begins. The global generator may be anywhere after that."""

    def began(self) -> Any:
        """Return what `start` returns, computed once."""
        if self._start is None:
            self._start = self.start()
        return self._start

    def state(self) -> tuple[int, Any]:
        """Return the seed and the position, as something that can be sent and does not change."""
        return self.seed, self.position

    def swap_in(self, *, watched: bool) -> Callable[[], bool]:
        """Put this stream in place of the global generator; return what takes it out and says whether it was used.

        One that is not `watched` counts as used.
        """
        outer, began = self.read(), self.position
        if began is None:
            began = self.began()
        self.write(began)

        def swap_out() -> bool:
            now = self.read()
            self.write(outer)
            used = not watched or now != began
            if used:
                self.position, self._start = now, None
            return used

        return swap_out


class RandomStream(Stream):
    """A position is all of its state."""

    @staticmethod
    def read() -> Any:
        return read_random()

    @staticmethod
    def write(position: Any) -> None:
        write_random(position)

    def start(self) -> tuple[bytes, None]:
        return seeded_words(self.seed), None


class NumpyStream(Stream):
    """A position is the bit generator, which a world may itself replace, and the normal number that numpy keeps.

    A bit generator takes 60 µs to make. Streams that nothing was drawn from yet borrow one for as long as they are in place.
    """

    @staticmethod
    def read() -> Any:
        return read_numpy()

    @staticmethod
    def write(position: Any) -> None:
        write_numpy(position)

    def __init__(self, seed: int, position: Any = None) -> None:
        if position is not None:
            generator = getattr(np.random, position["bit_generator"])()
            generator.state = position
            position = generator, position["gauss"] if position["has_gauss"] else None
        super().__init__(seed, position)

    def state(self) -> tuple[int, Any]:
        if self.position is None:
            return self.seed, None
        generator, normal = self.position
        return self.seed, {**generator.state, "has_gauss": int(normal is not None), "gauss": normal or 0.0}

    @staticmethod
    def mark(position: Any) -> Any:
        generator, normal = position
        return id(generator), state_told(generator), normal

    def start(self) -> bytes:
        return numpy_words(self.seed)

    def swap_in(self, *, watched: bool) -> Callable[[], bool]:
        outer = read_numpy()
        if self.position is not None:
            write_numpy(self.position)

            def keep() -> bool:
                self.position = read_numpy()
                write_numpy(outer)
                return True

            return keep
        began, lent = self.began(), _spare.pop() if _spare else Twister()
        lent.write(began)
        write_numpy((lent.generator, None))

        def give_back() -> bool:
            now = read_numpy()
            write_numpy(outer)
            if watched and now == (lent.generator, None) and lent.read() == began:
                del now
                if sys.getrefcount(lent.generator) == _NOBODY_ELSE:
                    _spare.append(lent)
                    return False
                now = lent.generator, None  # somebody has it, and may draw from it later
            self.position, self._start = now, None
            return True

        return give_back


_spare = [Twister()]
_NOBODY_ELSE = sys.getrefcount(_spare[0].generator)


class Stand:
    """Generators that take the place of the global ones while many worlds are watched that have drawn nothing yet.

    Each finds them at the start of its own streams. To put the global ones aside and back for each takes four times as long.
    """

    def __init__(self) -> None:
        self._outer = read_random(), read_numpy()
        write_random((b"\0" * STATE_BYTES, None))
        self._look_at(_spare.pop() if _spare else Twister())

    def _look_at(self, twister: Twister) -> None:
        self._twister = twister
        write_numpy((twister.generator, None))
        self.memory = shown_memory(twister)
        self.was_used = use_of_others(twister.generator)  # draws are seen in `memory`

    def take(self, streams: dict[str, Stream], drawn: set[str]) -> None:
        """Give streams their new positions; add to `drawn` those that were used."""
        by_random, by_numpy = streams["random"].began(), streams["numpy"].began()
        if (found := read_random()) != by_random:
            streams["random"].position = found
            drawn.add("random")
            write_random(by_random)  # without a normal number
        if self.was_used() or self._twister.read() != by_numpy:
            streams["numpy"].position = read_numpy()
            drawn.add("numpy")
            self._look_at(Twister())

    def close(self) -> None:
        """Put the global ones back."""
        for_random, for_numpy = self._outer
        write_random(for_random)
        write_numpy(for_numpy)
        _spare.append(self._twister)


class TorchStream(Stream):
    """A position is bytes: a caller that keeps one for a worker need not import torch to read it."""

    @staticmethod
    def read() -> bytes:
        return bytes(sys.modules["torch"].default_generator.get_state().numpy())

    @staticmethod
    def write(position: bytes) -> None:
        torch = sys.modules["torch"]
        torch.default_generator.set_state(torch.frombuffer(bytearray(position), dtype=torch.uint8))

    def start(self) -> bytes:
        sys.modules["torch"].default_generator.manual_seed(self.seed)
        return self.read()

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
