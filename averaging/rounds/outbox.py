"""Sends a peer's messages on the round channel: repeats one after a broken connection, and bundles those of several units.

If rounds of several units are open at once, their messages to the same peer wait for `GATHER_S` and go in one call
(protocol/rounds/messages/bundle.py). Each message has its own answer, as if it had gone alone. A peer of an older release may
know no bundles. It then gets one message after another, until its process changes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network, TookReply
from averaging.rounds.lineage.round_context import Tasks, leaves
from protocol.errors import ConnectionReset, LocalProtocolError, PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.messages.bundle import (
    LENGTH_BYTES,
    MAX_BUNDLE_BYTES,
    MAX_BUNDLED,
    decode_answer,
    encode_bundle,
)

log = structlog.get_logger()

ROUND_CHANNEL: Final = "round"
CALL_WITHIN_S: Final = 2.0

GATHER_S: Final = 0.008
"""How long a message waits for those of other units: about twice as long as writing a vote to disk."""

MAX_PLAIN: Final = 4096
"""The most peers that are remembered as knowing no bundles; the latest are kept."""

Item = tuple[PeerId, bytes | PotluckError]


@dataclass(frozen=True, slots=True)
class Parcel:
    """One call to each of these peers: the numbers of the messages in it, in the order in which they arose."""

    peers: tuple[PeerId, ...]
    numbers: tuple[int, ...]


def parcels(messages: Sequence[tuple[Sequence[PeerId], int]], plain: Collection[PeerId] = ()) -> tuple[Parcel, ...]:
    """How waiting messages travel: each peer gets as few calls as they fit into; peers with the same messages share a parcel.

    Args:
        messages: receivers of each message, and its length in bytes.
        plain: peers that get one message after another.
    """
    calls: dict[PeerId, list[list[int]]] = {}
    room: dict[PeerId, int] = {}
    for number, (to, num_bytes) in enumerate(messages):
        taken = LENGTH_BYTES + num_bytes
        for peer in to:
            mine = calls.setdefault(peer, [])
            if mine and peer not in plain and taken <= room[peer] and len(mine[-1]) < MAX_BUNDLED:
                mine[-1].append(number)
                room[peer] -= taken
            else:
                mine.append([number])
                room[peer] = MAX_BUNDLE_BYTES - taken
    alike: dict[tuple[int, ...], list[PeerId]] = {}
    for peer, numbers in calls.items():
        for one in numbers:
            alike.setdefault(tuple(one), []).append(peer)
    return tuple([Parcel(tuple(peers), numbers) for numbers, peers in alike.items()])


class _QueuedMessage:
    """One message that waits for others, and the replies of its receivers."""

    def __init__(self, to: Sequence[PeerId], raw: bytes) -> None:
        self.to = tuple(to)
        self.raw = raw
        self._error: PotluckError | None = None
        self._settle, self._settled = trio.open_memory_channel[Item](math.inf)

    def settle(self, peer: PeerId, reply: bytes | PotluckError) -> None:
        """One peer has replied or failed."""
        if self._error is None:
            self._settle.send_nowait((peer, reply))

    def fail(self, error: PotluckError) -> None:
        """The message was never sent."""
        self._error = error
        self._settle.close()

    async def hear(self, took: TookReply) -> None:
        """Call `took` for each peer as soon as it has replied or failed. Raises the error given to `fail`."""
        for _ in self.to:
            item = await anext(self._settled, None)
            if item is None:
                raise self._error or LocalProtocolError("a message without an answer", "one from each peer")
            await took(*item)


class Outbox:
    """Sends one peer's messages, for all units, and its heartbeats. `lose` is called for a banned peer whenever a message would
    go to it.
    """

    def __init__(
        self,
        network: Network,
        tasks: Tasks,
        is_banned: Callable[[PeerId], bool],
        lose: Callable[[PeerId], Awaitable[None]],
    ) -> None:
        self._network = network
        self._tasks = tasks
        self._is_banned = is_banned
        self._lose = lose
        self._waiting: list[_QueuedMessage] = []
        self._without_bundles: OrderedDict[PeerId, None] = OrderedDict()

    async def deliver(
        self,
        to: Sequence[PeerId],
        raw: bytes,
        took: TookReply,
        *,
        channel: str = ROUND_CHANNEL,
        within_s: float = CALL_WITHIN_S,
        gathers: bool = False,
    ) -> None:
        """Deliver a message, and repeat it after a broken connection: a dead process refuses that, a live one may have seen it
        already.

        Args:
            within_s: limit for the answer to a message that goes alone.
            gathers: the message may wait for other units' messages to the same peers.
        """
        banned = [peer for peer in to if self._is_banned(peer)]
        for peer in banned:
            # Answers would keep a banned peer alive here, and a quorum would wait for votes that are always refused.
            await self._lose(peer)
        others = [peer for peer in to if peer not in banned]
        alone = partial(self._call_each, channel, within_s=within_s)
        call_each = self._gathered if gathers else alone

        async with trio.open_nursery() as nursery:

            async def took_once(peer: PeerId, reply: bytes | PotluckError) -> None:
                if isinstance(reply, ConnectionReset):
                    nursery.start_soon(alone, (peer,), raw, took)
                else:
                    await took(peer, reply)

            await call_each(others, raw, took_once)

    async def _call_each(
        self, channel: str, to: Sequence[PeerId], raw: bytes, took: TookReply, *, within_s: float = CALL_WITHIN_S
    ) -> None:
        async def took_it(peer: PeerId, reply: bytes | PotluckError) -> None:
            if isinstance(reply, PeerUnreachable):
                self._without_bundles.pop(peer, None)  # its next process may be another release
            await took(peer, reply)

        await self._network.call_each(to, channel, raw, timeout_s=within_s, took=took_it)

    # --- together -------------------------------------------------------------------------------------------------------------

    async def _gathered(self, to: Sequence[PeerId], raw: bytes, took: TookReply) -> None:
        queued = _QueuedMessage(to, raw)
        self._waiting.append(queued)
        if len(self._waiting) == 1:
            self._tasks.spawn(self._send_all)
        await queued.hear(took)

    async def _send_all(self) -> None:
        """Send all messages that came since the first of them, after a short wait."""
        await trio.sleep(GATHER_S)
        batch, self._waiting = self._waiting, []
        async with trio.open_nursery() as nursery:
            for parcel in parcels([(queued.to, len(queued.raw)) for queued in batch], self._without_bundles):
                inside = [batch[number] for number in parcel.numbers]
                nursery.start_soon(self._send, parcel.peers, inside)

    async def _send(self, peers: Sequence[PeerId], batch: Sequence[_QueuedMessage]) -> None:
        """Make one call to each of these peers, with one message or several."""
        try:
            if len(batch) == 1:
                await self._send_one(peers, batch[0])
            else:
                await self._send_bundle(peers, batch)
        except* PotluckError as group:
            error = leaves(group)[0]
            for queued in batch:
                queued.fail(error)

    async def _send_one(self, peers: Sequence[PeerId], queued: _QueuedMessage) -> None:
        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            queued.settle(peer, reply)

        await self._call_each(ROUND_CHANNEL, peers, queued.raw, took)

    async def _send_bundle(self, peers: Sequence[PeerId], batch: Sequence[_QueuedMessage]) -> None:
        async with trio.open_nursery() as nursery:

            async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
                if isinstance(reply, RemoteProtocolError):
                    nursery.start_soon(self._send_one_by_one, peer, batch)
                    return
                for queued, its in zip(batch, _replies(peer, reply, len(batch)), strict=True):
                    queued.settle(peer, its)

            await self._call_each(ROUND_CHANNEL, peers, encode_bundle([queued.raw for queued in batch]), took)

    async def _send_one_by_one(self, peer: PeerId, batch: Sequence[_QueuedMessage]) -> None:
        """Send messages one by one to a peer that refused them as a bundle. If it takes any of them, it knows no bundles."""
        taken: list[PeerId] = []

        async def took(queued: _QueuedMessage, peer: PeerId, reply: bytes | PotluckError) -> None:
            if isinstance(reply, bytes):
                taken.append(peer)
            queued.settle(peer, reply)

        async with trio.open_nursery() as nursery:
            for queued in batch:
                nursery.start_soon(self._call_each, ROUND_CHANNEL, (peer,), queued.raw, partial(took, queued))
        if taken:
            log.info("peer_knows_no_bundles", peer=peer_name(peer))
            self._without_bundles[peer] = None
            while len(self._without_bundles) > MAX_PLAIN:
                self._without_bundles.popitem(last=False)


def _replies(peer: PeerId, reply: bytes | PotluckError, num_messages: int) -> Sequence[bytes | PotluckError]:
    """The reply to each message in a bundle: a failed call has delivered none of them."""
    if isinstance(reply, PotluckError):
        return [reply] * num_messages
    try:
        reasons = decode_answer(reply, num_messages)
    except RemoteProtocolError as error:
        return [error] * num_messages
    return [_refused(peer, reason) if reason else b"" for reason in reasons]


def _refused(peer: PeerId, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{peer} refused a message in a bundle: {reason}", "an answer")
