"""Keeps the spine's records at a peer that does not hold the spine, and follows it (R23).

The decisions are in protocol/rounds/lineage/spine.py.

Rules: R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network, Stream
from averaging.rounds.lineage.past.beginning import begin_anew, begin_later, first_link
from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.past.offered_work import OfferedWork
from averaging.rounds.lineage.unit_log_view import followed
from averaging.rounds.traffic.transfer import MAX_CHAIN_BYTES, fetch_commits
from averaging.state.unit_log import UnitLog
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, RunId, UnitName, short
from protocol.rounds.lineage import spine
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.lineage import SpineView, TreeNode, known_commits, tree_of
from protocol.rounds.lineage.spine import FollowedSpine
from protocol.rounds.messages.messages import Certificate, Committed, Heartbeat
from protocol.rounds.messages.requests import FetchCommits
from protocol.rounds.messages.wire import decode_certificate, encode_certificate

log = structlog.get_logger()

ASK_WITHIN_S: Final = 60.0
CERTIFICATES_AT_ONCE: Final = 16
"""Certificates verified in one step: signatures take milliseconds each, and messages must not wait for a whole chain."""

ASK_PAUSE_S: Final = 1.0
"""Pause between two questions to a holder whose answer leads nowhere."""


@dataclass(frozen=True)
class SpineMove:
    """A change of the spine's lineage: the last commit that both share, and the commits after it."""

    fork: CommitId
    path: tuple[TreeNode, ...]


class SpineFollower:
    """The spine's records at one peer. Call `restore` first; `move(view, change)` is awaited when another lineage is to be
    followed.
    """

    def __init__(
        self,
        unit: UnitName,
        start_record: bytes,
        log_: UnitLog,
        network: Network,
        verifier: Verifier,
        run_id: RunId,
        milestones: HeldMilestones | None = None,
    ) -> None:
        self.unit = unit
        self.log = log_
        self.moving = trio.Lock()
        self._network = network
        self._verifier = verifier
        self._run_id = run_id
        genesis = genesis_link(start_record, unit)
        self._state = FollowedSpine(tree_of(genesis), genesis.commit)
        self._line = FollowedLine([genesis], [])
        self._milestones = milestones
        self._asked: dict[PeerId, float] = {}
        self._asking: set[PeerId] = set()
        self._is_busy = False

    @property
    def view(self) -> SpineView:
        """The spine as it is followed now."""
        return self._state.view

    async def restore(self) -> None:
        """Read the log back. A peer that has none begins at the newest milestone.

        Raises:
            StorageError: a log of another run, or the disk refuses.
        """
        genesis, logged = self._state.tree.nodes[self._state.tree.root].link, await self.log.load()
        first = first_link(self._milestones, genesis, logged.begins)
        newest = self._milestones.of(self.unit).newest if self._milestones is not None else None
        if newest is not None and first is genesis and not logged.certificates:
            await begin_anew(self.log, newest, self._line, OfferedWork())
            first = newest.link
        self._line, tree = followed(first, logged, self._verified)
        self._state = FollowedSpine(tree, self._line.head.commit)
        if self._milestones is not None:
            self._milestones.lines[self.unit] = lambda index: self._line.commit_at(index)
        await self._tidy_log()

    def _verified(self, certificate: Certificate, parent: ChainLink) -> ChainLink:
        return verify_certificate(certificate, parent, verifier=self._verifier, run_id=self._run_id)

    async def _tidy_log(self) -> None:
        is_shorter = await begin_later(self.log, self._milestones, self._line, OfferedWork())
        await self.log.tidy((), is_due=is_shorter)  # no votes are logged here: only changes of lineage make it grow

    def _with(self, certificates: Sequence[Certificate]) -> tuple[FollowedSpine, bool]:
        return spine.with_certificates(self._state, certificates, verifier=self._verifier, run_id=self._run_id)

    # --- what is heard --------------------------------------------------------------------------------------------------------

    async def take_heartbeat(self, sender: PeerId, heartbeat: Heartbeat) -> None:
        """Note a holder's head; ask for commits that we do not know."""
        head = next((entry.head for entry in heartbeat.heads if entry.unit == self.unit), None)
        if head is None:
            return
        self._state = spine.heard(self._state, sender, head)
        if head not in self._state.tree.nodes:
            await self._ask(sender)

    async def take_committed(self, sender: PeerId, message: Committed) -> None:
        """Take a commit of the spine.

        Raises:
            RemoteProtocolError, VersionError: it proves nothing.
        """
        self._state, is_known = self._with([message.certificate])
        if not is_known:
            await self._ask(sender)

    def keep_holders(self, peers: Sequence[PeerId]) -> None:
        """The directory lists these peers; heads of others are dropped."""
        self._state = spine.only_holders(self._state, set(peers))

    async def _ask(self, source: PeerId) -> None:
        now_s = trio.current_time()
        if source in self._asking or now_s - self._asked.get(source, -ASK_PAUSE_S) < ASK_PAUSE_S:
            return
        self._asking.add(source)
        try:
            await self._fetch(source)
        finally:
            self._asking.discard(source)
            self._asked[source] = trio.current_time()

    async def _fetch(self, source: PeerId) -> None:
        known = known_commits(self._state.tree, self._state.head)
        with trio.move_on_after(ASK_WITHIN_S):
            raws = await fetch_commits(self._network, source, self.unit, known)
            for begin in range(0, len(raws), CERTIFICATES_AT_ONCE):
                self._state, _ = self._with(
                    [decode_certificate(raw) for raw in raws[begin : begin + CERTIFICATES_AT_ONCE]]
                )
                await trio.lowlevel.checkpoint()

    # --- following ------------------------------------------------------------------------------------------------------------

    async def follow(self, move: Callable[[SpineView, SpineMove], Awaitable[None]]) -> None:
        """Follow the holders: along our own lineage at once, to another one by `move`, which calls `flip`."""
        if self._is_busy:
            return
        self._is_busy = True
        try:
            target = spine.choose(self._state)
            ahead = self._state.tree.path(self._state.head, target)
            if ahead is None:
                await self._change_lineage(target, move)
            for node in ahead or ():
                await self._advance(node)
        finally:
            self._is_busy = False

    async def _advance(self, node: TreeNode) -> None:
        async with self.moving:
            if node.link.parent != self._state.head or node.certificate is None:
                return
            await self.log.log_certificate(node.link.parent, encode_certificate(node.certificate))
            tree = self._state.tree.pruned(node.link.commit)
            self._state = replace(self._state, head=node.link.commit, tree=tree)
            self._line.append(node.link, node.certificate)
            await self._tidy_log()

    async def _change_lineage(self, target: CommitId, move: Callable[[SpineView, SpineMove], Awaitable[None]]) -> None:
        tree, head = self._state.tree, self._state.head
        fork = tree.common(head, target)
        path = tree.path(fork, target) if fork is not None else None
        if fork is None or not path:
            log.warning("spine_forked_too_deep", target=short(target))
            return
        await move(SpineView(target, tree), SpineMove(fork, path))

    def has(self, commit: CommitId) -> bool:
        """Whether a commit is on the followed lineage."""
        return self._state.tree.path(commit, self._state.head) is not None

    async def flip(self, move: SpineMove) -> bool:
        """Follow another lineage after a record of all units has been written; the caller holds `moving`. Returns whether our own
        log names it, too.
        """
        proofs = [node.certificate for node in move.path if node.certificate is not None]
        raws = [encode_certificate(certificate) for certificate in proofs]
        if (place := self._line.place(move.fork)) is not None:
            self._line.replace_after(place, [node.link for node in move.path], proofs)
        self._state = replace(self._state, head=move.path[-1].link.commit)
        return await self.log.log_moved(move.fork, raws)

    # --- for others -----------------------------------------------------------------------------------------------------------

    async def serve_commits(self, request: FetchCommits, stream: Stream) -> None:
        """Send certificates of the followed lineage after the newest known one, oldest first."""
        num_bytes = 0
        for raw in self._line.after(request.known):
            num_bytes += len(raw)
            if num_bytes > MAX_CHAIN_BYTES:
                return
            await stream.send_frame(raw)
