"""What users keep never changes, whatever they hold, drop and write into; and memory is used again."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.workers import handing_out
from stretto.workers.arena import Arena, Field
from stretto.workers.handing_out import LARGE_BYTES, Copier, HandingOut
from stretto.workers.private_view import PAGE, works_here

LARGE = np.zeros(LARGE_BYTES, np.uint8)
needs_linux = pytest.mark.skipif(not works_here(), reason="this system cannot tell which pages were written into")


# ---- copies ----


def test_a_copy_that_somebody_keeps_is_never_written_again():
    copier = Copier()
    kept = [copier.copy(LARGE + number) for number in range(12)]
    assert [int(copy[0]) for copy in kept] == list(range(12))
    assert len({copy.ctypes.data for copy in kept}) == 12


HOLDS = {
    "view": lambda a: a[3:5],
    "memory": memoryview,
    "shape": lambda a: a.reshape(2, -1),
    "view of a view": lambda a: a[2:][1:][:1],
    "other type": lambda a: a.view(np.int16),
    "buffer": lambda a: np.frombuffer(a, np.uint8),
    "stride tricks": lambda a: np.lib.stride_tricks.as_strided(a, (2, 2), (1, 1)),
    "pointer": lambda a: a.ctypes,
}
every_hold = pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)


def _first(held):
    return int(held._arr[0] if hasattr(held, "_arr") else np.asarray(held).reshape(-1).view(np.uint8)[0])


@every_hold
def test_a_view_keeps_a_copy_as_well_as_the_copy_itself(hold):
    copier = Copier()
    view = hold(copier.copy(LARGE + 7))
    for number in range(8):
        copier.copy(LARGE + number)
    assert _first(view) == 7


def test_memory_that_nobody_refers_to_is_used_again():
    copier = Copier()
    first = copier.copy(LARGE).ctypes.data
    assert copier.copy(LARGE + 1).ctypes.data == first


def test_who_changes_the_form_of_a_copy_changes_no_later_one():
    copier = Copier()
    copy = copier.copy(LARGE)
    copy.shape = 2, -1
    copy.flags.writeable = False
    del copy
    later = copier.copy(LARGE + 1)
    assert later.shape == LARGE.shape
    assert later.flags.writeable


# ---- arrays that are handed out ----


BUFFERS = 8
PAGES = 256
SIZE = PAGES * PAGE


class Rounds:
    """Writes rounds into buffers as an engine does, each with its number everywhere, and gives them to a user."""

    def __init__(self) -> None:
        self.arena = Arena.create(shared=True)
        self.arena.allocate(2 * SIZE, end=BUFFERS * SIZE)
        spans = [range(k * SIZE, (k + 1) * SIZE) for k in range(BUFFERS)]
        fields = [Field((1, SIZE), np.dtype(np.uint8), span.start) for span in spans]
        self.buffers = self.arena.view(fields)
        large = [{0: field} for field in fields]
        self.handing_out = HandingOut(self.arena, spans, large, there=2, one_process=False)
        self.buffer = self.number = 0

    def step(self):
        """Return what a user gets; `None` if it had to be copied."""
        last = self.buffers[self.buffer].copy()
        buffer = self.handing_out.free(self.buffer)
        assert buffer != self.buffer
        self.number = self.number % 250 + 1
        self.buffers[buffer][:] = self.number
        assert np.array_equal(self.buffers[self.buffer], last)  # were a worker to die now, we needed it
        self.buffer = buffer
        return self.handing_out.give(buffer).get(0)

    def close(self) -> None:
        self.handing_out.close()
        self.arena.close()


@needs_linux
def test_who_keeps_the_last_alone_always_gets_the_same_two_arrays():
    with closing(Rounds()) as rounds:
        seen = set()
        for number in range(20):
            given = rounds.step()
            assert np.all(given == number + 1)
            seen.add(given.ctypes.data)
        assert len(seen) == 2


@needs_linux
@every_hold
def test_a_view_keeps_what_was_handed_out_as_well_as_the_array_itself(hold):
    with closing(Rounds()) as rounds:
        held = hold(rounds.step()[0])
        for _ in range(20):
            rounds.step()
        assert _first(held) == 1


@needs_linux
def test_a_tensor_keeps_what_was_handed_out():
    torch = pytest.importorskip("torch")
    with closing(Rounds()) as rounds:
        held = torch.from_numpy(rounds.step())[0, 5:]
        for _ in range(20):
            rounds.step()
        assert bool((held == 1).all())


@needs_linux
def test_who_keeps_all_gets_copies_in_the_end_and_arrays_again_when_they_let_go():
    with closing(Rounds()) as rounds:
        kept = [rounds.step() for _ in range(2 * BUFFERS)]
        assert [one is None for one in kept] == [False] * BUFFERS + [True] * BUFFERS
        assert all(np.all(one == number + 1) for number, one in enumerate(kept[:BUFFERS]))
        kept.clear()
        again = rounds.step()
        assert np.all(again == rounds.number)


@needs_linux
def test_who_changes_the_form_of_an_array_changes_no_later_one():
    with closing(Rounds()) as rounds:
        for _ in range(4):
            given = rounds.step()
            assert given.shape == (1, SIZE)
            assert given.flags.writeable
            given.shape = 2, -1
            given.flags.writeable = False


@needs_linux
def test_who_writes_into_all_of_it_gets_copies_from_then_on():
    with closing(Rounds()) as rounds:
        rounds.step()[:] = 99
        given = [rounds.step() for _ in range(6)]
        assert np.all(given[0] == 2)
        assert [one is None for one in given[2:]] == [True] * 4


@needs_linux
def test_who_writes_into_a_page_now_and_then_goes_on_to_get_arrays():
    with closing(Rounds()) as rounds:
        for number in range(40):
            given = rounds.step()
            assert np.all(given == number + 1)
            if number % 8 == 0:
                given[0, 5] = 255


@needs_linux
def test_there_are_as_many_buffers_as_are_held_if_there_is_memory(monkeypatch):
    with closing(Rounds()) as rounds:
        kept = [rounds.step() for _ in range(3)]
        monkeypatch.setattr(rounds.arena, "fill", lambda span: False)
        kept += [rounds.step() for _ in range(3)]
        assert [one is None for one in kept] == [False] * 3 + [True] * 3
        assert [int(one[0, -1]) for one in kept[:3]] == [1, 2, 3]


@needs_linux
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["drop", "hold", "row", "write", "fork"]), st.integers(0, 9)), max_size=40))
def test_whatever_is_held_dropped_and_written_into_it_stays_as_its_holder_has_it(moves):
    rounds = Rounds()
    held: list[tuple[np.ndarray, np.ndarray]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handing_out, "_WRITTEN_SHARE", 1e9)  # or there would be nothing but copies soon
        for move, which in moves:
            given = rounds.step()
            if given is None:
                given = np.full((1, SIZE), rounds.number, np.uint8)
            assert np.all(given == rounds.number)
            match move:
                case "drop":
                    del held[which:]
                case "hold":
                    held.append((given, given.copy()))
                case "row":
                    held.append((given[0, which:], given[0, which:].copy()))
                case "write":
                    given[0, 1000 * which :: 5000] = 255
                    held.append((given, given.copy()))
                case "fork":
                    rounds.handing_out.before_fork()
            assert all(np.array_equal(one, copied) for one, copied in held)
    rounds.close()
    assert all(np.array_equal(one, copied) for one, copied in held)
