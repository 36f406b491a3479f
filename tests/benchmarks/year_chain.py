"""Commits of a run of many rounds, made fast: no network, and every record and certificate as production code makes it.

Each commit has all members as contributors, signed claims, signed sums of some slices, and signed acks of a bare quorum.
Results are of one tiny vector, the same in every round. The signer is given: the simulation's keyed hash, or Ed25519.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Final

import torch

from averaging.codecs import Codec, codec_by_name
from averaging.rounds.traffic.contribution import result_root
from averaging.state.state import UnitState, state_root
from protocol.host.calls import START_DOMAIN
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.identity.identity import Identity, Signer, Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link, link_of
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, sum_in
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import Ack, Certificate, Member, Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import Ballot, Included, OuterStep
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body, encode_message, encode_record, genesis_id
from protocol.rounds.schedule.proposal import Voters, make_record
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_chunks
from tests.coordinator.chain_world import HOST, VERIFIER
from tests.simulation.signing import HashSigner, HashVerifier

UNIT: Final = UnitName("fragment-0")
NUM_MEMBERS: Final = 16
RUN_ID: Final = RunId(sha256(b"a year").digest())
PLAIN: Final = codec_by_name("fp32")
OUTER: Final = OuterStep("mean", 1.0, 0.0)
TOKENS: Final = 1000
CREDENTIAL: Final = b""
"""Everybody is in every roster, so no record carries a credential."""


@dataclass(frozen=True)
class MadeRun:
    """A run whose commits follow one another. `signers` are the members, in the order of their ids. `chunk_values`: of each of
    the chunks, one a member. The first `num_slices` members reduce.
    """

    run_id: RunId
    host: Signer
    signers: tuple[Signer, ...]
    verifier: Verifier
    codec: Codec = PLAIN
    chunk_values: int = 4
    num_slices: int = NUM_MEMBERS

    @cached_property
    def roster(self) -> tuple[PeerId, ...]:
        """The members."""
        return tuple(signer.peer_id for signer in self.signers)

    @cached_property
    def grid(self) -> ChunkGrid:
        """One chunk for each member."""
        return ChunkGrid(self.chunk_values * len(self.signers), self.chunk_values)

    @cached_property
    def start_record(self) -> bytes:
        """The payload of the start record."""
        draft = self._zeros(CommitId(bytes(32)))
        unit = StartUnit(UNIT, bytes(32), state_root(draft, self.grid))
        target = TOKENS * len(self.signers)
        return encode_body(StartRecord(self.run_id, (unit,), self.roster, target, 0, rules=NEW_RUNS))

    @property
    def sealed_start(self) -> bytes:
        """The start record as the host signed it."""
        return seal(self.host, START_DOMAIN, self.run_id, 0, NEVER_MS, self.start_record)

    @property
    def start(self) -> ChainLink:
        """The link before the first commit."""
        return genesis_link(self.start_record, UNIT)

    @cached_property
    def genesis(self) -> UnitState:
        """The state before the first commit."""
        return self._zeros(genesis_id(self.start_record))

    def _zeros(self, head: CommitId) -> UnitState:
        zeros_N = torch.zeros(self.grid.num_elements, dtype=torch.float32)
        return UnitState(UNIT, head, 0, 0, zeros_N, zeros_N.clone())

    @cached_property
    def slices(self) -> tuple[SliceSpec, ...]:
        """Of as many chunks each."""
        each = self.grid.num_chunks // self.num_slices
        return tuple(SliceSpec(n * each, (n + 1) * each, self.roster[n]) for n in range(self.num_slices))

    @cached_property
    def _chunks(self) -> list[bytes]:
        update_N = torch.full((self.grid.num_elements,), 1e-6)
        return [bytes(chunk) for chunk in encode_chunks(update_N, self.codec, self.grid)]

    @cached_property
    def results(self) -> tuple[bytes, ...]:
        """The bytes of each slice: of every commit the same."""
        return tuple(b"".join(self._chunks[part.first_chunk : part.stop_chunk]) for part in self.slices)

    @cached_property
    def _roots(self) -> tuple[Root, ...]:
        return tuple(result_root(self._chunks[part.first_chunk : part.stop_chunk]) for part in self.slices)

    def _sealed(self, signer: Signer, payload: bytes) -> bytes:
        return seal(signer, ROUND_DOMAIN, self.run_id, 0, NEVER_MS, payload)

    def commit_on(
        self, parent: ChainLink, *, attested_root: Root, is_lone: bool = False
    ) -> tuple[ChainLink, Certificate]:
        """The next commit. All members attest `attested_root` as the state root of the parent."""
        members = tuple(Member(peer, 1, 1) for peer in self.roster)
        ballot = Ballot(0, first_opener(self.run_id, UNIT, parent.index, parent.roster))
        proposal = Proposal(
            UNIT,
            parent.commit,
            parent.index + 1,
            ballot,
            members,
            self.slices,
            self.codec.name,
            4 * TOKENS,
            5.0,
            lone=is_lone,
        )
        included = tuple(
            self._included(signer, member, parent, attested_root)
            for signer, member in zip(self.signers, members, strict=True)
        )
        results = [self._summed(proposal, part, place, included) for place, part in enumerate(self.slices)]
        voters = Voters(frozenset(self.roster), frozenset())
        target = TOKENS * len(self.signers)
        record = encode_record(make_record(parent, proposal, ballot, results, voters, OUTER, target))
        link = link_of(record)
        ack = encode_message(Ack(UNIT, parent.commit, ballot, link.commit, is_lone, version=1))
        num_acks = len(self.signers) if is_lone else len(self.signers) // 2 + 1
        acks = tuple(self._sealed(signer, ack) for signer in self.signers[:num_acks])
        return link, Certificate(record, acks)

    def _included(self, signer: Signer, member: Member, parent: ChainLink, attested_root: Root) -> Included:
        root = Root(sha256(parent.commit + signer.public_key).digest())
        claim = ContributionHeader(
            UNIT, parent.commit, member, TOKENS, self.codec.name, root, parent.commit, attested_root
        )
        return Included(
            signer.peer_id,
            1,
            root,
            TOKENS,
            parent.commit,
            attested_root,
            session=1,
            seal=seal_of(self._sealed(signer, encode_claim(claim))),
            credential=CREDENTIAL,
        )

    def _summed(self, proposal: Proposal, part: SliceSpec, place: int, included: Sequence[Included]) -> ResultHeader:
        header = ResultHeader(
            UNIT,
            proposal.base,
            proposal.ballot,
            part.first_chunk,
            part.stop_chunk,
            part.reducer,
            tuple(included),
            (),
            TOKENS * len(included),
            self._roots[place],
        )
        signed = self._sealed(self.signers[place], encode_sum(sum_in(header, proposal)))
        return replace(header, sum_seal=seal_of(signed))


def hashed_run() -> MadeRun:
    """Signed with the keyed hash of the simulation."""
    members = (HashSigner(bytes([number])) for number in range(NUM_MEMBERS))
    return MadeRun(RUN_ID, HashSigner(b"host"), _in_order(members), HashVerifier())


def signed_run() -> MadeRun:
    """Signed with Ed25519."""
    return MadeRun(
        RUN_ID, HOST, _in_order(Identity(bytes([number + 1]) * 32) for number in range(NUM_MEMBERS)), VERIFIER
    )


def _in_order(members: Iterable[Signer]) -> tuple[Signer, ...]:
    return tuple(sorted(members, key=lambda signer: signer.peer_id))
