"""One commit for people: its members with their shares, and what was left out and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.bounds import LOST_ALL_PPM
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.requests import NO_PART


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One commit for people. Shares are of the summed weights, coverage is of members with a part in it times chunks; both 0 to 1.
    `tokens` are the credited tokens of each member. `lost` is `lost_share`.
    """

    index: int
    commit: CommitId
    members: tuple[PeerId, ...]
    shares: tuple[float, ...]
    coverage: float
    omitted: tuple[tuple[PeerId, str], ...]
    is_lone: bool
    tokens: tuple[int, ...] = ()
    lost: float = 0.0


def round_row(link: ChainLink) -> RoundRow:
    """The members of a commit, with their weights, and what was left out and why.

    Raises:
        RemoteProtocolError: `link` is a genesis.
    """
    record = link.record
    if record is None:
        raise RemoteProtocolError("a genesis asked for its round", "a commit")
    weights = [min(c.tokens, record.weight_cap_tokens) for c in record.contributors]
    total = sum(weights) or 1
    omitted = sorted({(o.peer, o.words) for part in record.slices for o in part.omitted})
    return RoundRow(
        index=link.index,
        commit=link.commit,
        members=tuple(c.peer for c in record.contributors),
        shares=tuple(w / total for w in weights),
        coverage=coverage(record),
        omitted=tuple(omitted),
        is_lone=record.lone,
        tokens=tuple(c.credited_tokens for c in record.contributors),
        lost=lost_share(record),
    )


def coverage(record: CommitRecord) -> float:
    """Share of chunks times members that the mean has, 0 to 1. A member that was to bring nothing leaves nothing uncovered."""
    lacking = [{o.peer for o in part.omitted if o.words != NO_PART} for part in record.slices]
    members = {c.peer for c in record.contributors}.union(*lacking)
    chunks = record.slices[-1].stop_chunk
    uncovered = sum(
        (part.stop_chunk - part.first_chunk) * len(left_out)
        for part, left_out in zip(record.slices, lacking, strict=True)
    )
    return 1.0 - uncovered / (chunks * max(1, len(members)))


def lost_share(record: CommitRecord) -> float:
    """The share of the mean's energy that its codec left out, 0 to 1, averaged over the slices by their chunks."""
    lost = sum((part.stop_chunk - part.first_chunk) * part.lost_ppm for part in record.slices)
    return lost / (LOST_ALL_PPM * record.slices[-1].stop_chunk)


@dataclass(frozen=True, slots=True)
class Counted:
    """Credited tokens and rounds of one peer."""

    tokens: int = 0
    rounds: int = 0


def counted_by_peer(rows: Iterable[RoundRow]) -> Mapping[PeerId, Counted]:
    """Totals over these rounds by peer; peers without any are left out."""
    sums: dict[PeerId, Counted] = {}
    for row in rows:
        for peer, tokens in zip(row.members, row.tokens, strict=False):
            before = sums.get(peer, Counted())
            sums[peer] = Counted(before.tokens + tokens, before.rounds + 1)
    return sums


def sum_of_counted(one: Mapping[PeerId, Counted], other: Mapping[PeerId, Counted]) -> dict[PeerId, Counted]:
    """The sum of two counts by peer."""
    sums = dict(one)
    for peer, more in other.items():
        before = sums.get(peer, Counted())
        sums[peer] = Counted(before.tokens + more.tokens, before.rounds + more.rounds)
    return sums


def round_json(row: RoundRow, total_tokens: int, unix_s: int | None) -> dict[str, object]:
    """A round as both daemons show it; `unix_s` is when its certificate was first seen, None if that was not recorded."""
    return {
        "index": row.index,
        "commit": row.commit.hex(),
        "members": list(row.members),
        "weights": dict(zip(row.members, row.shares, strict=True)),
        "tokens": dict(zip(row.members, row.tokens, strict=False)),
        "coverage": row.coverage,
        "lost": row.lost,
        "omitted": [{"peer": peer, "reason": reason} for peer, reason in row.omitted],
        "lone": row.is_lone,
        "total_tokens": total_tokens,
        "unix_s": unix_s,
    }
