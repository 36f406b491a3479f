from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from averaging.rooms import Room
from averaging.vectors import new_bytes

LONG = 1 << 22


def _address(memory: memoryview) -> int:
    return int(np.frombuffer(memory, dtype=np.uint8).ctypes.data)


def test_pieces_lie_one_behind_the_other_in_one_memory() -> None:
    room = Room(10)
    first, second = room.take(4), room.take(6)
    first[:], second[:] = b"abcd", b"efghij"
    assert bytes(room.taken) == b"abcdefghij"
    assert room.taken.readonly


def test_what_does_not_fit_any_more_lies_elsewhere_and_the_rest_is_still_given_out() -> None:
    room = Room(10)
    room.take(6)[:] = b"abcdef"
    room.take(5)[:] = b"xxxxx"
    room.take(4)[:] = b"ghij"
    assert bytes(room.taken) == b"abcdefghij"


@pytest.mark.parametrize("again", [(2, 4), (0, 3), (3, 6), (1, 9), (2, 2)], ids=str)
def test_a_place_that_was_given_out_in_part_is_never_written_twice(again: tuple[int, int]) -> None:
    room = Room(10)
    held = room.take_at(2, 4)
    room.take_at(6, 10)[:] = b"6789"
    held[:] = b"23"
    room.take_at(*again)[:] = b"x" * (again[1] - again[0])
    assert bytes(held) == b"23"
    assert bytes(room.take_at(4, 6)) is not None
    assert bytes(room.taken[6:]) == b"6789"


@pytest.mark.parametrize("beyond", [(-1, 2), (8, 11), (4, 3)], ids=str)
def test_no_place_outside_of_the_room_is_given_out(beyond: tuple[int, int]) -> None:
    room = Room(10)
    if beyond[0] > beyond[1]:
        with pytest.raises(ValueError, match="negative"):
            room.take_at(*beyond)
        return
    room.take_at(*beyond)[:] = bytes(beyond[1] - beyond[0])
    assert room.taken == b"", "nothing of the room itself was taken"


def test_places_may_be_asked_for_in_any_order_and_beside_those_in_a_row() -> None:
    room = Room(8)
    room.take_at(4, 6)[:] = b"45"
    room.take_at(0, 2)[:] = b"01"
    room.take_at(2, 4)[:] = b"23"
    room.take(2)[:] = b"67"
    assert bytes(room.taken) == b"01234567"


def test_threads_that_ask_at_once_get_different_pieces() -> None:
    room, pieces = Room(800), list[memoryview]()

    def take() -> None:
        pieces.extend(room.take(1) for _ in range(100))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({_address(piece) for piece in pieces}) == 800


def test_a_piece_keeps_the_memory_of_its_room_from_being_given_out_again() -> None:
    piece = Room(LONG).take_at(0, 100)
    piece[:] = b"a" * 100
    gc.collect()
    new_bytes(LONG)[:100] = b"b" * 100
    assert bytes(piece) == b"a" * 100


def test_long_bytes_of_about_the_same_length_take_the_place_of_those_that_are_gone() -> None:
    first = new_bytes(LONG + 5000)
    place = _address(first)
    del first
    assert _address(new_bytes(LONG + 7000)) == place


def test_memory_that_is_given_to_a_room_is_what_it_gives_out() -> None:
    memory = memoryview(bytearray(4))
    Room.over(memory).take(4)[:] = b"abcd"
    assert bytes(memory) == b"abcd"
