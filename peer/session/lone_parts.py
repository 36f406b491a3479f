"""Parts of the run that this peer alone holds: before it leaves, it uploads their last rounds to the host."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import structlog

from averaging.rounds.peer_rounds import PeerRounds
from averaging.rounds.unit_service import RoundService
from peer.session.leaving import hand_over
from peer.session.session import JoinedSession
from peer.status.status_of import status_of
from protocol.ids import UnitName

log = structlog.get_logger()


async def hand_over_lone_parts(joined: JoinedSession, rounds: PeerRounds, services: Sequence[RoundService]) -> None:
    """Upload the last rounds of experts that no other peer holds to the host, if it answers."""
    board, coordinator = joined.life.board, joined.membership.coordinator
    status, heads = status_of(joined.life.sources), {each.unit: each.chain.head for each in services}
    alone = [UnitName(place.unit) for place in status.units if place.holders == 1]
    parts = joined.membership.manifest.parts
    lone = {unit: heads[unit].commit for unit in alone if unit in parts and heads[unit].index}
    if not lone or status.is_host_away or joined.reporter.last_reply is None:
        return
    board.say("leaving", "uploading to the host the last rounds of parts that nobody else holds")
    missed = await hand_over(lone, partial(rounds.stood_at, coordinator), joined.reporter.report_once)
    log.info("handed_over", units=sorted(set(lone) - set(missed)), not_taken=sorted(missed))
