"""One commit for people: its members with their shares, and what was left out and why.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.stranger_weights import recorded_weights
from protocol.rounds.messages.bounds import LOST_ALL_PPM
from protocol.rounds.messages.record import CommitRecord, Disagreement
from protocol.rounds.messages.requests import NO_PART

RECENT_ROUNDS: Final = 20
"""Rounds over which it is told how much of a peer's work disagrees. One chunk of an honest peer now and then does."""


@dataclass(frozen=True, slots=True)
class Disagreed:
    """A member of which a commit leaves chunks out because they disagree with most others.

    Attributes:
        share: of its counted chunks, above 0 and up to 1.
        agreement: of those chunks in the mean, as a share of the usual agreement, -1 to 1.
    """

    peer: PeerId
    share: float
    agreement: float

    @property
    def words(self) -> str:
        """How much was left out and why, for people."""
        return f"{self.share:.0%} of its work disagreed with most others' (agreement {self.agreement:.0%} of the usual)"


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One commit for people. Shares are of the summed weights, coverage is of members with a part in it times chunks; both 0 to 1.
    `tokens` are the credited tokens of each member. `lost` is `lost_share`. `disagreed` are members whose work is left out in part.
    `is_rewind`: the host took rounds back (R28); nobody is counted.
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
    disagreed: tuple[Disagreed, ...] = ()
    is_rewind: bool = False

    @property
    def left_out(self) -> float:
        """The share of the members' work that is left out because it disagreed, 0 to 1, each member's with the same weight."""
        return sum(each.share for each in self.disagreed) / max(1, len(self.members))


def round_row(link: ChainLink) -> RoundRow:
    """The members of a commit, with their weights, and what was left out and why.

    Raises:
        RemoteProtocolError: `link` is a genesis.
    """
    record = link.record
    if record is None:
        raise RemoteProtocolError("a genesis asked for its round", "a commit")
    weights = recorded_weights(record)
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
        disagreed=disagreed_in(record),
        is_rewind=bool(record.rewind),
    )


def coverage(record: CommitRecord) -> float:
    """Share of chunks times members that the mean has, 0 to 1. A member that was to bring nothing leaves nothing uncovered. 1 for a
    rewind, which has no mean.
    """
    if record.rewind:
        return 1.0
    lacking = [{o.peer for o in part.omitted if o.words != NO_PART} for part in record.slices]
    members = {c.peer for c in record.contributors}.union(*lacking)
    chunks = record.slices[-1].stop_chunk
    uncovered = sum(
        (part.stop_chunk - part.first_chunk) * len(left_out)
        for part, left_out in zip(record.slices, lacking, strict=True)
    )
    return 1.0 - uncovered / (chunks * max(1, len(members)))


def lost_share(record: CommitRecord) -> float:
    """The share of the mean's energy that its codec left out, 0 to 1, averaged over the slices by their chunks. 0 for a rewind."""
    if record.rewind:
        return 0.0
    lost = sum((part.stop_chunk - part.first_chunk) * part.lost_ppm for part in record.slices)
    return lost / (LOST_ALL_PPM * record.slices[-1].stop_chunk)


def disagreed_in(record: CommitRecord) -> tuple[Disagreed, ...]:
    """The contributors of which a commit leaves chunks out, in the order of peers."""
    entries: dict[PeerId, list[Disagreement]] = {}
    for entry in (entry for part in record.slices for entry in part.disagreeing):
        entries.setdefault(entry.peer, []).append(entry)
    found: list[Disagreed] = []
    for peer, each in sorted(entries.items()):
        counting = [part for part in record.slices if all(omission.peer != peer for omission in part.omitted)]
        num_chunks = sum(part.stop_chunk - part.first_chunk for part in counting)
        num_left_out = sum(entry.num_chunks for entry in each)
        agreement = sum(entry.num_chunks * entry.agreement_percent for entry in each) / (100.0 * num_left_out)
        found.append(Disagreed(peer, num_left_out / num_chunks, agreement))
    return tuple(found)


def left_out_by_peer(rows: Sequence[RoundRow]) -> Mapping[PeerId, float]:
    """By member of the newest RECENT_ROUNDS of these rounds, the share of its work in them that was left out, 0 to 1."""
    shares: dict[PeerId, list[float]] = {}
    for row in rows[-RECENT_ROUNDS:]:
        disagreed = {each.peer: each.share for each in row.disagreed}
        for peer in row.members:
            shares.setdefault(peer, []).append(disagreed.get(peer, 0.0))
    return {peer: sum(each) / len(each) for peer, each in shares.items()}


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
        "disagreed": [
            {"peer": each.peer, "share": each.share, "agreement": each.agreement, "reason": each.words}
            for each in row.disagreed
        ],
        "lone": row.is_lone,
        "total_tokens": total_tokens,
        "unix_s": unix_s,
    }
