"""A small run made by hand: identities, a start record, and certificates as peers would make them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.ledger.ledger import CommitRow
from protocol.host.calls import START_DOMAIN
from protocol.identity.credential import make_ca
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link, link_of
from protocol.rounds.lineage.evaluators import evaluator_order
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, sum_in
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import Ack, Certificate, Member, Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import (
    Attestation,
    Ballot,
    CommitRecord,
    Contributor,
    Included,
    Omission,
    OmissionCode,
    OuterStep,
    SliceRecord,
)
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import (
    commit_id,
    decode_certificate,
    decode_record,
    encode_body,
    encode_certificate,
    encode_message,
    encode_record,
)
from protocol.rounds.schedule.proposal import Voters, make_record

UNIT = UnitName("fragment-0")
RUN_ID = RunId(bytes(range(32)))
CA_KEY = b"a" * 32
CA = make_ca(CA_KEY, now_unix_s=1_700_000_000.0)
VERIFIER = Ed25519Verifier(CA.certificate_der)
START_ROOT = Root(b"s" * 32)
HOST = Identity(b"h" * 32)
PEERS = tuple(sorted((Identity(bytes([n]) * 32) for n in (1, 2, 3)), key=lambda identity: identity.peer_id))


def rows_of(certificates: Sequence[bytes]) -> list[CommitRow]:
    """Certificates as the ledger gives them back, parents before children."""
    rows = []
    for raw in certificates:
        record_bytes = decode_certificate(raw).record
        record = decode_record(record_bytes)
        rows.append(CommitRow(commit_id(record.parent, record_bytes), UNIT, record.parent, record.index, raw, 0))
    return sorted(rows, key=lambda row: row.index)


@functools.cache
def admission_of(peer: PeerId, run_id: RunId) -> bytes:
    """The credential that the run's authority issued."""
    credential, _ = CA.issue_own(peer, run_id, now_unix_s=1_700_000_000.0)
    return credential


@dataclass
class Chain:
    """Grows a lineage; `clone` begins a fork. Its commits are signed where the start record asks for that, else as in older runs.

    `hides_acks`: at a fork, acks of one side hide those of the other, and so convict their voters; else they name them, in a higher
    ballot, as honest ones do.
    """

    run_id: RunId = RUN_ID
    start_root: Root = START_ROOT
    members: tuple[Identity, ...] = PEERS
    commits: list[tuple[CommitId, int, int]] = field(default_factory=list)
    certificates: list[bytes] = field(default_factory=list)
    given_start: bytes = b""
    hides_acks: bool = False
    acked: dict[CommitId, tuple[Ballot, CommitId]] = field(default_factory=dict)

    @property
    def start_payload(self) -> bytes:
        if self.given_start:
            return self.given_start
        roster = tuple(p.peer_id for p in self.members)
        units = (StartUnit(UNIT, b"f" * 32, self.start_root),)
        return encode_body(StartRecord(self.run_id, units, roster, 300, 1_700_000_000))

    @property
    def sealed_start(self) -> bytes:
        return seal(HOST, START_DOMAIN, self.run_id, 0, NEVER_MS, self.start_payload)

    @property
    def genesis(self) -> ChainLink:
        return genesis_link(self.start_payload, UNIT)

    @property
    def head(self) -> tuple[CommitId, int, int]:
        return self.commits[-1] if self.commits else (self.genesis.commit, 0, 0)

    @property
    def evaluator(self) -> Identity:
        """The peer that measures the newest commit: its loss counts at once."""
        _, index, _ = self.head
        first, *_ = evaluator_order(self.run_id, UNIT, index, (p.peer_id for p in self.members))
        return next(p for p in self.members if p.peer_id == first)

    def _ack(self, parent: CommitId, ballot: Ballot, commit: CommitId, *, lone: bool) -> Ack:
        before = self.acked.get(parent) if not self.hides_acks else None
        if before is None:
            self.acked[parent] = (ballot, commit)
            return Ack(UNIT, parent, ballot, commit, lone=lone, version=1)
        ballot = Ballot(before[0].attempt + 1, ballot.peer)
        self.acked[parent] = (ballot, commit)
        return Ack(UNIT, parent, ballot, commit, lone, *before, version=1)

    def clone(self) -> Chain:
        return replace(self, commits=list(self.commits), certificates=list(self.certificates))

    def commit(
        self,
        tokens: tuple[int, ...] = (100, 200, 300),
        *,
        voters: int = 2,
        attested: tuple[CommitId, Root] | None = None,
        omitted: tuple[tuple[PeerId, str], ...] = (),
        lone: bool = False,
    ) -> CommitId:
        parent, index, _ = self.head
        makes = self._signed_record if self.genesis.rules else self._old_record
        record = makes(tokens, attested, omitted, lone=lone)
        raw = encode_record(record)
        commit = commit_id(parent, raw)
        ack = encode_message(self._ack(parent, record.ballot, commit, lone=lone))
        acks = tuple(seal(p, ROUND_DOMAIN, self.run_id, index, NEVER_MS, ack) for p in self.members[:voters])
        self.certificates.append(encode_certificate(Certificate(raw, acks)))
        self.commits.append((commit, index + 1, record.total_tokens))
        return commit

    def _old_record(
        self,
        tokens: tuple[int, ...],
        attested: tuple[CommitId, Root] | None,
        omitted: tuple[tuple[PeerId, str], ...],
        *,
        lone: bool,
    ) -> CommitRecord:
        """As peers of older releases made it."""
        parent, index, total = self.head
        contributors = tuple(
            Contributor(p.peer_id, 1, Root(b"c" * 32), t, min(t, 300))
            for p, t in zip(self.members, tokens, strict=False)
        )
        left_out = tuple(Omission(peer, reason) for peer, reason in omitted)
        reducer = self.members[0].peer_id
        return CommitRecord(
            unit=UNIT,
            parent=parent,
            index=index + 1,
            ballot=Ballot(0, reducer),
            slices=(
                SliceRecord(0, 3, reducer, Root(b"r" * 32), left_out),
                SliceRecord(3, 4, reducer, Root(b"q" * 32), ()),
            ),
            contributors=contributors,
            codec="int8",
            weight_cap_tokens=300,
            total_tokens=total + sum(c.credited_tokens for c in contributors),
            outer=OuterStep("mean", 1.0, 0.0),
            next_target_tokens=300,
            roster=tuple(p.peer_id for p in self.members),
            incarnations=tuple(1 for _ in self.members),
            attested=Attestation(*attested) if attested else None,
            lone=lone,
        )

    def _signed_record(
        self,
        tokens: tuple[int, ...],
        attested: tuple[CommitId, Root] | None,
        omitted: tuple[tuple[PeerId, str], ...],
        *,
        lone: bool,
    ) -> CommitRecord:
        """With the signatures of its contributors and of its reducer."""
        parent = link_of(decode_certificate(self.certificates[-1]).record) if self.commits else self.genesis
        reducer, members = self.members[0], tuple(Member(p.peer_id, 1, 1) for p in self.members)
        slices = (SliceSpec(0, 3, reducer.peer_id), SliceSpec(3, 4, reducer.peer_id))
        proposal = Proposal(
            UNIT,
            parent.commit,
            parent.index + 1,
            Ballot(0, reducer.peer_id),
            members,
            slices,
            "int8",
            300,
            5.0,
            lone=lone,
        )
        pair = attested or (self.genesis.commit, self.start_root)
        included = [
            self._included(identity, ContributionHeader(UNIT, parent.commit, member, t, "int8", Root(b"c" * 32), *pair))
            for identity, member, t in zip(self.members, members, tokens, strict=False)
        ]
        left_out = {peer for peer, _ in omitted}
        headers = (
            self._summed(
                proposal, slices[0], [entry for entry in included if entry.peer not in left_out], b"r", omitted
            ),
            self._summed(proposal, slices[1], included, b"q"),
        )
        voters = Voters(frozenset(p.peer_id for p in self.members), frozenset())
        return make_record(parent, proposal, proposal.ballot, headers, voters, OuterStep("mean", 1.0, 0.0), 300)

    def _seal_of(self, identity: Identity, payload: bytes) -> bytes:
        return seal_of(seal(identity, ROUND_DOMAIN, self.run_id, 0, NEVER_MS, payload))

    def _included(self, identity: Identity, claim: ContributionHeader) -> Included:
        return Included(
            identity.peer_id,
            1,
            claim.root,
            claim.tokens,
            claim.attested,
            claim.attested_root,
            session=1,
            seal=self._seal_of(identity, encode_claim(claim)),
            credential=admission_of(identity.peer_id, self.run_id),
        )

    def _summed(
        self,
        proposal: Proposal,
        part: SliceSpec,
        included: Sequence[Included],
        result: bytes,
        omitted: tuple[tuple[PeerId, str], ...] = (),
    ) -> ResultHeader:
        header = ResultHeader(
            UNIT,
            proposal.base,
            proposal.ballot,
            part.first_chunk,
            part.stop_chunk,
            part.reducer,
            tuple(included),
            tuple(Omission(peer, reason, OmissionCode.LATE) for peer, reason in omitted),
            sum(min(entry.tokens, proposal.weight_cap_tokens) for entry in included),
            Root(result * 32),
        )
        return replace(header, sum_seal=self._seal_of(self.members[0], encode_sum(sum_in(header, proposal))))
