"""Private copies of the global generators, for code that draws from `random`, `numpy.random` or torch."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from threading import get_ident
from types import CodeType, FrameType
from typing import Any, TypeVar

from stretto.errors import LateImport
from stretto.seeding.generator_memory import can_be_seen
from stretto.seeding.global_streams import STREAMS, Stand, Stream, TorchStream
from stretto.seeding.streams import SeedTree

__calls_user_code__ = True

T = TypeVar("T")

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
        self.stand: Stand | None = None


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
    return frame is not None and frame.f_code in (_next_turn.__code__, _taken_over.__code__)


def _next_turn() -> _Turn:
    while True:
        turn = _turn
        # A look now and then: it may have been taken from one that never gives it back.
        if turn.lock.acquire(timeout=_LOOK_SECONDS):
            if turn is _turn:
                turn.owner = get_ident()
                return turn
            turn.lock.release()
        elif not _is_used() and (taken := _taken_over(turn)) is not None:
            return taken


def _is_used() -> bool:
    """Whether another thread is in a guarded call, and does not wait for its turn there."""
    me = get_ident()
    for thread, frame in sys._current_frames().items():  # noqa: SLF001  documented, and there is no other way
        inside: FrameType | None = None if thread == me or waits_for_turn(frame) else frame
        while inside is not None and inside.f_code not in _users():
            inside = inside.f_back
        if inside is not None:
            return True
    return False


def _users() -> tuple[CodeType, ...]:
    return PrivateGenerators._run.__code__, watching_many.__code__  # noqa: SLF001  ours


def _taken_over(turn: _Turn) -> _Turn | None:
    """Take the place of a turn that nobody uses and nobody will give back; `None` if another thread did so.

    Ctrl-C between taking a turn and using it, or before giving it back, leaves it with the main thread for ever.
    """
    global _turn
    mine = _Turn()
    mine.lock.acquire()
    if _turn is not turn:
        return None
    _turn = mine  # no call since the look at it, so that no other thread came between
    while _is_used():  # the thread that has the old one may have come in by it again
        time.sleep(_LOOK_SECONDS / 100)
    while turn.restores:
        turn.restores.pop()()
    mine.owner = get_ident()
    return mine


def watching_many(function: Callable[..., T], *args: Any) -> T:
    """Call a function that watches many worlds by `PrivateGenerators.call`; the global generators are aside meanwhile."""
    if TorchStream.is_imported() or not can_be_seen():
        return function(*args)
    turn = _next_turn()
    outer = len(turn.restores)
    try:
        turn.stand = Stand()
        turn.restores.append(turn.stand.close)
        return function(*args)
    finally:
        turn.stand = None
        while len(turn.restores) > outer:  # none are left where the turn was taken away
            turn.restores.pop()()
        turn.lock.release()


class PrivateGenerators:
    """Copies of the global `random`, `numpy.random` and torch generators that belong to one world alone.

    `run(function)` swaps them in around a call. For the first `probation` calls all of them are swapped and watched;
    after that only those that the world drew from, so that a world which draws from none costs nothing.
    `left` is how many calls are watched from now on. They are counted per world, hence what is found does not depend on
    how worlds are spread over workers.
    """

    def __init__(self, tree: SeedTree, probation: int = 16, drawn: Iterable[str] = ()) -> None:
        self.left = probation
        self.drawn: set[str] = set(drawn)
        self.needed = self.on_probation or bool(self.drawn)  # whether calls have to be guarded from now on
        self._streams: dict[str, Stream] = {}
        self._starts: tuple[bytes, bytes] | None = None  # of the streams, while nothing was drawn
        self._late = False  # whether the last call imported torch and drew from it at once
        self.reseed(tree)

    def reseed(self, tree: SeedTree) -> None:
        """Start the private streams anew at `tree`; there are none where the world is known to draw from none."""
        if self.needed:
            places = {name: tree.child(name) for name in STREAMS}
            seeds = {name: place.seed() if name == "torch" else place.entropy() for name, place in places.items()}
            self._streams = {name: stream(seeds[name]) for name, stream in STREAMS.items()}
            self._starts = None

    @property
    def on_probation(self) -> bool:
        """Whether it is still open which generators the world draws from."""
        return self.left > 0

    def state(self) -> dict[str, Any]:
        """Return what `set_state` needs to continue the streams from here."""
        streams = {name: stream.state() for name, stream in self._streams.items()}
        return {"streams": streams, "left": self.left, "drawn": set(self.drawn)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the streams from a `state()`."""
        self._streams = {name: STREAMS[name](*stream) for name, stream in state["streams"].items()}
        self._starts = None
        self.left, self.drawn = state["left"], set(state["drawn"])
        self.needed = self.on_probation or bool(self.drawn)

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` with the private generators, where they are needed, in place of the global ones.

        Raises:
            LateImport: if the call was the first in this process to import torch, and drew from it at once. Only a torch
                that is there beforehand can be given a private generator.
        """
        if not self.needed:
            return function(*args, **kwargs)
        try:
            result = self._run(function, *args, **kwargs)
        finally:
            _count_late(self._late)
        if self._late:
            self._refuse_late_import()
        return result

    def call(self, function: Callable[[Any], T], argument: Any) -> T:
        """Do the same as `run`; a call that is only watched costs less inside of `watching_many`."""
        turn = _turn
        stand = turn.stand
        if stand is None or self.left <= 0 or self.drawn or turn.owner != get_ident():
            return self.run(function, argument)
        result = self._watched(stand, function, argument)
        if self._late:
            self._refuse_late_import()
        return result

    def _watched(self, stand: Stand, function: Callable[[Any], T], argument: Any) -> T:
        """Call a function that finds the streams at their start in the stand; take those that it has used.

        The first steps of thousands of worlds pass through here. So what was not used is neither read nor put back.
        """
        for_random, for_numpy, of_random, of_numpy = stand.memory
        starts = self._starts
        if starts is None:
            starts = self._starts = self._streams["random"].began()[0], self._streams["numpy"].began()
        for_random[:], for_numpy[:] = starts
        one, other = of_random[0], of_numpy[0]
        self._late = False
        try:
            return function(argument)
        finally:
            if of_random[0] != one or of_numpy[0] != other or stand.was_used():
                stand.take(self._streams, self.drawn)
            if "torch" in sys.modules:
                self._look_for_torch()
                _count_late(self._late)
            self.left = left = self.left - 1
            if not left:
                self._end_probation()

    def _refuse_late_import(self) -> None:
        raise LateImport(
            "torch must be imported before a call that draws from it, and this call did both, so that its numbers "
            "would depend on what else runs in the process; import torch at the top of the module"
        )

    def _end_probation(self) -> None:
        """Keep the streams of generators only if the world has drawn from some."""
        self.needed = bool(self.drawn)
        if not self.needed:
            self._streams, self._starts = {}, None

    def run_repeatable(
        self, function: Callable[..., T], *args: Any, undo: Callable[[T], object] | None = None, **kwargs: Any
    ) -> T:
        """Call a function that may be called twice, with the private generators in place of the global ones.

        That is done where `run` would raise `LateImport`; what the first call returned is given to `undo`.
        """
        if not self.needed:
            return function(*args, **kwargs)
        if TorchStream.is_imported():
            return self._run(function, *args, **kwargs)
        before, turn = self.state(), _turn
        if turn.stand is None or not self.on_probation or self.drawn or turn.owner != get_ident():
            result = self._run(function, *args, **kwargs)
        else:
            result = self._watched(turn.stand, lambda _: function(*args, **kwargs), None)
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
                self.left -= 1
                if not self.left:
                    self._end_probation()
            turn.lock.release()

    def _swap_in(self, name: str, watched: bool) -> Callable[[], None]:
        """Put a private stream in place of a global generator; return what puts that back."""
        stream = self._streams[name]
        if name == "torch" and not TorchStream.is_imported():
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
        if TorchStream.is_imported() and not TorchStream.is_untouched():
            sys.modules["torch"].default_generator.seed()
            self.drawn.add("torch")
            self._late = True


_late_imports = 0


def _count_late(late: bool) -> None:
    global _late_imports
    _late_imports += late


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
        if "torch" in now and "torch" not in self._before and not TorchStream.is_untouched():
            names.add("torch")
        if _late_imports != self._late_imports:
            names.add(LATE_IMPORT)
        return frozenset(names)


def _marks() -> dict[str, Any]:
    there = GLOBAL_GENERATORS if TorchStream.is_imported() else GLOBAL_GENERATORS[:-1]
    return {name: STREAMS[name].mark(STREAMS[name].read()) for name in there}
