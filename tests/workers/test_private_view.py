"""A private view shows an arena, and keeps to itself what is written into it."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.workers.arena import Arena, Field
from stretto.workers.private_view import PAGE, PrivateView, faults, works_here

pytestmark = pytest.mark.skipif(not works_here(), reason="this system cannot tell which pages were written into")

PAGES = 4
WHOLE = range(PAGES * PAGE)
FIELD = Field((PAGES, PAGE), np.dtype(np.uint8), 0)


def both():
    """Return an arena's array, the same in a private view of it, that view, and the arena, which must be closed."""
    arena = Arena.create(shared=True)
    arena.allocate(len(WHOLE))
    (ours,) = arena.view([FIELD])
    view = PrivateView(arena)
    return ours, view.array(FIELD), view, arena


def test_what_is_written_into_the_arena_is_seen():
    ours, theirs, view, arena = both()
    arena.close()  # what is mapped stays
    for number in range(3):
        ours[:] = number
        assert np.all(theirs == number)
    assert view.written(WHOLE) == 0


def test_what_is_written_into_the_view_stays_there_and_is_counted_by_page():
    ours, theirs, view, arena = both()
    arena.close()  # what is mapped stays
    ours[:] = 1
    before = faults()
    theirs[2, 5] = 7
    assert faults() > before
    ours[:] = 2
    assert (theirs[2, 5], theirs[2, 4], theirs[1, 5]) == (7, 1, 2)
    assert ours[2, 5] == 2
    assert [view.written(range(k * PAGE, (k + 1) * PAGE)) for k in range(PAGES)] == [0, 0, 1, 0]


def test_what_is_forgotten_shows_the_arena_again():
    ours, theirs, view, arena = both()
    arena.close()  # what is mapped stays
    theirs[:] = 7
    view.forget(range(PAGE, 2 * PAGE))
    ours[:] = 3
    assert theirs[:, 0].tolist() == [7, 3, 7, 7]
    assert view.written(WHOLE) == 3


def test_what_is_kept_no_longer_follows_the_arena():
    ours, theirs, view, arena = both()
    arena.close()  # what is mapped stays
    ours[:] = 1
    view.keep(range(2 * PAGE))
    ours[:] = 2
    assert theirs[:, 0].tolist() == [1, 1, 2, 2]


def test_pages_that_are_freed_are_zero_but_for_what_was_written():
    ours, theirs, view, arena = both()
    arena.close()  # what is mapped stays
    ours[:] = 1
    theirs[1, 0] = 7
    view.free(range(2 * PAGE))
    assert theirs[:, 0].tolist() == [0, 7, 1, 1]
    assert ours[:, 0].tolist() == [0, 0, 1, 1]


def test_after_an_arena_has_parted_its_own_arrays_go_on_and_views_stay():
    ours, theirs, _, arena = both()
    ours[:] = 1
    arena.part()
    arena.close()
    assert np.all(ours == 1)
    ours[:] = 2
    assert np.all(theirs == 1)
    assert np.all(ours == 2)
