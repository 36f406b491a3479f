from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from averaging.arithmetic.spare_memory import MOST_SPARE, MOST_SPARE_VECTORS, SpareMemory

NUM_BYTES = 1 << 16
LONG = 1 << 22


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
    assert memory.num_bytes == 2 * NUM_BYTES, "of several lengths the newest"


@pytest.mark.parametrize(("kind", "most"), [(np.uint8, MOST_SPARE), (np.float32, MOST_SPARE_VECTORS)])
def test_no_more_of_one_length_is_kept_than_a_round_needs(kind: type[np.generic], most: int) -> None:
    memory = SpareMemory()
    pieces = [memory.take(NUM_BYTES, np.dtype(kind)) for _ in range(most + 3)]
    assert len({_address(values) for values in pieces}) == most + 3
    pieces.clear()
    assert memory.num_bytes == most * NUM_BYTES


@pytest.mark.parametrize(("kind", "most"), [(np.uint8, MOST_SPARE), (np.float32, MOST_SPARE_VECTORS)])
def test_pieces_of_many_lengths_take_together_no_more_than_those_of_the_longest(
    kind: type[np.generic], most: int
) -> None:
    now_s = iter(range(100))
    memory, lengths = SpareMemory(lambda: float(next(now_s))), [(1 + place) * NUM_BYTES for place in range(4)]
    pieces = [memory.take(length, np.dtype(kind)) for length in lengths for _ in range(most)]
    for place in range(len(pieces)):
        pieces[place] = pieces[place][:0].copy()
        assert memory.num_bytes <= most * lengths[-1]
    spare_bytes = memory.num_bytes
    newest = memory.take(lengths[-1], np.dtype(kind))
    assert memory.num_bytes == spare_bytes - newest.nbytes, "the oldest were dropped"


def _lent_free_bytes(values: np.ndarray) -> int:
    """Memory of the values' mapping that the kernel may reclaim, as the kernel reports it."""
    address, found = _address(values), False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        begin, dash, rest = line.partition("-")
        if dash and " " in rest and all(letter in "0123456789abcdef" for letter in begin):
            found = int(begin, 16) <= address < int(rest.split(" ", 1)[0], 16)
        elif found and line.startswith("LazyFree:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


def test_memory_may_be_taken_by_others_once_it_was_spare_for_a_while_and_not_while_it_is_used() -> None:
    now_s = [0.0]
    memory = SpareMemory(lambda: now_s[0])
    used, values = _vector(memory, LONG), _vector(memory, LONG)
    used[:], values[:] = 1.0, 2.0
    place = _address(values)
    del values
    now_s[0] = 29.0
    assert memory.cool(30.0) == 0
    now_s[0] = 30.0
    assert memory.cool(30.0) == LONG
    assert memory.cool(30.0) == 0, "once is enough"
    values = _vector(memory, LONG)
    assert _address(values) == place
    assert _lent_free_bytes(values) > 0
    values[:] = 3.0
    assert _lent_free_bytes(values) == 0, "what is written to is ours again"
    assert (used == 1.0).all()
    del values
    now_s[0] = 59.0
    assert memory.cool(30.0) == 0, "it was used meanwhile"
    assert memory.num_bytes == LONG


def test_memory_that_nobody_asked_for_in_a_long_time_is_not_kept_at_all() -> None:
    now_s = [0.0]
    memory = SpareMemory(lambda: now_s[0])
    used, values, later = (memory.take(NUM_BYTES, np.dtype(np.uint8)) for _ in range(3))
    place = _address(later)
    used[:] = 1
    del values
    now_s[0] = 30.0
    assert memory.cool(30.0) == NUM_BYTES
    now_s[0] = 100.0
    del later
    now_s[0] = 299.0
    assert memory.let_go(300.0) == 0
    now_s[0] = 300.0
    assert memory.let_go(300.0) == NUM_BYTES
    assert memory.num_bytes == NUM_BYTES, "what is spare for a shorter time stays"
    assert _address(memory.take(NUM_BYTES, np.dtype(np.uint8))) == place
    assert (used == 1).all()
