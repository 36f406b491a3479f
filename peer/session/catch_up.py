"""Catching up before training begins: replay or snapshot, whichever is fewer bytes (R24).

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.download import MAX_DONORS, Told, download_state, download_tools
from averaging.rounds.lineage import retention as keeping
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import LEAST_BYTES_PER_S, fetch_commits
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.errors import PotluckError, RemoteProtocolError, UnreachableError
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import ChainLink, attested_roots, verify_certificate
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 60.0
"""For the certificates that one donor has: they are small. Those of a long run are many: what came and was good gives more time."""

COMMITS_AT_MOST_S: Final = 1800.0
"""Who brings good certificates at LEAST_BYTES_PER_S is heard to the end, but not for longer than this."""

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
    trusted, shown = list(dict.fromkeys(donors))[:MAX_DONORS], _Shown(chain, await _own_lineage(chain))
    for donor in tuple(trusted):
        try:
            await shown.ask(network, donor)
            lineage = shown.lineage
            roots = _worth_taking(chain, lineage.links)
            if roots:
                with trio.fail_after(STATE_WITHIN_S):
                    state = await download_state(download_tools(network, chain.tools), trusted, roots, told)
                await chain.start_from(state, lineage.certificates)
            if len(lineage.links) > 1:
                break
        except RemoteProtocolError as error:
            trusted.remove(donor)
            log.warning("not_caught_up", donor=short(donor), reason=str(error))
        except (PotluckError, trio.TooSlowError) as error:
            log.info("not_caught_up", donor=short(donor), reason=str(error))
    return shown.index


async def _own_lineage(chain: UnitChain) -> _Lineage:
    links, raws = tuple(chain.links), tuple(chain.certificates)
    return await chain.tools.offload.run(lambda: _Lineage(links, tuple(decode_certificate(raw) for raw in raws)))


class _Shown:
    """The longest lineage that donors have shown, verified. What one of them brought is not asked of the next."""

    def __init__(self, chain: UnitChain, own: _Lineage) -> None:
        self.lineage = own
        self.index = 0
        """Its last round; 0 before anybody has answered."""

        self._chain = chain
        self._num_own = len(own.links)

    async def ask(self, network: Network, donor: PeerId) -> None:
        """All commits after our head on a donor's lineage; a long chain comes in several answers.

        Each answer is verified before the next is asked for: who invents commits is believed, and kept in memory, for one answer at
        most.

        Raises:
            UnreachableError: it is too slow; what it brought is kept. TransportError, RemoteProtocolError: as `fetch_commits`, or what
                it brought does not verify.
        """
        unit, run, theirs = self._chain.tools.unit, self._chain.tools.offload.run, self.lineage
        last_s, furthest = trio.current_time() + COMMITS_AT_MOST_S, 0
        with trio.move_on_after(COMMITS_WITHIN_S) as scope:
            while True:
                answer = await fetch_commits(network, donor, unit, self._known(theirs))
                before = theirs
                if answer:
                    theirs = await run(partial(_continued, self._chain, before, answer, self._num_own))
                if theirs is before:
                    return
                index = theirs.links[-1].index
                if index > self.index:
                    self.lineage, self.index = theirs, index
                if index > furthest:  # one fork after another is no way on
                    furthest = index
                    scope.deadline = min(last_s, scope.deadline + sum(map(len, answer)) / LEAST_BYTES_PER_S)
        raise UnreachableError(
            f"{short(donor)} took too long over its commits", f"{LEAST_BYTES_PER_S} bytes of them a second"
        )

    def _known(self, theirs: _Lineage) -> tuple[CommitId, ...]:
        """The newest, and in doubling steps those before it down to our own head: the next donor may have less, or be on a fork."""
        own, places = self._num_own - 1, [len(theirs.links) - 1]
        while places[-1] > own:
            places.append(max(own, places[-1] - (1 << (len(places) - 1))))
        return tuple(theirs.links[place].commit for place in places)


def _continued(chain: UnitChain, lineage: _Lineage, raws: Sequence[bytes], num_own: int) -> _Lineage:
    """The lineage with these commits, verified one on another; those behind its end take the place of what follows on the same parent
    where they are others. The same lineage where they bring nothing. The first `num_own` links stay.
    """
    tools, links, certificates = chain.tools, list(lineage.links), list(lineage.certificates)
    places = {link.commit: place for place, link in enumerate(links) if place >= num_own - 1}
    for raw in raws:
        certificate = decode_certificate(raw)
        record = decode_record(certificate.record)
        place = min(places.get(record.parent, len(links)), len(links) - 1)
        if place + 1 < len(links) and commit_id(record.parent, certificate.record) == links[place + 1].commit:
            continue
        link = verify_certificate(certificate, links[place], verifier=tools.verifier, run_id=tools.run_id)
        del links[place + 1 :], certificates[place:]
        links.append(link)
        certificates.append(certificate)
        places[link.commit] = place + 1
    return _Lineage(tuple(links), tuple(certificates)) if links[-1] is not lineage.links[-1] else lineage


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
