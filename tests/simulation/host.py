"""The host of a simulated world: the directory's door, the production log of commits with its verified lineages, the ledger that it is
read from, the book of bans, who was admitted, and which process of a peer is the newest. Credentials are told apart from none, and no
more, where a profile does not ask for them (credentials.py). It follows the spine, as the coordinator follows the run's one unit.

It has no messages and draws nothing: a report and its reply are one call, every few seconds for each peer that has something to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from coordinator.ledger.ledger import CommitRow
from coordinator.progress.chain_log import ChainLog
from coordinator.progress.live_lineages import PeerHeads
from peer.status.reporting import REPORT_EVERY_S, left_behind
from protocol.errors import RemoteProtocolError
from protocol.host.reports import MAX_CERTIFICATES
from protocol.identity.envelope import NEVER_MS, open_envelope, seal, superseded
from protocol.identity.revocation import REVOKE_DOMAIN, fingerprint, has_others, missing
from protocol.ids import CommitId, PeerId
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.lineage import CommitTree
from tests.simulation.invariants import Violation
from tests.simulation.signing import HashSigner

if TYPE_CHECKING:
    from averaging.rounds.unit_service import RoundService
    from tests.simulation.node import Node
    from tests.simulation.swarm import World

MAX_STEPS = 12
"""Reports in a row until the host has a peer's whole lineage: it steps back by doubling."""


class BanBook:
    """Entries that the host signed, by fingerprint. The production book wants peer ids that are public keys."""

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.entries = {fingerprint(entry): entry for entry in entries}

    @property
    def known(self) -> bytes:
        """Fingerprints of all entries."""
        return b"".join(sorted(self.entries))

    def add(self, entries: Iterable[bytes]) -> None:
        """These, too."""
        self.entries.update((fingerprint(entry), entry) for entry in entries)


@dataclass(frozen=True)
class Copy:
    """The host's disk at one time."""

    rows: tuple[CommitRow, ...]
    bans: tuple[bytes, ...]
    admitted: frozenset[PeerId]


class Host:
    """One host. Its disk outlives `restart`, the rest does not.

    Attributes:
        cut_off: peers whose reports do not get through, whatever else does.
        rows: its ledger of commits, in the order in which it heard of them.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._signer = HashSigner(f"{world.seed}/host".encode())
        self._spine = world.layout.spine
        self.cut_off: set[PeerId] = set()
        self._num_absences = 0
        self._waiting: list[Node] = []
        self.rows: list[CommitRow] = []
        self._bans = BanBook()
        self._banned: set[PeerId] = set()
        self._admitted: set[PeerId] = set()
        self.log = self._new_log()
        self._heard: dict[PeerId, tuple[int, ChainLink | None, CommitTree | None]] = {}
        """The last report of each: the same report again has no effect."""

    def _new_log(self) -> ChainLog:
        world = self._world
        return ChainLog(genesis_link(world.start_record, self._spine), world.run_id, world.verifier)

    # --- whether it is there ----------------------------------------------------------------------------------------------

    @property
    def is_reachable(self) -> bool:
        """Whether anybody can reach it."""
        return not self._num_absences

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody reaches it, nor the directory that hangs on it. Absences add up; who came to join meanwhile joins after the last."""
        self._num_absences += 1
        self._world.swarm.is_directory_up = False
        try:
            yield
        finally:
            self._num_absences -= 1
            self._world.swarm.is_directory_up = self.is_reachable
            self._let_in()

    def _let_in(self) -> None:
        waiting, self._waiting = self._waiting, []
        for node in waiting if self.is_reachable else ():
            if not node.is_up:
                self._world.boot(node)
        if not self.is_reachable:
            self._waiting = waiting

    def hears(self, node: Node) -> bool:
        """Whether anything of this peer gets through to it."""
        return self.is_reachable and node.peer not in self.cut_off

    def copy(self) -> Copy:
        """Its disk as it is now."""
        return Copy(tuple(self.rows), tuple(self._bans.entries.values()), frozenset(self._admitted))

    def restart(self, old: Copy | None = None) -> None:
        """A new process, on its own disk or on an old copy of that. On its own it follows what it followed."""
        before, disk = self.log.head, old or self.copy()
        self.rows = list(disk.rows)
        self._bans, self._banned = BanBook(), set()
        self._write_bans(disk.bans)
        self._admitted = set(disk.admitted)
        self._heard = {}
        self.log = self._new_log()
        unlinked = self.log.replay(sorted(self.rows, key=lambda row: (row.index, row.seen_unix_s, row.commit)))
        if unlinked:
            raise Violation(f"the host comes back with {len(unlinked)} commits whose parents it never wrote")
        if old is None and self.log.head.commit != before.commit:
            raise Violation(f"the host comes back at commit {self.log.head.index}, it was at {before.index}")

    # --- who may take part ------------------------------------------------------------------------------------------------

    def admits(self, node: Node) -> bool:
        """Whether a process of this peer may begin now: the host admits it, or it has been admitted and the host is away."""
        if not self.hears(node):
            if not node.has_credential:
                self._world.trace.add(f"{node.name} waits for the host")
                self._waiting.append(node)
            return node.has_credential
        if self.is_banned(node.peer):
            return False
        self._admitted.add(node.peer)
        node.has_credential = True
        if node.standing is not None:
            node.standing.admitted()
        self._tell_bans(node)
        return True

    def ban(self, peer: PeerId) -> None:
        """Send a peer away for good; others hear of it with their next report."""
        if not self.is_banned(peer):
            number = len(self._bans.entries) + 1
            entry = seal(self._signer, REVOKE_DOMAIN, self._world.run_id, number, NEVER_MS, peer.encode())
            self._write_bans([entry])

    def is_banned(self, peer: PeerId) -> bool:
        """Whether it was sent away."""
        return peer in self._banned

    @property
    def has_banned(self) -> bool:
        """Whether anybody was."""
        return bool(self._banned)

    def _write_bans(self, entries: Iterable[bytes]) -> None:
        self._bans.add(entries)
        self._banned |= {self._named(entry) for entry in self._bans.entries.values()}

    def _named(self, entry: bytes) -> PeerId:
        world = self._world
        opened = open_envelope(
            entry, verifier=world.verifier, domain=REVOKE_DOMAIN, run_id=world.run_id, now_unix_ms=None
        )
        if opened.public_key != self._signer.public_key:
            raise Violation("a ban that the host did not sign")
        return PeerId(opened.payload.decode())

    # --- reports ----------------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Hear all who are there and can reach it, again and again."""
        world = self._world
        every_s = max(REPORT_EVERY_S, 2 * world.profile.heartbeat_s)
        while True:
            await world.swarm.timers.sleep(every_s)
            for node in [*world.honest_nodes(), *world.older]:
                self.hear(node)

    def hear(self, node: Node) -> None:
        """One report of a peer, and what it is answered; nothing where it cannot report."""
        if not node.is_up or node.process.is_frozen or not self.hears(node):
            return
        service = node.services.get(self._spine)
        head, tree = (service.chain.head, service.state.tree) if service is not None else (None, None)
        session, last_head, last_tree = self._heard.get(node.peer, (0, None, None))
        if session > node.session:
            node.close(superseded())
            return
        if node.standing is not None:
            node.standing.heard()
        is_known = session == node.session and last_head is head and last_tree is tree
        if is_known and node.ban_book.known == self._bans.known:
            return
        self._heard[node.peer] = (node.session, head, tree)
        self._stand(node)
        if service is not None:
            self._hear_commits(node, service)
            self._look()
        self._hear_bans(node)

    def _stand(self, node: Node) -> None:
        """The sender of a report: an admitted peer; after a restore from an old copy its credential says so."""
        if node.peer not in self._admitted and not node.has_credential:
            raise Violation(f"{node.name} reports and was never admitted")
        self._admitted.add(node.peer)

    def _hear_commits(self, node: Node, service: RoundService) -> None:
        """From the commit on that is asked for, until the host has its lineage; then what it knows beside that."""
        chain, want = service.chain, self.log.head.index + 1
        for _ in range(MAX_STEPS):
            if self.log.knows(chain.head.commit):
                break
            want = self._take(node, chain.line.since(want, MAX_CERTIFICATES), chain.head.commit, chain.head.index)
        if not self.log.knows(chain.head.commit):
            raise Violation(f"the host asks {node.name} for commit {want}, and never comes to {chain.head.index}")
        if asides := left_behind(service, _Known(self.log)):
            self._take(node, asides.values(), chain.head.commit, chain.head.index)

    def _take(self, node: Node, certificates: Iterable[bytes], head: CommitId, index: int) -> int:
        """Its next request."""
        try:
            accepted = self.log.verify(tuple(certificates), head, index)
        except RemoteProtocolError as error:
            raise Violation(f"the host refuses what {node.name} reports: {error.one_line()}") from error
        seen_unix_s = int(self._world.swarm.unix_offset_s + trio.current_time())
        for new in accepted.new:  # on disk first
            link = new.link
            self.rows.append(CommitRow(link.commit, link.unit, new.parent, link.index, new.certificate, seen_unix_s))
        if accepted.refused:
            raise Violation(f"the host takes no more of what {node.name} reports: {accepted.refused[0].found}")
        self.log.take(self.log.grown(accepted.new, self._heads()))
        return accepted.want_from_index

    def _heads(self) -> PeerHeads:
        """The heads that live peers reported last."""
        live = {node.peer for node in self._world.honest_nodes() if self.hears(node)}
        heard = {peer: head.commit for peer, (_, head, _) in self._heard.items() if peer in live and head is not None}
        return PeerHeads(heard)

    def _look(self) -> None:
        """Decide again which lone commits are followed."""
        refused = self.log.grown((), self._heads()).refused
        if refused != self.log.refused:
            self.log.count(frozenset(), refused)

    def _hear_bans(self, node: Node) -> None:
        """Each tells the other what it lacks: the host's ledger may be an old copy."""
        if has_others(self._bans.entries.values(), node.ban_book.known):
            self._write_bans(missing(node.ban_book.entries.values(), self._bans.known))
        self._tell_bans(node)

    def _tell_bans(self, node: Node) -> None:
        if len(node.ban_book.entries) < len(self._bans.entries):
            node.ban_book.add(missing(self._bans.entries.values(), node.ban_book.known))
            node.bans |= {self._named(entry) for entry in node.ban_book.entries.values()}
            if node.roster is not None:
                node.roster.ban(tuple(node.bans))
        if node.is_up and node.peer in node.bans:
            node.has_left = True
            node.crash()

    # --- the end ----------------------------------------------------------------------------------------------------------

    def is_ahead(self) -> bool:
        """All stand on one head: whether the host, with one report of everybody, knows a commit on it that nobody has applied yet.
        Somebody has its certificate, reports it where the tree of commits has a fork, and is about to apply it.
        """
        self._hear_all()
        return self.log.head.parent in {node.head_of(self._spine) for node in self._world.holders(self._spine)}

    def _hear_all(self) -> None:
        nodes = self._world.honest_nodes()
        for _ in range(2):  # what the first ones lack the last ones may have brought
            for node in nodes:
                self.hear(node)

    def check(self) -> None:
        """All stand on one head, everything has healed: after one report of everybody the host stands there, too, holds what they
        hold, each commit once, and all know the same bans.
        """
        self._hear_all()
        holders = self._world.holders(self._spine)
        for node in holders:
            self._check_holder(node)
        if len({row.commit for row in self.rows}) < len(self.rows):
            raise Violation("the host recorded a commit twice")
        for node in self._world.honest_nodes():
            if node.ban_book.known != self._bans.known:
                raise Violation(
                    f"{node.name} knows {len(node.ban_book.entries)} bans, the host {len(self._bans.entries)}"
                )

    def _check_holder(self, node: Node) -> None:
        service = node.services[self._spine]
        head, theirs = self.log.head, service.chain.head
        if head.commit != theirs.commit:
            raise Violation(
                f"the host stands at {head.index} {head.commit.hex()[:8]}, {node.name} at {theirs.index} {theirs.commit.hex()[:8]}"
            )
        lineage = [link.commit for link in self.log.lineage(theirs.index)]
        if lineage != [link.commit for link in service.chain.links if link.record is not None]:
            raise Violation(f"the host has another lineage than {node.name} behind commit {theirs.index}")
        unknown = [commit for commit in service.state.tree.nodes if not self.log.knows(commit)]
        if unknown:
            raise Violation(f"{node.name} knows {len(unknown)} commits that the host does not")


class _Known:
    """The parts that need not be sent."""

    def __init__(self, log: ChainLog) -> None:
        self._log = log

    def __contains__(self, commit: object) -> bool:
        return isinstance(commit, bytes) and self._log.knows(CommitId(commit))
