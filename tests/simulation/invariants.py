"""The invariants at every commit of every node, and for the tokens on every lineage."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from averaging.codecs import Codec
from averaging.rounds.traffic.contribution import result_root, split_chunks
from protocol.host.calls import NO_COMMIT
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import CommitRecord, SliceRecord
from protocol.rounds.schedule.proposal import consumed_tokens, covered_chunks
from protocol.tensors.tensor_schema import ChunkGrid
from tests.simulation import accounting
from tests.simulation.accounting import Tokens


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class KnownCommit:
    """A commit that some node holds, and the tokens that it counted, by peer."""

    parent: CommitId
    index: int
    record: CommitRecord
    counted: dict[PeerId, Tokens]
    consumed: dict[tuple[PeerId, int], set[Root]] = field(default_factory=dict)
    """The origins of the residuals that it brought into the average, by peer and chunk."""


@dataclass
class Observed:
    """Every commit that any node ever held. Lineages may fork where commits are lone."""

    roots: dict[CommitId, Root] = field(default_factory=dict)
    commits: dict[CommitId, KnownCommit] = field(default_factory=dict)
    certified: dict[CommitId, CommitId] = field(default_factory=dict)
    """The one commit of a quorum on each base."""

    claims: dict[tuple[PeerId, CommitId, Root], Tokens] = field(default_factory=dict)
    """The tokens of each contribution, by its peer, base and root."""

    sources: dict[tuple[PeerId, CommitId, Root], tuple[Root | None, ...]] = field(default_factory=dict)
    """With error feedback: by chunk, the contribution that left the residual in this one; None where there was none."""

    start: CommitId = NO_COMMIT
    founders: tuple[PeerId, ...] = ()
    """The voters of the first round."""

    num_lone: int = 0
    liars: Collection[PeerId] = ()
    """Peers of whose tokens nothing is asked; by acks of theirs a base may have two commits of a quorum."""

    had_two: set[PeerId] = field(default_factory=set)
    """Peers that had two processes at once for a while, which may have read the same data."""

    def claim(self, peer: PeerId, base: CommitId, root: Root, tokens: Tokens) -> None:
        """A contribution with this root on this base stands for these tokens."""
        known = self.claims.setdefault((peer, base, root), list(tokens))
        if known != tokens:
            raise Violation(f"one contribution root of {peer} for two sets of tokens")

    def hold(self, links: list[ChainLink], commit: CommitId, root: Root | None) -> None:
        """A node stands at `commit` with this state, on this chain; None for a state that is known to be damaged."""
        if root is not None and self.roots.setdefault(commit, root) != root:
            raise Violation(f"commit {commit.hex()[:8]} has two states")
        self.add(links)

    def add(self, links: Sequence[ChainLink]) -> None:
        """A node knows the commits of this chain."""
        unknown: list[ChainLink] = []
        for link in reversed(links):
            if link.record is None or link.commit in self.commits:
                break
            unknown.append(link)
        for link in reversed(unknown):
            self._add(link, link.record)

    def _add(self, link: ChainLink, record: CommitRecord | None) -> None:
        if record is None:
            return
        if record.lone:
            self.num_lone += 1
        elif record.rewind:
            pass  # of the host, beside the commit that a quorum made
        elif self.certified.setdefault(record.parent, link.commit) != link.commit and not self.liars:
            first = self.certified[record.parent].hex()[:8]
            raise Violation(f"two commits of a quorum on one base: {first} and {link.commit.hex()[:8]}")
        counted: dict[PeerId, Tokens] = {}
        for entry in record.contributors:
            if entry.peer in self.liars:
                counted[entry.peer] = []
                continue
            claim = self.claims.get((entry.peer, record.parent, entry.root))
            if claim is None:
                raise Violation(f"commit {link.index} counts a contribution that {entry.peer} never made")
            consumed = consumed_tokens(record, entry.peer)
            counted[entry.peer] = accounting.split(claim, consumed)[0]
            if accounting.count(counted[entry.peer]) != consumed or entry.credited_tokens > consumed:
                raise Violation(f"commit {link.index} credits {entry.peer} with more than it contributed")
        commit = KnownCommit(record.parent, link.index, record, counted)
        self._check_against_ancestors(commit)
        if self.sources:
            self._check_residuals(commit)
        self.commits[link.commit] = commit

    def _check_against_ancestors(self, commit: KnownCommit) -> None:
        ancestor = self.commits.get(commit.parent)
        while ancestor is not None:
            for entry in commit.record.contributors:
                earlier = ancestor.record.contributor(entry.peer)
                if earlier is None or entry.peer in self.liars:
                    continue
                where = f"of {entry.peer} in commits {ancestor.index} and {commit.index}"
                if earlier.root == entry.root:
                    raise Violation(f"a contribution was applied twice: one root {where}")
                both = ancestor.counted[entry.peer], commit.counted[entry.peer]
                if entry.peer not in self.had_two:
                    both = accounting.data(both[0]), accounting.data(both[1])
                twice = accounting.overlap(*both)
                if twice:
                    raise Violation(f"tokens were counted twice: {twice} {where}")
            ancestor = self.commits.get(ancestor.parent)

    def _check_residuals(self, commit: KnownCommit) -> None:
        """No residual comes twice into one lineage: neither with two contributions, nor once more in what a third, which this lineage
        did not count, had left of it.
        """
        for entry in commit.record.contributors:
            peer = entry.peer
            before = [(known, known.record.contributor(peer)) for known in self._ancestors(commit)]
            for chunk in _chunks(commit.record, peer):
                counted = {
                    earlier.root for known, earlier in before if earlier and chunk in _chunks(known.record, peer)
                }
                origins, root = set[Root](), self._source(peer, commit.parent, entry.root, chunk)
                while root is not None and root not in origins:
                    origins.add(root)
                    root = None if root in counted else self._source_of(peer, root, chunk)
                twice = [known for known, _ in before if known.consumed.get((peer, chunk), set()) & origins]
                if twice:
                    where = f"in commits {twice[0].index} and {commit.index}"
                    raise Violation(f"a residual of {peer} was applied twice, chunk {chunk} {where}")
                commit.consumed[peer, chunk] = origins

    def _ancestors(self, commit: KnownCommit) -> list[KnownCommit]:
        return self.lineage(commit.parent)

    def _source(self, peer: PeerId, base: CommitId, root: Root, chunk: int) -> Root | None:
        return self.sources[peer, base, root][chunk]

    def _source_of(self, peer: PeerId, root: Root, chunk: int) -> Root | None:
        """Of a contribution on whatever base."""
        return next(
            (found[chunk] for (who, _, named), found in self.sources.items() if (who, named) == (peer, root)), None
        )

    def check_vote(self, peer: PeerId, base: CommitId, incarnation: int) -> None:
        """A peer votes on a base only with the disk that the roster there names: another one may have voted already."""
        commit = self.commits.get(base)
        if commit is None:  # the start, whose roster names everybody's first disk
            if base == self.start and incarnation != 1:
                raise Violation(f"{peer} votes on the start with a disk that its roster does not name")
            return
        disks = dict(zip(commit.record.roster, commit.record.incarnations, strict=True))
        if disks.get(peer, incarnation) != incarnation:
            raise Violation(f"{peer} votes on commit {commit.index} with a disk that its roster does not name")

    def lineage(self, head: CommitId) -> list[KnownCommit]:
        """The commits from the start to a head."""
        return self.after(head, 0)

    def after(self, head: CommitId, index: int) -> list[KnownCommit]:
        """The commits behind a head whose index is above this one, oldest first."""
        found: list[KnownCommit] = []
        commit = self.commits.get(head)
        while commit is not None and commit.index > index:
            found.append(commit)
            commit = self.commits.get(commit.parent)
        return found[::-1]

    def check_preferred(
        self, head: CommitId, first_target_tokens: int, is_there: Callable[[KnownCommit], bool]
    ) -> None:
        """At every fork behind this head a child of a quorum is kept before a lone one, whatever the work; of two lone ones that which
        more of the fork's voters made. Then the kept child has the most work below it, in classes that double, of each member in
        each round at most the cap of the commit at the fork; then its roster is the larger one, then its id the lower one. Of
        other lineages only those commits count whose bytes are there.
        """
        kept = {known.parent for known in self.lineage(head)} | {head}
        commits = {commit: known for commit, known in self.commits.items() if commit in kept or is_there(known)}
        children: dict[CommitId, list[CommitId]] = {}
        for commit, known in commits.items():
            children.setdefault(known.parent, []).append(commit)
        newest_first = sorted(commits, key=lambda commit: -commits[commit].index)

        def work(first: CommitId, cap: int) -> int:
            most: dict[CommitId, int] = {}
            for commit in newest_first:
                own = sum(min(entry.credited_tokens, cap) for entry in commits[commit].record.contributors)
                most[commit] = own + max((most[child] for child in children.get(commit, ())), default=0)
            return most[first]

        def merit(commit: CommitId) -> tuple[bool, int, int, int, int]:
            record = commits[commit].record
            fork = commits.get(record.parent)
            cap = fork.record.weight_cap_tokens if fork is not None else first_target_tokens
            target = fork.record.next_target_tokens if fork is not None else first_target_tokens
            rounds = work(commit, cap) // target
            voters = fork.record.roster if fork is not None else self.founders
            came = len(set(voters).intersection(record.roster)) if record.lone else 0
            return not record.lone, came, rounds.bit_length(), len(record.roster), -int.from_bytes(commit, "big")

        for commit in kept & commits.keys():
            siblings = children[commits[commit].parent]
            best = max(siblings, key=merit) if len(siblings) > 1 else commit
            if best != commit:
                raise Violation(f"commit {commit.hex()[:8]} is kept, {best.hex()[:8]} is preferred beside it")

    def check_stands_with(
        self, head: CommitId, followed: set[CommitId], is_there: Callable[[KnownCommit], bool]
    ) -> None:
        """At every fork of this unit behind the head: where a branch was made with the followed lineage of the spine alone, such a one
        is kept. Of other lineages only those commits count whose bytes are there.
        """
        kept = [*(known.parent for known in self.lineage(head)), head]
        children: dict[CommitId, list[CommitId]] = {}
        for commit, known in self.commits.items():
            if commit in kept or is_there(known):
                children.setdefault(known.parent, []).append(commit)

        def is_pure(commit: CommitId) -> bool:
            below = children.get(commit, [])
            return self.commits[commit].record.spine in followed and (not below or any(map(is_pure, below)))

        for parent, child in itertools.pairwise(kept):
            others = [commit for commit in children.get(parent, []) if commit != child]
            after = kept[kept.index(child) :]
            if any(map(is_pure, others)) and not all(self.commits[c].record.spine in followed for c in after):
                raise Violation(f"commit {child.hex()[:8]} is kept, a branch beside it stands with the followed spine")

    def lineage_ids(self, head: CommitId) -> set[CommitId]:
        """The commits from the start to a head, both with it."""
        return {head, *(known.parent for known in self.lineage(head))}

    def counted(self, peer: PeerId, head: CommitId) -> Tokens:
        """All tokens of a peer that the lineage of a head counted."""
        return [interval for commit in self.lineage(head) for interval in commit.counted.get(peer, [])]


def _chunks(record: CommitRecord, peer: PeerId) -> set[int]:
    return {chunk for first, stop in covered_chunks(record, peer) for chunk in range(first, stop)}


def check_applied_bytes(record: CommitRecord, blobs: list[bytes | None], codec: Codec, grid: ChunkGrid) -> None:
    """The bytes that are being applied are those that the record names."""
    for part, blob in zip(record.slices, blobs, strict=True):
        if blob is None or _hash(part, blob, codec, grid) != part.result_hash:
            raise Violation(f"slice {part.first_chunk} of commit {record.index} is applied with other bytes than named")


def _hash(part: SliceRecord, blob: bytes, codec: Codec, grid: ChunkGrid) -> Root:
    return result_root(split_chunks(blob, codec, grid, part.first_chunk, part.stop_chunk))
