"""The opener's plan of slices and reducers, and the commit record made from the results. Pure arithmetic on integers.

Rules: R2, R3, R7, R12, R13, R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.disagreement_rules import disagreements
from protocol.rounds.lineage.record_rules import (
    attestation_of,
    credits_of,
    most_credited,
    next_roster,
    recorded_cap,
    trusted_tokens,
)
from protocol.rounds.lineage.rule_numbers import rules_after
from protocol.rounds.lineage.turns import left_out
from protocol.rounds.messages.bounds import MAX_MEMBERS, MAX_SLICES
from protocol.rounds.messages.messages import Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import (
    Attestation,
    Ballot,
    CommitRecord,
    Contributor,
    Omission,
    OmissionCode,
    OuterStep,
    SliceRecord,
)


@dataclass(frozen=True, slots=True)
class ReducerOffer:
    """A peer that can be reached and may reduce, and its measured upload."""

    peer: PeerId
    upload_bytes_per_s: int


NOISE: Final = Fraction(3, 4)
"""Uploads of at least this part of the fastest count as equal to it: two measurements of one line differ by that much."""


def plan_slices(num_chunks: int, reducers: Sequence[ReducerOffer], num_members: int) -> tuple[SliceSpec, ...]:
    """Cut the chunks among the reducers by measured upload (R7).

    No share is above max(2 / members, 1 / reducers), so one fast link is never all of the round; the rest goes to the others in
    proportion. An upload that nobody has measured counts as the median of the others: without a slice it would never be measured.
    Uploads that may differ by noise alone count as equal: everybody waits for the largest slice. Slices follow the order of peer
    ids; a reducer whose share rounds to no chunk gets none.
    """
    chosen = sorted(sorted(reducers, key=lambda r: (-r.upload_bytes_per_s, r.peer))[:MAX_SLICES], key=lambda r: r.peer)
    cap = max(Fraction(2, num_members), Fraction(1, len(chosen)))
    known = sorted(r.upload_bytes_per_s for r in chosen if r.upload_bytes_per_s > 0) or [1]
    rates = [r.upload_bytes_per_s or known[len(known) // 2] for r in chosen]
    shares = _capped_shares([known[-1] if rate >= NOISE * known[-1] else rate for rate in rates], cap)
    slices: list[SliceSpec] = []
    begin, total = 0, Fraction(0)
    for reducer, share in zip(chosen, shares, strict=True):
        total += share
        stop = num_chunks if reducer is chosen[-1] else round(total * num_chunks)
        if stop > begin:
            slices.append(SliceSpec(begin, stop, reducer.peer))
            begin = stop
    if begin < num_chunks:  # rounding left the last reducer nothing: its neighbour takes the rest
        last = slices.pop()
        slices.append(SliceSpec(last.first_chunk, num_chunks, last.reducer))
    return tuple(slices)


def mend_slices(
    slices: Sequence[SliceSpec], lost: Sequence[SliceSpec], reducers: Sequence[ReducerOffer]
) -> tuple[SliceSpec, ...]:
    """The tiling with the `lost` slices cut among `reducers`; all others stay as they are (R12). If that makes more than MAX_SLICES
    pieces, each lost slice goes to fewer reducers, the next ones in the order of their uploads: one would be all of the round else.
    """
    gone = set(lost)
    room = MAX_SLICES - len(slices) + len(lost)
    mended: list[SliceSpec] = []
    ordered = deque(sorted(reducers, key=lambda r: (-r.upload_bytes_per_s, r.peer)))
    num_takers = min(len(ordered), max(1, room // max(1, len(lost))))
    for part in slices:
        if part not in gone:
            mended.append(part)
            continue
        pieces = plan_slices(part.stop_chunk - part.first_chunk, list(ordered)[:num_takers], len(ordered))
        ordered.rotate(-num_takers)
        mended += [
            SliceSpec(part.first_chunk + p.first_chunk, part.first_chunk + p.stop_chunk, p.reducer) for p in pieces
        ]
    return tuple(mended)


def _capped_shares(uploads: Sequence[int], cap: Fraction) -> list[Fraction]:
    shares = [Fraction(0)] * len(uploads)
    free = set(range(len(uploads)))
    left = Fraction(1)
    while free:
        total = sum(uploads[i] for i in free)
        over = {i for i in free if left * uploads[i] / total > cap}
        if not over:
            for i in free:
                shares[i] = left * uploads[i] / total
            break
        for i in over:
            shares[i] = cap
        left -= cap * len(over)
        free -= over
    return shares


def both_codecs(codec: str, result_codec: str) -> str:
    """The codecs of both directions as one text: no two pairs have the same."""
    return f"codec {codec}" + (f" and {result_codec} for results" if result_codec else "")


def make_record(
    parent: ChainLink,
    proposal: Proposal,
    ballot: Ballot,
    results: Sequence[ResultHeader],
    voters: Voters,
    outer: OuterStep,
    next_target_tokens: int,
) -> CommitRecord:
    """The one record of a ballot (R2 and R13). `results` hold one header per slice of the proposal, in slice order."""
    contributors, attestations = _contributors(results, parent.roster)
    slices = _slice_records(results, {*parent.roster, *(entry.peer for entry in contributors)})
    cap = recorded_cap(parent, proposal.weight_cap_tokens, trusted_tokens(contributors))
    tokens = credits_of(contributors, slices, cap, most_credited(parent))
    contributors = tuple(
        replace(entry, credited_tokens=credited) for entry, credited in zip(contributors, tokens, strict=True)
    )
    roster = voters.next_after(parent, contributors, is_lone=proposal.lone)
    eligible = (entry.peer for entry in contributors if entry.peer not in voters.voteless)
    is_in_turns = bool(left_out(eligible, roster, voters.gone))
    return CommitRecord(
        unit=proposal.unit,
        parent=parent.commit,
        index=parent.index + 1,
        ballot=ballot,
        slices=slices,
        contributors=contributors,
        codec=proposal.codec,
        weight_cap_tokens=cap,
        total_tokens=parent.total_tokens + sum(tokens),
        outer=outer,
        next_target_tokens=next_target_tokens,
        roster=roster,
        incarnations=_disks(parent, proposal, contributors, roster),
        attested=attestation_of(attestations[entry.attests - 1] for entry in contributors),
        lone=proposal.lone,
        spine=proposal.spine,
        result_codec=proposal.result_codec,
        rules=rules_after(parent.rules, in_turns=is_in_turns),
        attestations=attestations,
    )


@dataclass(frozen=True, slots=True)
class Voters:
    """The voters as a leader knows them when it settles: members that it does not suspect, and voters that said goodbye. A peer in
    both came back in another process. `others` are voters that somebody may hear, though they take no part, or though we do not hear
    them; there is `room` for so many voters. `voteless` are contributors that are no keepers.
    """

    alive: frozenset[PeerId]
    left: frozenset[PeerId]
    others: frozenset[PeerId] = frozenset()
    room: int = MAX_MEMBERS
    voteless: frozenset[PeerId] = frozenset()

    @property
    def gone(self) -> frozenset[PeerId]:
        """Voters that said goodbye and are not back."""
        return self.left - self.alive

    def next_after(
        self, parent: ChainLink, contributors: Sequence[Contributor], *, is_lone: bool
    ) -> tuple[PeerId, ...]:
        """The next roster (R3). Of a lone commit these are all that take part, as far as they voted before or contributed."""
        out = self.gone | self.voteless
        peers = [entry.peer for entry in contributors if entry.peer not in out]
        if is_lone:
            return tuple(sorted({*peers, *(peer for peer in parent.roster if peer in self.alive)}))
        return next_roster(parent, peers, self.alive, self.gone, self.others, self.room)


def _slice_records(results: Sequence[ResultHeader], known: Collection[PeerId]) -> tuple[SliceRecord, ...]:
    """The slices as a record has them, with the admission of reducers that it does not show otherwise."""
    return tuple(
        SliceRecord(
            r.first_chunk,
            r.stop_chunk,
            r.reducer,
            r.result_hash,
            _coded(r.omitted),
            r.lost_ppm,
            r.sum_seal,
            b"" if r.reducer in known else r.credential,
            disagreements(r),
        )
        for r in results
    )


def _coded(omitted: Sequence[Omission]) -> tuple[Omission, ...]:
    """The omissions of a result as a record has them: without the reducer's words."""
    return tuple(Omission(entry.peer, "", entry.code or OmissionCode.LATE) for entry in omitted)


def _disks(
    parent: ChainLink, proposal: Proposal, contributors: Sequence[Contributor], roster: Sequence[PeerId]
) -> tuple[int, ...]:
    """The disks with which the next voters vote: as they signed now, else as before (R3)."""
    members = {member.peer: member.incarnation for member in proposal.members}
    known = members | dict(parent.disks) | {entry.peer: entry.incarnation for entry in contributors}
    return tuple(known.get(peer, 0) for peer in roster)


def covered_chunks(record: CommitRecord, peer: PeerId) -> tuple[tuple[int, int], ...]:
    """The chunk ranges of a commit that count the contribution of `peer` (R20)."""
    if record.contributor(peer) is None:
        return ()
    return tuple(
        (part.first_chunk, part.stop_chunk) for part in record.slices if all(o.peer != peer for o in part.omitted)
    )


def consumed_tokens(record: CommitRecord, peer: PeerId) -> int:
    """How many of its ready tokens a peer has spent on a commit: floor(tokens x covered chunks / all chunks) (R20). The weight cap
    limits the credited tokens, not the spent ones: the work beyond it is in the average as well.
    """
    entry = record.contributor(peer)
    if entry is None:
        return 0
    covered = sum(stop - first for first, stop in covered_chunks(record, peer))
    return entry.tokens * covered // record.slices[-1].stop_chunk


def _contributors(
    results: Sequence[ResultHeader], voters: Collection[PeerId]
) -> tuple[tuple[Contributor, ...], tuple[Attestation, ...]]:
    """Everybody whom a slice counts, credited with nothing yet, and the different pairs that they attest."""
    entries = {entry.peer: entry for result in results for entry in result.included}
    pairs = {peer: Attestation(entry.attested, entry.attested_root) for peer, entry in entries.items()}
    distinct = tuple(sorted(set(pairs.values()), key=lambda pair: (pair.commit, pair.state_root)))
    contributors = tuple(
        Contributor(
            peer,
            e.incarnation,
            e.root,
            e.tokens,
            0,
            e.lanes,
            e.session,
            e.seal,
            distinct.index(pairs[peer]) + 1,
            b"" if peer in voters else e.credential,
            e.is_stranger,
        )
        for peer, e in sorted(entries.items())
    )
    return contributors, distinct
