"""Which heartbeats need not be said whole: what each peer was told of us and took, and what each told of itself."""

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
"""Peers of whom anything is remembered, the latest: who is forgotten is told, or asked for, the whole once more."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A peer's latest heartbeat, and the number of its latest short one."""

    heartbeat: Heartbeat
    report_digest: bytes
    number: int = 0


@dataclass(frozen=True, slots=True)
class OwnBeat:
    """A heartbeat of ours, and what others know it by: worked out once for all whom it is told."""

    heartbeat: Heartbeat
    report_digest: bytes
    outline: bytes


def own_beat(heartbeat: Heartbeat, last: OwnBeat | None = None) -> OwnBeat:
    """With what others know it by: mostly the same as of the `last` one."""
    if last is not None and is_like(heartbeat, last.heartbeat):
        return OwnBeat(heartbeat, last.report_digest, last.outline)
    return OwnBeat(heartbeat, report_digest(heartbeat), outline(heartbeat))


class HeartbeatCache:
    """Of one process, for all peers."""

    def __init__(self) -> None:
        self._taken: OrderedDict[PeerId, OwnBeat] = OrderedDict()
        """What each peer knows of us, as far as it has answered."""

        self._known: OrderedDict[PeerId, _Known] = OrderedDict()
        self._number = 0

    # --- what we say ---

    def split(self, to: Sequence[PeerId], beat: OwnBeat) -> dict[bytes, tuple[PeerId, ...]]:
        """Who is told in short, by the bytes of that; all others are to be told whole."""
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
        """The peer knows this one."""
        _remember(self._taken, peer, beat)

    def not_taken(self, peer: PeerId) -> None:
        """The peer may be another process, or has forgotten us: it is told the whole next time."""
        self._taken.pop(peer, None)

    # --- what we hear ---

    def heard(self, sender: PeerId, heartbeat: Heartbeat) -> None:
        """A whole one of its sender's own; one of an earlier process life, overtaken on its way, says nothing any more."""
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
        """(what it says, whether it is understood). None for one that came late or twice: nothing is to be done about it.

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
