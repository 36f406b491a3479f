"""The coordinator's log of a unit's commits. Every certificate is verified against its parent before it counts.

Commits more than MAX_DEPTH behind the head are forgotten: no fork from there is followed. The ledger keeps a row of each.

No I/O and no clock in here. The coordinator follows the same lineage as the peers, by the same rule. It has no vote: its view
decides what it shows and suggests, never what a peer must follow.

Rules: R23 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from coordinator.ledger.ledger import CommitRow
from coordinator.progress.links.known_links import Followed, KnownLinks
from coordinator.progress.live_lineages import PeerHeads, lone_refused, without
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.host.calls import NO_COMMIT
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, short
from protocol.rounds.lineage.chain import verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, link_of
from protocol.rounds.lineage.lineage import (
    MANY_AT_ONCE,
    MAX_DEPTH,
    CommitTree,
    SpineView,
    TreeNode,
    best_head,
    best_stood_on,
    is_outvoted,
    is_taken_back,
    tree_of,
)
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.messages.wire import commit_id, decode_certificate, decode_record

_EAGER: Final = 512
"""Commits behind the newest that are decoded at a start. They cover what is displayed and how far back a peer usually asks."""

MAX_ON_BASE: Final = 16
"""Most commits that are recorded on one base: of lone commits per member, and of commits with a quorum. Honest members make one
commit with a quorum. They make a second lone one only where every holder of the last certificate died. Without a bound, one
admitted member could fill the ledger with commits that only it signs.
"""

MAX_BESIDE: Final = 1024
"""Commits beside the followed lineage, from which on no more are recorded of a lone lineage that is not followed. Its voters alone
could sign more without end. If no live peer stands on the followed lineage from that fork on, the lone one may be all that is left
of the run, and more are recorded.
"""

_NO_HEADS: Final = PeerHeads()
_UNHEARD: Final = PeerHeads(are_all_heard=False)

_STEP_BACK: Final = 32
"""The smallest step back when a peer's certificates start behind an unknown parent: that peer is on a fork."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A newly verified commit, with its certificate as received."""

    link: ChainLink
    parent: CommitId
    certificate: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """A commit that exceeds a limit and was not verified: the members that are to blame for it, and the limit in words."""

    members: tuple[PeerId, ...]
    found: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result of checking a batch of certificates: verified commits, the next wanted index, and commits refused by the limit."""

    new: tuple[Verified, ...]
    want_from_index: int
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """The log as it will be once a batch of verified commits counts. It is computed first and taken over when the ledger has the
    batch. `refused` are the lone commits that are not followed then
    (live_lineages.py), `forked` the new ones that a quorum made beside another quorum's.
    """

    new: tuple[Verified, ...]
    tree: CommitTree
    head: ChainLink
    refused: frozenset[CommitId] = frozenset()
    forked: tuple[ChainLink, ...] = ()


def _num_beside(links: KnownLinks, head: ChainLink, oldest: int) -> int:
    """Remembered commits that are not on the followed lineage."""
    num_followed = max(0, head.index - max(1, oldest) + 1)
    return len(links) - 1 - num_followed


def _beside_too_many(
    parent: ChainLink,
    fresh: Mapping[CommitId, ChainLink],
    links: KnownLinks,
    kept: Followed,
    refused: frozenset[CommitId],
    heads: PeerHeads,
) -> Refused | None:
    """Why no commit of this lineage is recorded any more, beside as many others; None if it is. Lone commits in `refused` may not be
    followed now. `heads` are those of live peers.
    """
    first: ChainLink | None = None
    fork: ChainLink | None = parent
    while fork is not None and not kept.has(fork.commit, fork.index):
        first = fork
        fork = (fresh.get(fork.parent) or links.get(fork.parent)) if fork.parent is not None else None
    if fork is None or first is None:
        return None  # MAX_ON_BASE bounds those on the followed lineage itself
    ours = next((link for link in links.children(fork.commit) if link.commit in kept.commits), None)
    is_lone = is_outvoted(fork, first, ours) if ours is not None else first.commit in refused
    if not is_lone or (heads.are_all_heard and not _is_stood_on(fork, links, kept, heads)):
        return None
    return Refused((), f"{MAX_BESIDE} commits beside the followed lineage")


def _is_stood_on(fork: ChainLink, links: KnownLinks, kept: Followed, heads: PeerHeads) -> bool:
    """Whether a live peer stands on the followed lineage from this fork on, as far as heads are known."""
    places = ((head, links.place(head)) for head in heads.of_peer.values() if head in kept.commits)
    return any(place is not None and place[0] >= fork.index for _, place in places)


def _forked(links: KnownLinks, new: Sequence[Verified]) -> tuple[ChainLink, ...]:
    made = [item.link for item in new if not item.link.is_lone and not item.link.rewind]

    def beside(link: ChainLink) -> list[ChainLink]:
        known = links.children(link.parent) if link.parent is not None else ()
        return [
            *(each for each in known if not each.is_lone and not each.rewind),
            *(each for each in made if each.parent == link.parent),
        ]

    return tuple(link for link in made if len(beside(link)) > 1)


class ChainLog:
    """All verified commits of one unit, and the head of the best lineage."""

    def __init__(self, genesis: ChainLink, run_id: RunId, verifier: Verifier) -> None:
        self._links = KnownLinks(genesis)
        self._roots: dict[CommitId, dict[CommitId, Root]] = {}
        """State roots that commits attest, by the attested commit and then by the attesting one."""

        self.genesis = genesis
        """The link before the first commit."""

        self._run_id = run_id
        self._verifier = verifier
        self._tree = self._open_tree = tree_of(genesis)
        self._head = genesis
        self._refused: frozenset[CommitId] = frozenset()
        self._counted: frozenset[CommitId] = frozenset()
        self.oldest = 0
        """The round of the oldest commit that is remembered."""

    @property
    def tree(self) -> CommitTree:
        """The commits that may be followed now."""
        return self._open_tree

    @property
    def refused(self) -> frozenset[CommitId]:
        """The lone commits that are not followed now."""
        return self._refused

    @property
    def head(self) -> ChainLink:
        """Tip of the lineage to follow."""
        return self._head

    @property
    def spine_view(self) -> SpineView:
        """The lineage to follow, as the spine's lineage that decides for the other units (R23)."""
        return SpineView(self._head.commit, self._tree)

    @property
    def num_forks(self) -> int:
        """Number of forks that may still be followed: ends of the tree other than the head."""
        if not self._tree.has_fork:
            return 0
        nodes, head = self._tree.nodes, self._head.commit
        ends = nodes.keys() - {node.link.parent for node in nodes.values()} - {head}
        return sum(not is_taken_back(self._tree, head, end) for end in ends)

    def knows(self, commit: CommitId) -> bool:
        """Whether this commit, or genesis, was verified here."""
        return commit in self._links

    def link(self, commit: CommitId) -> ChainLink | None:
        """A verified link, or None."""
        return self._links.get(commit)

    def attested_root(self, commit: CommitId) -> Root | None:
        """The state root that a later commit of the followed lineage attests for `commit`, or None."""
        found = self._roots.get(commit, {})
        return next(
            (root for each, root in found.items() if self._tree.path(each, self._head.commit) is not None), None
        )

    def lineage(self, limit: int) -> Sequence[ChainLink]:
        """At most `limit` newest commits of the head's lineage, oldest first, without genesis."""
        links: list[ChainLink] = []
        link: ChainLink | None = self._head
        while link is not None and link.record is not None and len(links) < limit:
            links.append(link)
            link = self._links.get(link.record.parent)
        return links[::-1]

    def behind(self, commit: CommitId) -> Iterator[tuple[CommitId, int]]:
        """A commit and its ancestors with their rounds, newest first, down to genesis. Yields nothing for an unknown commit."""
        here: CommitId | None = commit
        while here is not None and (place := self._links.place(here)) is not None:
            yield here, place[0]
            here = place[1]

    def verify(
        self,
        certificates: Sequence[bytes],
        head: CommitId = NO_COMMIT,
        index: int = 0,
        heads: PeerHeads = _UNHEARD,
    ) -> Accepted:
        """Check certificates in order, without adding them. Safe to run in a thread while nothing else is added. Certificates
        without a known parent are set aside, and so are those that exceed MAX_ON_BASE or MAX_BESIDE.

        Args:
            head, index: the head that the sending peer reports, and its round.
            heads: those of live peers.

        Raises:
            RemoteProtocolError: a certificate whose parent is known does not verify.
        """
        fresh: dict[CommitId, ChainLink] = {}
        new: list[Verified] = []
        refused: list[Refused] = []
        last_index: int | None = None
        orphan_index: int | None = None
        kept = followed(self) if _num_beside(self._links, self._head, self.oldest) >= MAX_BESIDE else None
        for raw in certificates:
            certificate = decode_certificate(raw)
            record = decode_record(certificate.record)
            parent = fresh.get(record.parent) or self._links.get(record.parent)
            if parent is None or parent.index < self.oldest:
                orphan_index = record.index if orphan_index is None else orphan_index
                continue
            known = self._links.get(commit_id(parent.commit, certificate.record))
            too_many = self._too_many(record, [item.link for item in new]) if known is None else None
            if known is None and too_many is None and kept is not None:
                too_many = _beside_too_many(parent, fresh, self._links, kept, self._refused, heads)
            if too_many is not None:
                refused.append(too_many)
                continue
            link = known or verify_certificate(certificate, parent, verifier=self._verifier, run_id=self._run_id)
            if known is None and link.commit not in fresh:
                new.append(Verified(link, parent.commit, raw))
            fresh[link.commit] = link
            last_index = link.index if orphan_index is None else last_index
        standing = fresh.get(head) or self._links.get(head)
        if standing is not None:
            return Accepted(tuple(new), standing.index + 1, tuple(refused))
        if last_index is not None:
            return Accepted(tuple(new), last_index + 1, tuple(refused))
        return Accepted(tuple(new), self._want_behind(orphan_index, head, index), tuple(refused))

    def _too_many(self, record: CommitRecord, fresh: Sequence[ChainLink]) -> Refused | None:
        """Why an unknown commit exceeds the limit on its base; None if it does not. `fresh` are verified and not added yet."""
        beside = [*self._links.children(record.parent), *(link for link in fresh if link.parent == record.parent)]
        alike = [link for link in beside if link.is_lone == record.lone]
        if len(alike) < MAX_ON_BASE:
            return None
        if not record.lone:
            return Refused(record.roster, f"{len(alike)} commits of a quorum on base {short(record.parent)}")
        for member in record.roster:
            number = sum(member in link.roster for link in alike)
            if number >= MAX_ON_BASE:
                found = f"{number} commits of {short(member)} without a quorum on base {short(record.parent)}"
                return Refused(record.roster, found)
        return None

    def _want_behind(self, orphan_index: int | None, head: CommitId, index: int) -> int:
        """The index to request when no certificate leads to an unknown head. First ask for what follows our own head. If the peer
        has nothing there, or other commits, it is on a fork, perhaps of a lower index than ours: then step further back each time.
        """
        after_ours = self._head.index + 1
        if head == NO_COMMIT and orphan_index is None:
            return after_ours
        reported = max(index, orphan_index or 0)
        here = reported + 1 if orphan_index is None else orphan_index
        if here > after_ours or here <= self.oldest + 1:  # from before what we remember nothing is followed
            return after_ours
        return max(self.oldest + 1, here - max(_STEP_BACK, min(after_ours, reported) - here))

    def grown(self, new: Sequence[Verified], heads: PeerHeads = _NO_HEADS) -> Growth:
        """The log with what `verify` returned added, where live peers have these heads. Write it to the ledger before `take` makes
        it count.
        """
        tree = self._tree
        for item in new:
            tree = self._reaching(tree, item.parent)
            # A commit on a fork that lies too deep is known and recorded, but never followed.
            if item.parent in tree.nodes:
                tree = tree.add(item.link, decode_certificate(item.certificate))
        refused = lone_refused(tree, self._head.commit, heads)
        head = tree.nodes[self._best(without(tree, refused), new)].link
        return Growth(tuple(new), tree, head, refused, _forked(self._links, new))

    def count(self, commits: frozenset[CommitId], refused: frozenset[CommitId] | None = None) -> bool:
        """Restrict the lineage to these commits, their ancestors and the descendants of the best of them. With none given, all
        commits count. None of `refused` is followed, nor what comes after them; without it, those refused now stay so. Returns
        whether the head moved.
        """
        self._counted, before = commits, self._head
        self._refused = self._refused if refused is None else refused
        self._open_tree = without(self._tree, self._refused)
        self._head = self._open_tree.nodes[self._best(self._open_tree, ())].link
        return self._head is not before

    def with_later(self, commits: frozenset[CommitId]) -> frozenset[CommitId]:
        """Those of these commits that may be followed, and all their descendants."""
        tree, known = self._tree, commits & self._tree.nodes.keys()
        return frozenset(
            commit for commit in tree.nodes if any(tree.path(first, commit) is not None for first in known)
        )

    def _best(self, tree: CommitTree, new: Sequence[Verified]) -> CommitId:
        counted = self._counted & tree.nodes.keys()
        if not counted:
            return best_head(tree)
        after = {item.link.commit for item in new if tree.path(self._head.commit, item.link.commit) is not None}
        return best_stood_on(tree, {self._head.commit, *after} if after else counted)

    def _reaching(self, tree: CommitTree, commit: CommitId) -> CommitTree:
        """Extend the tree back to where a known commit branches off, as far as a fork may be followed. After a start the tree is
        shorter.
        """
        ours, theirs = self._links.get(tree.root), self._links.get(commit)
        between: list[ChainLink] = []
        while commit not in tree.nodes and ours is not None and theirs is not None:
            if min(ours.index, theirs.index) < self._head.index - MAX_DEPTH:
                return tree
            if ours.commit == theirs.commit:
                older = sorted([ours, *between], key=lambda link: link.index)
                nodes = {link.commit: TreeNode(link, None) for link in older}
                whole, has_lone = MappingProxyType({**nodes, **tree.nodes}), any(link.is_lone for link in older)
                return CommitTree(ours.commit, tree.tip, whole, has_fork=True, has_lone=has_lone or tree.has_lone)
            if ours.index >= theirs.index:
                between.append(ours)
                ours = self._links.get(ours.parent) if ours.parent is not None else None
            else:
                between.append(theirs)
                theirs = self._links.get(theirs.parent) if theirs.parent is not None else None
        return tree

    def take(self, growth: Growth) -> bool:
        """Take over what `grown` computed; nothing may be added in between. Returns whether the head moved."""
        before = self._head
        for item in growth.new:
            self._know(item.link)
        self._head = growth.head
        self._refused = growth.refused
        self._tree = growth.tree.pruned(self._head.commit)
        if self._tree.light_to != self._links.light_to:
            self._links.lighten(self._tree)
        if self._head.index - self.oldest > MAX_DEPTH + MANY_AT_ONCE:
            self.oldest = self._head.index - MAX_DEPTH
            self._links.forget(self.oldest)
            self._roots = {commit: found for commit, found in self._roots.items() if commit in self._links}
        self._open_tree = without(self._tree, self._refused)
        return self._head is not before

    def add(self, new: Sequence[Verified]) -> bool:
        """Add what `verify` returned. Returns whether the head moved."""
        return self.take(self.grown(new))

    def replay(self, rows: Sequence[CommitRow], begins: CommitId | None = None) -> Sequence[CommitId]:
        """Rebuild the log from the ledger after a restart, parents before children. Signatures were checked before the rows were
        written. Most rows are decoded on first use, because decoding a long run takes longer than a restart may.

        Args:
            begins: the commit at which the rows begin, in place of the genesis; one of them. Earlier ones are in the archive.

        Returns:
            Commits whose parents the ledger lacks, oldest first. They count as soon as peers send the commits in between. Commits on
            forks that left before `begins` are none of them: nothing follows them.

        Raises:
            RemoteProtocolError: a row of the ledger is damaged or inconsistent.
        """
        first = next((row for row in rows if row.commit == begins), None)
        if first is not None:
            self._head = link = _link_of_row(first)
            self._tree = self._open_tree = tree_of(link)
            self.oldest = link.index
            self._know(link)
            rows = [row for row in rows if row is not first]
        known = {self._tree.root}
        settled: set[CommitId] = set()
        linked: list[CommitRow] = []
        unlinked: list[CommitId] = []
        for row in rows:
            if row.parent in known:
                known.add(row.commit)
                linked.append(row)
                self._links.add_raw(row)
            elif row.parent in settled or row.index <= self.oldest:
                settled.add(row.commit)
            else:
                unlinked.append(row.commit)
        if linked:
            tree = self._tree_of_newest(linked)
            self.take(Growth((), tree, tree.nodes[best_head(tree)].link))
        return unlinked

    def _tree_of_newest(self, rows: Sequence[CommitRow]) -> CommitTree:
        """The tree of the newest commits, back to the oldest fork that may still be followed. Only these are decoded."""
        parents = {row.commit: row.parent for row in rows}
        tip = max(rows, key=lambda row: row.index)
        seen: set[CommitId] = set()
        first = tip.index - _EAGER
        for row in rows:
            if row.parent in seen and row.index >= tip.index - MAX_DEPTH:
                first = min(first, row.index - 1)
            seen.add(row.parent)
        root = tip.commit
        for _ in range(tip.index - max(first, self._tree.nodes[self._tree.root].link.index)):
            root = parents[root]
        nodes = {root: TreeNode(self._decoded(root), None)}
        children: Counter[CommitId] = Counter()
        for row in rows:
            if row.parent in nodes:
                nodes[row.commit] = TreeNode(self._decoded(row.commit), decode_certificate(row.certificate))
                children[row.parent] += 1
        has_fork = any(count > 1 for count in children.values())
        has_lone = any(node.link.is_lone for node in nodes.values())
        return CommitTree(root, tip.commit, MappingProxyType(nodes), has_fork, has_lone)

    def _decoded(self, commit: CommitId) -> ChainLink:
        link = self._links.get(commit)
        if link is None:
            raise LocalProtocolError("a commit of the ledger that was not read", "one of its rows")
        self._know(link)
        return link

    def _know(self, link: ChainLink) -> None:
        self._links.add(link)
        attested = link.agreed
        if attested is not None:
            self._roots.setdefault(attested.commit, {})[link.commit] = attested.state_root


def begun_at(chain: ChainLog, row: CommitRow | None, verifier: Verifier, run_id: RunId) -> ChainLog:
    """The log of the same run that begins at this commit; the log as it is for None."""
    if row is None:
        return chain
    again = ChainLog(chain.genesis, run_id, verifier)
    again.replay([row], row.commit)
    return again


def followed(chain: ChainLog) -> Followed:
    """The commits of the head's lineage that are remembered."""
    return Followed(frozenset(commit for commit, _ in chain.behind(chain.head.commit)), chain.oldest)


def _link_of_row(row: CommitRow) -> ChainLink:
    link = link_of(decode_certificate(row.certificate).record)
    if link.commit != row.commit:
        raise RemoteProtocolError("a commit in the ledger under another id", "its own", "restore the ledger")
    return link
