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
from averaging.rounds.traffic.transfer import MAX_CHAIN_BYTES, fetch_commits
from averaging.state.unit_log import UnitLog
from protocol.errors import RemoteProtocolError, StorageError, VersionError
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, RunId, UnitName, short
from protocol.rounds.lineage import spine
from protocol.rounds.lineage.chain_link import genesis_link
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
        self, unit: UnitName, start_record: bytes, log_: UnitLog, network: Network, verifier: Verifier, run_id: RunId
    ) -> None:
        self.unit = unit
        self.log = log_
        self.moving = trio.Lock()
        self._network = network
        self._verifier = verifier
        self._run_id = run_id
        genesis = genesis_link(start_record, unit)
        self._state = FollowedSpine(tree_of(genesis), genesis.commit)
        self._asked: dict[PeerId, float] = {}
        self._asking: set[PeerId] = set()
        self._is_busy = False

    @property
    def view(self) -> SpineView:
        """The spine as it is followed now."""
        return self._state.view

    async def restore(self) -> None:
        """Read the log back.

        Raises:
            StorageError: a log of another run.
        """
        for _, raw in (await self.log.load()).certificates:
            try:
                state, is_known = self._with([decode_certificate(raw)])
            except (RemoteProtocolError, VersionError) as error:
                raise StorageError(
                    "a certificate that proves nothing", "the spine's log of this run", "use another folder"
                ) from error
            if not is_known:
                raise StorageError(
                    "a log with a gap or of another run", "one chain from the run's start", "use another folder"
                )
            self._state = replace(state, head=state.tree.tip)
        await self._tidy_log()

    async def _tidy_log(self) -> None:
        await self.log.tidy(())  # no votes are logged here: only changes of lineage make it grow

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
        raws = [encode_certificate(node.certificate) for node in move.path if node.certificate is not None]
        self._state = replace(self._state, head=move.path[-1].link.commit)
        return await self.log.log_moved(move.fork, raws)

    # --- for others -----------------------------------------------------------------------------------------------------------

    async def serve_commits(self, request: FetchCommits, stream: Stream) -> None:
        """Send certificates of the followed lineage after the newest known one, oldest first."""
        known = [commit for commit in request.known if self.has(commit)]
        if not known:
            return
        newest = max(known, key=lambda commit: self._state.tree.nodes[commit].link.index)
        num_bytes = 0
        for node in self._state.tree.path(newest, self._state.head) or ():
            if node.certificate is None:
                return
            raw = encode_certificate(node.certificate)
            num_bytes += len(raw)
            if num_bytes > MAX_CHAIN_BYTES:
                return
            await stream.send_frame(raw)
