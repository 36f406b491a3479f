"""The files that a unit keeps on a peer's disk, in bytes. Pure. The peer limits itself by these numbers, and
a dry run tells them before.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from protocol.ids import HASH_BYTES
from protocol.tables import in_bytes

STATE_BYTES_PER_PARAMETER: Final = 8
"""A parameter and its momentum in float32 (averaging/state/state.py)."""

PARAMETER_BYTES: Final = 4
"""A parameter alone, as in an old checkpoint."""

KEPT_UPDATE_SNAPSHOTS: Final = 4
"""Weight of the kept updates, in snapshots. One would be safe; four give a slow joiner time to finish its download."""

OLD_GENERATIONS: Final = 3
"""Old generations that fit into the span of the kept updates, one at every half of them."""

OPEN_UPDATES: Final = 3
"""Results of several attempts on the head, until it moves."""

SMALL_STATE_BYTES: Final = 4 << 20
"""A state of at most this size is written after every commit: that costs a disk nothing, and a restart has nothing to replay."""

WRITES_SHARE: Final = 2
"""Generations may cost at most the results' bytes divided by this, on average, because results are what a commit must write."""

FEW_COMMITS: Final = 4
"""A peer that is asked for a state writes a new generation if its newest is this many commits old. Then a joiner has few results
to fetch beside the state, and a host that asks every few rounds finds the newest.
"""

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


class Occasion(Enum):
    """Why a peer looks at its generations: one more commit; another peer asked for a state; this state must be on disk, because it
    is the run's last or there is no other good copy; the state is not the one that followed here.
    """

    COMMIT = auto()
    ASKED = auto()
    WANTED = auto()
    REPLACED = auto()


def num_kept_updates(num_values: int, update_bytes: int, snapshots: int = KEPT_UPDATE_SNAPSHOTS) -> int:
    """Number of newest updates that are kept: until they weigh more than some snapshots, because a snapshot is cheaper from there
    on (R24). `update_bytes`: of the results of one commit.
    """
    return snapshots * STATE_BYTES_PER_PARAMETER * num_values // update_bytes


def generation_spacing(num_values: int, update_bytes: int, num_kept: int, small_bytes: int = SMALL_STATE_BYTES) -> int:
    """The most commits between two generations. A state of at most `small_bytes` bytes has one after every commit. A larger one has
    so few that they cost at most a share of the results' bytes. The `num_kept` updates lead from the last but one to any head,
    because a restart may find the newest damaged.
    """
    state_bytes = STATE_BYTES_PER_PARAMETER * num_values
    if state_bytes <= small_bytes:
        return 1
    return max(1, min(-(-WRITES_SHARE * state_bytes // update_bytes), generation_block(num_kept)))


def generation_block(num_kept: int) -> int:
    """Half of the kept updates, in commits. The first generation of each such block is kept as long as they reach back to it."""
    return max(1, (num_kept + 1) // 2)


def asked_spacing(spacing: int) -> int:
    """The least commits between two generations of which one is written because a peer asked for a state."""
    return max(1, min(FEW_COMMITS, spacing // 4))


def is_generation_due(spacing: int, index: int, newest: int, occasion: Occasion) -> bool:
    """Whether a generation is to be written at a commit. One that could not be written when it was due is due at the next commit.

    Args:
        spacing: see `generation_spacing`. All peers count the same commits, those at its multiples: joiners then find the same
            state on many disks.
        index: of the commit.
        newest: index of the newest good generation on disk; 0, the start, without one.
    """
    age = index - newest
    match occasion:
        case Occasion.COMMIT:
            return index // spacing > newest // spacing and age >= asked_spacing(spacing)
        case Occasion.ASKED:
            return age >= asked_spacing(spacing)
        case Occasion.WANTED:
            return age > 0
        case Occasion.REPLACED:
            return True


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


def replay_at_most(num_values: int, update_bytes: int) -> int:
    """The most commits whose results are no more bytes than a whole state."""
    return STATE_BYTES_PER_PARAMETER * num_values // update_bytes


def commit_write_bytes(
    num_values: int, update_bytes: int, asked_every: int, small_bytes: int = SMALL_STATE_BYTES
) -> int:
    """The average bytes of states and results that a commit of a unit writes. `asked_every`: the host asks for a state after as many
    commits, for its checkpoints; 0: never.
    """
    num_kept = num_kept_updates(num_values, update_bytes)
    spacing = generation_spacing(num_values, update_bytes, num_kept, small_bytes)
    apart = min(spacing, max(asked_spacing(spacing), asked_every)) if asked_every else spacing
    return update_bytes + -(-STATE_BYTES_PER_PARAMETER * num_values // apart)


def feedback_disk_bytes(num_values: int, chunk_values: int) -> int:
    """The most bytes of a unit's residuals: two copies, and one segment that is being written (averaging/state/residual_files.py)."""
    num_chunks = -(-num_values // chunk_values)
    per_segment = -(-num_chunks // FEEDBACK_SEGMENTS)
    largest = min(num_values, per_segment * chunk_values)
    both = feedback_write_bytes(num_values, chunk_values)
    return both + _FEEDBACK_FILE_BYTES + per_segment * _FEEDBACK_CHUNK_BYTES + 4 * largest


def feedback_write_bytes(num_values: int, chunk_values: int) -> int:
    """Bytes of a unit's two residuals. Each is written once a commit."""
    num_chunks = -(-num_values // chunk_values)
    num_files = -(-num_chunks // -(-num_chunks // FEEDBACK_SEGMENTS))
    return 2 * (num_files * _FEEDBACK_FILE_BYTES + num_chunks * _FEEDBACK_CHUNK_BYTES + 4 * num_values)


def disk_phrase(files_bytes: int) -> str:
    """The limit of the disk in words, the same wherever it is told. The log grows by a certificate a round, so it has no number."""
    return f"at most {in_bytes(files_bytes)} and a log of the rounds"
