"""The heartbeats of ours that each peer knows, and the latest of each peer, so that most are sent as deltas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.ids import PeerId
from protocol.rounds.messages.heartbeat_delta import (
    LAST_NUMBER,
    decode_short,
    encode_moved,
    encode_short,
    is_like,
    made_whole,
    outline,
    report_digest,
    says_tokens_alone,
)
from protocol.rounds.messages.messages import Heartbeat

T = TypeVar("T")
MAX_KNOWN: Final = 4096
"""The most peers that are remembered, the latest. A forgotten peer gets, or is asked for, a whole heartbeat again."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A peer's latest whole heartbeat, and the number of its latest delta."""

    heartbeat: Heartbeat
    report_digest: bytes
    number: int = 0


@dataclass(frozen=True, slots=True)
class OwnBeat:
    """A heartbeat of ours with the digests that others identify it by, computed once for all receivers."""

    heartbeat: Heartbeat
    report_digest: bytes
    outline: bytes


def own_beat(heartbeat: Heartbeat, last: OwnBeat | None = None) -> OwnBeat:
    """A heartbeat with its digests; mostly those of the `last` one."""
    if last is not None and is_like(heartbeat, last.heartbeat):
        return OwnBeat(heartbeat, last.report_digest, last.outline)
    return OwnBeat(heartbeat, report_digest(heartbeat), outline(heartbeat))


class HeartbeatCache:
    """The heartbeats of one process, for all peers."""

    def __init__(self) -> None:
        self._taken: OrderedDict[PeerId, OwnBeat] = OrderedDict()
        """The latest heartbeat that each peer has answered."""

        self._known: OrderedDict[PeerId, _Known] = OrderedDict()
        self._number = 0

    # --- sent ---

    def split(self, to: Sequence[PeerId], beat: OwnBeat) -> dict[bytes, tuple[PeerId, ...]]:
        """The peers that get a delta, by the delta's bytes. All others must get the whole heartbeat."""
        if self._number == LAST_NUMBER:
            return {}
        by_likeness = dict[bytes, list[PeerId]]()
        for peer in to:
            taken = self._taken.get(peer)
            if taken is not None and taken.outline == beat.outline:
                by_likeness.setdefault(taken.report_digest, []).append(peer)
        self._number += 1
        return {
            (encode_short if like == beat.report_digest else encode_moved)(beat.heartbeat, like, self._number): tuple(
                peers
            )
            for like, peers in by_likeness.items()
        }

    def taken(self, peer: PeerId, beat: OwnBeat) -> None:
        """The peer has received this heartbeat."""
        _remember(self._taken, peer, beat)

    def not_taken(self, peer: PeerId) -> None:
        """The peer may be a new process or has forgotten us: it gets the whole heartbeat next time."""
        self._taken.pop(peer, None)

    # --- received ---

    def heard(self, sender: PeerId, heartbeat: Heartbeat) -> None:
        """Take a whole heartbeat from its own sender. A late one of an earlier process is ignored."""
        before = self._known.get(sender)
        session = heartbeat.member.session
        if before is not None and session < before.heartbeat.member.session:
            return
        is_same_life = before is not None and session == before.heartbeat.member.session
        _remember(
            self._known,
            sender,
            _Known(heartbeat, report_digest(heartbeat), before.number if before and is_same_life else 0),
        )

    def heard_short(self, sender: PeerId, raw: bytes) -> tuple[Heartbeat | None, bool]:
        """Returns (the heartbeat, whether the delta was understood). The heartbeat is None for a late or repeated delta; ignore
        it then.

        Raises:
            RemoteProtocolError: bytes that no peer sends.
        """
        short, known = decode_short(raw), self._known.get(sender)
        if known is None or known.report_digest != short.report_digest:
            return None, False
        if short.number <= known.number:
            return None, True
        heartbeat = made_whole(known.heartbeat, raw)
        like = known.report_digest if says_tokens_alone(known.heartbeat, raw) else report_digest(heartbeat)
        _remember(self._known, sender, _Known(heartbeat, like, short.number))
        return heartbeat, True


def _remember(known: OrderedDict[PeerId, T], peer: PeerId, value: T) -> None:
    known[peer] = value
    known.move_to_end(peer)
    if len(known) > MAX_KNOWN:
        known.popitem(last=False)
