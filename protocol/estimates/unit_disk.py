"""The files that a unit keeps on a peer's disk, in bytes. Pure. The peer limits itself by these numbers, and
a dry run tells them before.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

from protocol.ids import HASH_BYTES
from protocol.tables import in_bytes

STATE_BYTES_PER_PARAMETER: Final = 8
"""A parameter and its momentum in float32 (averaging/state/state.py)."""

KEPT_UPDATE_SNAPSHOTS: Final = 4
"""Weight of the kept updates, in snapshots. One would be safe; four give a slow joiner time to finish its download."""

OLD_GENERATIONS: Final = 3
"""Old generations that fit into the span of the kept updates, one at every half of them."""

OPEN_UPDATES: Final = 3
"""Results of several attempts on the head, until it moves."""

MAX_PINNED: Final = 2
"""Bound of the pinned generations, those that joiners download. Further joiners share one, or begin again with a newer one."""

FEEDBACK_SEGMENTS: Final = 16
"""Files of a residual, replaced one at a time."""

_FEEDBACK_FILE_BYTES: Final = 44 + HASH_BYTES
_FEEDBACK_CHUNK_BYTES: Final = 40
"""The head and the hash of a file, and the mark and the norm of a chunk."""

KEPT_STATES: Final = 2 + OLD_GENERATIONS + 1 + MAX_PINNED + 1 + 1
"""The two newest generations, the old ones, the last that a quorum made, those that joiners download, one that is being written,
and a download of our own.
"""


def num_kept_updates(num_values: int, update_bytes: int, snapshots: int = KEPT_UPDATE_SNAPSHOTS) -> int:
    """Number of newest updates that are kept: until they weigh more than some snapshots, because a snapshot is cheaper from there
    on (R24). `update_bytes`: of the results of one commit.
    """
    return snapshots * STATE_BYTES_PER_PARAMETER * num_values // update_bytes


def max_updates(num_kept: int) -> int:
    """The most commits whose results are on disk. These are the kept ones, those of a lineage that is being fetched (no peer has
    more than we keep of ours), and those of the open round's attempts.
    """
    return 2 * (num_kept + 1) + OPEN_UPDATES


def unit_disk_bytes(
    num_values: int, update_bytes: int, feedback_bytes: int = 0, snapshots: int = KEPT_UPDATE_SNAPSHOTS
) -> int:
    """The most bytes of a unit's states, updates and residuals of error feedback, without its log and without data."""
    num_updates = max_updates(num_kept_updates(num_values, update_bytes, snapshots))
    return KEPT_STATES * STATE_BYTES_PER_PARAMETER * num_values + num_updates * update_bytes + feedback_bytes


def feedback_disk_bytes(num_values: int, chunk_values: int) -> int:
    """The most bytes of a unit's residuals: two copies, and one segment that is being written (averaging/state/residual_files.py)."""
    num_chunks = -(-num_values // chunk_values)
    per_segment = -(-num_chunks // FEEDBACK_SEGMENTS)
    largest = min(num_values, per_segment * chunk_values)
    num_files = -(-num_chunks // per_segment)
    both = 2 * (num_files * _FEEDBACK_FILE_BYTES + num_chunks * _FEEDBACK_CHUNK_BYTES + 4 * num_values)
    return both + _FEEDBACK_FILE_BYTES + per_segment * _FEEDBACK_CHUNK_BYTES + 4 * largest


def disk_phrase(files_bytes: int) -> str:
    """The limit of the disk in words, the same wherever it is told. The log grows by a certificate a round, so it has no number."""
    return f"at most {in_bytes(files_bytes)} and a log of the rounds"
