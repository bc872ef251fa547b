"""Random streams by identity, and private copies of the global generators.

A stream is named by a path (root seed, then strings and numbers), never by who draws from it or when, so that
results do not depend on the number of workers or on the order in which they finish.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, TypeVar

import numpy as np

__calls_user_code__ = True

Key = int | str
T = TypeVar("T")

_numpy_random: Any = np.random  # its types leave out get_bit_generator and set_bit_generator

GLOBAL_GENERATORS = ("random", "numpy", "torch")
"""The generators that are one for all code of a process."""

SEED_BITS = 31  # fits every generator in use: np.random.seed takes 32 bits, some C libraries a signed int


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


class SeedTree:
    """A place in the tree of random streams that one root seed opens.

    >>> SeedTree(7).child("episode", 3).seed() == SeedTree(7).child("episode").child(3).seed()
    True
    """

    __slots__ = ("_path", "root")

    def __init__(self, root: int, _path: tuple[Key, ...] = ()) -> None:
        self.root = int(root)
        self._path = _path

    def child(self, *keys: Key) -> SeedTree:
        """Return the stream below this one that `keys` name."""
        return SeedTree(self.root, self._path + keys)

    def entropy(self) -> int:
        """Return the 128 bits that this place stands for."""
        # The type and the length stand before each key, so that ("ab", 1) and ("a", "b1") differ.
        text = "".join(f"{type(key).__name__}:{len(str(key))}:{key};" for key in (self.root, *self._path))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")

    def seed(self) -> int:
        """Return a seed of 31 bits, for code that wants an int."""
        return self.entropy() & ((1 << SEED_BITS) - 1)

    def generator(self) -> np.random.Generator:
        """Return a fresh numpy generator at the start of this stream."""
        return np.random.Generator(np.random.PCG64(self.entropy()))

    def __repr__(self) -> str:
        return f"SeedTree({'/'.join(map(str, (self.root, *self._path)))})"


def episode_seed(slot_seed: int, episode: int) -> int:
    """Return the seed of a slot's `episode`: the slot's own for the first, a key of its own for each later one."""
    return slot_seed if episode == 0 else SeedTree(slot_seed).child("episode", episode).seed()


class PrivateGenerators:
    """Copies of the global `random`, `numpy.random` and torch generators that belong to one world alone.

    `guard(function)` swaps them in around each call. For the first `probation` calls all of them are swapped and
    watched; after that only those that the world drew from, so that a world which draws from none costs nothing.
    Until something is drawn from one, it is kept as its seed (numpy's, which takes longer to make, where it is used): a
    state of `random` takes 25 kB, torch's 5 kB, and numpy's 3 kB.
    The probation is counted per world, hence what is found does not depend on how worlds are spread over workers.
    """

    def __init__(self, tree: SeedTree, probation: int = 16, drawn: Iterable[str] = ()) -> None:
        self._left = probation
        self.drawn: set[str] = set(drawn)
        self.reseed(tree)

    def reseed(self, tree: SeedTree) -> None:
        """Start the private streams anew at `tree`; there are none where the world is known to draw from none."""
        if not self.needed:
            return
        self._random_seed = tree.child("random").entropy()
        self._random: Any = None  # until something is drawn from it
        self._numpy_seed = tree.child("numpy").entropy()
        self._numpy: Any = np.random.MT19937(self._numpy_seed)
        self._held: float | None = None
        self._torch_seed = tree.child("torch").seed()
        self._torch: Any = None

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
        return {
            "random": self._random,
            "random_seed": self._random_seed,
            "numpy": self._numpy.state if "numpy" in self.drawn else None,
            "numpy_seed": self._numpy_seed,
            "held": self._held,
            # As bytes: a caller that keeps this for a worker need not import torch to read it.
            # It comes back as bytes, and becomes a tensor again only where torch is there and used.
            "torch": self._torch
            if self._torch is None or isinstance(self._torch, bytes)
            else bytes(self._torch.numpy()),
            "torch_seed": self._torch_seed,
            "left": self._left,
            "drawn": set(self.drawn),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue the streams from a `state()`."""
        self._random, self._random_seed = state["random"], state["random_seed"]
        self._numpy_seed = state["numpy_seed"]
        self._numpy = np.random.MT19937(self._numpy_seed)
        if state["numpy"] is not None:
            self._numpy.state = state["numpy"]
        self._held = state["held"]
        self._torch, self._torch_seed = state["torch"], state["torch_seed"]
        self._left, self.drawn = state["left"], set(state["drawn"])

    def run(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Call `function` with the private generators in place of the global ones."""
        # The generators are one for all threads: only one world at a time can have its own in their place.
        turn = _next_turn()
        try:
            return self._run(turn, function, *args, **kwargs)
        finally:
            turn.lock.release()

    def _run(self, turn: _Turn, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        watched = self.on_probation
        ways = zip(GLOBAL_GENERATORS, (self._swap_random, self._swap_numpy, self._swap_torch), strict=True)
        swaps = [swap for name, swap in ways if watched or name in self.drawn]
        outer = len(turn.restores)
        for swap in swaps:
            turn.restores.append(swap(watched))
        try:
            return function(*args, **kwargs)
        finally:
            while len(turn.restores) > outer:  # none are left where the turn was taken away
                turn.restores.pop()()
            if watched:
                self._left -= 1
                if not self.needed:
                    self._random = self._numpy = self._torch = None  # 4 kB a world

    def _swap_random(self, watched: bool) -> Callable[[], None]:
        outer = random.getstate()
        if self._random is None:
            random.seed(self._random_seed)
        else:
            random.setstate(self._random)
        before = random.getstate() if watched else None

        def restore() -> None:
            after = random.getstate()
            random.setstate(outer)
            if watched and after != before:
                self.drawn.add("random")
            if "random" in self.drawn:
                self._random = after

        return restore

    def _swap_numpy(self, watched: bool) -> Callable[[], None]:
        outer, outer_held = _numpy_random.get_bit_generator(), _held_gaussian()
        before = (_mersenne_words(self._numpy), self._held) if watched else None
        _set_numpy(self._numpy, self._held)

        def restore() -> None:
            # A world may itself have set another generator; what it left is its own from now on.
            self._numpy, self._held = _numpy_random.get_bit_generator(), _held_gaussian()
            _set_numpy(outer, outer_held)
            if before is not None and (_mersenne_words(self._numpy), self._held) != before:
                self.drawn.add("numpy")

        return restore

    def _swap_torch(self, watched: bool) -> Callable[[], None]:
        # getattr: a half-imported torch (its import is under way further up the stack) has no generator yet.
        torch = sys.modules.get("torch")
        generator = getattr(torch, "default_generator", None)
        if torch is None or generator is None:
            return _torch_watch.begin(self)
        outer = generator.get_state()
        if self._torch is None:
            generator.manual_seed(self._torch_seed)
        else:
            if isinstance(self._torch, bytes):
                self._torch = torch.frombuffer(bytearray(self._torch), dtype=torch.uint8)
            generator.set_state(self._torch)
        before = generator.get_state()

        def restore() -> None:
            after = generator.get_state()
            generator.set_state(outer)
            if watched and not torch.equal(after, before):
                self.drawn.add("torch")
            if "torch" in self.drawn:
                self._torch = after

        return restore

    def begin_torch(self, torch: Any) -> None:
        """Start the private stream of a torch that was imported just now, by the world itself."""
        torch.default_generator.manual_seed(self._torch_seed)

    def keep_torch(self, torch: Any) -> None:
        """Keep the stream of a torch that was imported in the call that ends, and give the caller a fresh one."""
        generator = torch.default_generator
        after = generator.get_state()
        generator.seed()
        if not torch.equal(after, torch.Generator().manual_seed(self._torch_seed).get_state()):
            self.drawn.add("torch")
        if "torch" in self.drawn:
            self._torch = after


class _TorchWatch(importlib.abc.MetaPathFinder):
    """Sees torch being imported by a guarded call: what the world draws from it at once must be its own, too."""

    def __init__(self) -> None:
        self._guard: PrivateGenerators | None = None
        self._imported: Any = None

    def begin(self, guard: PrivateGenerators) -> Callable[[], None]:
        """Watch on behalf of `guard`; return what ends that."""
        if self not in sys.meta_path and "torch" not in sys.modules:
            sys.meta_path.insert(0, self)
        outer, self._guard = self._guard, guard

        def end() -> None:
            self._guard = outer
            if self._imported is not None and self._guard is None:
                guard.keep_torch(self._imported)
                self._imported = None

        return end

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                if self._guard is not None:
                    self._imported = module
                    self._guard.begin_torch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_torch_watch = _TorchWatch()


class GlobalDraws:
    """Remembers the state of this process's global generators; `names()` are those that something was drawn from since.

    What is drawn with private generators in place does not count.
    """

    def __init__(self) -> None:
        self._before = _global_states()

    def names(self) -> frozenset[str]:
        """Return which generators are not as they were."""
        now = _global_states()
        if self._before["torch"] is None and now["torch"] is not None:  # imported since
            self._before["torch"] = _fresh_torch()
        return frozenset(name for name in GLOBAL_GENERATORS if now[name] != self._before[name])


def _global_states() -> dict[str, Any]:
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    return {
        "random": random.getstate(),
        "numpy": (_mersenne_words(_numpy_random.get_bit_generator()), _held_gaussian()),
        "torch": None if generator is None else bytes(generator.get_state().numpy()),
    }


def _fresh_torch() -> bytes:
    """Return the state that torch's generator has when it is imported."""
    return bytes(sys.modules["torch"].Generator().get_state().numpy())


def _held_gaussian() -> float | None:
    """Return the second of two normal numbers, which numpy draws at once, if it is still to be given out."""
    state = _numpy_random.get_state(legacy=False)
    return float(state["gauss"]) if state["has_gauss"] else None


def _set_numpy(generator: Any, held: float | None) -> None:
    """Let numpy's global functions draw from `generator`, after the normal number that is `held` back."""
    _numpy_random.set_bit_generator(generator)
    if held is not None:
        _numpy_random.set_state({**_numpy_random.get_state(legacy=False), "has_gauss": 1, "gauss": held})


def _mersenne_words(generator: Any) -> tuple[int, bytes] | None:
    state = generator.state
    if state["bit_generator"] != "MT19937":
        return None
    return state["state"]["pos"], state["state"]["key"].tobytes()
