"""Contributions of leavers: handed over to a carrier before the goodbye, and brought into the round to come (R8).

    leaver  -> carrier   CarryHello
    carrier -> leaver    "S": it takes the contribution
    leaver  -> carrier   the hashes of all chunks, in frames of HASHES_AT_ONCE
    leaver  -> carrier   "C" chunk number, the bytes of that chunk and of some that follow it ... then "E"
    carrier -> leaver    "K": all of it is here

The carrier keeps the contribution until a commit on its base. In the exchange it opens one more stream to each reducer, as a member
does, with the claim that the leaver signed. A contribution that came in part is brought for the slices that are whole.

Rules: R8 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

import structlog
import trio

from averaging.network.seams.interfaces import Network, Stream
from averaging.rounds.exchange.carried_contribution import CarriedContribution
from averaging.rounds.exchange.contribution_sender import END, SEND_ON
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.hash_frames import receive_hashes, receive_known, send_hashes, send_hello
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.traffic.batches import CHUNK_HEAD, split_batch
from averaging.rounds.traffic.contribution import EncodedContribution, hello_of
from averaging.rounds.traffic.fair_sending import FairSending, send_evenly
from averaging.rounds.traffic.transfer import FRAME_WITHIN_S
from protocol.errors import PotluckError, RemoteProtocolError, TransportError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName, short
from protocol.merkle import MerkleTree
from protocol.rounds.messages.messages import Proposal, SliceSpec
from protocol.rounds.messages.requests import CarryHello
from protocol.rounds.messages.wire import decode_body, encode_body
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

CARRY_CHANNEL: Final = "carry"
KEPT: Final = b"K"
OPEN_WITHIN_S: Final = 2.0
"""Limit for opening a stream. A leaver has seconds, and asks another peer instead."""

SAID_WITHIN_S: Final = 2.0
"""How long a carrier's own contribution waits until the reducer has heard of those that it carries."""


class Takes(Protocol):
    """The rounds of one unit, which may take a leaver's contribution to it."""

    @property
    def carry(self) -> Callable[[PeerId, CarryHello, Stream], Awaitable[None]]:
        """Takes (leaver, hello, stream)."""
        ...


async def hand_over(
    network: Network,
    carrier: PeerId,
    hello: CarryHello,
    mine: EncodedContribution,
    begun: Callable[[], None],
) -> None:
    """Give our contribution to a peer that is to bring it into the round to come. `begun` is called once the peer takes it: from then
    on, whatever came counts, even if the rest does not come. The caller must have a deadline.

    Raises:
        TransportError: the peer is gone, or refused it. RemoteProtocolError: it answered something else.
    """
    stream = await network.open_stream(carrier, CARRY_CHANNEL, timeout_s=OPEN_WITHIN_S)
    stream.count_as(hello.unit, "")
    try:
        await stream.send_frame(encode_body(hello))
        await _expect(stream, SEND_ON)
        begun()
        await send_hashes(stream, mine.hashes)
        await send_evenly(stream, range(len(mine.chunks)), mine.data, mine.chunks, FairSending(), _head)
        await stream.send_frame(END)
        await _expect(stream, KEPT)
    finally:
        with trio.move_on_after(1.0, shield=True):
            await stream.aclose()


async def _expect(stream: Stream, mark: bytes) -> None:
    answer = await stream.receive_frame()
    if answer is None:
        raise TransportError(f"{short(stream.remote)} takes no contribution", "a peer on our head with room for it")
    if answer != mark:
        raise RemoteProtocolError(f"{short(stream.remote)} answered {answer[:8]!r}", f"{mark!r}")


def _head(run: range) -> bytes:
    return CHUNK_HEAD.pack(b"C", run.start)


# --- at the carrier, before the round -----------------------------------------------------------------------------------------


async def serve_carry(
    check_member: Callable[[PeerId], Awaitable[None]],
    units: Mapping[UnitName, Takes],
    sender: PeerId,
    stream: Stream,
) -> None:
    """Answer a stream on CARRY_CHANNEL.

    Raises:
        RemoteProtocolError: no hello, or what does not fit it. TransportError: the unit is not held here, or takes none now.
    """
    await check_member(sender)
    hello = decode_body(CarryHello, await _next(stream))
    unit = units.get(hello.unit)
    if unit is None:
        raise TransportError(f"unit {hello.unit} is not held here", "a unit of ours")
    stream.count_as(hello.unit, "")
    await unit.carry(sender, hello, stream)


async def take_carried(
    offers: Offers,
    grid: ChunkGrid,
    over: Callable[[Sequence[bytes]], Awaitable[MerkleTree]],
    sender: PeerId,
    hello: CarryHello,
    stream: Stream,
) -> None:
    """Take a leaver's contribution on the base of `offers`, checked chunk by chunk. If the stream breaks, the chunks that came stay.

    Args:
        over: makes the tree over all hashes, in another thread.

    Raises:
        RemoteProtocolError: bytes that do not fit. TransportError: no room, or the stream broke or stands still.
    """
    carried = offers.begin_carried(sender, hello)
    await stream.send_frame(SEND_ON)
    carried.know(await over(await receive_hashes(grid.num_chunks, partial(_next, stream))))
    while (frame := await _next(stream)) != END:
        _keep(carried, frame, offers, grid)
    if not carried.is_whole:
        raise RemoteProtocolError("a contribution that ends early", "all chunks and an end mark")
    log.info("carries", of=peer_name(sender), tokens=carried.tokens)
    await stream.send_frame(KEPT)


def _keep(carried: CarriedContribution, frame: bytes, offers: Offers, grid: ChunkGrid) -> None:
    tag, first = CHUNK_HEAD.unpack_from(frame) if len(frame) >= CHUNK_HEAD.size else (b"", 0)
    if tag != b"C":
        raise RemoteProtocolError(f"a frame of {len(frame)} bytes", "chunks, or an end mark")
    for chunk, data in split_batch(memoryview(frame)[CHUNK_HEAD.size :], first, grid.num_chunks, offers.codec, grid):
        carried.keep(chunk, data)


async def _next(stream: Stream) -> bytes:
    frame: bytes | None = None
    with trio.move_on_after(FRAME_WITHIN_S):
        frame = await stream.receive_frame()
    if frame is None:
        raise TransportError(f"{short(stream.remote)} hung up or sent nothing", "a contribution that it hands over")
    return frame


# --- at the carrier, in an exchange -------------------------------------------------------------------------------------------


class Carrier:
    """Brings the contributions that this peer carries to the reducers of one attempt, on the members' channel."""

    def __init__(self, tools: ExchangeContext, channel: str, carried: Sequence[CarriedContribution]) -> None:
        self._tools = tools
        self._channel = channel
        self._carried = carried
        self._sending = FairSending()

    @asynccontextmanager
    async def bringing(self, proposal: Proposal, part: SliceSpec) -> AsyncIterator[None]:
        """Bring what is carried for a slice while the block brings this peer's own. The reducer waits for our own, so it has heard of
        the others before. When the block ends, the slice is closed, and nothing more is needed.
        """
        here = [carried for carried in self._carried if carried.has(part)]
        if not here:
            yield
            return
        async with trio.open_nursery() as nursery:
            said = [trio.Event() for _ in here]
            for carried, event in zip(here, said, strict=True):
                nursery.start_soon(self._bring, proposal, part, carried, event)
            with trio.move_on_after(SAID_WITHIN_S):
                for event in said:
                    await event.wait()
            yield
            nursery.cancel_scope.cancel()

    async def _bring(self, proposal: Proposal, part: SliceSpec, carried: CarriedContribution, said: trio.Event) -> None:
        try:
            await self._send(proposal, part, carried, said)
        except PotluckError as error:
            of, to = peer_name(carried.member.peer), peer_name(part.reducer)
            log.info("not_carried", of=of, to=to, reason=error.one_line())
        finally:
            said.set()

    async def _send(self, proposal: Proposal, part: SliceSpec, carried: CarriedContribution, said: trio.Event) -> None:
        stream = await self._tools.network.open_stream(part.reducer, self._channel, timeout_s=OPEN_WITHIN_S)
        try:
            stream.count_as(proposal.unit, "")
            await send_hello(stream, hello_of(proposal, part, carried, carried=True))
            numbers = range(part.first_chunk, part.stop_chunk)
            known = await receive_known(len(numbers), stream.receive_frame)
            said.set()
            wanted = [chunk for place, chunk in enumerate(numbers) if place >= len(known) or not known[place]]
            await send_evenly(stream, wanted, carried.data, carried.chunks, self._sending, _head)
            await stream.send_frame(END)
            await stream.receive_frame()  # it ends the stream once it has read all
        finally:
            with trio.move_on_after(1.0, shield=True):
                await stream.aclose()
