"""Bringing a unit's lineage here without taking part in its rounds: certificates first, then state and results (R14, R19, R24).

The host trails the experts of a run so that it can give them on while nobody holds them, and a newcomer trails the host. What is
written is what a member writes, and each certificate is verified on the one before it. The newest state that a later commit attests is
written whole; of the commits after it the results are kept, from which whoever comes next gets to the same bytes.

Rules: R14, R19, R22, R23, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.fetching.download import MAX_DONORS, download_state, download_tools
from averaging.rounds.fetching.gather_results import Gatherer
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import fetch_commits
from averaging.state.state import STATE_BYTES_PER_VALUE, UnitState
from protocol.errors import PotluckError, RemoteProtocolError, StorageError, UnreachableError
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.lineage.chain import ChainLink, attested_roots, verify_certificate
from protocol.rounds.lineage.lineage import SpineView, TreeNode, best_head, tree_of
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record

log = structlog.get_logger()

COMMITS_WITHIN_S: Final = 600.0
"""For all certificates that one donor has and we have not."""

STATE_WITHIN_S: Final = 3600.0
GATHER_TRIES: Final = 3
"""A result that nobody of the donors has is not waited for: there is another way, or another time."""

_DENSE: Final = 10


@dataclass(frozen=True, slots=True)
class _Way:
    """What a donor has after a commit of ours, verified, oldest first."""

    fork: CommitId
    nodes: tuple[TreeNode, ...]

    @property
    def links(self) -> tuple[ChainLink, ...]:
        return tuple(node.link for node in self.nodes)


@dataclass(frozen=True, slots=True)
class DonorAnswer:
    """What became of asking one donor.

    Attributes:
        links: what it showed after the last commit that it shares with us, verified, oldest first; none where it has nothing new.
        took_s: with all that was fetched because of it.
        refused: in one line, why it was of no use; empty where it answered well.
        is_lie: what it sent does not verify.
    """

    donor: PeerId
    links: tuple[ChainLink, ...]
    took_s: float
    refused: str = ""
    is_lie: bool = False


async def trail(
    network: Network,
    chain: UnitChain,
    donors: Sequence[PeerId],
    *,
    may_leave: bool,
    spine: SpineView | None = None,
    is_lost: bool = False,
    asked: Callable[[DonorAnswer], None] = lambda _asked: None,
) -> bool:
    """Come to where the first donor stands that has anything new; True where our head has moved.

    Args:
        donors: who is asked, for commits one after another, for results and states all. None is believed further than its
            certificates go.
        may_leave: whether commits of ours may be given up where the donor's lineage is the one to follow (R22 and R23); else
            nothing is done where it is on another.
        spine: as it is followed here, which decides at a fork before the work does; None where there is no word of it.
        is_lost: whether nobody who could go on from what is here is left: the donors' lineage is the one to follow then.
        asked: hears of every donor that was asked, once it is done with.

    Raises:
        StorageError: our disk did not take it; what came before is there.
        UnreachableError: nobody can give all that is needed; ask again. TransportError, RemoteProtocolError: of the last donor that
            gave no good answer, where none brought anything.
    """
    failed: PotluckError | None = None
    before = chain.head.commit
    for donor in list(dict.fromkeys(donors))[:MAX_DONORS]:
        begun_s, way, error = trio.current_time(), None, None
        try:
            way = await _shown_way(network, donor, chain)
            is_next = way is not None and way.fork == chain.head.commit
            if way is not None and (is_next or (may_leave and (is_lost or _is_better(chain, way, spine)))):
                await _Trail(network, chain, (donor, *(other for other in donors if other != donor))).go(way)
        except StorageError:
            raise
        except PotluckError as why:
            # who shows certificates and has no bytes to them must not keep us from the next donor
            log.info("not_trailed", unit=chain.tools.unit, donor=short(donor), reason=why.one_line())
            failed = error = why
        asked(_asked(donor, way, trio.current_time() - begun_s, error))
        if chain.head.commit != before:
            return True
    if failed is not None:
        raise failed
    return False


def _asked(donor: PeerId, way: _Way | None, took_s: float, error: PotluckError | None) -> DonorAnswer:
    is_lie = way is None and isinstance(error, RemoteProtocolError)
    links = way.links if way is not None else ()
    return DonorAnswer(donor, links, took_s, error.one_line() if error is not None else "", is_lie=is_lie)


async def _shown_way(network: Network, donor: PeerId, chain: UnitChain) -> _Way | None:
    with trio.move_on_after(COMMITS_WITHIN_S):
        return await _way_of(network, donor, chain)
    raise UnreachableError(f"{short(donor)} took too long over its commits", "a faster donor")


async def _way_of(network: Network, donor: PeerId, chain: UnitChain) -> _Way | None:
    unit, offload = chain.tools.unit, chain.tools.offload
    known, nodes = _steps_back(chain.links), tuple[TreeNode, ...]()
    while answer := await fetch_commits(network, donor, unit, known):
        nodes, last = await offload.run(partial(_continued, chain, nodes, answer))
        if (last,) == known:
            break  # it says the same again
        known = (last,)
    if not nodes or nodes[0].link.parent is None:
        return None
    return _Way(nodes[0].link.parent, nodes)


def _steps_back(links: Sequence[ChainLink]) -> tuple[CommitId, ...]:
    """The newest commits, and before them some in doubling steps down to the genesis."""
    places, step = list(range(len(links) - 1, max(-1, len(links) - 1 - _DENSE), -1)), 1
    while places[-1] > 0:
        places.append(max(0, places[-1] - step))
        step *= 2
    return tuple(links[place].commit for place in places)


def _continued(
    chain: UnitChain, nodes: tuple[TreeNode, ...], raws: Sequence[bytes]
) -> tuple[tuple[TreeNode, ...], CommitId]:
    """The verified commits with these, and the last commit that was named. What is on our own lineage is passed over."""
    tools, found = chain.tools, list(nodes)
    own = {link.commit: link for link in chain.links}
    last = found[-1].link.commit if found else chain.links[0].commit
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


def _is_better(chain: UnitChain, way: _Way, spine: SpineView | None) -> bool:
    """Whether what a donor has after the fork is to be followed, and not what is here."""
    place = [link.commit for link in chain.links].index(way.fork)
    ours = zip(chain.links[place + 1 :], map(decode_certificate, chain.certificates[place:]), strict=True)
    theirs = [(node.link, node.certificate) for node in way.nodes if node.certificate is not None]
    tree = tree_of(chain.links[place]).add_all([*ours, *theirs])
    return best_head(tree, spine=spine) == way.links[-1].commit


class _Trail:
    """One way that is gone: `donors` are asked for what it needs."""

    def __init__(self, network: Network, chain: UnitChain, donors: tuple[PeerId, ...]) -> None:
        self._network = network
        self._chain = chain
        self._donors = donors
        self._gatherer = Gatherer(network, chain)

    async def go(self, way: _Way) -> None:
        chain, nodes = self._chain, way.nodes
        attested = attested_roots([*chain.links, *way.links])
        place = max((place for place, link in enumerate(way.links) if link.commit in attested), default=-1)
        if place >= 0:
            await self._move(_Way(way.fork, nodes[: place + 1]), attested)
        elif way.fork != chain.head.commit:
            raise UnreachableError("another lineage of which nothing is attested yet", "a later commit of it")
        elif chain.head.index and chain.head.commit in attested:
            await chain.keep()  # only now is it known to be the right one
        for node in nodes[place + 1 :]:
            await self._gather(node)
            if node.certificate is not None:
                await chain.prove(await chain.apply(node.link, node.certificate))

    async def _move(self, way: _Way, attested: dict[CommitId, Root]) -> None:
        """To the last commit of a way, which is attested."""
        chain, target = self._chain, way.nodes[-1].link
        fork_state = await chain.state_at(way.fork)
        tools = chain.tools
        replay_bytes = len(way.nodes) * update_bytes(tools.result_codec, tools.grid)
        is_short = fork_state is not None and replay_bytes <= STATE_BYTES_PER_VALUE * tools.grid.num_elements
        state = None
        if is_short and fork_state is not None:
            try:
                state = await self._replayed(fork_state, way.nodes)
            except UnreachableError as error:
                log.info("not_replayed", unit=tools.unit, reason=error.one_line())
        if state is None:
            state = await self._fetched(way, attested, fork_state)
        prepared = await chain.prepared(way.fork, way.nodes, fork_state, state)
        if prepared.root != attested[target.commit]:
            raise RemoteProtocolError(f"another state at commit {target.index} than the run attests", "the attested")
        await chain.switch(prepared)

    async def _fetched(self, way: _Way, attested: dict[CommitId, Root], fork_state: UnitState | None) -> UnitState:
        """A whole state; where rounds come so fast that its donors have dropped it for a newer one meanwhile, all updates since the
        fork instead, of which they keep more.
        """
        try:
            return await self._downloaded(way, attested)
        except UnreachableError as error:
            if fork_state is None or len(way.nodes) > self._chain.num_kept_updates:
                raise
            log.info("not_downloaded", unit=self._chain.tools.unit, reason=error.one_line())
            return await self._replayed(fork_state, way.nodes)

    async def _replayed(self, state: UnitState, nodes: Sequence[TreeNode]) -> UnitState:
        for node in nodes:
            await self._gather(node)
        return await self._chain.replay(state, nodes)

    async def _downloaded(self, way: _Way, attested: dict[CommitId, Root]) -> UnitState:
        """The state at the way's end: a whole one of some attested commit of it, and what is left replayed."""
        places = {link.commit: place for place, link in enumerate(way.links)}
        wanted = {commit: root for commit, root in attested.items() if commit in places}
        tools = download_tools(self._network, self._chain.tools)
        with trio.move_on_after(STATE_WITHIN_S):
            state = await download_state(tools, self._donors, wanted)
            return await self._replayed(state, way.nodes[places[state.head] + 1 :])
        raise UnreachableError("a state that took too long", f"all of it within {STATE_WITHIN_S / 3600:.0f} h")

    async def _gather(self, node: TreeNode) -> None:
        """The results of a commit to our disk, unless they are here."""
        record, tries = node.link.record, iter(range(GATHER_TRIES))

        def is_left() -> bool:
            return next(tries, None) is not None

        if record is None or not await self._gatherer.gather(record, self._donors, is_left):
            raise UnreachableError(
                f"the bytes of commit {node.link.index} are with nobody who answers", "one holder of them"
            )
