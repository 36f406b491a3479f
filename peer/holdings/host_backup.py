"""Restores an expert from the host when all its holders are away: certificates, an attested state, the results after it."""

from __future__ import annotations

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.milestone_asking import ask_milestones
from averaging.rounds.fetching.unit_mirror import follow
from averaging.rounds.lineage.unit_chain import UnitChain
from protocol.errors import PotluckError
from protocol.ids import PeerId

log = structlog.get_logger()

WITHIN_S = 3600.0


async def take_kept(network: Network, chain: UnitChain, host: PeerId) -> bool:
    """Catch up to the newest round for which the host has a state, verifying each certificate against the previous one. Returns
    True if that moved our head forward. None of our own commits is given up, unless the host's copy begins at a milestone to
    which they do not lead. If the host has nothing or is away, nothing changes.

    Call it when a process starts, before the rounds begin.
    """
    unit, before = chain.tools.unit, chain.head.index
    try:
        with trio.move_on_after(WITHIN_S):
            await ask_milestones(network, chain, [host])  # the host's copy may begin at one that nobody told us of
            await follow(network, chain, [host], may_leave=False)
    except PotluckError as error:
        log.info("not_taken_from_host", unit=unit, reason=error.one_line())
    if chain.head.index == before:
        return False
    await chain.restore()  # the rounds begin from the state on the disk
    reason = f"nobody who is there holds it: it goes on from round {chain.head.index}, as the host keeps it"
    log.info("taken_from_host", unit=unit, index=chain.head.index, reason=reason)
    return True
