import numpy as np
import pytest

from stretto.envs.arrays import in_c_order, write_rows


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
