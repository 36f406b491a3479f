"""Copies a unit's lineage without taking part in its rounds: certificates first, then state and results (R14, R19, R24).

The host mirrors the experts of a run so that it can serve them while no peer holds them; a newcomer mirrors the host. It writes
the same files as a member and verifies each certificate on the one before it. It writes the newest state that a later commit
attests, and keeps the results of later commits, from which the next holder computes the same state.

Rules: R14, R19, R22, R23, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.download import MAX_DONORS, download_state, download_tools
from averaging.rounds.fetching.gather_results import Gatherer
from averaging.rounds.lineage.earlier_states import rebuilt
from averaging.rounds.lineage.past.held_milestones import newest_milestone
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.state_aside import StateAside, set_aside
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic.transfer import fetch_commits
from averaging.state.state import STATE_BYTES_PER_VALUE, UnitState
from protocol.errors import PotluckError, RemoteProtocolError, StorageError, UnreachableError
from protocol.estimates.unit_disk import Occasion
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import attested_roots, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import SpineView, TreeNode, best_head, tree_of
from protocol.rounds.lineage.milestones import SignedMilestone
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 600.0
"""Limit for all certificates that one donor has and we lack."""

STATE_WITHIN_S: Final = 3600.0
GATHER_TRIES: Final = 3
"""Rounds of requests for a result; if no donor has it then, another way or a later call may get it."""

_DENSE: Final = 10


@dataclass(frozen=True, slots=True)
class _Branch:
    """The commits of a donor after one of ours, or after a milestone to which ours do not lead, verified, oldest first."""

    fork: CommitId
    nodes: tuple[TreeNode, ...]
    milestone: SignedMilestone | None = None

    @property
    def links(self) -> tuple[ChainLink, ...]:
        return tuple(node.link for node in self.nodes)


@dataclass(frozen=True, slots=True)
class DonorAnswer:
    """The outcome of asking one donor.

    Attributes:
        links: its verified commits after the last one that it shares with us, oldest first; empty if it has nothing new.
        took_s: seconds, including all that was fetched because of it.
        refused: why it was no use, in one line; empty if it answered well.
        is_lie: whether it sent something that does not verify.
    """

    donor: PeerId
    links: tuple[ChainLink, ...]
    took_s: float
    refused: str = ""
    is_lie: bool = False


async def follow(
    network: Network,
    chain: UnitChain,
    donors: Sequence[PeerId],
    *,
    may_leave: bool,
    spine: SpineView | None = None,
    is_lost: bool = False,
    asked: Callable[[DonorAnswer], None] = lambda _answer: None,
) -> bool:
    """Move to the head of the first donor that has anything new; True if our head has moved.

    A donor may have dropped all commits that follow ours. If a milestone lies ahead of our head, our lineage begins anew there.

    Args:
        donors: peers to ask: one after another for commits, all of them for results and states. None is trusted beyond its
            certificates.
        may_leave: whether commits of ours may be abandoned if the donor's lineage is the one to follow (R22 and R23). Otherwise
            nothing is done if it is on another one. Commits behind a milestone to which they do not lead are given up in any case.
        spine: as it is followed here; at a fork it decides before the work does. None if it is not known.
        is_lost: whether no peer is left that could continue our lineage; the donors' lineage is then followed.
        asked: called with each donor's answer once the donor is done with.

    Raises:
        StorageError: our disk did not take it; what came before is there.
        UnreachableError: nobody can send all that is needed; try again. TransportError, RemoteProtocolError: of the last donor
            that gave no good answer, if no donor had anything new.
    """
    failed: PotluckError | None = None
    before = chain.head.commit
    for donor in list(dict.fromkeys(donors))[:MAX_DONORS]:
        begun_s, branch, error = trio.current_time(), None, None
        try:
            branch = await _fetch_branch(network, donor, chain)
            if branch is not None and _is_to_follow(chain, branch, spine, may_leave=may_leave, is_lost=is_lost):
                await _Follower(network, chain, (donor, *(other for other in donors if other != donor))).go(branch)
        except StorageError:
            raise
        except PotluckError as why:
            # a donor with certificates but no bytes must not keep us from the next one
            log.info("not_trailed", unit=chain.tools.unit, donor=peer_name(donor), reason=why.one_line())
            failed = error = why
        asked(_answer_of(donor, branch, trio.current_time() - begun_s, error))
        if chain.head.commit != before:
            return True
    if failed is not None:
        raise failed
    return False


def _answer_of(donor: PeerId, branch: _Branch | None, took_s: float, error: PotluckError | None) -> DonorAnswer:
    is_lie = branch is None and isinstance(error, RemoteProtocolError)
    links = branch.links if branch is not None else ()
    return DonorAnswer(donor, links, took_s, error.one_line() if error is not None else "", is_lie=is_lie)


async def _fetch_branch(network: Network, donor: PeerId, chain: UnitChain) -> _Branch | None:
    with trio.move_on_after(COMMITS_WITHIN_S):
        return await _verified_branch(network, donor, chain)
    raise UnreachableError(f"{short(donor)} took too long over its commits", "a faster donor")


async def _verified_branch(network: Network, donor: PeerId, chain: UnitChain) -> _Branch | None:
    nodes = await _verified_after(network, donor, chain, chain.links)
    if nodes and nodes[0].link.parent is not None:
        return _Branch(nodes[0].link.parent, nodes)
    milestone = newest_milestone(chain.tools.milestones, chain.tools.unit)
    if milestone is None or milestone.link.index <= chain.head.index:
        return None
    nodes = await _verified_after(network, donor, chain, (milestone.link,))
    return _Branch(milestone.link.commit, nodes, milestone) if nodes else None


async def _verified_after(
    network: Network, donor: PeerId, chain: UnitChain, own: Sequence[ChainLink]
) -> tuple[TreeNode, ...]:
    """The donor's commits after the newest of these that it knows."""
    known, nodes = _steps_back(own), tuple[TreeNode, ...]()
    while answer := await fetch_commits(network, donor, chain.tools.unit, known):
        nodes, last = await chain.tools.offload.run(partial(_continued, chain.tools, own, nodes, answer))
        if (last,) == known:
            break  # it repeats itself
        known = (last,)
    return nodes


def _steps_back(links: Sequence[ChainLink]) -> tuple[CommitId, ...]:
    """The newest commits, and before them some in doubling steps down to the genesis."""
    places, step = list(range(len(links) - 1, max(-1, len(links) - 1 - _DENSE), -1)), 1
    while places[-1] > 0:
        places.append(max(0, places[-1] - step))
        step *= 2
    return tuple(links[place].commit for place in places)


def _continued(
    tools: UnitContext, links: Sequence[ChainLink], nodes: tuple[TreeNode, ...], raws: Sequence[bytes]
) -> tuple[tuple[TreeNode, ...], CommitId]:
    """The verified commits with these added, and the last commit that was named. Commits among our own `links` are skipped."""
    found, own = list(nodes), {link.commit: link for link in links}
    last = found[-1].link.commit if found else links[0].commit
    for raw in raws:
        certificate = decode_certificate(raw)
        record = decode_record(certificate.record)
        parent = found[-1].link if found else own.get(record.parent)
        if parent is None:
            raise RemoteProtocolError("a commit that follows none of ours", "one after a commit that was named")
        last = commit_id(parent.commit, certificate.record)
        if not found and last in own:
            continue
        link = verify_certificate(certificate, parent, verifier=tools.verifier, run_id=tools.run_id)
        found.append(TreeNode(link, certificate))
    return tuple(found), last


def _is_to_follow(
    chain: UnitChain, branch: _Branch, spine: SpineView | None, *, may_leave: bool, is_lost: bool
) -> bool:
    if branch.milestone is not None or branch.fork == chain.head.commit:
        return True
    return may_leave and (is_lost or _is_better(chain, branch, spine))


def _is_better(chain: UnitChain, branch: _Branch, spine: SpineView | None) -> bool:
    """Whether a donor's commits after the fork are to be followed instead of ours."""
    place = [link.commit for link in chain.links].index(branch.fork)
    ours = zip(chain.links[place + 1 :], chain.line.certificates[place:], strict=True)
    theirs = [(node.link, node.certificate) for node in branch.nodes if node.certificate is not None]
    tree = tree_of(chain.links[place]).add_all([*ours, *theirs])
    return best_head(tree, spine=spine) == branch.links[-1].commit


def _certificates(nodes: Sequence[TreeNode]) -> list[Certificate]:
    return [node.certificate for node in nodes if node.certificate is not None]


class _Follower:
    """Follows one donor's commits; `donors` are asked for the bytes."""

    def __init__(self, network: Network, chain: UnitChain, donors: tuple[PeerId, ...]) -> None:
        self._network = network
        self._chain = chain
        self._donors = donors
        self._gatherer = Gatherer(network, chain)

    async def go(self, branch: _Branch) -> None:
        if branch.milestone is not None:
            await self._begin_anew(branch, branch.milestone)
            return
        chain, nodes = self._chain, branch.nodes
        attested = attested_roots([*chain.links, *branch.links])
        place = max((place for place, link in enumerate(branch.links) if link.commit in attested), default=-1)
        if place >= 0:
            await self._move(_Branch(branch.fork, nodes[: place + 1]), attested)
        elif branch.fork != chain.head.commit:
            raise UnreachableError("another lineage without an attested state yet", "a later commit of it")
        elif chain.head.index and chain.head.commit in attested:
            await chain.keep(Occasion.WANTED)  # only now is it known to be right
        await self._apply(nodes[place + 1 :])

    async def _apply(self, nodes: Sequence[TreeNode]) -> None:
        for node in nodes:
            await self._gather(node)
            if node.certificate is not None:
                await self._chain.prove(await self._chain.apply(node.link, node.certificate))

    async def _begin_anew(self, branch: _Branch, milestone: SignedMilestone) -> None:
        """Take a whole state after the milestone, and the updates since then."""
        chain, before = self._chain, self._chain.head.index
        roots = attested_roots([milestone.link, *branch.links])
        if milestone.state_root:
            roots.setdefault(milestone.link.commit, milestone.state_root)
        async with set_aside(chain) as aside:
            aside.drop()
            state = await self._whole_state(roots)
            await chain.start_from(state, _certificates(branch.nodes), milestone, branch.links)
        reason = f"nobody has the commits between our round {before} and the milestone of round {milestone.link.index}"
        log.warning("begins_at_milestone", unit=chain.tools.unit, reason=reason)
        await self._apply([node for node in branch.nodes if node.link.index > chain.head.index])

    async def _move(self, branch: _Branch, attested: dict[CommitId, Root]) -> None:
        """Move to the last commit of a donor's commits, which is attested. Only one state is in memory."""
        chain, target = self._chain, branch.nodes[-1].link
        async with set_aside(chain) as aside:
            state = await self._state_after(branch, attested, aside)
            prepared = await chain.prepared(branch.fork, branch.nodes, None, state)
            if prepared.root != attested[target.commit]:
                raise RemoteProtocolError(
                    f"another state at commit {target.index} than the run attests", "the attested state"
                )
            await chain.switch(prepared)

    async def _state_after(self, branch: _Branch, attested: dict[CommitId, Root], aside: StateAside) -> UnitState:
        tools = self._chain.tools
        replay_bytes = len(branch.nodes) * update_bytes(tools.result_codec, tools.grid)
        if replay_bytes <= STATE_BYTES_PER_VALUE * tools.grid.num_elements:
            try:
                return await self._from_fork(branch, aside)
            except UnreachableError as error:
                log.info("not_replayed", unit=tools.unit, reason=error.one_line())
        return await self._fetched(branch, attested, aside)

    async def _from_fork(self, branch: _Branch, aside: StateAside) -> UnitState:
        """The state at the fork, and all updates since then."""
        for node in branch.nodes:
            await self._gather(node)
        state = aside.take(branch.fork) or await rebuilt(self._chain, branch.fork)
        if state is None:
            raise UnreachableError("a fork from before what is kept here", "a whole state")
        return await self._chain.replay(state, branch.nodes, is_own=True)

    async def _fetched(self, branch: _Branch, attested: dict[CommitId, Root], aside: StateAside) -> UnitState:
        """A whole state. If rounds come so fast that donors have replaced it meanwhile, all updates since the fork instead:
        donors keep more of those.
        """
        aside.drop()
        try:
            return await self._downloaded(branch, attested)
        except UnreachableError as error:
            if len(branch.nodes) > self._chain.num_kept_updates:
                raise
            log.info("not_downloaded", unit=self._chain.tools.unit, reason=error.one_line())
            return await self._from_fork(branch, aside)

    async def _replayed(self, state: UnitState, nodes: Sequence[TreeNode]) -> UnitState:
        for node in nodes:
            await self._gather(node)
        return await self._chain.replay(state, nodes, is_own=True)

    async def _downloaded(self, branch: _Branch, attested: dict[CommitId, Root]) -> UnitState:
        """The state after the last commit: a whole state of some attested commit, with the rest replayed."""
        places = {link.commit: place for place, link in enumerate(branch.links)}
        wanted = {commit: root for commit, root in attested.items() if commit in places}
        state = await self._whole_state(wanted)
        return await self._replayed(state, branch.nodes[places[state.head] + 1 :])

    async def _whole_state(self, wanted: Mapping[CommitId, Root]) -> UnitState:
        tools = download_tools(self._network, self._chain.tools)
        with trio.move_on_after(STATE_WITHIN_S):
            return await download_state(tools, self._donors, wanted)
        raise UnreachableError("a state that took too long", f"all of it within {STATE_WITHIN_S / 3600:.0f} h")

    async def _gather(self, node: TreeNode) -> None:
        """Get the results of a commit on disk, unless they are here."""
        record, tries = node.link.record, iter(range(GATHER_TRIES))

        def is_left() -> bool:
            return next(tries, None) is not None

        if record is None or not await self._gatherer.gather(record, self._donors, is_left):
            raise UnreachableError(f"no live peer has the bytes of commit {node.link.index}", "one holder of them")
