"""A member's side of the scatter: sends its contribution to each reducer while it is still being encoded (R9).

Rules: R9 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.hash_frames import receive_known, send_hello
from averaging.rounds.exchange.streamed_contribution import GrowingContribution
from averaging.rounds.traffic.batches import CHUNK_HEAD
from averaging.rounds.traffic.contribution import EncodedContribution, hello_before, hello_of
from averaging.rounds.traffic.fair_sending import FairSending, Ready, is_ready, send_evenly
from averaging.rounds.traffic.spans import Moving
from averaging.rounds.traffic.upload_meter import UploadMeter
from protocol.errors import RemoteProtocolError, TransportError
from protocol.ids import short
from protocol.rounds.messages.messages import Proposal, SliceSpec
from protocol.rounds.messages.requests import ExchangeHello
from protocol.rounds.messages.wire import encode_body

END: Final = b"E"
OFFER: Final = b"O"
"""Announces the hello with the header, which covers the chunks before and after it."""

SEND_ON: Final = b"S"
"""A reducer's answer to a hello without a header: it accepts chunks before the header. A reducer of an older release refuses such
a hello.
"""


class Scattering:
    """Our contribution to one attempt: how much of it is encoded, and how much has been sent.

    Attributes:
        upload: measures how long our upload takes.
        contribution: ours, once it is signed.
        has_begun: set when there is something to send to a reducer.
        is_known: set when our contribution is here, or there is none.
    """

    def __init__(self, tools: ExchangeContext, last_upload_s: float) -> None:
        self.upload = UploadMeter(last_upload_s)
        self.contribution: EncodedContribution | None = None
        self.has_begun = trio.Event()
        self.is_known = trio.Event()
        self._tools = tools
        self._growing: GrowingContribution | None = None
        self._no_part = False
        self._fair_sending = FairSending()

    def grow(self, growing: GrowingContribution) -> None:
        """Our contribution is being encoded; `offer` follows in any case."""
        if not self.is_known.is_set():
            self._growing = growing
            self.has_begun.set()

    def offer(self, contribution: EncodedContribution | None, *, no_part: bool) -> None:
        """Our contribution is signed, or there is none; with `no_part` because we were not asked for one."""
        self.contribution, self._no_part = contribution, no_part
        if contribution is None:
            self.upload = UploadMeter()  # the part that was sent says nothing of a whole upload
        self.is_known.set()
        self.has_begun.set()

    def want(self, part: SliceSpec) -> None:
        """Count a slice as part of our upload, even if its reducer cannot be reached."""
        chunks = self._chunks
        if part.reducer == self._tools.me.peer or not chunks:
            return
        for chunk in range(part.first_chunk, part.stop_chunk):
            self.upload.want(chunk, len(chunks[chunk]), trio.current_time())

    def spare(self, part: SliceSpec) -> None:
        """Stop counting a slice: it has a new reducer."""
        for chunk in range(part.first_chunk, part.stop_chunk):
            self.upload.spare(chunk)

    @property
    def _chunks(self) -> Sequence[bytes | memoryview]:
        if self.is_known.is_set():
            return () if self.contribution is None else self.contribution.chunks
        return () if self._growing is None else self._growing.chunks

    async def bring(self, proposal: Proposal, part: SliceSpec, stream: Stream) -> bool:
        """Send a reducer the chunks of ours that it lacks, up to the end mark. Call once `has_begun` is set.

        Returns:
            False if the stream cannot be used any more and `is_known` is set: send all on a new one.

        Raises:
            TransportError, RemoteProtocolError: the stream broke, or the reducer's answer is invalid.
        """
        growing = self._growing
        if self.is_known.is_set() or growing is None:
            await self._send_whole(proposal, part, stream)
        elif not await self._send_growing(proposal, part, growing, stream):
            return False
        await stream.send_frame(END)
        return True

    async def _send_whole(self, proposal: Proposal, part: SliceSpec, stream: Stream) -> None:
        mine = self.contribution
        await send_hello(stream, self._hello(proposal, part))
        if mine is None:
            if await stream.receive_frame() is None:
                raise RemoteProtocolError("a reducer that hung up", "its list of chunks")
            return
        held = await receive_known(part.stop_chunk - part.first_chunk, stream.receive_frame)
        wanted: list[int] = []
        for position, chunk in enumerate(range(part.first_chunk, part.stop_chunk)):
            if position < len(held) and held[position]:
                self.upload.spare(chunk)
            else:
                wanted.append(chunk)
        with self._tools.spanned(proposal, "send", f"our contribution to {short(part.reducer)}") as moving:
            await self._send(stream, wanted, mine, moving)

    async def _send_growing(
        self, proposal: Proposal, part: SliceSpec, growing: GrowingContribution, stream: Stream
    ) -> bool:
        await stream.send_frame(encode_body(hello_before(proposal, part)))
        try:
            answer = await stream.receive_frame()
        except TransportError:  # it broke, or a reducer of an older release refused the hello
            self._tools.probe(part.reducer)
            answer = None
        if answer != SEND_ON:
            await self.is_known.wait()
            return False
        is_said = False

        async def say() -> None:
            nonlocal is_said
            is_said = True
            await stream.send_frame(OFFER)
            await send_hello(stream, self._hello(proposal, part))

        async def ready(run: range) -> bool:
            if self.is_known.is_set() and not is_said:
                await say()
            return self.contribution is not None if is_said else await growing.wait(run)

        with self._tools.spanned(proposal, "send", f"our contribution to {short(part.reducer)}") as moving:
            numbers = range(part.first_chunk, part.stop_chunk)
            await self._send(stream, numbers, growing, moving, ready)
            await self.is_known.wait()
            if not is_said:
                await say()
        return True

    def _hello(self, proposal: Proposal, part: SliceSpec) -> ExchangeHello:
        return hello_of(proposal, part, self.contribution, no_part=self._no_part)

    async def _send(
        self,
        stream: Stream,
        numbers: Sequence[int],
        of: EncodedContribution | GrowingContribution,
        moving: Moving,
        ready: Ready = is_ready,
    ) -> None:
        await send_evenly(
            stream,
            numbers,
            of.data,
            of.chunks,
            self._fair_sending,
            lambda run: CHUNK_HEAD.pack(b"C", run.start),
            partial(self._have_left, of.chunks, moving),
            ready,
        )

    def _have_left(self, chunks: Sequence[bytes | memoryview], moving: Moving, run: range) -> None:
        now_s = trio.current_time()
        for chunk in run:
            num_bytes = len(chunks[chunk])
            moving.num_bytes += num_bytes
            if self.contribution is not None or not self.is_known.is_set():
                self.upload.sent(chunk, num_bytes, now_s)
