"""Catching up before training begins: replay or snapshot, whichever is fewer bytes (rule 24)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from averaging.network.seams import Network
from averaging.rounds.transfer import ask_generation, fetch_commits, fetch_state
from averaging.rounds.unit import UnitChain
from protocol.errors import PotluckError
from protocol.ids import PeerId, short
from protocol.rounds.chain import ChainLink, attested_roots, verify_certificate
from protocol.wire import decode_certificate

log = structlog.get_logger()

STATE_BYTES_PER_VALUE = 8
"""Anchor and momentum, float32 each."""


async def catch_up_by_snapshot(
    network: Network, chain: UnitChain, donors: Sequence[PeerId], told: Callable[[str], None]
) -> None:
    """Take a whole state where replaying would move more bytes; what is left is replayed by the round service.

    Every donor is tried; where none can help nothing is changed.
    """
    for donor in donors:
        try:
            if await _try_donor(network, chain, donor, told):
                return
        except PotluckError as error:
            log.info("snapshot_not_taken", donor=short(donor), reason=error.one_line())


async def _try_donor(network: Network, chain: UnitChain, donor: PeerId, told: Callable[[str], None]) -> bool:
    tools = chain.tools
    raws = await fetch_commits(network, donor, tools.unit, [chain.head.commit])
    certificates = [decode_certificate(raw) for raw in (*chain.certificates, *raws)]

    def verified() -> list[ChainLink]:
        links = [chain.links[0]]
        for certificate in certificates:
            links.append(verify_certificate(certificate, links[-1], verifier=tools.verifier, run_id=tools.run_id))
        return links

    links = await tools.offload.run(verified)
    replay_bytes = len(raws) * tools.codec.encoded_bytes(tools.grid.num_elements)
    if replay_bytes <= STATE_BYTES_PER_VALUE * tools.grid.num_elements:
        return bool(raws)  # replaying is cheaper: the round service does it
    roots = attested_roots(links)
    for offer in await ask_generation(network, donor, tools.unit):
        if roots.get(offer.header.head) == offer.root and offer.header.index > chain.head.index:
            told(f"taking the state at commit {offer.header.index} from {short(donor)}")
            state = await fetch_state(network, [donor], tools.unit, tools.grid, offer.header.head, offer.root)
            await chain.start_from(state, certificates)
            return True
    return False
