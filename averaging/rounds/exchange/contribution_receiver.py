"""A reducer's side of the scatter: members' chunks for one of its slices, checked, kept and summed as they arrive (R9 and R10).

Rules: R9, R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.contribution_sender import END, OFFER, SEND_ON
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.hash_frames import send_known, whole_hello
from averaging.rounds.exchange.offered_contributions import OfferedContribution, Offers
from averaging.rounds.exchange.reduction import Reduction
from averaging.rounds.traffic.batches import BATCH_BYTES, CHUNK_HEAD, Batch, split_batch
from averaging.rounds.traffic.spans import Moving
from protocol.errors import RemoteProtocolError, TransportError
from protocol.ids import PeerId, short
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.messages.record import OmissionCode
from protocol.rounds.messages.requests import ExchangeHello
from protocol.rounds.messages.wire import decode_body

AT_ONCE_BYTES: Final = BATCH_BYTES
"""Up to this size a frame is hashed in the event loop: a thread would cost more than the hashing."""


AT_ONCE_HASHES: Final = 1 << 13
"""Up to so many chunk hashes are checked in the event loop."""


class Receiving:
    """Receives the streams of one attempt's members. `came` is called with every frame and its sender."""

    def __init__(self, tools: ExchangeContext, offers: Offers, came: Callable[[PeerId, memoryview], None]) -> None:
        self._tools = tools
        self._offers = offers
        self._came = came
        self._ahead: dict[tuple[PeerId, int], trio.CancelScope] = {}

    async def take(
        self, proposal: Proposal, sender: PeerId, hello: ExchangeHello, reduction: Reduction, stream: Stream
    ) -> None:
        """Receive all that a member has for this slice, up to its end mark.

        Raises:
            RemoteProtocolError: its data does not fit. Chunks that were already checked are kept, the others are dropped.
            TransportError: the stream broke.
        """
        former = self._ahead.pop((sender, reduction.part.first_chunk), None) if not hello.carried else None
        if former is not None:
            former.cancel()
        if not hello.contribution:
            await stream.send_frame(b"")
            await self._take_nothing(sender, hello, reduction, stream)
            return
        ahead: list[Batch] = []
        with self._tools.spanned(proposal, "receive", f"a contribution of {short(sender)}") as moving:
            if hello.follows:
                hello, ahead = await self._take_ahead(sender, hello, reduction, stream, moving)
                if not hello.contribution:
                    await self._take_nothing(sender, hello, reduction, stream)
                    return
                offer = await self._admit(proposal, sender, hello, reduction, stream)
            else:
                offer = await self._admit(proposal, sender, hello, reduction, stream)
                numbers = range(reduction.part.first_chunk, reduction.part.stop_chunk)
                await send_known(stream, bytes(chunk in offer.chunks for chunk in numbers))
            for batch in ahead:
                await self._take_batch(proposal, reduction, offer, batch)
            await self._take_chunks(proposal, reduction, offer, stream, moving)

    async def _admit(
        self, proposal: Proposal, sender: PeerId, hello: ExchangeHello, reduction: Reduction, stream: Stream
    ) -> OfferedContribution:
        part = reduction.part
        num_chunks = part.stop_chunk - part.first_chunk
        hello = await whole_hello(hello, num_chunks, stream.receive_frame)
        root = None
        if num_chunks > AT_ONCE_HASHES:
            root = await self._tools.offload.run(partial(self._offers.root_in, part, hello))
        offer = self._offers.admit(sender, proposal, part, hello, root)
        reduction.set_present(sender)
        return offer

    async def _take_nothing(self, sender: PeerId, hello: ExchangeHello, reduction: Reduction, stream: Stream) -> None:
        code = OmissionCode.NO_PART if hello.no_part else OmissionCode.NOTHING
        reduction.set_absent(sender, hello.why_nothing, code)
        if await stream.receive_frame() != END:
            raise RemoteProtocolError("another frame than expected", "an end mark: this member offers no chunks")

    async def _take_chunks(
        self, proposal: Proposal, reduction: Reduction, offer: OfferedContribution, stream: Stream, moving: Moving
    ) -> None:
        while not isinstance(found := await self._next(reduction, stream, moving), bytes):
            await self._take_batch(proposal, reduction, offer, found)
        if found != END:
            raise RemoteProtocolError("two headers of a contribution", "one")

    async def _take_batch(
        self, proposal: Proposal, reduction: Reduction, offer: OfferedContribution, batch: Batch
    ) -> None:
        """Check the chunks of a frame, keep them, and sum those that all members have sent now."""
        tools = self._tools
        if sum(len(data) for _, data in batch) <= AT_ONCE_BYTES:
            self._offers.check_batch(offer, batch)
        else:
            await tools.offload.run(partial(self._offers.check_batch, offer, batch))
        summing = reduction.take(offer, batch)
        if summing is not None:
            with tools.spanned(proposal, "reduce"):
                await tools.offload.run(summing)

    # --- before the header ----------------------------------------------------------------------------------------------------

    async def _take_ahead(
        self, sender: PeerId, hello: ExchangeHello, reduction: Reduction, stream: Stream, moving: Moving
    ) -> tuple[ExchangeHello, list[Batch]]:
        """The hello with the header of these chunks, and the chunks that came before it. They take no more memory than the slice:
        no chunk may come twice, and a member's next stream ends this one.
        """
        place = (sender, reduction.part.first_chunk)
        with trio.CancelScope() as scope:
            self._ahead[place] = scope
            try:
                return await self._receive_ahead(hello, reduction, stream, moving)
            finally:
                if self._ahead.get(place) is scope:
                    del self._ahead[place]
        raise TransportError(
            "a stream whose member has opened another one", "one of each member for a slice", "go on there"
        )

    async def _receive_ahead(
        self, hello: ExchangeHello, reduction: Reduction, stream: Stream, moving: Moving
    ) -> tuple[ExchangeHello, list[Batch]]:
        ahead, brought = list[Batch](), set[int]()
        await stream.send_frame(SEND_ON)
        while not isinstance(found := await self._next(reduction, stream, moving), bytes):
            numbers = {chunk for chunk, _ in found}
            if not brought.isdisjoint(numbers):
                raise RemoteProtocolError(f"chunk {min(brought & numbers)} twice", "each chunk once")
            brought |= numbers
            ahead.append(found)
        raw = await stream.receive_frame() if found == OFFER else None
        if raw is None:
            raise RemoteProtocolError("chunks without the header of a contribution", "the header that follows them")
        said = decode_body(ExchangeHello, raw)
        if said.follows or not said.is_of(hello):
            raise RemoteProtocolError("a header for another slice or attempt", "that of the chunks before it")
        return said, ahead

    # --- frames ---------------------------------------------------------------------------------------------------------------

    async def _next(self, reduction: Reduction, stream: Stream, moving: Moving) -> Batch | bytes:
        """Unchecked chunks of the slice, or a mark."""
        part = reduction.part
        frame = await stream.receive_view(reduction.place)
        if frame is None:
            raise RemoteProtocolError("a contribution that ends early", "all chunks and an end mark")
        if len(frame) < CHUNK_HEAD.size:
            mark = bytes(frame)
            if mark in (END, OFFER):
                return mark
            raise RemoteProtocolError(f"a frame of {len(frame)} bytes", "a chunk")
        tag, chunk = CHUNK_HEAD.unpack_from(frame)
        if tag != b"C" or not part.first_chunk <= chunk < part.stop_chunk:
            raise RemoteProtocolError(f"frame {tag!r} for chunk {chunk}", "a chunk of the slice")
        moving.num_bytes += len(frame) - CHUNK_HEAD.size
        self._came(stream.remote, frame)
        return split_batch(frame[CHUNK_HEAD.size :], chunk, part.stop_chunk, self._offers.codec, self._tools.grid)
