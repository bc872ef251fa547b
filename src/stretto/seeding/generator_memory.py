"""The states of generators as bytes in their own memory: of the global `random` and `numpy.random`, and of one's own.

The global ones are Mersenne twisters: an index and 624 words. `random.getstate()` makes a tuple of 625 numbers (7 µs),
and numpy's `get_state()` a dictionary with an array (23 µs); to copy the 2,500 bytes takes 0.1 µs. Where states lie is
looked up once, and believed only if what is found there is what the generators say themselves. Elsewhere they are asked.
"""

from __future__ import annotations

import _random
import ctypes
import random
import struct
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import numpy as np

STATE_BYTES = 4 * 625
_STATE = struct.Struct("=625I")

Normal = float | None
"""The second of two normal numbers, which are drawn at once, if it is kept for the next call."""

_numpy_random: Any = np.random  # its types leave out get_bit_generator and set_bit_generator
_the_random: Any = cast(Any, random.random).__self__  # whose methods the module has as functions
_the_numpy: Any = cast(Any, np.random.rand).__self__


def _memory(address: int, size: int) -> memoryview[int]:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


# ---- random: the index, and then the words ----


def _asked(generator: Any) -> bytes:
    *words, index = _random.Random.getstate(generator)
    return _STATE.pack(index, *words)


def _found(generator: Any) -> memoryview[int] | None:
    """Return where the state of a generator of `random` lies, if it can be seen."""
    begin = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < begin + STATE_BYTES:
        return None
    memory = _memory(id(generator) + begin, STATE_BYTES)
    return memory if bytes(memory) == _asked(generator) else None


_seeder = _random.Random()
_of_seeder, _of_random = _found(_seeder), _found(_the_random)


def seeded_words(seed: int) -> bytes:
    """Return the state that `random.seed(seed)` gives."""
    _seeder.seed(seed)
    return _asked(_seeder) if _of_seeder is None else bytes(_of_seeder)


def use_of_others(generator: Any) -> Callable[[], bool]:
    """Return what tells whether numpy has another bit generator, or somebody else has this one, or a normal number is kept.

    For where `can_be_seen()`; draws are seen in `shown_memory`.
    """
    assert _normal is not None
    has_normal, random = _normal[0], _the_random

    def was_used() -> bool:
        return (
            bit_generator() is not generator
            or sys.getrefcount(generator) > references
            or has_normal[0] != 0
            or random.gauss_next is not None
        )

    references = sys.getrefcount(generator)  # while nobody else has it
    return was_used


Memory = tuple[memoryview, memoryview, memoryview, memoryview]
"""The states of `random` and of a twister, and of both the 8 bytes that tell all that 2,500 would.

The first draw from a stream that was just seeded makes all words anew. Beside numpy's index there is a word that no other
seed has; of `random` they are the second word and the third, since its first is the same for all seeds.
"""


def shown_memory(twister: Twister) -> Memory:
    """Return the memory of `random` and of a twister, where `can_be_seen()`."""
    assert _of_random is not None
    assert twister.memory is not None
    return _of_random, twister.memory, _of_random[8:16].cast("Q"), twister.memory[-8:].cast("Q")


def can_be_seen() -> bool:
    """Whether the states of `random` and of numpy are read in their memory."""
    return _of_random is not None and _of_seeder is not None and _normal is not None


def read_random() -> tuple[bytes, Normal]:
    """Return the state of `random`."""
    return _asked(_the_random) if _of_random is None else bytes(_of_random), _the_random.gauss_next


def write_random(state: tuple[bytes, Normal]) -> None:
    """Put `random` into a state."""
    if _of_random is None:
        index, *words = _STATE.unpack(state[0])
        random.setstate((3, (*words, index), state[1]))
    else:
        _of_random[:], _the_random.gauss_next = state


# ---- numpy: the words of a bit generator, and then the index; the normal number is beside it ----


class Twister:
    """A bit generator of numpy's whose state can be copied."""

    def __init__(self) -> None:
        self.generator: Any = np.random.MT19937(0)
        memory = _memory(self.generator.ctypes.state_address, STATE_BYTES)
        self.memory = memory if bytes(memory) == self._state_asked() else None

    def _state_asked(self) -> bytes:
        state = self.generator.state["state"]
        return _STATE.pack(*state["key"].tolist(), state["pos"])

    def read(self) -> bytes:
        """Return its state."""
        return self._state_asked() if self.memory is None else bytes(self.memory)

    def write(self, state: bytes) -> None:
        """Put it into a state."""
        if self.memory is None:
            *words, index = _STATE.unpack(state)
            inner = {"key": np.array(words, np.uint32), "pos": index}
            self.generator.state = {"bit_generator": "MT19937", "state": inner}
        else:
            self.memory[:] = state


@cache
def _twisters_can_be_seen() -> bool:
    return Twister().memory is not None


def state_told(generator: Any) -> Any:
    """Return what tells the state of a bit generator from others: in 2 µs if it is a twister that can be seen, else in 26."""
    if type(generator) is np.random.MT19937 and _twisters_can_be_seen():
        return bytes(_memory(generator.ctypes.state_address, STATE_BYTES))
    inner = generator.state["state"]
    return {name: part.tobytes() if isinstance(part, np.ndarray) else part for name, part in inner.items()}


def numpy_words(seed: int) -> bytes:
    """Return the state that a `Twister` begins with."""
    words = seeded_words(seed)
    return words[4:] + words[:4]


def _find_normal() -> tuple[memoryview[int], memoryview[float]] | None:
    """Return where numpy keeps whether there is a normal number, and the number, if that can be seen."""
    probe: Any = np.random.RandomState(0)
    size = type(probe).__basicsize__
    if sys.implementation.name != "cpython" or type(_the_numpy) is not type(probe):
        return None
    begin = None
    for there, number in ((1, 0.6180339887498949), (0, 0.0), (1, -2.718281828459045)):
        probe.set_state({**probe.get_state(legacy=False), "has_gauss": there, "gauss": number})
        memory, pattern = bytes(_memory(id(probe), size)), struct.pack("=iid", there, 0, number)
        if begin is None and memory.count(pattern) == 1:
            begin = memory.index(pattern)
        if begin is None or memory[begin : begin + 4] != pattern[:4] or memory[begin + 8 : begin + 16] != pattern[8:]:
            return None
    assert begin is not None
    memory_of_all = _memory(id(_the_numpy), size)[begin : begin + 16]
    return memory_of_all[:4].cast("i"), memory_of_all[8:].cast("d")


_normal = _find_normal()


bit_generator: Callable[[], Any] = _numpy_random.get_bit_generator
"""Returns the bit generator of `numpy.random`."""


def read_numpy() -> tuple[Any, Normal]:
    """Return the bit generator of `numpy.random`, and the normal number that it keeps."""
    generator = bit_generator()
    if _normal is not None:
        return generator, _normal[1][0] if _normal[0][0] else None
    state = _numpy_random.get_state(legacy=False)
    return generator, state["gauss"] if state["has_gauss"] else None


def write_numpy(state: tuple[Any, Normal]) -> None:
    """Let `numpy.random` have a bit generator, and a normal number."""
    generator, number = state
    _numpy_random.set_bit_generator(generator)  # which forgets the normal number
    if number is None:
        return
    if _normal is None:
        _numpy_random.set_state({**_numpy_random.get_state(legacy=False), "has_gauss": 1, "gauss": number})
    else:
        _normal[1][0], _normal[0][0] = number, 1


# ---- a generator of one's own: a permuted congruential one, whose state lies behind a pointer ----

_PCG_BYTES, _HALF_BYTES = 32, 8
_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

StateAccess = tuple[Callable[[], Any], Callable[[Any], None]]
"""What reads a state, and what writes it."""


def generator_memory(bits: np.random.BitGenerator) -> StateAccess:
    """Return what reads and writes the state of a bit generator: in 0.4 µs each if it can be seen, else in 5."""
    if type(bits) is not np.random.PCG64 or not _pcg_can_be_seen():
        return partial(getattr, bits, "state"), partial(setattr, bits, "state")
    number, half = _pcg_memory(bits)

    # The memory is the generator's: it must live for as long as somebody may look there.
    def read(_owner: np.random.BitGenerator = bits) -> tuple[bytes, bytes]:
        return bytes(number), bytes(half)

    def write(state: tuple[bytes, bytes], _owner: np.random.BitGenerator = bits) -> None:
        number[:], half[:] = state

    return read, write


def _pcg_memory(bits: np.random.PCG64) -> tuple[memoryview[int], memoryview[int]]:
    """Return where the two numbers of 128 bits lie, and where half of a number is kept for the next call."""
    state = ctypes.c_void_p.from_address(_pointer(bits.capsule, b"BitGenerator")).value or 0
    number = ctypes.c_void_p.from_address(state).value or 0
    return _memory(number, _PCG_BYTES), _memory(state + ctypes.sizeof(ctypes.c_void_p), _HALF_BYTES)


@cache
def _pcg_can_be_seen() -> bool:
    """Whether what lies there is what a generator says itself, before and after it was drawn from."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    bits = np.random.PCG64(0x9E3779B97F4A7C15F39CC0605CEDC834)
    generator, (number, half) = np.random.Generator(bits), _pcg_memory(bits)
    for _ in range(3):
        generator.integers(10, dtype=np.int32)  # leaves half of a number behind, every other time
        said: Any = bits.state
        inner = said["state"]
        shown = inner["state"].to_bytes(16, "little") + inner["inc"].to_bytes(16, "little")
        if bytes(number) != shown or bytes(half) != struct.pack("=iI", said["has_uint32"], said["uinteger"]):
            return False
    return True
