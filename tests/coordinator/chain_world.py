"""A small run made by hand: identities, a start record, and certificates as peers would make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.ledger.ledger import CommitRow
from protocol.host.calls import START_DOMAIN
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Ed25519Verifier, Identity
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain import ROUND_DOMAIN, ChainLink, genesis_link
from protocol.rounds.messages.messages import (
    Ack,
    Attestation,
    Ballot,
    Certificate,
    CommitRecord,
    Contributor,
    Omission,
    OuterStep,
    SliceRecord,
)
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

UNIT = UnitName("fragment-0")
RUN_ID = RunId(bytes(range(32)))
VERIFIER = Ed25519Verifier()
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


@dataclass
class Chain:
    """Grows a lineage; `clone` begins a fork."""

    run_id: RunId = RUN_ID
    start_root: Root = START_ROOT
    members: tuple[Identity, ...] = PEERS
    commits: list[tuple[CommitId, int, int]] = field(default_factory=list)
    certificates: list[bytes] = field(default_factory=list)
    given_start: bytes = b""

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

    def clone(self) -> Chain:
        return Chain(
            self.run_id, self.start_root, self.members, list(self.commits), list(self.certificates), self.given_start
        )

    def commit(
        self,
        tokens: tuple[int, ...] = (100, 200, 300),
        *,
        voters: int = 2,
        attested: tuple[CommitId, Root] | None = None,
        omitted: tuple[tuple[PeerId, str], ...] = (),
        lone: bool = False,
    ) -> CommitId:
        parent, index, total = self.head
        contributors = tuple(
            Contributor(p.peer_id, 1, Root(b"c" * 32), t, min(t, 300))
            for p, t in zip(self.members, tokens, strict=False)
        )
        left_out = tuple(Omission(peer, reason) for peer, reason in omitted)
        reducer = self.members[0].peer_id
        record = CommitRecord(
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
        raw = encode_record(record)
        commit = commit_id(parent, raw)
        ack = encode_message(Ack(UNIT, parent, record.ballot, commit))
        acks = tuple(seal(p, ROUND_DOMAIN, self.run_id, index, NEVER_MS, ack) for p in self.members[:voters])
        self.certificates.append(encode_certificate(Certificate(raw, acks)))
        self.commits.append((commit, index + 1, record.total_tokens))
        return commit
