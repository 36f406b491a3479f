"""What a peer says to others on the round channel: said once more where a connection broke, and together where units meet.

Where the rounds of several units are open at the same time, what they have to say to the same peer waits for `GATHER_S` and goes in
one call (protocol/rounds/messages/bundle.py). Each message has its own answer, as if it had gone alone. A peer that knows no
bundles, as one of an older release, is told one message after another from then on, until its process changes.
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
from protocol.ids import PeerId, short
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
"""How long a message waits for those of other units: twice as long as a vote takes to a disk."""

MAX_PLAIN: Final = 4096
"""Peers remembered that know no bundles, the latest."""

Item = tuple[PeerId, bytes | PotluckError]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to each of these peers in one call: the numbers of the messages in it, in the order in which they arose."""

    peers: tuple[PeerId, ...]
    numbers: tuple[int, ...]


def parcels(messages: Sequence[tuple[Sequence[PeerId], int]], plain: Collection[PeerId] = ()) -> tuple[Parcel, ...]:
    """How messages that wait together travel: to each peer in as few calls as they fit into, peers that get the same together.

    Args:
        messages: of each to whom it goes, and its length in bytes.
        plain: who is told one message after another.
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


class _Letter:
    """One message that waits for others, and what comes of it at each peer."""

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
        """It did not leave at all."""
        self._error = error
        self._settle.close()

    async def hear(self, took: TookReply) -> None:
        """Tell `took` of each peer as soon as it has replied or failed. Raises what `fail` was told."""
        for _ in self.to:
            item = await anext(self._settled, None)
            if item is None:
                raise self._error or LocalProtocolError("a message without an answer", "one from each peer")
            await took(*item)


class Outbox:
    """Of one peer, for all units and the heartbeats. `lose` hears of whom the host sent away, whenever something was to go there."""

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
        self._waiting: list[_Letter] = []
        self._plain: OrderedDict[PeerId, None] = OrderedDict()

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
        """Bring a message; once more where the connection broke: a dead process refuses that, a living one may say it is repeated.

        Args:
            within_s: for a message that goes alone, how long its answer may take.
            gathers: it may wait for other units' messages to the same peers.
        """
        banned = [peer for peer in to if self._is_banned(peer)]
        for peer in banned:
            # Its answers would keep it alive for us, and a quorum would be waited for that its refused votes can never make.
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
                self._plain.pop(peer, None)  # its next process may be of another release
            await took(peer, reply)

        await self._network.call_each(to, channel, raw, timeout_s=within_s, took=took_it)

    # --- together -------------------------------------------------------------------------------------------------------------

    async def _gathered(self, to: Sequence[PeerId], raw: bytes, took: TookReply) -> None:
        letter = _Letter(to, raw)
        self._waiting.append(letter)
        if len(self._waiting) == 1:
            self._tasks.spawn(self._bring_all)
        await letter.hear(took)

    async def _bring_all(self) -> None:
        """Bring what came since the first of them, after a moment."""
        await trio.sleep(GATHER_S)
        letters, self._waiting = self._waiting, []
        async with trio.open_nursery() as nursery:
            for parcel in parcels([(letter.to, len(letter.raw)) for letter in letters], self._plain):
                inside = [letters[number] for number in parcel.numbers]
                nursery.start_soon(self._bring, parcel.peers, inside)

    async def _bring(self, peers: Sequence[PeerId], letters: Sequence[_Letter]) -> None:
        """One call to each of these peers, with one message or several."""
        try:
            if len(letters) == 1:
                await self._bring_one(peers, letters[0])
            else:
                await self._bring_several(peers, letters)
        except* PotluckError as group:
            error = leaves(group)[0]
            for letter in letters:
                letter.fail(error)

    async def _bring_one(self, peers: Sequence[PeerId], letter: _Letter) -> None:
        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            letter.settle(peer, reply)

        await self._call_each(ROUND_CHANNEL, peers, letter.raw, took)

    async def _bring_several(self, peers: Sequence[PeerId], letters: Sequence[_Letter]) -> None:
        async with trio.open_nursery() as nursery:

            async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
                if isinstance(reply, RemoteProtocolError):
                    nursery.start_soon(self._bring_apart, peer, letters)
                    return
                for letter, its in zip(letters, _replies(peer, reply, len(letters)), strict=True):
                    letter.settle(peer, its)

            await self._call_each(ROUND_CHANNEL, peers, encode_bundle([letter.raw for letter in letters]), took)

    async def _bring_apart(self, peer: PeerId, letters: Sequence[_Letter]) -> None:
        """One after another, to a peer that refused them as a bundle; where it takes any of them it knows no bundles."""
        taken: list[PeerId] = []

        async def took(letter: _Letter, peer: PeerId, reply: bytes | PotluckError) -> None:
            if isinstance(reply, bytes):
                taken.append(peer)
            letter.settle(peer, reply)

        async with trio.open_nursery() as nursery:
            for letter in letters:
                nursery.start_soon(self._call_each, ROUND_CHANNEL, (peer,), letter.raw, partial(took, letter))
        if taken:
            log.info("peer_knows_no_bundles", peer=short(peer))
            self._plain[peer] = None
            while len(self._plain) > MAX_PLAIN:
                self._plain.popitem(last=False)


def _replies(peer: PeerId, reply: bytes | PotluckError, num_messages: int) -> Sequence[bytes | PotluckError]:
    """What came of each message in a bundle: a call that failed has brought none of them."""
    if isinstance(reply, PotluckError):
        return [reply] * num_messages
    try:
        reasons = decode_answer(reply, num_messages)
    except RemoteProtocolError as error:
        return [error] * num_messages
    return [_refused(peer, reason) if reason else b"" for reason in reasons]


def _refused(peer: PeerId, reason: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"{peer} refused a message in a bundle: {reason}", "an answer")
