"""Asks donors for the milestones at which a lineage may begin (R26).

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from averaging.network.seams.interfaces import Network
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import fetch_milestones
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import PeerId

log = structlog.get_logger()

NUM_ASKED_FOR_MILESTONES: Final = 3
"""Donors that a peer without any commit asks for milestones before all else."""


async def ask_milestones(network: Network, chain: UnitChain, donors: Sequence[PeerId]) -> None:
    """Take the milestones that a few donors have: the host, which sends them to us, may be away. They say nothing else about
    themselves, so a donor that has none or does not answer is no failure.
    """
    if chain.tools.milestones is None:
        return
    for donor in donors[:NUM_ASKED_FOR_MILESTONES]:
        try:
            sealed = await fetch_milestones(network, donor, chain.tools.unit)
        except PotluckError as error:
            log.info("no_milestones", donor=peer_name(donor), reason=error.one_line())
            continue
        chain.tools.milestones.take(sealed, peer_name(donor))
