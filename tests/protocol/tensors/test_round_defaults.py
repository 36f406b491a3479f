from __future__ import annotations

import pytest

from protocol.tensors.round_defaults import (
    CHUNKS_A_MEMBER,
    LONGEST_CHUNK,
    SHORTEST_CHUNK,
    THIN_MBIT_PER_S,
    default_chunk_elements,
    sparse_result_codec,
)


@pytest.mark.parametrize(
    ("num_elements", "max_members", "expected"),
    [
        (800_000, 64, SHORTEST_CHUNK),
        (1, 1, SHORTEST_CHUNK),
        (2**23 - 1, 64, SHORTEST_CHUNK),
        (2**23, 64, 2**15),
        (25_000_000, 64, LONGEST_CHUNK),
        (25_000_000, 4, LONGEST_CHUNK),
        (10**12, 64, LONGEST_CHUNK),
    ],
)
def test_chunks_are_longer_in_large_models_while_every_member_has_some(
    num_elements: int, max_members: int, expected: int
) -> None:
    assert default_chunk_elements(num_elements, max_members, None) == expected
    if expected > SHORTEST_CHUNK:
        assert num_elements // expected >= CHUNKS_A_MEMBER * max_members


def test_chunks_stay_short_where_people_with_thin_lines_are_to_take_part() -> None:
    assert default_chunk_elements(10**9, 64, THIN_MBIT_PER_S / 2) == SHORTEST_CHUNK
    assert default_chunk_elements(10**9, 64, THIN_MBIT_PER_S) == LONGEST_CHUNK


@pytest.mark.parametrize(
    ("max_members", "expected"), [(1, "top6"), (4, "top6"), (5, "top12"), (16, "top25"), (64, "top25")]
)
def test_results_of_sparse_contributions_have_room_for_all_members_as_far_as_there_is_a_codec(
    max_members: int, expected: str
) -> None:
    assert sparse_result_codec(max_members) == expected
