import numpy as np
import pytest

from stretto.envs.arrays import LARGE_BYTES, Copier

LARGE = np.zeros(LARGE_BYTES, np.uint8)


def test_a_copy_that_somebody_keeps_is_never_written_again():
    copier = Copier()
    kept = [copier.copy(LARGE + number) for number in range(12)]
    assert [int(copy[0]) for copy in kept] == list(range(12))
    assert len({copy.ctypes.data for copy in kept}) == 12


@pytest.mark.parametrize(
    "hold", [lambda a: a[3:5], memoryview, lambda a: a.reshape(2, -1)], ids=["view", "memory", "shape"]
)
def test_a_view_keeps_a_copy_as_well_as_the_copy_itself(hold):
    copier = Copier()
    view = hold(copier.copy(LARGE + 7))
    for number in range(8):
        copier.copy(LARGE + number)
    assert np.all(np.asarray(view) == 7)


def test_memory_that_nobody_refers_to_is_used_again():
    copier = Copier()
    first = copier.copy(LARGE).ctypes.data
    assert copier.copy(LARGE + 1).ctypes.data == first
