"""The collective of one attempt: scatter our chunks to the reducers, reduce our own slices, take the results (rules 9 and 10).

A member opens one stream to each reducer, sends what the reducer does not have yet, and gets the slice's result on the same
stream: so a peer without inbound connections takes part fully. Two quantisations in all: ours, and the reducer's one.

    member  -> reducer   ExchangeHello
    reducer -> member    bitmap of the chunks of this slice that it has
    member  -> reducer   "C" chunk number, bytes ... then "E"
    reducer -> member    signed ResultHeader, then the chunks in order
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.codecs import Codec
from averaging.network.seams import Network, Offload, Stream
from averaging.rounds.contribution import EncodedContribution, result_root
from averaging.rounds.reduction import Offer, Offers, Reduction
from protocol.envelope import open_envelope
from protocol.errors import PotluckError, RemoteProtocolError, TransportError
from protocol.identity import Verifier
from protocol.ids import PeerId, RunId, short
from protocol.rounds.chain import ROUND_DOMAIN
from protocol.rounds.messages import ExchangeHello, Member, Proposal, ResultHeader, ResultReady, SliceSpec
from protocol.tensor_schema import ChunkGrid
from protocol.wire import decode_body, encode_body

log = structlog.get_logger()

EXCHANGE_CHANNEL: Final = "exchange"
_CHUNK: Final = struct.Struct("<cI")
_END: Final = b"E"
OPEN_WITHIN_S: Final = 5.0
RETRY_AFTER_S: Final = 0.5
REDUCE_COST_S: Final = 0.002
"""What summing a slice costs in virtual time."""


@dataclass(frozen=True)
class ExchangeTools:
    """What every exchange of a unit works with."""

    run_id: RunId
    me: Member
    network: Network
    offload: Offload
    verifier: Verifier
    codec: Codec
    grid: ChunkGrid
    seal: Callable[[bytes], Awaitable[bytes]]
    keep_result: Callable[[ResultHeader, bytes], Awaitable[None]]
    announce: Callable[[ResultReady], Awaitable[None]]


class Exchange:
    """One attempt's traffic at one peer; `run` does it, `drop` and the served streams feed it."""

    def __init__(
        self, proposal: Proposal, tools: ExchangeTools, offers: Offers, contribution: EncodedContribution | None
    ) -> None:
        self.proposal = proposal
        self._tools = tools
        self._offers = offers
        self._contribution = contribution
        self._reductions = {
            part.first_chunk: Reduction(proposal, part, offers, tools.codec, tools.grid)
            for part in proposal.slices
            if part.reducer == tools.me.peer
        }
        self.is_over = False

    async def run(self) -> None:
        """Until every slice's result is here, or cancelled."""
        try:
            self._offer_own()
            async with trio.open_nursery() as nursery:
                for part in self.proposal.slices:
                    if part.first_chunk in self._reductions:
                        nursery.start_soon(self._reduce, self._reductions[part.first_chunk])
                    else:
                        nursery.start_soon(self._trade, part)
            self.is_over = True
        finally:
            for reduction in self._reductions.values():
                reduction.closed.set()  # members that wait for a slice of this attempt are let go

    def drop(self, peer: PeerId, reason: str) -> None:
        """Stop waiting for a member in our own slices."""
        for reduction in self._reductions.values():
            reduction.set_absent(peer, reason)

    def _offer_own(self) -> None:
        mine, me = self._contribution, self._tools.me.peer
        if mine is None:
            self.drop(me, "nothing to offer")
            return
        envelope = open_envelope(
            mine.header, verifier=self._tools.verifier, domain=ROUND_DOMAIN, run_id=self._tools.run_id, now_unix_ms=None
        )
        hello = ExchangeHello(
            self.proposal.unit, self.proposal.base, self.proposal.ballot, 0, envelope.raw, b"".join(mine.hashes)
        )
        offer = self._offers.admit(me, self.proposal, hello)
        offer.chunks.update(enumerate(mine.chunks))

    # --- the reducer's side ---

    async def _reduce(self, reduction: Reduction) -> None:
        await reduction.wait_ready(self.proposal.reduce_within_s)
        result = await self._tools.offload.run(reduction.reduce, cost_s=REDUCE_COST_S)
        if result is None:
            log.warning("slice_without_contributions", first_chunk=reduction.part.first_chunk)
            return
        await self._tools.keep_result(result.header, b"".join(result.chunks))
        reduction.signed_header = await self._tools.seal(encode_body(result.header))
        reduction.result = result
        reduction.closed.set()
        proposal = self.proposal
        await self._tools.announce(ResultReady(proposal.unit, proposal.base, proposal.ballot, reduction.signed_header))

    async def serve(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """A member came with its chunks for one of our slices.

        Raises:
            RemoteProtocolError: it is no member, or what it sends does not fit; the stream is reset.
            TransportError: the attempt ended before the slice closed.
        """
        reduction = self._reductions.get(hello.first_chunk)
        if reduction is None or self.proposal.member(sender) is None:
            raise RemoteProtocolError(
                f"{short(sender)} asks for slice {hello.first_chunk}", "a member and a slice of ours"
            )
        if hello.contribution:
            offer = self._offers.admit(sender, self.proposal, hello)
            reduction.set_present(sender)
            await self._take_chunks(reduction, offer, stream)
        else:
            reduction.set_absent(sender, "nothing to offer")
            await stream.send_frame(b"")
            await _expect_end(stream)
        reduction.wake()
        await reduction.closed.wait()
        if reduction.result is None:
            raise TransportError("an attempt that ended before its slice closed", "a result", "a later attempt has it")
        await stream.send_frame(reduction.signed_header)
        for chunk in reduction.result.chunks:
            await stream.send_frame(chunk)

    async def _take_chunks(self, reduction: Reduction, offer: Offer, stream: Stream) -> None:
        part = reduction.part
        numbers = range(part.first_chunk, part.stop_chunk)
        await stream.send_frame(bytes(chunk in offer.chunks for chunk in numbers))
        while True:
            frame = await stream.receive_frame()
            if frame is None:
                raise RemoteProtocolError("a contribution that ends early", "all chunks and an end mark")
            if frame == _END:
                return
            if len(frame) < _CHUNK.size:
                raise RemoteProtocolError(f"a frame of {len(frame)} bytes", "a chunk")
            tag, chunk = _CHUNK.unpack_from(frame)
            if tag != b"C" or chunk not in numbers:
                raise RemoteProtocolError(f"frame {tag!r} for chunk {chunk}", "a chunk of the slice")
            self._offers.add_chunk(offer, chunk, frame[_CHUNK.size :])

    # --- the member's side ---

    async def _trade(self, part: SliceSpec) -> None:
        """Bring our chunks to a reducer and take its result; try again while the attempt lasts."""
        while True:
            try:
                await self._trade_once(part)
                return
            except TransportError as error:
                log.debug("exchange_stream_broke", reducer=short(part.reducer), reason=error.one_line())
            except PotluckError as error:
                log.warning("exchange_refused", reducer=short(part.reducer), reason=error.one_line())
            await trio.sleep(RETRY_AFTER_S)

    async def _trade_once(self, part: SliceSpec) -> None:
        tools, mine = self._tools, self._contribution
        stream = await tools.network.open_stream(part.reducer, EXCHANGE_CHANNEL, timeout_s=OPEN_WITHIN_S)
        try:
            header = b"" if mine is None else mine.header
            hashes = b"" if mine is None else b"".join(mine.hashes)
            proposal = self.proposal
            hello = ExchangeHello(proposal.unit, proposal.base, proposal.ballot, part.first_chunk, header, hashes)
            await stream.send_frame(encode_body(hello))
            held = await stream.receive_frame()
            if held is None:
                raise RemoteProtocolError("a reducer that hung up", "its list of chunks")
            if mine is not None:
                for chunk in range(part.first_chunk, part.stop_chunk):
                    if chunk - part.first_chunk >= len(held) or not held[chunk - part.first_chunk]:
                        await stream.send_frame(_CHUNK.pack(b"C", chunk) + mine.chunks[chunk])
            await stream.send_frame(_END)
            await self._take_result(part, stream)
        finally:
            with trio.move_on_after(1.0, shield=True):
                await stream.aclose()

    async def _take_result(self, part: SliceSpec, stream: Stream) -> None:
        tools = self._tools
        signed = await stream.receive_frame()
        if signed is None:
            raise RemoteProtocolError("a reducer that hung up", "its result")
        envelope = open_envelope(
            signed, verifier=tools.verifier, domain=ROUND_DOMAIN, run_id=tools.run_id, now_unix_ms=None
        )
        header = decode_body(ResultHeader, envelope.payload)
        if (
            envelope.sender != part.reducer
            or header.ballot != self.proposal.ballot
            or header.first_chunk != part.first_chunk
        ):
            raise RemoteProtocolError("a result of another slice or attempt", "the one that was asked for")
        chunks: list[bytes] = []
        for chunk in range(part.first_chunk, part.stop_chunk):
            begin, stop = tools.grid.bounds(chunk)
            frame = await stream.receive_frame()
            if frame is None or len(frame) != tools.codec.encoded_bytes(stop - begin):
                raise RemoteProtocolError(f"result chunk {chunk} is missing or of the wrong length", "a whole chunk")
            chunks.append(frame)
        if result_root(chunks) != header.result_hash:
            raise RemoteProtocolError("result bytes with another hash", "the bytes that were signed")
        await tools.keep_result(header, b"".join(chunks))


async def _expect_end(stream: Stream) -> None:
    frame = await stream.receive_frame()
    if frame != _END:
        raise RemoteProtocolError("chunks from a member that offers none", "an end mark")
