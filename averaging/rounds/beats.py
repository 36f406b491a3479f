"""Which heartbeats need not be said whole: what each peer was told of us and took, and what each told of itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.ids import PeerId
from protocol.rounds.messages import Heartbeat
from protocol.rounds.short_beat import LAST_NUMBER, decode_short, encode_short, likeness, made_whole

T = TypeVar("T")
MAX_KNOWN: Final = 4096
"""Peers of whom anything is remembered, the latest: who is forgotten is told, or asked for, the whole once more."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A peer's latest whole heartbeat, and the number of its latest short one."""

    heartbeat: Heartbeat
    likeness: bytes
    number: int = 0


class BeatMemory:
    """Of one process, for all peers."""

    def __init__(self) -> None:
        self._taken: OrderedDict[PeerId, bytes] = OrderedDict()
        self._known: OrderedDict[PeerId, _Known] = OrderedDict()
        self._number = 0

    # --- what we say ---

    def split(self, to: Sequence[PeerId], heartbeat: Heartbeat) -> tuple[tuple[PeerId, ...], bytes]:
        """(who is told in short, in which bytes); all others are to be told whole."""
        like = likeness(heartbeat)
        in_short = tuple(peer for peer in to if self._taken.get(peer) == like)
        if not in_short or self._number == LAST_NUMBER:
            return (), b""
        self._number += 1
        return in_short, encode_short(heartbeat, like, self._number)

    def taken(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        """The peer has this one whole."""
        _remember(self._taken, peer, likeness(heartbeat))

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
            self._known, sender, _Known(heartbeat, likeness(heartbeat), before.number if before and is_same_life else 0)
        )

    def heard_short(self, sender: PeerId, raw: bytes) -> tuple[Heartbeat | None, bool]:
        """(what it says, whether it is understood). None for one that came late or twice: nothing is to be done about it.

        Raises:
            RemoteProtocolError: bytes that no peer sends.
        """
        short, known = decode_short(raw), self._known.get(sender)
        if known is None or known.likeness != short.likeness:
            return None, False
        if short.number <= known.number:
            return None, True
        heartbeat = made_whole(known.heartbeat, short)
        _remember(self._known, sender, _Known(known.heartbeat, known.likeness, short.number))
        return heartbeat, True


def _remember(known: OrderedDict[PeerId, T], peer: PeerId, value: T) -> None:
    known[peer] = value
    known.move_to_end(peer)
    if len(known) > MAX_KNOWN:
        known.popitem(last=False)
