"""Private copies of the global generators, for code that draws from `random`, `numpy.random` or torch."""

from __future__ import annotations

import random
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from stretto.errors import LateImport
from stretto.seeding.streams import SeedTree

__calls_user_code__ = True

T = TypeVar("T")

_numpy_random: Any = np.random  # its types leave out get_bit_generator and set_bit_generator

GLOBAL_GENERATORS = ("random", "numpy", "torch")
"""The generators that are one for all code of a process."""

LATE_IMPORT = "torch, imported late"
"""What `GlobalDraws` calls it if a guarded call ended with `LateImport`."""

_LOOK_SECONDS = 0.1


class _Turn:
    """Whose private generators are in place, and how to put the global ones back."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner = 0
        self.restores: list[Callable[[], None]] = []


_turn = _Turn()


def take_turn_from(thread: int) -> None:
    """Let others go on although `thread`, which was given up, may never give its turn back."""
    global _turn
    turn = _turn
    if turn.owner == thread and turn.restores:
        _turn = _Turn()
        while turn.restores:
            turn.restores.pop()()


def waits_for_turn(frame: FrameType | None) -> bool:
    """Whether a thread that stands at `frame` waits for another one to give its turn back."""
    return frame is not None and frame.f_code is _next_turn.__code__


def _next_turn() -> _Turn:
    while True:
        turn = _turn
        # A look now and then: it may have been taken from one that never gives it back.
        if turn.lock.acquire(timeout=_LOOK_SECONDS):
            if turn is _turn:
                turn.owner = threading.get_ident()
                return turn
            turn.lock.release()


# --- one generator --------------------------------------------------------------------------------------------


class _Stream(ABC):
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


class _Random(_Stream):
    @staticmethod
    def read() -> Any:
        return random.getstate()

    @staticmethod
    def write(position: Any) -> None:
        random.setstate(position)

    def start(self) -> None:
        random.seed(self.seed)


class _Numpy(_Stream):
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


class _Torch(_Stream):
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
        return seed >> 32 != 0 and _Torch.read() == bytes(torch.Generator().manual_seed(seed).get_state().numpy())


_STREAMS: dict[str, type[_Stream]] = {"random": _Random, "numpy": _Numpy, "torch": _Torch}


# --- all of them ----------------------------------------------------------------------------------------------


class PrivateGenerators:
    """Copies of the global `random`, `numpy.random` and torch generators that belong to one world alone.

    `run(function)` swaps them in around a call. For the first `probation` calls all of them are swapped and watched;
    after that only those that the world drew from, so that a world which draws from none costs nothing.
    The probation is counted per world, hence what is found does not depend on how worlds are spread over workers.
    """

    def __init__(self, tree: SeedTree, probation: int = 16, drawn: Iterable[str] = ()) -> None:
        self._left = probation
        self.drawn: set[str] = set(drawn)
        self._streams: dict[str, _Stream] = {}
        self._late = False  # whether the last call imported torch and drew from it at once
        self.reseed(tree)

    def reseed(self, tree: SeedTree) -> None:
        """Start the private streams anew at `tree`; there are none where the world is known to draw from none."""
        if self.needed:
            places = {name: tree.child(name) for name in _STREAMS}
            seeds = {name: place.seed() if name == "torch" else place.entropy() for name, place in places.items()}
            self._streams = {name: stream(seeds[name]) for name, stream in _STREAMS.items()}

    @property
    def on_probation(self) -> bool:
        """Whether it is still open which generators the world draws from."""
        return self._left > 0

    @property
    def needed(self) -> bool:
        """Whether calls have to be guarded from now on."""
        return self.on_probation or bool(self.drawn)

    def state(self) -> dict[str, Any]:
        """Return what `set_state` needs to continue the streams from here."""
        streams = {name: stream.state() for name, stream in self._streams.items()}
        return {"streams": streams, "left": self._left, "drawn": set(self.drawn)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the streams from a `state()`."""
        self._streams = {name: _STREAMS[name](*told) for name, told in state["streams"].items()}
        self._left, self.drawn = state["left"], set(state["drawn"])

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` with the private generators in place of the global ones.

        Raises:
            LateImport: if the call was the first in this process to import torch, and drew from it at once. Only a torch
                that is there beforehand can be given a private generator.
        """
        global _late_imports
        try:
            result = self._run(function, *args, **kwargs)
        finally:
            _late_imports += self._late
        if self._late:
            raise LateImport(
                "torch must be imported before a call that draws from it, and this call did both, so that its numbers "
                "would depend on what else runs in the process; import torch at the top of the module"
            )
        return result

    def run_repeatable(
        self, function: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None, **kwargs: Any
    ) -> T:
        """Call a function that may be called twice, with the private generators in place of the global ones.

        That is done where `run` would raise `LateImport`; what the first call returned is given to `undo`.
        """
        if _Torch.is_imported():
            return self._run(function, *args, **kwargs)
        before = self.state()
        result = self._run(function, *args, **kwargs)
        if not self._late:
            return result
        if undo is not None:
            undo(result)
        self.set_state(before)
        return self._run(function, *args, **kwargs)

    def _run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        # The generators are one for all threads: only one world at a time can have its own in their place.
        turn = _next_turn()
        watched, outer = self.on_probation, len(turn.restores)
        self._late = False
        try:
            for name in GLOBAL_GENERATORS:
                if watched or name in self.drawn:
                    turn.restores.append(self._swap_in(name, watched))
            return function(*args, **kwargs)
        finally:
            while len(turn.restores) > outer:  # none are left where the turn was taken away
                turn.restores.pop()()
            if watched:
                self._left -= 1
                if not self.needed:
                    self._streams = {}
            turn.lock.release()

    def _swap_in(self, name: str, watched: bool) -> Callable[[], None]:
        """Put a private stream in place of a global generator; return what puts that back."""
        stream = self._streams[name]
        if name == "torch" and not _Torch.is_imported():
            if stream.position is None:
                return self._look_for_torch
            import torch  # noqa: F401  it was drawn from before, in another process
        swap_out = stream.swap_in(watched=watched and name not in self.drawn)

        def restore() -> None:
            if swap_out():
                self.drawn.add(name)

        return restore

    def _look_for_torch(self) -> None:
        """See after a call whether torch was imported in it and drawn from; the caller gets it as after an import."""
        if _Torch.is_imported() and not _Torch.is_untouched():
            sys.modules["torch"].default_generator.seed()
            self.drawn.add("torch")
            self._late = True


_late_imports = 0


class GlobalDraws:
    """Remembers the state of this process's global generators; `names()` are those that something was drawn from since.

    What is drawn with private generators in place does not count, but a `LateImport` does.
    """

    def __init__(self) -> None:
        self._before = _marks()
        self._late_imports = _late_imports

    def names(self) -> frozenset[str]:
        """Return which generators are not as they were."""
        now = _marks()
        names = {name for name, mark in self._before.items() if now[name] != mark}
        if "torch" in now and "torch" not in self._before and not _Torch.is_untouched():
            names.add("torch")
        if _late_imports != self._late_imports:
            names.add(LATE_IMPORT)
        return frozenset(names)


def _marks() -> dict[str, int]:
    there = GLOBAL_GENERATORS if _Torch.is_imported() else GLOBAL_GENERATORS[:-1]
    return {name: _STREAMS[name].mark(_STREAMS[name].read()) for name in there}
