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
"""A peer of a small run reports to the host several times within this."""


async def watch_isolation(joined: JoinedSession, rounds: PeerRounds) -> None:
    """Tell the rounds and the owner, until cancelled."""
    board, clock, is_told = joined.life.board, joined.life.clock, False
    config = joined.membership.manifest.config
    do_all_hold = config.stages is None and config.mixture is None
    while True:
        now_s = clock.monotonic_s()
        reply = joined.reporter.last_reply
        is_host_here = reply is not None and clock.unix_s() - joined.roster.host_heard_s < _within_s(
            joined.reporter.again_s
        )
        found = isolation(
            board.isolation,
            hears_anybody=any(hears_anybody(each.state, now_s, do_all_hold=do_all_hold) for each in rounds.services),
            live_others=reply.live_others if reply is not None and is_host_here else None,
            is_outbound_only=joined.is_outbound_only,
            now_s=now_s,
        )
        board.note_isolation(found)
        if found.is_apart != is_told:
            is_told = found.is_apart
            await rounds.tell_all(ApartNoted(is_told))
        await trio.sleep(LOOK_EVERY_S)


def _within_s(again_s: float) -> float:
    """Seconds within which the host was heard if it is there. `again_s`: between two reports."""
    return max(HOST_HEARD_WITHIN_S, 1.5 * again_s)


def hears_anybody(state: RoundState, now_s: float, *, do_all_hold: bool) -> bool:
    """Whether any other member is alive, as far as is heard here.

    If all members hold the unit, a peer without it only reduces and is no member.
    """
    patience_s = idle_patience_s(state)
    views = [view for view in state.peers.values() if view.head is not None or not do_all_hold]
    return any(is_alive(state, view.peer, now_s, patience_s) for view in views)
