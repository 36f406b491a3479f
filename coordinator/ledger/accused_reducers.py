"""Reducers of which members say that they signed false sums. The host has yet to ask for the proofs.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from averaging.rounds.audit.false_accusations import FalseAccusations
from protocol.ids import PeerId
from protocol.rounds.messages.messages import FalseSum

MOST_OF_ONE: Final = 2
"""Accusations of one member that wait at a time. Members that have the same proof bring it again."""

MOST_WAITING: Final = 64
"""Accusations that wait at a time."""


class AccusedReducers:
    """A short queue of accusations, each with the member that brings it."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[PeerId, FalseSum]] = {}
        self._false = FalseAccusations()
        self._changed = trio.Event()

    def heard(self, source: PeerId, notices: Iterable[FalseSum]) -> None:
        """A member's report names these. Those that are known, and those for which there is no room, are passed over."""
        for notice in notices:
            num_own = sum(1 for by, _ in self._waiting.values() if by == source)
            has_room = num_own < MOST_OF_ONE and len(self._waiting) < MOST_WAITING
            is_news = notice.proof_hash not in self._waiting and self._false.may_be_true(source, notice.proof_hash)
            if not has_room or not is_news:
                continue
            self._waiting[notice.proof_hash] = source, notice
            self._changed.set()

    async def next(self) -> tuple[PeerId, FalseSum]:
        """The oldest accusation, once there is one. It waits no more."""
        while not self._waiting:
            self._changed = trio.Event()
            await self._changed.wait()
        return self._waiting.pop(next(iter(self._waiting)))

    def note_failed(self, source: PeerId, notice: FalseSum) -> None:
        """The proof that this member showed convicts nobody."""
        self._false.note(source, notice.proof_hash)
