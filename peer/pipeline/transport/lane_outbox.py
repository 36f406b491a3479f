"""Large data between members of a lane: activations, gradients, snapshots.

One stream carries everything for a peer, in order, and each parcel is answered. If a stream breaks, unanswered parcels go over
the next one. So a parcel may arrive twice, and its receiver takes it once.

    sender   -> receiver   LanePassed, LaneCopy or another, then that many bytes in frames; the next one at once
    receiver -> sender     LaneAnswer for each, in order; after a refusal the stream ends
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

import trio

from averaging.network.seams.interfaces import Stream
from peer.pipeline.stage.snapshot_bytes import SnapshotBytes, own_memory
from peer.pipeline.transport.lane_calls import read_answer, whole_answer
from peer.pipeline.transport.lane_network import LaneNetwork
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError, RemoteProtocolError, TransportError
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import LaneAnswer, LaneCopy, LaneFetch, LaneGift, LanePassed
from protocol.pipeline.messages.lane_wire import decode_parcel, encode_parcel
from protocol.received import MAX_TEXT

PARCEL_CHANNEL: Final = "lane-parcels"
OPEN_WITHIN_S: Final = 2.0
MOVES_WITHIN_S: Final = 10.0
"""A stream is closed after this long without progress."""

ANSWERED_WITHIN_S: Final = 600.0
"""Timeout for the answer to a complete parcel. The receiver's training process may be in the middle of a long pass. A dead peer
is found much earlier by its silence towards the keeper, and a stalled one by the lane's own deadline.
"""

RETRY_AFTER_S: Final = 0.1
_FRAME_BYTES: Final = 1 << 20


Postable = LanePassed | LaneCopy
"""A parcel that is sent and answered."""


@dataclass(eq=False)
class Posted:
    """A queued parcel and its answer."""

    parcel: Postable
    data: SnapshotBytes
    answer: LaneAnswer | None = None
    """None until the answer arrives, and if the outbox ended first."""

    _ended: trio.Event = field(default_factory=trio.Event)

    async def wait(self) -> LaneAnswer | None:
        """Wait for the answer; None if the outbox ended first."""
        await self._ended.wait()
        return self.answer

    def end(self, answer: LaneAnswer | None) -> None:
        """Set the answer and wake the waiters."""
        self.answer = answer
        self._ended.set()


Refused = Callable[[Postable, str], None]
"""Receives (the refused parcel, why)."""


class Outbox:
    """Everything for one peer. `run` sends what `put` queues.

    Args:
        is_early: whether to open the first stream before there is anything to send.
    """

    def __init__(self, network: LaneNetwork, peer: PeerId, refused: Refused, *, is_early: bool = False) -> None:
        self.scope = trio.CancelScope()
        self._network = network
        self._peer = peer
        self._refused = refused
        self._is_early = is_early
        self._posted = deque[Posted]()
        self._num_sent = 0
        self._is_sending = False
        self._has_more = trio.Event()
        self._answered_s = -inf
        self._watch = trio.CancelScope()

    def put(self, parcel: Postable, data: SnapshotBytes) -> Posted:
        """Queue a parcel."""
        if not self._posted:
            self._answered_s = trio.current_time()
        posted = Posted(parcel, data)
        self._posted.append(posted)
        self._extend()
        self._has_more.set()
        return posted

    async def run(self) -> None:
        """Send until cancelled.

        Raises:
            CallTimeout: no answer for MOVES_WITHIN_S although something is queued.
        """
        try:
            with self.scope:
                await self._run()
        finally:
            for posted in self._posted:
                posted.end(None)

    async def _run(self) -> None:
        while True:
            self._num_sent = 0
            if not self._is_early:
                await self._wait_unsent()
            self._is_early = False
            reason = await self._over_a_stream()
            if self._posted and trio.current_time() - self._answered_s >= MOVES_WITHIN_S:
                raise CallTimeout(f"{self._peer} takes nothing: {reason}", f"an answer in {MOVES_WITHIN_S:g} s")
            await trio.sleep(RETRY_AFTER_S)

    async def _wait_unsent(self) -> None:
        while len(self._posted) <= self._num_sent:
            self._has_more = trio.Event()
            await self._has_more.wait()

    def _extend(self) -> None:
        """Extend the deadlines: sending must make progress, and sent parcels must be answered in time."""
        is_sent = not self._is_sending and self._num_sent == len(self._posted)
        within_s = ANSWERED_WITHIN_S if is_sent else MOVES_WITHIN_S
        self._watch.deadline = trio.current_time() + within_s if self._posted else inf

    async def _over_a_stream(self) -> str:
        """Send until the stream ends. Returns why it ended."""
        try:
            stream = await self._network.open_stream(self._peer, PARCEL_CHANNEL, timeout_s=OPEN_WITHIN_S)
        except PotluckError as error:
            return error.one_line()
        reason, opened_s = f"nothing moved for {MOVES_WITHIN_S:g} s", trio.current_time()
        self._is_sending = False
        try:
            with trio.CancelScope() as self._watch:
                self._extend()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._send, stream)
                    reason = await self._hear(stream)
                    nursery.cancel_scope.cancel()
        finally:
            with trio.move_on_after(OPEN_WITHIN_S, shield=True):
                await stream.aclose()
        if not self._is_sending and trio.current_time() - opened_s > MOVES_WITHIN_S:
            # the peer was reachable: one without a seat for us ends the stream sooner
            self._answered_s = trio.current_time()
        return reason

    async def _send(self, stream: Stream) -> None:
        """Leave a broken stream to `_hear`, which still reads the answers sent before it broke."""
        try:
            while True:
                await self._wait_unsent()
                posted = self._posted[self._num_sent]
                self._num_sent += 1
                self._is_sending = True
                self._extend()
                await send_parcel(stream, posted.parcel, posted.data, self._extend)
                self._is_sending = False
                self._extend()
        except TransportError:
            return

    async def _hear(self, stream: Stream) -> str:
        """Read answers until the stream ends. Returns why it ended."""
        try:
            while (frame := await stream.receive_frame()) is not None:
                found = whole_answer(frame)
                if not self._num_sent:
                    return "it answered what was not sent"
                posted = self._posted.popleft()
                self._num_sent -= 1
                self._answered_s = trio.current_time()
                self._extend()
                posted.end(found)
                if found.reason:
                    self._refused(posted.parcel, found.reason)
        except PotluckError as error:
            return error.one_line()
        return "it ended the stream"


async def answer(stream: Stream, reason: str = "") -> None:
    """Answer a parcel: taken, or why not."""
    printable = "".join(c if c.isprintable() else " " for c in reason[:MAX_TEXT])
    await stream.send_frame(encode_parcel(LaneAnswer(printable)))


async def receive_bytes(stream: Stream, num_bytes: int) -> bytes:
    """Receive the bytes that follow a parcel, of a message between stages. Raises as `receive_memory`."""
    return bytes(await receive_memory(stream, num_bytes))


async def receive_memory(stream: Stream, num_bytes: int) -> memoryview:
    """Receive the bytes that follow a parcel, of a snapshot or of a share, into memory of their own. It grows as they come.

    Raises:
        MachineError: there is no memory for them.
        RemoteProtocolError: too few or too many bytes.
        CallTimeout: nothing arrived for MOVES_WITHIN_S.
    """
    data, num_received = own_memory(num_bytes), 0
    while num_received < num_bytes:
        frame = await receive_in_time(stream) or b""
        begin, num_received = num_received, num_received + len(frame)
        if not frame or num_received > num_bytes:
            raise RemoteProtocolError(f"{num_received} bytes of a parcel", f"{num_bytes}")
        data[begin:num_received] = frame
    return data


async def receive_in_time(stream: Stream) -> bytes | None:
    """The next frame. Raises CallTimeout when none came for MOVES_WITHIN_S."""
    with trio.move_on_after(MOVES_WITHIN_S):
        return await stream.receive_frame()
    raise CallTimeout(f"{stream.remote} sent nothing for {MOVES_WITHIN_S:g} s", "the next frame")


async def fetch_copy(
    network: LaneNetwork, peer: PeerId, wanted: LaneFetch, most_bytes: int, *, tries: int = 1
) -> SnapshotBytes:
    """Fetch a stage's snapshot from its holder.

    Args:
        tries: number of attempts if streams break.

    Raises:
        TransportError: the peer cannot be reached, or does not answer.
        RemoteProtocolError: it has no snapshot, or sends something else.
        MachineError: there is no memory for it.
    """
    for _ in range(tries - 1):
        try:
            return await _fetched(network, peer, wanted, most_bytes)
        except TransportError:
            await trio.sleep(RETRY_AFTER_S)
    return await _fetched(network, peer, wanted, most_bytes)


async def _fetched(network: LaneNetwork, peer: PeerId, wanted: LaneFetch, most_bytes: int) -> SnapshotBytes:
    stream = await network.open_stream(peer, PARCEL_CHANNEL, timeout_s=OPEN_WITHIN_S)
    try:
        await stream.send_frame(encode_parcel(wanted))
        frame = await receive_in_time(stream)
        if frame is None:
            raise PeerUnreachable(f"{peer} ended the stream", "a snapshot")
        found = decode_parcel(frame)
        if isinstance(found, LaneAnswer):
            raise RemoteProtocolError(f"no snapshot of stage {wanted.stage} there: {found.reason}", "one")
        if (
            not isinstance(found, LaneCopy)
            or (found.at, found.stage) != (wanted.at, wanted.stage)
            or found.num_bytes > most_bytes
        ):
            raise RemoteProtocolError(f"{found}", f"the snapshot of stage {wanted.stage}, at most {most_bytes} bytes")
        return await receive_memory(stream, found.num_bytes)
    finally:
        with trio.move_on_after(OPEN_WITHIN_S, shield=True):
            await stream.aclose()


async def give(network: LaneNetwork, peer: PeerId, gift: LaneGift, data: SnapshotBytes) -> str:
    """Give a share to a peer. Returns why it refuses; empty if it takes it.

    Raises:
        TransportError: the peer cannot be reached, or does not answer.
        RemoteProtocolError: it answers something else.
    """
    stream = await network.open_stream(peer, PARCEL_CHANNEL, timeout_s=OPEN_WITHIN_S)
    try:
        await send_parcel(stream, gift, data)
        frame = await receive_in_time(stream)
        if frame is None:
            raise PeerUnreachable(f"{peer} ended the stream", "an answer")
        return read_answer(frame)
    finally:
        with trio.move_on_after(OPEN_WITHIN_S, shield=True):
            await stream.aclose()


def _nothing() -> None:
    pass


async def send_parcel(
    stream: Stream, parcel: Postable | LaneGift, data: SnapshotBytes, moved: Callable[[], None] = _nothing
) -> None:
    """Send a parcel and the bytes that follow it.

    Args:
        moved: called after each frame.
    """
    await stream.send_frame(encode_parcel(parcel))
    view = memoryview(data)
    for begin in range(0, len(view), _FRAME_BYTES):
        await stream.send_frame(view[begin : begin + _FRAME_BYTES])
        moved()
