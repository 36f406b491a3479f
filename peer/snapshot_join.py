"""Catching up before training begins: replay or snapshot, whichever is fewer bytes (rule 24)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams import Network
from averaging.rounds import keeping
from averaging.rounds.download import MAX_DONORS, Told, download_state, download_tools
from averaging.rounds.transfer import fetch_commits
from averaging.rounds.unit import UnitChain
from averaging.state import STATE_BYTES_PER_VALUE
from protocol.errors import PotluckError, RemoteProtocolError, UnreachableError
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.chain import ChainLink, attested_roots, verify_certificate
from protocol.rounds.messages import Certificate
from protocol.wire import decode_certificate

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 60.0
"""For the certificates that one donor has: they are small."""

STATE_WITHIN_S: Final = 24 * 3600.0
"""A large state over a home line takes long; every request of the download has deadlines of its own."""


@dataclass(frozen=True, slots=True)
class _Lineage:
    """Verified commits, one on another: our own, and after them those of a donor.

    Attributes:
        links: with the genesis before the first.
        certificates: one less.
    """

    links: tuple[ChainLink, ...]
    certificates: tuple[Certificate, ...]


async def catch_up_by_snapshot(network: Network, chain: UnitChain, donors: Sequence[PeerId], told: Told) -> int:
    """Take a whole state where replaying would move more bytes; what is left is replayed by the round service. Returns the newest
    round whose commits were shown and verified, 0 without any.

    The commits of one donor after another are looked at, of MAX_DONORS at most; the state then comes from all of them at once, but not
    from those whose commits were invented. Where none can help nothing is changed.
    """
    trusted, shown_index = list(dict.fromkeys(donors))[:MAX_DONORS], 0
    for donor in tuple(trusted):
        try:
            lineage = await _lineage_of(network, chain, donor)
            shown_index = max(shown_index, lineage.links[-1].index)
            roots = _worth_taking(chain, lineage.links)
            if roots:
                with trio.fail_after(STATE_WITHIN_S):
                    state = await download_state(download_tools(network, chain.tools), trusted, roots, told)
                await chain.start_from(state, lineage.certificates)
            if len(lineage.links) > 1:
                return shown_index
        except RemoteProtocolError as error:
            trusted.remove(donor)
            log.warning("not_caught_up", donor=short(donor), reason=str(error))
        except (PotluckError, trio.TooSlowError) as error:
            log.info("not_caught_up", donor=short(donor), reason=str(error))
    return shown_index


async def _lineage_of(network: Network, chain: UnitChain, donor: PeerId) -> _Lineage:
    """Our lineage with all commits after our head on the donor's; a long chain comes in several answers.

    Each answer is verified before the next is asked for: who invents commits is believed, and kept in memory, for one answer at most.
    """
    run, links, raws = chain.tools.offload.run, tuple(chain.links), tuple(chain.certificates)
    lineage = await run(lambda: _Lineage(links, tuple(decode_certificate(raw) for raw in raws)))
    with trio.move_on_after(COMMITS_WITHIN_S):
        while True:
            answer = await fetch_commits(network, donor, chain.tools.unit, [lineage.links[-1].commit])
            if not answer:
                return lineage
            lineage = await run(partial(_continued, chain, lineage, answer))
    raise UnreachableError(f"{short(donor)} took too long over its commits", f"all within {COMMITS_WITHIN_S:.0f} s")


def _continued(chain: UnitChain, lineage: _Lineage, raws: Sequence[bytes]) -> _Lineage:
    tools, links, certificates = chain.tools, list(lineage.links), list(lineage.certificates)
    for raw in raws:
        certificate = decode_certificate(raw)
        links.append(verify_certificate(certificate, links[-1], verifier=tools.verifier, run_id=tools.run_id))
        certificates.append(certificate)
    return _Lineage(tuple(links), tuple(certificates))


def _worth_taking(chain: UnitChain, links: Sequence[ChainLink]) -> dict[CommitId, Root]:
    """The attested states from which the last of these commits is reached by fewer bytes than by replaying all that we lack."""
    tools = chain.tools
    update_bytes = keeping.update_bytes(tools.result_codec, tools.grid)
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
