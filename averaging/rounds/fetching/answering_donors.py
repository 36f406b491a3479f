"""Finds out which donors are there, before any of them is relied on.

A list of peers is always older than the peers: one may have left, or its machine may sleep. Donors are asked for commits one after
another, and each silent one would cost a whole timeout. So all are asked a short question at once, and the silent ones come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.traffic.transfer import fetch_milestones
from protocol.errors import CallTimeout, PeerUnreachable, PotluckError
from protocol.identity.names import peer_name
from protocol.ids import PeerId, UnitName

log = structlog.get_logger()

ANSWER_WITHIN_S: Final = 4.0
"""Enough for a new connection through a relay on a thin line, in seconds."""


@dataclass(frozen=True, slots=True)
class Donors:
    """Donors by whether they answer, each list in the order in which they were given."""

    there: tuple[PeerId, ...]
    silent: tuple[PeerId, ...]

    @property
    def in_order(self) -> tuple[PeerId, ...]:
        """Those that answer first. The others may only be slow."""
        return (*self.there, *self.silent)


async def answering(network: Network, unit: UnitName, donors: Sequence[PeerId]) -> Donors:
    """Ask all these donors at once for the milestones of a unit, the shortest question that there is. Any answer counts, a refusal and
    an unknown request, too. Takes ANSWER_WITHIN_S at most.
    """
    silent: set[PeerId] = set()

    async def ask_one(donor: PeerId) -> None:
        try:
            with trio.fail_after(ANSWER_WITHIN_S):
                await fetch_milestones(network, donor, unit)
        except (trio.TooSlowError, CallTimeout, PeerUnreachable) as error:
            log.info("donor_silent", donor=peer_name(donor), reason=str(error) or f"silent for {ANSWER_WITHIN_S:.0f} s")
            silent.add(donor)
        except PotluckError as error:
            log.debug("donor_answers", donor=peer_name(donor), reason=error.one_line())

    each_once = tuple(dict.fromkeys(donors))
    async with trio.open_nursery() as nursery:
        for donor in each_once:
            nursery.start_soon(ask_one, donor)
    there = tuple(donor for donor in each_once if donor not in silent)
    return Donors(there, tuple(donor for donor in each_once if donor in silent))
