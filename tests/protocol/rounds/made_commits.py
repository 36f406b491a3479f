"""Commits made to measure: as many tokens, voters and siblings as a test wants, with certificates that verify."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from protocol.identity.envelope import seal_of
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, SpineView, tree_of
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.lineage.record_rules import claim_of, sum_of, weight_cap
from protocol.rounds.lineage.rule_numbers import cap_factor_of
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import Ack, Certificate, Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import (
    NO_SPINE,
    Ballot,
    CommitRecord,
    Contributor,
    Omission,
    OmissionCode,
    SliceRecord,
)
from protocol.rounds.messages.wire import encode_message, encode_record
from protocol.rounds.schedule.proposal import Voters, make_record
from tests.protocol.rounds.round_table import (
    NUM_CHUNKS,
    OUTER,
    RUN_ID,
    SPINE,
    TARGET_TOKENS,
    Seat,
    included_of,
    result_hash,
    with_sum,
)

CAP_TOKENS = 1 << 40


@dataclass(frozen=True)
class Made:
    """A commit: its place in the chain and what proves it."""

    link: ChainLink
    certificate: Certificate


def record_on(
    parent: ChainLink,
    roster: Sequence[PeerId],
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    ballot: Ballot | None = None,
    spine: CommitId = NO_SPINE,
) -> CommitRecord:
    """A record of one slice and one contributor; another `salt` makes another record of the same worth."""
    peer = roster[0]
    root = Root(sha256(b"made" + salt.to_bytes(8, "big")).digest())
    return CommitRecord(
        unit=parent.unit,
        parent=parent.commit,
        index=parent.index + 1,
        ballot=ballot or Ballot(0, first_opener(RUN_ID, parent.unit, parent.index, parent.roster)),
        slices=(SliceRecord(0, NUM_CHUNKS, peer, root, ()),),
        contributors=(Contributor(peer, 1, root, tokens, tokens),),
        codec="fp32",
        weight_cap_tokens=max(CAP_TOKENS, tokens),  # who writes a record may write any cap
        total_tokens=parent.total_tokens + tokens,
        outer=OUTER,
        next_target_tokens=TARGET_TOKENS,
        roster=tuple(sorted(roster)),
        incarnations=(1,) * len(roster),
        lone=lone,
        spine=spine,
    )


def proposal_on(parent: ChainLink, members: Sequence[Seat], **changes: object) -> Proposal:
    """An honest proposal of these members, with a slice for each."""
    size = NUM_CHUNKS // len(members)
    bounds = [(place * size, (place + 1) * size) for place in range(len(members) - 1)]
    bounds.append((size * (len(members) - 1), NUM_CHUNKS))
    proposal = Proposal(
        unit=parent.unit,
        base=parent.commit,
        index=parent.index + 1,
        ballot=Ballot(0, first_opener(RUN_ID, parent.unit, parent.index, parent.roster)),
        members=tuple(seat.member for seat in members),
        slices=tuple(SliceSpec(*ends, seat.peer) for ends, seat in zip(bounds, members, strict=True)),
        codec="fp32",
        weight_cap_tokens=weight_cap(
            (seat.tokens for seat in members), parent.target_tokens, cap_factor_of(parent.rules)
        ),
        reduce_within_s=20.0,
    )
    return replace(proposal, **changes)  # type: ignore[arg-type]


def results_of(proposal: Proposal, members: Sequence[Seat], late: Collection[Seat] = ()) -> list[ResultHeader]:
    """Results of a proposal's reducers: everybody is in every slice, and the late ones are in the first one only."""
    headers = []
    for part in proposal.slices:
        here = [seat for seat in members if seat not in late or not part.first_chunk]
        included = tuple(included_of(seat, seat.member, proposal) for seat in here)
        header = ResultHeader(
            proposal.unit,
            proposal.base,
            proposal.ballot,
            part.first_chunk,
            part.stop_chunk,
            part.reducer,
            included,
            tuple(Omission(seat.peer, "late", OmissionCode.LATE) for seat in members if seat not in here),
            sum(min(entry.tokens, proposal.weight_cap_tokens) for entry in included),
            result_hash(proposal.base, proposal.ballot, part),
        )
        reducer = next(seat for seat in members if seat.peer == part.reducer)
        headers.append(with_sum(header, proposal, reducer))
    return headers


def signed_record(
    parent: ChainLink, members: Sequence[Seat], *, late: Collection[Seat] = (), **changes: object
) -> CommitRecord:
    """The record that an honest leader makes of what these members contribute and sum; `changes` go into its proposal."""
    members = sorted(members, key=lambda seat: seat.peer)
    proposal = proposal_on(parent, members, **changes)
    voters = Voters(frozenset(seat.peer for seat in members), frozenset())
    results = results_of(proposal, members, late)
    return make_record(parent, proposal, proposal.ballot, results, voters, OUTER, TARGET_TOKENS)


def resealed(record: CommitRecord, seats: Mapping[PeerId, Seat]) -> CommitRecord:
    """The record with claims and sums that all whom it names sign as it says: only what follows from them can be wrong."""

    def seal_by(peer: PeerId, payload: bytes) -> bytes:
        return seal_of(seats[peer].sealed(payload))

    record = replace(
        record,
        contributors=tuple(
            replace(entry, seal=seal_by(entry.peer, encode_claim(claim_of(record, entry))))
            for entry in record.contributors
        ),
    )
    sealed = (replace(part, seal=seal_by(part.reducer, encode_sum(sum_of(record, part)))) for part in record.slices)
    return replace(record, slices=tuple(sealed))


def certified(parent: ChainLink, record: CommitRecord, voters: Sequence[Seat]) -> Made:
    """The record with the acks of these seats."""
    raw = encode_record(record)
    link = link_after(parent, raw)
    ack = encode_message(Ack(parent.unit, parent.commit, record.ballot, link.commit, record.lone, version=1))
    return Made(link, Certificate(raw, tuple(seat.sealed(ack) for seat in voters)))


def commit_on(
    parent: ChainLink,
    voters: Sequence[Seat],
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    spine: CommitId = NO_SPINE,
) -> Made:
    """One more commit, whose roster are its voters."""
    record = record_on(parent, [seat.peer for seat in voters], tokens=tokens, lone=lone, salt=salt, spine=spine)
    return certified(parent, record, voters)


def lineage_on(
    parent: ChainLink,
    voters: Sequence[Seat],
    length: int,
    *,
    tokens: int = TARGET_TOKENS,
    lone: bool = False,
    salt: int = 0,
    spine: CommitId = NO_SPINE,
) -> list[Made]:
    """So many commits, one on another; only the first is lone where `lone` is set."""
    made: list[Made] = []
    for place in range(length):
        base = made[-1].link if made else parent
        made.append(commit_on(base, voters, tokens=tokens, lone=lone and not place, salt=salt, spine=spine))
    return made


def alone_on(parent: ChainLink, members: Sequence[Seat], length: int, *, proof: bytes | None = None) -> list[Made]:
    """So many commits that keep all rules, to which only these members contributed, and which only they acked. `proof` stands in place
    of the credentials that admitted them.
    """
    made: list[Made] = []
    roster = tuple(sorted(seat.peer for seat in members))
    for place in range(length):
        base = made[-1].link if made else parent
        record = signed_record(base, members)
        if proof is not None:
            entries = tuple(replace(entry, credential=proof) for entry in record.contributors)
            record = replace(record, contributors=entries)
        record = replace(record, lone=not place, roster=roster, incarnations=(1,) * len(roster))
        made.append(certified(base, record, members))
    return made


@dataclass(frozen=True)
class MadeSpine:
    """A run's own lineage that forked after its first commit: `left` and `right` follow `trunk`."""

    root: ChainLink
    trunk: ChainLink
    left: ChainLink
    right: ChainLink
    tree: CommitTree

    def at(self, link: ChainLink) -> SpineView:
        """As a peer follows it that stands there."""
        return SpineView(link.commit, self.tree)


def made_spine(tokens: int = TARGET_TOKENS) -> MadeSpine:
    """Commits of another unit, which nobody at the table holds; each is worth so many tokens."""
    peer = PeerId("holder")
    root = ChainLink(SPINE, CommitId(b"0" * 32), 0, (peer,), 0, TARGET_TOKENS)
    tree = tree_of(root)
    links: list[ChainLink] = []
    for parent, salt in ((0, 0), (1, 1), (1, 2)):
        record = record_on((root, *links)[parent], [peer], tokens=tokens, salt=salt)
        links.append(link_after((root, *links)[parent], encode_record(record)))
        tree = tree.add(links[-1], Certificate(b"", ()))
    return MadeSpine(root, *links, tree)
