"""Catches up before training begins: by replay or by snapshot, whichever moves fewer bytes (R24).

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.answering_donors import Donors, answering
from averaging.rounds.fetching.download import MAX_DONORS, OnProgress, download_state, download_tools
from averaging.rounds.fetching.fellows import Others, nobody
from averaging.rounds.fetching.milestone_asking import ask_milestones
from averaging.rounds.fetching.served_meanwhile import serve_meanwhile
from averaging.rounds.lineage import retention as keeping
from averaging.rounds.lineage.past.held_milestones import newest_milestone
from averaging.rounds.lineage.state_aside import set_aside
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import LEAST_BYTES_PER_S, fetch_commits
from averaging.state.state import STATE_BYTES_PER_VALUE
from protocol.errors import PotluckError, RemoteProtocolError, UnreachableError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import attested_roots, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import known_commits
from protocol.rounds.lineage.milestones import SignedMilestone
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 60.0
"""Time for one donor's certificates. They are small, but a long run has many. Valid ones extend the time."""

COMMITS_AT_MOST_S: Final = 1800.0
"""A donor that sends valid certificates at LEAST_BYTES_PER_S or faster is read to the end, for this long at most."""

STATE_WITHIN_S: Final = 24 * 3600.0
"""Time for a state. A large one takes long over a home line; each request of the download has its own deadlines."""


MOST_LISTS: Final = 4
"""Times that more donors are asked because none of the last ones answered."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """Verified commits, each on its parent: our own, then those of a donor.

    Attributes:
        links: with the genesis or a milestone before the first.
        certificates: one fewer than links.
        milestone: the beginning, where our own lineage does not lead to the donor's.
    """

    links: tuple[ChainLink, ...]
    certificates: tuple[Certificate, ...]
    milestone: SignedMilestone | None = None


async def catch_up_all(
    network: Network,
    chains: Sequence[UnitChain],
    members: Callable[[], Awaitable[Sequence[PeerId]]],
    is_member: Callable[[PeerId], Awaitable[bool]],
    on_progress: OnProgress,
    on_failure: Callable[[str], None],
) -> list[int]:
    """`catch_up_by_snapshot` for one unit after another. Meanwhile other newcomers get what is here. `members` lists the members."""
    serve_meanwhile(network, chains, is_member)
    donors = await members()
    return [
        await catch_up_by_snapshot(network, chain, donors, on_progress, on_failure, others=members) for chain in chains
    ]


async def catch_up_by_snapshot(
    network: Network,
    chain: UnitChain,
    donors: Sequence[PeerId],
    on_progress: OnProgress,
    on_failure: Callable[[str], None] = lambda _: None,
    *,
    others: Others = nobody,
) -> int:
    """Download a whole state if a replay would move more bytes. The round service replays the commits after it. Returns the newest
    round whose commits were received and verified, 0 without any.

    Commits are fetched from up to MAX_DONORS donors, one after another. The state then comes from all of them in parallel, except
    those that sent invalid commits, and from `others` that fetch it as we do. Donors that do not answer come last. If none answers,
    `others` lists who is there now, for more of them. If no donor can help, nothing changes. `on_failure` gets a sentence for each
    that could not.
    """
    here = await _who_answers(network, chain, list(dict.fromkeys(donors)), others)
    return await _catch_up_from(network, chain, here, on_progress, on_failure, others)


async def _who_answers(network: Network, chain: UnitChain, donors: Sequence[PeerId], others: Others) -> Donors:
    """The first of these donors that answer, or of those that `others` lists where none does. Silent ones may only be slow."""
    silent: list[PeerId] = []
    for _ in range(MOST_LISTS):
        here = await answering(network, chain.tools.unit, donors[:MAX_DONORS])
        silent += here.silent
        if here.there:
            return Donors(here.there, tuple(silent[:MAX_DONORS]))
        donors = [peer for peer in (*donors, *await others()) if peer not in silent]
        if not donors:
            break
    return Donors((), tuple(silent[:MAX_DONORS]))


async def _catch_up_from(
    network: Network,
    chain: UnitChain,
    donors: Donors,
    on_progress: OnProgress,
    on_failure: Callable[[str], None],
    others: Others,
) -> int:
    """Ask these donors until one has brought commits, and all of them for the state. Returns as `catch_up_by_snapshot`."""
    trusted = list(donors.there or donors.silent)
    if not chain.head.index:
        await ask_milestones(network, chain, donors.in_order)
    best = BestLineage(chain, await own_lineage(chain))
    for donor in donors.in_order:
        try:
            await best.ask(network, donor)
            if donor not in trusted:
                trusted.append(donor)  # it was only slow
            lineage = best.lineage
            roots = _worth_taking(chain, lineage)
            if roots:
                async with set_aside(chain) as aside:
                    aside.drop()
                    with trio.fail_after(STATE_WITHIN_S):
                        tools = download_tools(network, chain.tools, others)
                        state = await download_state(tools, trusted, roots, on_progress)
                    await chain.start_from(state, lineage.certificates, lineage.milestone, lineage.links)
            if len(lineage.links) > 1:
                break
        except RemoteProtocolError as error:
            trusted = [peer for peer in trusted if peer != donor]
            log.warning("not_caught_up", donor=peer_name(donor), reason=str(error))
            on_failure(f"{peer_name(donor)} cannot help: {error.found}")
        except (PotluckError, trio.TooSlowError) as error:
            log.info("not_caught_up", donor=peer_name(donor), reason=str(error))
            why = error.found if isinstance(error, PotluckError) else "too slow"
            on_failure(f"{peer_name(donor)} cannot help: {why}")
    return best.index


async def own_lineage(chain: UnitChain) -> Lineage:
    """The lineage of a unit as it is here. A peer without any commit begins at the newest milestone."""
    milestone = _newest_milestone(chain)
    if milestone is not None and not chain.head.index:
        return Lineage((milestone.link,), (), milestone)
    return Lineage(tuple(chain.links), tuple(chain.line.certificates))


def _newest_milestone(chain: UnitChain) -> SignedMilestone | None:
    return newest_milestone(chain.tools.milestones, chain.tools.unit)


class BestLineage:
    """The longest verified lineage from the donors so far. Commits received from one donor are not requested from the next."""

    def __init__(self, chain: UnitChain, own: Lineage) -> None:
        self.lineage = own
        self.index = 0
        """The lineage's last round; 0 before any answer."""

        self._chain = chain
        self._num_own = len(own.links)

    async def ask(self, network: Network, donor: PeerId) -> None:
        """Fetch all commits after our head on a donor's lineage. A long chain comes in several answers. A donor that has none is
        asked for its milestones: if one lies ahead of us, the commits between are gone everywhere.

        Each answer is verified before the next request. So at most one answer of invalid commits is kept in memory.

        Raises:
            UnreachableError: the donor is too slow; commits received so far are kept.
            TransportError, RemoteProtocolError: as `fetch_commits`, or its commits do not verify.
        """
        await self._extend(network, donor, self.lineage, self._num_own)
        if self.index:
            return
        if self._chain.head.index:  # without any commit the donors were asked at first
            await ask_milestones(network, self._chain, [donor])
        if await self._is_out_of_reach(network, donor):
            await self._begin_anew(network, donor)

    async def _is_out_of_reach(self, network: Network, donor: PeerId) -> bool:
        """Whether a donor knows no commit of ours, and a milestone lies ahead of us."""
        chain, milestone = self._chain, _newest_milestone(self._chain)
        if self.lineage.milestone is not None or milestone is None or milestone.link.index <= chain.head.index:
            return False
        known = known_commits(chain.tree, chain.head.commit)
        return not await fetch_commits(network, donor, chain.tools.unit, known)

    async def _begin_anew(self, network: Network, donor: PeerId) -> None:
        """Begin at the newest milestone: the commits between our head and it are gone everywhere."""
        milestone = _newest_milestone(self._chain)
        if milestone is None:
            return
        await self._extend(network, donor, Lineage((milestone.link,), (), milestone), 1)
        if self.lineage.milestone is not None:
            reason = f"nobody has the commits between our round {self._chain.head.index} and the milestone of round"
            log.warning("begins_at_milestone", reason=f"{reason} {milestone.link.index}")
            self._num_own = 1

    async def _extend(self, network: Network, donor: PeerId, theirs: Lineage, num_own: int) -> None:
        unit, run = self._chain.tools.unit, self._chain.tools.offload.run
        last_s, furthest = trio.current_time() + COMMITS_AT_MOST_S, 0
        with trio.move_on_after(COMMITS_WITHIN_S) as scope:
            while True:
                answer = await fetch_commits(network, donor, unit, _known(theirs, num_own))
                before = theirs
                if answer:
                    theirs = await run(partial(_continued, self._chain, before, answer, num_own))
                if theirs is before:
                    return
                index = theirs.links[-1].index
                if index > self.index:
                    self.lineage, self.index = theirs, index
                if index > furthest:  # switching between forks is no progress
                    furthest = index
                    scope.deadline = min(last_s, scope.deadline + sum(map(len, answer)) / LEAST_BYTES_PER_S)
        raise UnreachableError(
            f"{short(donor)} took too long over its commits", f"{LEAST_BYTES_PER_S} bytes of them a second"
        )


def _known(theirs: Lineage, num_own: int) -> tuple[CommitId, ...]:
    """The newest commit, and earlier ones in doubling steps back to our own head. The next donor may be behind or on a fork."""
    own, places = num_own - 1, [len(theirs.links) - 1]
    while places[-1] > own:
        places.append(max(own, places[-1] - (1 << (len(places) - 1))))
    return tuple(theirs.links[place].commit for place in places)


def _continued(chain: UnitChain, lineage: Lineage, raws: Sequence[bytes], num_own: int) -> Lineage:
    """The lineage extended by these commits, each verified on its parent. Commits that fork from it replace its end. Returns the
    same lineage if they add nothing. The first `num_own` links stay.
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
    is_same = links[-1] is lineage.links[-1]
    return lineage if is_same else Lineage(tuple(links), tuple(certificates), lineage.milestone)


def _worth_taking(chain: UnitChain, lineage: Lineage) -> dict[CommitId, Root]:
    """The attested states that lead to the last of these commits with fewer bytes than a full replay. If our own state does not lead
    there, any will do.
    """
    tools, links, attested = chain.tools, lineage.links, attested_roots(lineage.links)
    num_own = 0 if lineage.milestone is not None or chain.lacks_state else len(chain.links)
    if lineage.milestone is not None and lineage.milestone.state_root:
        attested.setdefault(lineage.milestone.link.commit, lineage.milestone.state_root)
    update_bytes = keeping.update_bytes(tools.result_codec, tools.grid)
    replay_bytes = (len(links) - num_own) * update_bytes if num_own else math.inf
    left_bytes = {
        link.commit: (links[-1].index - link.index) * update_bytes + STATE_BYTES_PER_VALUE * tools.grid.num_elements
        for link in links[num_own:]
    }
    return {
        commit: root for commit, root in attested.items() if commit in left_bytes and left_bytes[commit] < replay_bytes
    }
