import numpy as np
import pytest

from stretto.envs.arrays import LARGE_BYTES, Copier, in_c_order, write_rows

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


@pytest.mark.parametrize("rows", [5, 1_000, 5_000])
@pytest.mark.parametrize("columns", [1, 4, 200])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_batch_is_written_in_c_order_however_it_lay(rows, columns, order, dtype):
    batch = np.asarray(np.random.default_rng(0).random((rows, columns)), dtype, order=order)
    target = np.zeros((rows + 2, columns), np.float32)
    write_rows(target[1:-1], batch)
    copied = in_c_order(batch, np.dtype(np.float32))
    assert copied.flags.c_contiguous
    assert not np.shares_memory(copied, batch)
    assert np.array_equal(copied, batch.astype(np.float32))
    assert np.array_equal(target[1:-1], copied)
    assert not target[0].any()
    assert not target[-1].any()


@pytest.mark.parametrize("rows", [5, 1_000, 5_000])
def test_the_bits_of_what_is_no_number_are_kept_too(rows):
    bits = np.random.default_rng(0).integers(0, 1 << 32, (4, rows), np.uint32).T
    copied = in_c_order(bits.view(np.float32), np.dtype(np.float32))
    assert np.array_equal(copied.view(np.uint32), bits)
