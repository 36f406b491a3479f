"""A few peers on the in-memory seams, and commits made by hand: what the tests of averaging/rounds share."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256

import torch
import trio

from averaging.codecs import Codec, codec_by_name
from averaging.network.memory.memory_network import LinkSpeed, MemorySwarm
from averaging.network.seams.interfaces import Storage, Stream
from averaging.rounds.lineage.head_state import AppliedCommit
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.unit_chain import UnitChain, sealed_milestones
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.contribution import result_root
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import Generations
from averaging.state.state import UnitState, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.rounds.lineage.chain import link_after, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.lineage.milestones import seal_milestone
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, SignatureCheck, sum_in
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Certificate,
    Member,
    PreVote,
    Promise,
    PromiseRequest,
    Proposal,
    ResultHeader,
    SliceSpec,
)
from protocol.rounds.messages.record import NO_SPINE, Ballot, CommitRecord, Included, Omission, OmissionCode, OuterStep
from protocol.rounds.messages.requests import ContributionHeader, FetchRequest
from protocol.rounds.messages.start import Milestone, StartRecord, StartUnit
from protocol.rounds.messages.wire import encode_body, encode_certificate, encode_message, encode_record, genesis_id
from protocol.rounds.schedule.proposal import Voters, make_record
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_chunks
from tests.simulation.signing import HashSigner, HashVerifier, admission_of
from tests.virtual import InlineOffload

UNIT = UnitName("fragment-0")
RUN_ID = RunId(sha256(b"round world").digest())
GRID = ChunkGrid(num_elements=60, chunk_elements=10)
CODEC = codec_by_name("fp32")
CHUNK_BYTES = 40
OUTER = OuterStep("nesterov", 0.7, 0.5)
VERIFIER = HashVerifier()
TOKENS = 100
HOST = HashSigner(b"host")
SPACING = 4
"""Commits between two generations of large states: this many fp32 updates weigh twice as much as a state."""


@dataclass(frozen=True)
class MadeCommit:
    """A certified commit and the bytes of its slices, in slice order."""

    link: ChainLink
    certificate: Certificate
    results: tuple[bytes, ...]

    @property
    def record(self) -> CommitRecord:
        assert self.link.record is not None
        return self.link.record

    async def write_results(self, party: Party, slices: Sequence[int] | None = None) -> None:
        """Put the bytes of some slices, or of all, on a party's disk."""
        await self.write_to(party.log, slices)

    async def write_to(self, log: UnitLog, slices: Sequence[int] | None = None) -> None:
        """As `write_results`, into the log of some unit."""
        for number, part in enumerate(self.record.slices):
            if slices is None or number in slices:
                await log.write_result(self.record.parent, part.result_hash, self.results[number])


@dataclass
class Party:
    """One peer: its keys, its disk, and the process that lives on them (`boot` starts another)."""

    world: RoundWorld
    signer: HashSigner
    session: int = 0
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    asked: list[tuple[PeerId, FetchRequest]] = field(default_factory=list)
    asked_at_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.boot()

    @property
    def peer(self) -> PeerId:
        return self.signer.peer_id

    @property
    def member(self) -> Member:
        return Member(self.peer, 1, self.session)

    def boot(self) -> None:
        """A new process on the same disk: nothing but the disk survives. Its chain is not restored yet."""
        self.session += 1
        self._next_sequence = self.session << 32
        self.network = self.world.swarm.start(self.peer)
        self.disk.power_on()
        storage, offload, grid = self.world.storage_of(self), InlineOffload(), self.world.grid
        self.log = UnitLog(storage)
        self.generations = Generations(storage, grid, offload)
        self.milestones = self.world.milestones()
        tools = UnitContext(RUN_ID, UNIT, VERIFIER, self.world.codec, grid, offload, self.log, self.generations)
        tools = replace(tools, milestones=self.milestones)
        if self.world.is_large:
            tools = replace(tools, small_state_bytes=0)
        self.chain = UnitChain(tools, self.world.start_record, self.world.genesis)

    def crash(self) -> None:
        """kill -9: writes in flight are lost or kept, by chance."""
        self.disk.crash(random.Random(1))
        self.world.swarm.kill(self.peer)

    async def restart(self) -> None:
        """Killed and started again, the disk read back."""
        self.crash()
        self.boot()
        await self.chain.restore()

    def generation_names(self) -> list[str]:
        """The generations on disk, oldest first."""
        return sorted(name for name in self.disk.files if name.startswith("generations/"))

    def spoil(self, name: str) -> None:
        """One bit of a file on disk turns over."""
        data = bytearray(self.disk.files[name])
        data[-3] ^= 1
        self.disk.files[name] = bytes(data)

    def sign(self, payload: bytes) -> bytes:
        self._next_sequence += 1
        return seal(self.signer, ROUND_DOMAIN, RUN_ID, self._next_sequence, NEVER_MS, payload)

    async def seal(self, payload: bytes) -> bytes:
        return self.sign(payload)

    def sealed(self, payload: bytes) -> bytes:
        """The same envelope each time."""
        return seal(self.signer, ROUND_DOMAIN, RUN_ID, 0, NEVER_MS, payload)

    def credential(self) -> bytes:
        """The proof of admission that the run's authority issued."""
        return admission_of(self.peer, RUN_ID)

    def included(self, proposal: Proposal, root: Root, attested: CommitId, attested_root: Root) -> Included:
        """A reducer's entry for our contribution of TOKENS to the proposal, with the seal of our claim."""
        member = proposal.member(self.peer)
        assert member is not None
        claim = ContributionHeader(
            proposal.unit, proposal.base, member, TOKENS, proposal.codec, root, attested, attested_root
        )
        return Included(
            self.peer,
            1,
            root,
            TOKENS,
            attested,
            attested_root,
            session=member.session,
            seal=seal_of(self.sealed(encode_claim(claim))),
            credential=self.credential(),
        )

    def summed(self, header: ResultHeader, proposal: Proposal) -> ResultHeader:
        """Our result with the seal of its sum."""
        return replace(header, sum_seal=seal_of(self.sealed(encode_sum(sum_in(header, proposal)))))

    async def apply(self, commit: MadeCommit) -> AppliedCommit:
        """As the service does it: bytes on disk, then the commit, its root and its generation."""
        await commit.write_results(self)
        return await apply_whole(self.chain, commit.link, commit.certificate)

    def serve_fetches(self) -> None:
        """Answer on the channel "fetch" from our disk and note who asked for what."""
        after, milestones = lambda known: self.chain.line.after(known), lambda: sealed_milestones(self.chain)
        service = TransferService(UNIT, self.log, self.generations, self.world.grid, after, milestones)

        async def serve(peer: PeerId, stream: Stream) -> None:
            request = await read_request(stream)
            self.asked.append((peer, request))
            await service.serve(peer, request, stream)

        self.network.serve_streams(FETCH_CHANNEL, serve)

    def serve_frames(self, frames: Sequence[bytes]) -> None:
        """Answer every stream with these frames, whatever is asked: a liar."""

        async def serve(peer: PeerId, stream: Stream) -> None:
            self.asked.append((peer, await read_request(stream)))
            self.asked_at_s.append(trio.current_time())
            for frame in frames:
                await stream.send_frame(frame)

        self.network.serve_streams(FETCH_CHANNEL, serve)


async def apply_whole(chain: UnitChain, link: ChainLink, certificate: Certificate) -> AppliedCommit:
    """A commit with all that comes after it."""
    applied = await chain.apply(link, certificate)
    await chain.prove(applied)
    await chain.keep()
    return applied


class RoundWorld:
    """Peers in the order of their ids, all on the roster of the start record. Each of them has a chain of UNIT. If the world
    `is_large`, states are written every SPACING commits, as large ones are. `commit_on` makes commits of GRID and CODEC alone.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        num_peers: int = 3,
        target_tokens: int = 3000,
        units: Sequence[UnitName] = (UNIT,),
        *,
        is_large: bool = False,
        grid: ChunkGrid = GRID,
        codec: Codec = CODEC,
        storage_of: Callable[[Party], Storage] = lambda party: MemoryStorage(party.disk),
    ) -> None:
        self.is_large = is_large
        self.grid, self.codec, self.storage_of = grid, codec, storage_of
        self.swarm = MemorySwarm(nursery, random.Random(1), LinkSpeed(0.01, 10_000_000.0))
        signers = sorted((HashSigner(bytes([n])) for n in range(num_peers)), key=lambda signer: signer.peer_id)
        self.target_tokens = target_tokens
        roster = tuple(signer.peer_id for signer in signers)
        drafts = [_zero_state(unit, CommitId(bytes(32)), grid) for unit in units]
        started = tuple(StartUnit(draft.unit, bytes(32), state_root(draft, grid)) for draft in drafts)
        self.start_record = encode_body(StartRecord(RUN_ID, started, roster, target_tokens, 0, rules=NEW_RUNS))
        self.genesis = self.genesis_of(UNIT)
        self.parties = [Party(self, signer) for signer in signers]
        self.stranger = Party(self, HashSigner(b"stranger"))

    def milestones(self) -> HeldMilestones:
        """A peer's milestones, before any has come."""
        check = SignatureCheck(VERIFIER, RUN_ID)
        return HeldMilestones(check, HOST.public_key, genesis_id(self.start_record))

    async def grow(self, parties: Sequence[Party], number: int) -> list[MadeCommit]:
        """So many more commits at the heads of these parties, each of which attests the state before it."""
        made: list[MadeCommit] = []
        for _ in range(number):
            chain = parties[0].chain
            made.append(self.commit_on(chain.head, chain.head.index, attested_root=chain.root))
            for party in parties:
                await party.apply(made[-1])
        return made

    def milestone_at(self, commit: MadeCommit, signer: HashSigner | None = None) -> bytes:
        """A milestone at a commit, signed by the host unless another signer is given."""
        content = Milestone(genesis_id(self.start_record), commit.certificate.record, Root(b""))
        return seal_milestone(signer or HOST, RUN_ID, content)

    def genesis_of(self, unit: UnitName) -> UnitState:
        """The state before a unit's first commit."""
        return _zero_state(unit, genesis_id(self.start_record), self.grid)

    def proposal(
        self, slices: Sequence[tuple[int, int, int]], *, attempt: int = 0, reduce_within_s: float = 5.0
    ) -> Proposal:
        """An attempt on the genesis; `slices` are (first chunk, stop chunk, number of the reducer)."""
        return Proposal(
            UNIT,
            self.genesis.head,
            1,
            Ballot(attempt, self.parties[0].peer),
            tuple(party.member for party in self.parties),
            tuple(SliceSpec(first, stop, self.parties[number].peer) for first, stop, number in slices),
            CODEC.name,
            1000,
            reduce_within_s,
        )

    def consents(self, ballot: Ballot, base: CommitId | None = None, unit: UnitName = UNIT) -> tuple[bytes, ...]:
        """The signed pre-votes of all others, with which this ballot may take over; on the genesis unless another base is given."""
        vote = encode_message(PreVote(unit, base or self.genesis.head, ballot, ""))
        return tuple(party.sealed(vote) for party in self.parties if party.peer != ballot.peer)

    def promises(self, ballot: Ballot, commit: MadeCommit) -> tuple[bytes, ...]:
        """Everybody's signed promise to this ballot, with which it may finish a commit that they acked."""
        record = commit.record
        acked = AckedRecord(record.ballot, commit.certificate.record)
        promise = encode_message(Promise(record.unit, record.parent, ballot, acked))
        return tuple(party.sealed(promise) for party in self.parties)

    def promise_request(self, ballot: Ballot, base: CommitId | None = None, unit: UnitName = UNIT) -> PromiseRequest:
        """The request of a take-over's leader, with the consent of all others."""
        return PromiseRequest(unit, base or self.genesis.head, ballot, self.consents(ballot, base, unit))

    def commit_on(
        self,
        parent: ChainLink,
        seed: int,
        *,
        omitted_from_last_slice: Sequence[int] = (),
        members: Sequence[int] = (),
        voters: Sequence[int] = (),
        roots: Sequence[Root] = (),
        attested_root: Root | None = None,
        is_lone: bool = False,
        spine: CommitId = NO_SPINE,
    ) -> MadeCommit:
        """A certified commit with a pseudo-random update: slice 0 by the first member, slice 1 by the second. `members` are all
        parties and `voters` all members unless given; `attested_root` is the parent's, without it the genesis is attested.
        Members are their first processes, so the same arguments make the same commit.
        """
        update_N = torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))
        chunks = encode_chunks(update_N, CODEC, GRID)
        numbers = tuple(members or range(len(self.parties)))
        ballot = Ballot(0, self.parties[numbers[0]].peer)
        headers, results = [], []
        genesis = self.genesis_of(parent.unit)
        attested = (genesis.head, state_root(genesis, GRID))
        if attested_root is not None:
            attested = (parent.commit, attested_root)
        spans = ((0, 4, numbers[0], ()), (4, 6, numbers[1 % len(numbers)], omitted_from_last_slice))
        proposal = Proposal(
            parent.unit,
            parent.commit,
            parent.index + 1,
            ballot,
            tuple(Member(self.parties[n].peer, 1, 1) for n in numbers),
            tuple(SliceSpec(first, stop, self.parties[reducer].peer) for first, stop, reducer, _ in spans),
            CODEC.name,
            1000,
            5.0,
            lone=is_lone,
            spine=spine,
        )
        for first, stop, reducer, missing in spans:
            part = chunks[first:stop]
            results.append(b"".join(part))
            counted = [n for n in numbers if n not in missing]
            header = ResultHeader(
                parent.unit,
                parent.commit,
                ballot,
                first,
                stop,
                self.parties[reducer].peer,
                tuple(self.parties[n].included(proposal, _root_of(seed, n, roots), *attested) for n in counted),
                tuple(Omission(self.parties[n].peer, "late", OmissionCode.LATE) for n in missing),
                TOKENS * len(counted),
                result_root(part),
            )
            headers.append(self.parties[reducer].summed(header, proposal))
        voting = Voters(frozenset(self.parties[n].peer for n in numbers), frozenset())
        record = encode_record(make_record(parent, proposal, ballot, headers, voting, OUTER, self.target_tokens))
        commit = link_after(parent, record).commit
        ack = encode_message(Ack(parent.unit, parent.commit, ballot, commit, version=1))
        acks = tuple(self.parties[n].sealed(ack) for n in voters or numbers)
        certificate = Certificate(record, acks)
        link = verify_certificate(certificate, parent, verifier=VERIFIER, run_id=RUN_ID)
        return MadeCommit(link, certificate, tuple(results))

    @property
    def start(self) -> ChainLink:
        """The link before the first commit."""
        return genesis_link(self.start_record, UNIT)

    def commits(self, number: int) -> list[MadeCommit]:
        """A chain from the genesis."""
        made: list[MadeCommit] = []
        for seed in range(number):
            parent = made[-1].link if made else self.start
            made.append(self.commit_on(parent, seed))
        return made


def _zero_state(unit: UnitName, head: CommitId, grid: ChunkGrid) -> UnitState:
    zeros_N = torch.zeros(grid.num_elements, dtype=torch.float32)
    return UnitState(unit, head, 0, 0, zeros_N, zeros_N.clone())


def _root_of(seed: int, number: int, roots: Sequence[Root]) -> Root:
    return roots[number] if roots else Root(sha256(f"{seed}/{number}".encode()).digest())


@asynccontextmanager
async def open_world(
    num_peers: int = 3, target_tokens: int = 3000, units: Sequence[UnitName] = (UNIT,), *, is_large: bool = False
) -> AsyncIterator[RoundWorld]:
    """A world whose background tasks end with the block."""
    async with trio.open_nursery() as nursery:
        yield RoundWorld(nursery, num_peers, target_tokens, units, is_large=is_large)
        nursery.cancel_scope.cancel()


def tree_nodes(commits: Sequence[MadeCommit]) -> tuple[TreeNode, ...]:
    """The commits as nodes of a tree."""
    return tuple(TreeNode(commit.link, commit.certificate) for commit in commits)


def raws_of(chain: UnitChain) -> list[bytes]:
    """The certificates of a chain as they go over the wire."""
    return [encode_certificate(certificate) for certificate in chain.line.certificates]
