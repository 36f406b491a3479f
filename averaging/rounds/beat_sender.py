"""Sends a peer's heartbeats: as deltas where the receiver knows the last whole one, and notes who does not answer (R4).

Rules: R4 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from averaging.network.seams.interfaces import Clock
from averaging.rounds.heartbeat_cache import HeartbeatCache, OwnBeat, own_beat
from averaging.rounds.lineage.round_context import Seal, Tasks
from averaging.rounds.outbox import Outbox
from averaging.rounds.unanswered import SILENT_AFTER, Unanswered
from protocol.errors import PeerUnreachable, PotluckError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.messages.heartbeat_delta import SAY_WHOLE
from protocol.rounds.messages.messages import Heartbeat
from protocol.rounds.messages.wire import encode_message

BEAT_CHANNEL: Final = "beat"
"""Heartbeat deltas (protocol/rounds/messages/heartbeat_delta.py)."""

BEAT_WITHIN_S: Final = 6.0
"""Limit for a heartbeat. A late answer is a sign of life, too, and takes seconds behind bulk on a thin line."""

NoteReply = Callable[[PeerId, bytes | PotluckError], Awaitable[None]]
NoteSilent = Callable[[PeerId, float], Awaitable[None]]
"""(a peer that does not answer, when the first of these heartbeats was sent, monotonic time)."""


class BeatSender:
    """The heartbeats that one process sends, for all units.

    Args:
        cache: the heartbeats that peers know of us, and we of them.
        note_reply: called with the result of each.
        are_many: whether so many peers are known that silent ones are looked for.
        note_silent: called then for a peer that did not answer SILENT_AFTER in a row.
    """

    def __init__(
        self,
        outbox: Outbox,
        tasks: Tasks,
        clock: Clock,
        seal: Seal,
        note_reply: NoteReply,
        are_many: Callable[[], bool],
        note_silent: NoteSilent,
    ) -> None:
        self.cache = HeartbeatCache()
        self._outbox, self._tasks, self._clock, self._seal = outbox, tasks, clock, seal
        self._note_reply, self._are_many, self._note_silent = note_reply, are_many, note_silent
        self._unanswered = Unanswered()
        self._own_beat: OwnBeat | None = None

    async def send(self, to: tuple[PeerId, ...], heartbeat: Heartbeat) -> None:
        """Send a heartbeat to these peers, to most of them as a delta."""
        beat = self._own_beat = own_beat(heartbeat, self._own_beat)
        deltas = self.cache.split(to, beat)
        for raw, peers in deltas.items():
            self._tasks.spawn(self._send_delta, peers, beat, raw)
        in_delta = set().union(*deltas.values())
        others = tuple([peer for peer in to if peer not in in_delta])
        if others:
            self._tasks.spawn(self.send_whole, others, heartbeat, await self._sealed(heartbeat))

    async def send_whole(self, to: tuple[PeerId, ...], heartbeat: Heartbeat, raw: bytes) -> None:
        """Deliver a whole heartbeat, `raw` signed, and wait for the answers."""
        beat, at_s = own_beat(heartbeat, self._own_beat), self._clock.monotonic_s()

        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            if not isinstance(reply, PotluckError):
                self.cache.taken(peer, beat)
            await self._note(peer, reply, heartbeat, at_s)

        await self._outbox.deliver(to, raw, took, within_s=BEAT_WITHIN_S)

    async def _sealed(self, heartbeat: Heartbeat) -> bytes:
        return await self._seal(encode_message(heartbeat))

    async def _send_delta(self, to: tuple[PeerId, ...], beat: OwnBeat, raw: bytes) -> None:
        """Send a heartbeat delta, and the whole heartbeat to each peer that lacks the base of the delta."""
        at_s = self._clock.monotonic_s()

        async def took(peer: PeerId, reply: bytes | PotluckError) -> None:
            if reply == SAY_WHOLE or isinstance(reply, RemoteProtocolError):
                self.cache.not_taken(peer)
                self._tasks.spawn(self.send_whole, (peer,), beat.heartbeat, await self._sealed(beat.heartbeat))
            else:
                if not isinstance(reply, PotluckError):
                    self.cache.taken(peer, beat)
                await self._note(peer, reply, beat.heartbeat, at_s)

        await self._outbox.deliver(to, raw, took, channel=BEAT_CHANNEL, within_s=BEAT_WITHIN_S)

    async def _note(self, peer: PeerId, reply: bytes | PotluckError, heartbeat: Heartbeat, at_s: float) -> None:
        """Note the result of one heartbeat. Among many a peer that did not answer is asked once more; then it counts as silent."""
        if isinstance(reply, PeerUnreachable):
            self.cache.not_taken(peer)
        await self._note_reply(peer, reply)
        count, since_s = self._unanswered.note(peer, reply, at_s)
        if count >= SILENT_AFTER and self._are_many():
            await self._note_silent(peer, since_s)
        elif count and self._are_many():
            self._tasks.spawn(self.send_whole, (peer,), heartbeat, await self._sealed(heartbeat))
