"""What a run's bytes look like where its host does not say: codecs of results, feedback, and the length of chunks."""

from __future__ import annotations

from typing import Final

from protocol.kinds.codec_table import SPARSE_RESULT_CODECS

SPARSE_FEEDBACK: Final = 0.95
"""SparseLoCo, 2508.15706."""

SHORTEST_CHUNK: Final = 1 << 14
LONGEST_CHUNK: Final = 1 << 16
"""Each chunk costs its members some 0.1 ms of processor time a round, whatever its length. One of 2^16 int8 values holds each of three
streams on a line of 10 Mbit/s for 0.15 s.
"""

CHUNKS_A_MEMBER: Final = 4
"""At least: slices are whole chunks, and everybody waits for the longest slice."""

THIN_MBIT_PER_S: Final = 10.0
"""A frame is one chunk at least, and longer ones would hold a thinner line for seconds."""


def sparse_result_codec(max_members: int) -> str:
    """The codec with room for what so many members send at most, since what a result leaves out is lost."""
    by_room = sorted(SPARSE_RESULT_CODECS, key=lambda facts: facts.room)
    return next((facts for facts in by_room if max_members <= facts.room), by_room[-1]).name


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
