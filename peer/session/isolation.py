"""Watches whether other members are at work that this peer does not hear. Until it hears them it commits nothing alone (R18).

Rules: R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

import trio

from averaging.rounds.peer_rounds import PeerRounds
from peer.session.session import JoinedSession
from peer.status.health import isolation
from protocol.rounds.events import ApartNoted
from protocol.rounds.queries import idle_patience_s, is_alive
from protocol.rounds.state import RoundState

LOOK_EVERY_S: Final = 2.0
"""More often than the shortest time after which peers commit alone."""

HOST_HEARD_WITHIN_S: Final = 45.0
"""A peer reports to the host several times within this."""


async def watch_isolation(joined: JoinedSession, rounds: PeerRounds) -> None:
    """Tell the rounds and the owner, until cancelled."""
    board, clock, is_told = joined.life.board, joined.life.clock, False
    while True:
        now_s = clock.monotonic_s()
        reply = joined.reporter.last_reply
        is_host_here = reply is not None and clock.unix_s() - joined.roster.host_heard_s < HOST_HEARD_WITHIN_S
        found = isolation(
            board.health.isolation,
            hears_anybody=any(hears_anybody(service.state, now_s) for service in rounds.services),
            live_others=reply.live_others if reply is not None and is_host_here else None,
            is_outbound_only=joined.is_outbound_only,
            now_s=now_s,
        )
        board.health.note_isolation(found, now_s)
        if found.is_apart or is_told:
            is_told = found.is_apart
            await rounds.tell_all(ApartNoted(is_told))
        await trio.sleep(LOOK_EVERY_S)


def hears_anybody(state: RoundState, now_s: float) -> bool:
    """Whether any other holder of the unit is alive, as far as is heard here. A peer that only reduces is none."""
    patience_s = idle_patience_s(state)
    return any(view.head is not None and is_alive(state, peer, now_s, patience_s) for peer, view in state.peers.items())
