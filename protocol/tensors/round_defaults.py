"""Defaults for a run's bytes: codecs of results, error feedback, and the length of chunks."""

from __future__ import annotations

from typing import Final

from protocol.kinds.codec_table import SPARSE_RESULT_CODECS

SPARSE_FEEDBACK: Final = 0.95
"""SparseLoCo, 2508.15706."""

SHORTEST_CHUNK: Final = 1 << 14
LONGEST_CHUNK: Final = 1 << 16
"""Each chunk costs its members some processor time a round, whatever its length. A longer one would hold up the other streams of a
thin line; measured, see tests/benchmarks/LOG.md.
"""

CHUNKS_A_MEMBER: Final = 4
"""Least number: slices are whole chunks, and everybody waits for the longest slice."""

THIN_MBIT_PER_S: Final = 10.0
"""A frame is at least one chunk, and longer ones would hold a thinner line for seconds."""


def sparse_result_codec(max_members: int) -> str:
    """The codec with room for the values of `max_members`, since values that a result leaves out are lost."""
    by_room = sorted(SPARSE_RESULT_CODECS, key=lambda facts: facts.room)
    return next((facts for facts in by_room if max_members <= facts.room), by_room[-1]).name


def default_chunk_elements(num_elements: int, max_members: int, link_mbit_per_s: float | None) -> int:
    """Values in a chunk, a power of two.

    Args:
        num_elements: of the unit.
        link_mbit_per_s: the slowest link with which people are to take part; None where the manifest names none.
    """
    if link_mbit_per_s is not None and link_mbit_per_s < THIN_MBIT_PER_S:
        return SHORTEST_CHUNK
    most = num_elements // (CHUNKS_A_MEMBER * max_members)
    return max(SHORTEST_CHUNK, min(LONGEST_CHUNK, 1 << most.bit_length() >> 1))
