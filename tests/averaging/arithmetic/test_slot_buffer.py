from __future__ import annotations

import gc
import random
import threading

import numpy as np
import psutil
import pytest

from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.arithmetic.spare_memory import SPARE
from averaging.arithmetic.vectors import new_bytes
from protocol.errors import MachineError

LONG = 1 << 22


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def test_pieces_lie_one_behind_the_other_in_one_memory() -> None:
    room = SlotBuffer(10)
    first, second = room.take(4), room.take(6)
    first[:], second[:] = b"abcd", b"efghij"
    assert bytes(room.taken) == b"abcdefghij"
    assert room.taken.readonly


def test_what_there_is_no_memory_for_is_refused_with_an_error_that_names_it_and_smaller_pieces_are_given_out() -> None:
    far_too_long = 1 << 60
    with pytest.raises(MachineError, match="no memory for"):
        SlotBuffer(0).take(far_too_long)
    with pytest.raises(MachineError, match="no memory for"):
        SlotBuffer(far_too_long).take_at(0, 4)
    assert len(SlotBuffer(4).take_at(0, 4)) == 4


def test_what_does_not_fit_any_more_lies_elsewhere_and_the_rest_is_still_given_out() -> None:
    room = SlotBuffer(10)
    room.take(6)[:] = b"abcdef"
    room.take(5)[:] = b"xxxxx"
    room.take(4)[:] = b"ghij"
    assert bytes(room.taken) == b"abcdefghij"


@pytest.mark.parametrize("again", [(2, 4), (0, 3), (3, 6), (1, 9), (2, 2)], ids=str)
def test_a_place_that_was_given_out_in_part_is_never_written_twice(again: tuple[int, int]) -> None:
    room = SlotBuffer(10)
    held = room.take_at(2, 4)
    room.take_at(6, 10)[:] = b"6789"
    held[:] = b"23"
    room.take_at(*again)[:] = b"x" * (again[1] - again[0])
    assert bytes(held) == b"23"
    assert _address(room.take_at(4, 6)) == _address(held) + 2, "what lies between is still to be had"
    assert bytes(room.taken[6:]) == b"6789"


@pytest.mark.parametrize("beyond", [(-1, 2), (8, 11), (4, 3)], ids=str)
def test_no_place_outside_of_the_room_is_given_out(beyond: tuple[int, int]) -> None:
    room = SlotBuffer(10)
    if beyond[0] > beyond[1]:
        with pytest.raises(ValueError, match="negative"):
            room.take_at(*beyond)
        return
    room.take_at(*beyond)[:] = bytes(beyond[1] - beyond[0])
    assert room.taken == b"", "nothing of the room itself was taken"


def test_places_may_be_asked_for_in_any_order_and_beside_those_in_a_row() -> None:
    room = SlotBuffer(8)
    room.take_at(4, 6)[:] = b"45"
    room.take_at(0, 2)[:] = b"01"
    room.take_at(2, 4)[:] = b"23"
    room.take(2)[:] = b"67"
    assert bytes(room.taken) == b"01234567"


def test_threads_that_ask_at_once_get_different_pieces() -> None:
    room, pieces = SlotBuffer(800), list[memoryview]()

    def take() -> None:
        pieces.extend(room.take(1) for _ in range(100))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({_address(piece) for piece in pieces}) == 800


def test_a_piece_keeps_the_memory_of_its_room_from_being_given_out_again() -> None:
    piece = SlotBuffer(LONG).take_at(0, 100)
    piece[:] = b"a" * 100
    gc.collect()
    new_bytes(LONG)[:100] = b"b" * 100
    assert bytes(piece) == b"a" * 100


def test_long_bytes_of_about_the_same_length_take_the_place_of_those_that_are_gone() -> None:
    first = new_bytes(LONG + 5000)
    place = _address(first)
    del first
    assert _address(new_bytes(LONG + 7000)) == place


def test_a_room_longer_than_the_machines_memory_gives_out_what_there_is_memory_for() -> None:
    room = SlotBuffer(2 * (psutil.virtual_memory().total + psutil.swap_memory().total))
    first, second = room.take(LONG), room.take(LONG)
    first[:1], second[-1:] = b"a", b"b"
    assert _address(second) == _address(first) + LONG


def test_slices_that_change_from_round_to_round_keep_no_more_memory_than_a_few_rounds_need() -> None:
    chance, most_lent, before = random.Random(1), 0, SPARE.num_bytes
    for _ in range(100):
        lent = [new_bytes(round(LONG * chance.uniform(4.0, 8.0))) for _ in range(3)]
        most_lent = max(most_lent, sum(map(len, lent)))
        del lent
    assert SPARE.num_bytes - before <= 2 * most_lent


def test_memory_that_is_given_to_a_room_is_what_it_gives_out() -> None:
    memory = memoryview(bytearray(4))
    SlotBuffer.over(memory).take(4)[:] = b"abcd"
    assert bytes(memory) == b"abcd"
