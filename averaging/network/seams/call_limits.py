"""Limits of each peer's calls, decided before a request is read. Runs on the asyncio thread, except for parts marked as pure.

Identities are free, so every peer is a stranger until it is admitted. Strangers share few places, and get small requests, little
time and the open channels only. On any other channel their admission is checked first, and the verdict is cached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from averaging.network.seams.frames import Status
from averaging.network.seams.interfaces import MAX_CONTROL_BYTES
from protocol.ids import PeerId

MAX_STRANGERS: Final = 64
MAX_PER_STRANGER: Final = 8
MAX_STRANGERS_REQUEST_BYTES: Final = 1024
MEMBER_WITHIN_S: Final = 30.0
STRANGER_WITHIN_S: Final = 5.0
"""Time limits for sending a whole request."""

LET_IN_FOR_S: Final = 60.0
"""Time for which an admission counts after the peer's last call. Handlers also check how long its credential lasts."""

REFUSED_FOR_S: Final = 3.0
"""Time for which a refusal counts, so that a refused peer does not cost us a question at every message."""

NOT_ASKED_FOR_S: Final = 0.25
"""Time for which an unknown verdict counts. It is short, because a member's first message while we start may propose a round."""

MAX_VERDICTS: Final = 4096
MAX_CALLS_PER_PEER: Final = 32
MAX_CALLS: Final = 256
"""Calls of all members together, for each transport. Each call holds a request and a reply of at most 1 MiB."""

NOT_ADMITTED: Final = b"no credential of this run was shown"

Admits = Callable[[PeerId], Awaitable[bool | None]]
"""Whether a peer may be served on all channels; None if unknown now."""


async def admit_all(_: PeerId) -> bool:
    """Admit every peer: for networks without a run."""
    return True


class CallLimiter:
    """Bounds the calls or streams that are open, for each peer and in all. Pure."""

    def __init__(self, most_per_peer: int, most_in_all: int) -> None:
        self._most_per_peer = most_per_peer
        self._most_in_all = most_in_all
        self._open: dict[PeerId, int] = {}
        self._num_open = 0

    def enter(self, peer: PeerId) -> bool:
        """Take a place; False when there is none."""
        count = self._open.get(peer, 0)
        if count >= self._most_per_peer or self._num_open >= self._most_in_all:
            return False
        self._open[peer] = count + 1
        self._num_open += 1
        return True

    def leave(self, peer: PeerId) -> None:
        """Give a place back."""
        self._num_open -= 1
        self._open[peer] -= 1
        if not self._open[peer]:
            del self._open[peer]


class VerdictBook:
    """Recent admissions and refusals, and for how long they count. Pure."""

    def __init__(self) -> None:
        self._until_s: dict[PeerId, tuple[bool | None, float]] = {}

    def at(self, peer: PeerId, now_s: float) -> tuple[bool, bool | None]:
        """Whether a verdict counts now, and the verdict; None: it was unknown a moment ago."""
        verdict, until_s = self._until_s.get(peer, (None, 0.0))
        return now_s < until_s, verdict

    def remember(self, peer: PeerId, verdict: bool | None, now_s: float) -> None:
        """Store a verdict from now on, for as long as such a verdict counts."""
        self._until_s.pop(peer, None)
        if len(self._until_s) >= MAX_VERDICTS:
            del self._until_s[next(iter(self._until_s))]  # the oldest; its peer is checked again if it comes back
        lasts_s = {True: LET_IN_FOR_S, False: REFUSED_FOR_S, None: NOT_ASKED_FOR_S}[verdict]
        self._until_s[peer] = (verdict, now_s + lasts_s)


class RecentVerdicts:
    """Recent admissions and refusals. `admits` checks other peers and may take seconds."""

    def __init__(self, admits: Admits, now_s: Callable[[], float] = time.monotonic) -> None:
        self._admits = admits
        self._now_s = now_s
        self._book = VerdictBook()
        self._asking: dict[PeerId, asyncio.Future[bool]] = {}

    def known(self, peer: PeerId) -> bool | None:
        """The verdict that still counts, or None. Prolongs an admission."""
        counts, verdict = self._book.at(peer, self._now_s())
        if not counts:
            return None
        if verdict:
            self._book.remember(peer, True, self._now_s())
        return verdict is True

    async def judge(self, peer: PeerId) -> bool:
        """The verdict. If none counts, the peer is checked once for all calls that wait."""
        known = self.known(peer)
        if known is not None:
            return known
        asking = self._asking.get(peer)
        if asking is None:
            asking = self._asking[peer] = asyncio.ensure_future(self._ask(peer))
            asking.add_done_callback(lambda _: self._asking.pop(peer, None))
        return await asyncio.shield(asking)

    async def _ask(self, peer: PeerId) -> bool:
        verdict = await self._admits(peer)
        self._book.remember(peer, verdict, self._now_s())
        return verdict is True


@dataclass(slots=True)
class CallSlot:
    """One call or stream of a peer, from its first byte to its end."""

    peer: PeerId
    is_member: bool
    gate: CallLimiter | None

    @property
    def within_s(self) -> float:
        """Time limit for sending the whole request."""
        return MEMBER_WITHIN_S if self.is_member else STRANGER_WITHIN_S

    @property
    def max_request_bytes(self) -> int:
        """Length limit of the request."""
        return MAX_CONTROL_BYTES if self.is_member else MAX_STRANGERS_REQUEST_BYTES

    def leave(self) -> None:
        """Give the place back; the call is over."""
        if self.gate is not None:
            self.gate.leave(self.peer)
            self.gate = None


class CallAdmission:
    """Admission to one protocol, with its own places and the shared verdicts."""

    def __init__(self, verdicts: RecentVerdicts, members: CallLimiter, open_channels: frozenset[str]) -> None:
        self._verdicts = verdicts
        self._members = members
        self._strangers = CallLimiter(MAX_PER_STRANGER, MAX_STRANGERS)
        self._open_channels = open_channels

    def enter(self, peer: PeerId) -> CallSlot | None:
        """Take a place before the first byte is read; None if there is none."""
        is_member = self._verdicts.known(peer) is True
        gate = self._members if is_member else self._strangers
        return CallSlot(peer, is_member, gate) if gate.enter(peer) else None

    async def pass_to(self, visit: CallSlot, channel: str) -> Status:
        """Check before the request is read: FINE, FAILED for a stranger on a members' channel, or BUSY."""
        if visit.is_member or channel in self._open_channels:
            return Status.FINE
        if not await self._verdicts.judge(visit.peer):
            return Status.FAILED
        visit.leave()
        if not self._members.enter(visit.peer):
            return Status.BUSY
        visit.gate, visit.is_member = self._members, True
        return Status.FINE
