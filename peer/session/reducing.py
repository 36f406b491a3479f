"""A peer that only reduces: it trains nothing and holds no state, and sums slices for peers that cannot connect to each other.

It has no vote, since it holds no unit, and takes slices only where the run's own reducers are fewer than half of the members (R7).

Rules: R7 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from averaging.network.seams.interfaces import DirectoryEntry
from averaging.rounds.peer_rounds import PeerRounds
from averaging.rounds.traffic.discovery import IN_ROUNDS, list_peers
from peer.session.build_rounds import peer_rounds
from peer.session.session import JoinedSession
from protocol.errors import MachineError
from protocol.ids import PeerId
from protocol.rounds.messages.messages import Heartbeat

HEARTBEAT_S: Final = 2.0
_FINISHED: Final = "finished"


async def reduce_for_others(joined: JoinedSession) -> None:
    """Reduce until the run is over or we are asked to leave.

    Raises:
        MachineError: nobody can connect to this peer either.
    """
    life, reporter = joined.life, joined.reporter
    if joined.is_outbound_only:
        raise MachineError(
            "nobody can connect to this machine, so it cannot reduce for others",
            "a TCP port and the one after it that others reach",
            "open or forward them, and give the first with --listen-port",
        )
    rounds = peer_rounds(joined)
    rounds.serve()
    listed: list[PeerId] = []

    async def take(entries: Sequence[DirectoryEntry]) -> None:
        found = joined.roster.take_records(entries)
        listed[:] = [peer for peer in found if peer not in (joined.membership.coordinator, life.identity.peer_id)]

    async with trio.open_nursery() as nursery:
        await nursery.start(rounds.run)
        nursery.start_soon(list_peers, joined.poller, take, IN_ROUNDS)
        nursery.start_soon(_beat, joined, rounds, listed)
        with life.departure.ends():
            while reporter.last_reply is None or reporter.last_reply.phase != _FINISHED:
                await trio.sleep(HEARTBEAT_S)
        nursery.cancel_scope.cancel()


async def _beat(joined: JoinedSession, rounds: PeerRounds, listed: Sequence[PeerId]) -> None:
    """Let the members know that somebody here may reduce, until cancelled."""
    heartbeat = Heartbeat(joined.life.member, True, 0, ())
    while True:
        if listed:
            await rounds.send(tuple(listed), heartbeat)
        await trio.sleep(HEARTBEAT_S)
