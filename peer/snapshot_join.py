"""Catching up before training begins: replay or snapshot, whichever is fewer bytes (rule 24)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams import Network
from averaging.rounds.download import Told, download_state, download_tools
from averaging.rounds.transfer import fetch_commits
from averaging.rounds.unit import UnitChain
from averaging.state import STATE_BYTES_PER_VALUE
from protocol.errors import PotluckError, UnreachableError
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.chain import ChainLink, attested_roots, verify_certificate
from protocol.rounds.messages import Certificate
from protocol.wire import commit_id, decode_certificate, decode_record

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 60.0
"""For the certificates that one donor has: they are small."""

STATE_WITHIN_S: Final = 24 * 3600.0
"""A large state over a home line takes long; every request of the download has deadlines of its own."""


async def catch_up_by_snapshot(network: Network, chain: UnitChain, donors: Sequence[PeerId], told: Told) -> None:
    """Take a whole state where replaying would move more bytes; what is left is replayed by the round service.

    The commits of one donor after another are looked at; the state then comes from all of them at once. Where none can help nothing is
    changed.
    """
    for donor in donors:
        try:
            certificates = [decode_certificate(raw) for raw in chain.certificates]
            certificates += await _commits_of(network, chain, donor)
            links = await chain.tools.offload.run(partial(_verified, chain, certificates))
            roots = _worth_taking(chain, links)
            if roots:
                with trio.fail_after(STATE_WITHIN_S):
                    state = await download_state(download_tools(network, chain.tools), donors, roots, told)
                await chain.start_from(state, certificates)
            if len(links) > 1:
                return
        except (PotluckError, trio.TooSlowError) as error:
            log.info("not_caught_up", donor=short(donor), reason=str(error))


async def _commits_of(network: Network, chain: UnitChain, donor: PeerId) -> list[Certificate]:
    """All commits after our head on the donor's lineage; a long chain comes in several answers."""
    certificates: list[Certificate] = []
    known = chain.head.commit
    with trio.move_on_after(COMMITS_WITHIN_S):
        while True:
            raws = await fetch_commits(network, donor, chain.tools.unit, [known])
            if not raws:
                return certificates
            answer = [decode_certificate(raw) for raw in raws]
            certificates += answer
            record = answer[-1].record
            known = commit_id(decode_record(record).parent, record)
    raise UnreachableError(f"{short(donor)} took too long over its commits", f"all within {COMMITS_WITHIN_S:.0f} s")


def _verified(chain: UnitChain, certificates: Sequence[Certificate]) -> list[ChainLink]:
    tools, links = chain.tools, [chain.links[0]]
    for certificate in certificates:
        links.append(verify_certificate(certificate, links[-1], verifier=tools.verifier, run_id=tools.run_id))
    return links


def _worth_taking(chain: UnitChain, links: Sequence[ChainLink]) -> dict[CommitId, Root]:
    """The attested states from which the last of these commits is reached by fewer bytes than by replaying all that we lack."""
    tools = chain.tools
    update_bytes = tools.codec.encoded_bytes(tools.grid.num_elements)
    replay_bytes = (len(links) - len(chain.links)) * update_bytes
    left_bytes = {
        link.commit: (links[-1].index - link.index) * update_bytes + STATE_BYTES_PER_VALUE * tools.grid.num_elements
        for link in links[len(chain.links) :]
    }
    return {
        commit: root
        for commit, root in attested_roots(links).items()
        if commit in left_bytes and left_bytes[commit] < replay_bytes
    }
