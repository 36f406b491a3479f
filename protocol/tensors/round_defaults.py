"""What a run's bytes look like where its host does not say: codecs of results, feedback, and the length of chunks."""

from __future__ import annotations

from typing import Final

SPARSE_FEEDBACK: Final = 0.95
"""SparseLoCo, 2508.15706."""

RESULT_ROOM: Final = {"top6": 4, "top12": 8, "top25": 16}
"""Of the codecs for means of sparse contributions: as many members' values have room (averaging/codecs/sparse.py)."""

SHORTEST_CHUNK: Final = 1 << 14
LONGEST_CHUNK: Final = 1 << 16
"""Each chunk costs its members some 0.1 ms of processor time a round, whatever its length. One of 2^16 int8 values holds each of three
streams on a line of 10 Mbit/s for 0.15 s.
"""

CHUNKS_A_MEMBER: Final = 4
"""At least: slices are whole chunks, and everybody waits for the longest slice."""

THIN_MBIT_PER_S: Final = 10.0
"""A frame is one chunk at least, and longer ones would hold a thinner line for seconds."""


def leaves_out(codec: str) -> bool:
    """Whether a result in this codec may be without values that its mean has."""
    return codec == "topk" or codec in RESULT_ROOM


def sparse_result_codec(max_members: int) -> str:
    """The codec with room for what so many members send at most, since what a result leaves out is lost."""
    names = [name for name, num_members in RESULT_ROOM.items() if max_members <= num_members]
    return names[0] if names else [*RESULT_ROOM][-1]


def default_chunk_elements(num_elements: int, max_members: int, link_mbit_per_s: float | None) -> int:
    """Values in a chunk, a power of two.

    Args:
        num_elements: of the unit.
        link_mbit_per_s: the slowest link with which people are to take part; None where no link is asked for.
    """
    if link_mbit_per_s is not None and link_mbit_per_s < THIN_MBIT_PER_S:
        return SHORTEST_CHUNK
    most = num_elements // (CHUNKS_A_MEMBER * max_members)
    return max(SHORTEST_CHUNK, min(LONGEST_CHUNK, 1 << most.bit_length() >> 1))
