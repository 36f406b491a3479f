"""Members of one exchange whose words the tests speak or listen to: what the tests of the collective share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import torch
import trio

from averaging.codecs import Codec
from averaging.network.seams.interfaces import BegunFile, Stream
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.exchange.exchange import EXCHANGE_CHANNEL, Exchange
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.lineage.next_state import Encoded, SliceBytes, examined
from averaging.rounds.traffic import contribution
from averaging.rounds.traffic.contribution import EncodedContribution, result_root
from averaging.rounds.traffic.partial_results import HalfResults
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.rounds.traffic.spans import Span
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import StorageError
from protocol.identity.envelope import open_envelope
from protocol.ids import PeerId, Root
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.claim import encode_claim
from protocol.rounds.messages.messages import Proposal, ResultHeader, ResultReady
from protocol.rounds.messages.record import Included
from protocol.rounds.messages.requests import ContributionHeader, ExchangeHello
from protocol.rounds.messages.wire import decode_body, encode_body
from tests.at_once import encode_contribution
from tests.averaging.rounds.round_world import (
    CODEC,
    GRID,
    RUN_ID,
    TOKENS,
    UNIT,
    VERIFIER,
    Party,
    RoundWorld,
    open_world,
)
from tests.virtual import InlineOffload

END, NEED, HAVE = b"E", b"N", b"H"
TWO_SLICES = ((0, 4, 0), (4, 6, 1))
ONE_SLICE = ((0, 6, 0),)


@dataclass
class Side:
    """One member's end of an exchange: its offers, what it kept and announced, and the attempt that runs."""

    party: Party
    contribution: EncodedContribution | None
    offers: Offers = field(default_factory=lambda: Offers(RUN_ID, VERIFIER, CODEC, GRID))
    kept: dict[int, tuple[NamedResult, bytes]] = field(default_factory=dict)
    announced: list[int] = field(default_factory=list)
    included: dict[int, list[PeerId]] = field(default_factory=dict)
    """By first chunk: whom the announcement of a slice counts."""

    examined: dict[int, bytes] = field(default_factory=dict)
    remembered: dict[int, int] = field(default_factory=dict)
    """By first chunk, how many chunks were examined when it was said that they were."""

    kept_s: dict[int, float] = field(default_factory=dict)
    """By first chunk, when its result was to be kept."""

    num_kept: int = 0
    is_disk_full: bool = False
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    begun: list[BegunFile] = field(default_factory=list)
    exchange: Exchange | None = None
    halves: HalfResults = field(default_factory=HalfResults)
    num_serving: int = 0
    result_codec: Codec = CODEC
    spans: list[Span] = field(default_factory=list)

    def _begin(self, _: NamedResult) -> BegunFile:
        self.begun.append(MemoryStorage(self.disk).begin("result"))
        return self.begun[-1]

    async def _keep(self, header: NamedResult, result: SliceBytes, begun: BegunFile | None) -> Callable[[], None]:
        if self.is_disk_full:
            raise StorageError("no space left on the disk", "room for a result")
        if begun is not None:
            await begun.add(result.data[begun.num_bytes :])
            await begun.finish()
            assert self.disk.files.pop("result") == bytes(result.data)
        self.kept[header.first_chunk] = (header, bytes(result.data))
        self.kept_s[header.first_chunk] = trio.current_time()
        self.num_kept += 1
        return lambda: self.remembered.update({header.first_chunk: len(self.examined)})

    async def _examine(self, first_chunk: int, encoded: Encoded) -> list[bytes]:
        hashes = examined(self.result_codec, GRID, first_chunk, encoded, None)
        self.examined.update(zip(range(first_chunk, first_chunk + len(encoded)), hashes, strict=True))
        return hashes

    async def _holds(self, header: NamedResult) -> bool:
        return any(kept.result_hash == header.result_hash for kept, _ in self.kept.values())

    async def _announce(self, ready: ResultReady) -> None:
        self.announced.append(ready.ballot.attempt)
        header = decode_body(
            ResultHeader,
            open_envelope(
                ready.header, verifier=VERIFIER, domain=ROUND_DOMAIN, run_id=RUN_ID, now_unix_ms=None
            ).payload,
        )
        self.included[header.first_chunk] = [entry.peer for entry in header.included]

    async def _serve(self, sender: PeerId, stream: Stream) -> None:
        self.num_serving += 1
        try:
            hello = decode_body(ExchangeHello, await stream.receive_frame() or b"")
            assert self.exchange is not None
            await self.exchange.serve(sender, hello, stream)
        finally:
            self.num_serving -= 1

    def begin(self, proposal: Proposal, *, has_offer: bool = True) -> Exchange:
        """A new exchange; without `has_offer` our own contribution is still being made."""
        party = self.party
        tools = ExchangeContext(
            run_id=RUN_ID,
            me=party.member,
            network=party.network,
            offload=InlineOffload(),
            verifier=VERIFIER,
            means=ChunkMeans(self.result_codec, GRID),
            seal=party.seal,
            begin_result=self._begin,
            keep_result=self._keep,
            examine=self._examine,
            holds_result=self._holds,
            announce=self._announce,
            record=self.spans.append,
        )
        self.exchange = Exchange(proposal, tools, self.offers, halves=self.halves)
        if has_offer:
            self.exchange.offer(self.contribution)
        party.network.serve_streams(EXCHANGE_CHANNEL, self._serve)
        return self.exchange

    def omitted(self, first_chunk: int = 0) -> list[tuple[PeerId, str]]:
        """The members left out of a slice, with the reasons."""
        return [(omission.peer, omission.reason) for omission in self.header(first_chunk).omitted]

    def header(self, first_chunk: int = 0) -> ResultHeader:
        """The header of a slice's result, as its reducer and the leader know it."""
        header = self.kept[first_chunk][0]
        assert isinstance(header, ResultHeader)
        return header


@asynccontextmanager
async def three_sides(silent: Sequence[int] = ()) -> AsyncIterator[tuple[RoundWorld, list[Side]]]:
    """Three members with a contribution each, but for the silent ones."""
    async with open_world() as world:
        yield (
            world,
            [Side(p, None if n in silent else contribution_of(p, n)) for n, p in enumerate(world.parties)],
        )


@asynccontextmanager
async def running(sides: Sequence[Side], proposal: Proposal, within_s: float = 20.0) -> AsyncIterator[list[Exchange]]:
    """These members' exchanges; at the end of the block until every slice has its result, or was given up."""
    async with trio.open_nursery() as nursery:
        exchanges = [side.begin(proposal) for side in sides]
        for exchange in exchanges:
            nursery.start_soon(exchange.run)
        yield exchanges
        await until_over(exchanges, within_s)
        nursery.cancel_scope.cancel()


async def until_over(exchanges: Sequence[Exchange], within_s: float = 20.0) -> None:
    """Until every exchange has nothing left to do."""
    with trio.fail_after(within_s):
        while not all(exchange.is_over for exchange in exchanges):
            await trio.sleep(0.01)


async def run_all(sides: Sequence[Side], proposal: Proposal) -> None:
    """A whole attempt."""
    async with running(sides, proposal):
        pass


def theta(seed: int) -> torch.Tensor:
    """Local parameters, (N,) float32."""
    return torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))


def signed_header(party: Party, encoded: EncodedContribution, **changes: object) -> bytes:
    """A contribution's header, signed by the party."""
    genesis = party.world.genesis.head
    header = ContributionHeader(UNIT, genesis, party.member, TOKENS, CODEC.name, encoded.root, genesis, Root(bytes(32)))
    return party.sign(encode_claim(replace(header, **changes)))  # type: ignore[arg-type]


def contribution_of(party: Party, seed: int) -> EncodedContribution:
    """A contribution on the genesis, whose anchor is zero."""
    encoded = encode_contribution(torch.zeros(GRID.num_elements), theta(seed), TOKENS, CODEC, GRID)
    chunks = tuple(map(bytes, encoded.chunks))  # tests spoil them
    return replace(encoded, chunks=chunks, header=signed_header(party, encoded))


def hello_of(proposal: Proposal, mine: EncodedContribution, number: int = 0, **changes: object) -> ExchangeHello:
    """The hello of a contribution to the reducer of a slice, the first one by default."""
    return replace(contribution.hello_of(proposal, proposal.slices[number], mine), **changes)  # type: ignore[arg-type]


def chunk_frame(chunk: int, data: bytes) -> bytes:
    """The frame of one chunk."""
    return b"C" + chunk.to_bytes(4, "little") + data


def all_frames(mine: EncodedContribution) -> list[bytes]:
    """Everything that a member sends to the reducer of the whole unit that has nothing of it, up to the request for the result."""
    return [*(chunk_frame(number, chunk) for number, chunk in enumerate(mine.chunks)), END, NEED]


async def talk(party: Party, reducer: Party, hello: ExchangeHello, frames: Sequence[bytes]) -> list[bytes]:
    """Speak to a reducer by hand; returns what it answers until the clean end.

    Raises:
        PeerUnreachable: it reset the stream.
    """
    stream = await party.network.open_stream(reducer.peer, EXCHANGE_CHANNEL, timeout_s=1.0)
    answers = []
    try:
        await stream.send_frame(encode_body(hello))
        for frame in frames:
            await stream.send_frame(frame)
        while (answer := await stream.receive_frame()) is not None:
            answers.append(answer)
    finally:
        await stream.aclose()
    return answers


def result_header(world: RoundWorld, chunks: Sequence[bytes], **changes: object) -> ResultHeader:
    """The first party's result header for the whole unit, unsigned."""
    included = Included(world.parties[0].peer, 1, Root(bytes(32)), TOKENS, world.genesis.head, Root(bytes(32)))
    proposal = world.proposal(ONE_SLICE)
    header = ResultHeader(
        UNIT,
        proposal.base,
        proposal.ballot,
        0,
        6,
        world.parties[0].peer,
        (included,),
        (),
        TOKENS,
        result_root(chunks),
    )
    return replace(header, **changes)  # type: ignore[arg-type]


async def answer_with(world: RoundWorld, side: Side, proposal: Proposal, answers: list[list[bytes]]) -> None:
    """Run one member against a reducer that gives these answers, one a stream; the last one is the true one."""
    left = list(answers)

    async def reduce(sender: PeerId, stream: Stream) -> None:
        await stream.receive_frame()
        await stream.send_frame(bytes([1] * GRID.num_chunks))
        await stream.receive_frame()
        for frame in left.pop(0):
            await stream.send_frame(frame)

    world.parties[0].network.serve_streams(EXCHANGE_CHANNEL, reduce)
    await run_all([side], proposal)
    assert left == []
