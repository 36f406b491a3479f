"""The rounds of the far past as the ledger keeps them for ever: a small row each, many in one value. Pure.

A row: commit id 32 | tokens of the lineage u64 | unix time when it was seen u64, s | members u16 | held-out loss f64 | training loss
f64, big-endian. Losses are in nats per byte; one that was not measured is not a number.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.ledger.ledger import LossPoint
from protocol.errors import StorageError
from protocol.ids import CommitId

_ROW: Final = struct.Struct(">32sQQHdd")
BLOCK_ROUNDS: Final = 512
"""Rounds that leave the commits of the ledger together."""

RECENT_ROUNDS: Final = 4096
"""Newest rounds whose losses are all shown. Of earlier ones, losses are shown at about MOST_OLD places."""

MOST_OLD: Final = 1024


@dataclass(frozen=True, slots=True)
class PastRound:
    """One round of the followed lineage. `total_tokens` as in its record; losses in nats per byte, None where nobody measured."""

    index: int
    commit: CommitId
    total_tokens: int
    seen_unix_s: int
    num_members: int
    heldout: float | None = None
    train: float | None = None


def pack(rounds: Sequence[PastRound]) -> bytes:
    """Rounds without a gap, oldest first, as one value of the ledger."""
    return b"".join(
        _ROW.pack(
            each.commit,
            each.total_tokens,
            each.seen_unix_s,
            each.num_members,
            math.nan if each.heldout is None else each.heldout,
            math.nan if each.train is None else each.train,
        )
        for each in rounds
    )


def unpack(packed: bytes, first_index: int) -> list[PastRound]:
    """The rounds in a value of `pack`, of which the first has this index.

    Raises:
        StorageError: not such a value.
    """
    if len(packed) % _ROW.size:
        raise StorageError(
            f"{len(packed)} bytes of rounds in the ledger", "whole rows", "restore the ledger from a copy"
        )
    return [
        PastRound(first_index + place, CommitId(commit), tokens, seen, members, _measured(heldout), _measured(train))
        for place, (commit, tokens, seen, members, heldout, train) in enumerate(_ROW.iter_unpack(packed))
    ]


def _measured(nats: float) -> float | None:
    return None if math.isnan(nats) else nats


P = TypeVar("P", bound=LossPoint)


def thinned(points: Iterable[P], head_index: int) -> list[P]:
    """The points that are kept of a curve's: all of the newest rounds; of earlier ones one in a power of two rounds, so that there are
    about MOST_OLD of each kind. The first point of an interval stays the first when the interval doubles.
    """
    oldest = head_index - RECENT_ROUNDS
    step = 1 << (max(0, oldest) // MOST_OLD).bit_length()
    kept: list[P] = []
    taken: dict[tuple[str, int], int] = {}
    for point in sorted(points, key=lambda point: point.index):
        bucket = point.kind, point.index // step
        if point.index >= oldest or taken.setdefault(bucket, point.index) == point.index:
            kept.append(point)
    return kept
