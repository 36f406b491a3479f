from __future__ import annotations

import gc

import numpy as np

from averaging.spare_memory import MOST_SPARE, SpareMemory

NUM_BYTES = 1 << 16


def _address(values: np.ndarray) -> int:
    return int(values.ctypes.data)


def _vector(memory: SpareMemory, num_bytes: int = NUM_BYTES) -> np.ndarray:
    return memory.take(num_bytes, np.dtype(np.float32))


def test_memory_that_nothing_refers_to_is_given_out_again() -> None:
    memory = SpareMemory()
    values = _vector(memory)
    address = _address(values)
    assert memory.num_bytes == 0
    del values
    assert memory.num_bytes == NUM_BYTES
    assert _address(_vector(memory)) == address


def test_memory_of_which_a_view_is_left_is_not_given_out() -> None:
    memory = SpareMemory()
    values = _vector(memory)
    view = values[10:20].reshape(2, 5)
    del values
    gc.collect()
    assert memory.num_bytes == 0
    other = _vector(memory)
    view[:], other[:] = 1.0, 2.0
    assert (view == 1.0).all()
    del view
    assert memory.num_bytes == NUM_BYTES


def test_memory_of_another_length_is_its_own() -> None:
    memory = SpareMemory()
    del (first := [_vector(memory)])[:]
    assert _vector(memory, 2 * NUM_BYTES).nbytes == 2 * NUM_BYTES
    assert not first
    assert memory.num_bytes == 3 * NUM_BYTES


def test_no_more_of_one_length_is_kept_than_a_round_needs() -> None:
    memory = SpareMemory()
    vectors = [_vector(memory) for _ in range(MOST_SPARE + 3)]
    assert len({_address(values) for values in vectors}) == MOST_SPARE + 3
    vectors.clear()
    assert memory.num_bytes == MOST_SPARE * NUM_BYTES
