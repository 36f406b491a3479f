"""The tree of verified commits, and which of its branches to follow (R22). Pure.

Lineages are compared only when their certificates were verified here. At every fork, the branch with the newest rewind of the host
(R28) comes before all others. Then a child that a quorum of the fork's voters
acked comes before a lone one, whatever follows. Then the child whose best descendant has the most work is kept. Work is compared
in classes that double, so nearly equal sides are decided by constants and no peer switches back and forth. Work is the tokens
credited to members, of each in each round at most the cap that both sides of the fork agreed on before it.

In a run with several units one of them, the spine, decides for all (R23). A branch of another unit that was trained with the
spine's followed lineage is preferred to one that was trained with another.

Rules: R22, R23, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final

from protocol.errors import LocalProtocolError
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink, lightened
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import NO_SPINE
from protocol.rounds.messages.requests import MAX_KNOWN

MAX_DEPTH: Final = 4096
"""Commits behind the head that are kept in the tree; a deeper fork is not followed."""

NUM_WHOLE: Final = 512
"""Newest links of a lineage that are whole in memory. Older ones are light: nothing but a choice between forks looks at them."""

MANY_AT_ONCE: Final = 64
"""Old commits that leave a tree, or become light in it, together: each change makes the tree anew."""

NUM_DENSE: Final = 10


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A verified commit and its proof; the root of the tree needs no proof here."""

    link: ChainLink
    certificate: Certificate | None


@dataclass(frozen=True, slots=True)
class CommitTree:
    """Verified commits of one unit by id. `root` is the oldest one kept, `tip` the one added last. Links up to the index `light_to`
    are light, but for those that came late.
    """

    root: CommitId
    tip: CommitId
    nodes: Mapping[CommitId, TreeNode]
    has_fork: bool = False
    has_lone: bool = False
    light_to: int = 0

    def add(self, link: ChainLink, certificate: Certificate) -> CommitTree:
        """The tree with one more commit, whose parent must be in it."""
        return self if link.commit in self.nodes else self.add_all([(link, certificate)])

    def add_all(self, found: Iterable[tuple[ChainLink, Certificate]]) -> CommitTree:
        """As `add`, one after another, at the cost of a single one."""
        nodes, tip, has_fork, has_lone = dict(self.nodes), self.tip, self.has_fork, self.has_lone
        for link, certificate in found:
            if link.commit in nodes:
                continue
            if link.parent is None or link.parent not in nodes:
                raise LocalProtocolError("a commit whose parent is not in the tree", "its parent first")
            # the commit added last has no children yet, and mostly the chain grows there
            has_fork = has_fork or (link.parent != tip and any(n.link.parent == link.parent for n in nodes.values()))
            has_lone = has_lone or link.is_lone
            nodes[link.commit] = TreeNode(link, certificate)
            tip = link.commit
        return replace(self, tip=tip, nodes=MappingProxyType(nodes), has_fork=has_fork, has_lone=has_lone)

    def path(self, ancestor: CommitId, commit: CommitId) -> tuple[TreeNode, ...] | None:
        """The nodes after `ancestor` up to `commit`, oldest first; None when `ancestor` is not behind it."""
        nodes: list[TreeNode] = []
        here: CommitId | None = commit
        while here is not None and here != ancestor:
            node = self.nodes.get(here)
            if node is None:
                return None
            nodes.append(node)
            here = node.link.parent
        return tuple(reversed(nodes)) if here == ancestor else None

    def common(self, one: CommitId, other: CommitId) -> CommitId | None:
        """The newest commit behind both, None when the fork lies deeper than the tree."""
        of_one = {link.commit for link in self.behind(one)}
        return next((link.commit for link in self.behind(other) if link.commit in of_one), None)

    def behind(self, commit: CommitId) -> Iterator[ChainLink]:
        """A commit and its ancestors as far as the tree goes, newest first."""
        node = self.nodes.get(commit)
        while node is not None:
            yield node.link
            parent = node.link.parent
            node = None if parent is None else self.nodes.get(parent)

    def pruned(self, head: CommitId) -> CommitTree:
        """The tree without commits more than MAX_DEPTH behind the head, on any branch, and with light links NUM_WHOLE behind it;
        done rarely, MANY_AT_ONCE.
        """
        return self._lightened(self.nodes[head].link.index - NUM_WHOLE)._shortened(head)

    def _lightened(self, light_to: int) -> CommitTree:
        if light_to - self.light_to < MANY_AT_ONCE:
            return self
        nodes = {
            commit: node if node.link.index > light_to or node.certificate is None else _light(node, node.certificate)
            for commit, node in self.nodes.items()
        }
        return replace(self, nodes=MappingProxyType(nodes), light_to=light_to)

    def _shortened(self, head: CommitId) -> CommitTree:
        index = self.nodes[head].link.index
        if index - self.nodes[self.root].link.index <= MAX_DEPTH + MANY_AT_ONCE:
            return self
        kept = self.path(self.root, head)
        if kept is None:
            return self
        root = kept[-MAX_DEPTH].link.commit
        nodes = {root: self.nodes[root]}
        for commit, node in self.nodes.items():  # in the order of adding: parents come before their children
            if node.link.parent in nodes:
                nodes[commit] = node
        parents = [node.link.parent for commit, node in nodes.items() if commit != root]
        tip = self.tip if self.tip in nodes else max(nodes, key=lambda commit: nodes[commit].link.index)
        has_lone = any(node.link.is_lone for node in nodes.values())
        has_fork = len(set(parents)) < len(parents)
        return CommitTree(root, tip, MappingProxyType(nodes), has_fork, has_lone, self.light_to)


def _light(node: TreeNode, certificate: Certificate) -> TreeNode:
    return node if node.link.is_light else TreeNode(lightened(node.link, certificate.record), certificate)


def tree_of(root: ChainLink) -> CommitTree:
    """A tree of one commit."""
    return CommitTree(root.commit, root.commit, MappingProxyType({root.commit: TreeNode(root, None)}))


class Standing(Enum):
    """How a cited spine commit relates to the spine lineage that is followed here."""

    OTHER = 0
    UNKNOWN = 1
    FOLLOWED = 2


@dataclass(frozen=True, slots=True)
class SpineView:
    """The spine as this peer knows and follows it: `head` is the newest commit that it adopted, in `tree`."""

    head: CommitId
    tree: CommitTree

    @property
    def link(self) -> ChainLink:
        """The head."""
        return self.tree.nodes[self.head].link

    @property
    def links(self) -> tuple[ChainLink, ...]:
        """The head and all commits behind it, oldest first."""
        behind = self.tree.path(self.tree.root, self.head) or ()
        return (self.tree.nodes[self.tree.root].link, *(node.link for node in behind))

    def lineage(self) -> frozenset[CommitId]:
        """Ids of the head and all commits behind it."""
        return frozenset(link.commit for link in self.links)

    def standing(self, cited: CommitId) -> Standing:
        """How a spine commit relates to the followed lineage. One that comes after the head belongs to it: we are merely behind."""
        if cited in (self.head, NO_SPINE):
            return Standing.FOLLOWED
        node = self.tree.nodes.get(cited)
        if node is None:
            return Standing.UNKNOWN
        older, newer = (cited, self.head) if node.link.index <= self.link.index else (self.head, cited)
        return Standing.OTHER if self.tree.path(older, newer) is None else Standing.FOLLOWED


@dataclass(frozen=True, slots=True)
class _Merit:
    """The rank of a branch: the work of its best descendant, in tokens since the fork. Only descendants that stand with the
    followed spine count, if there are any.

    A spine commit that is unknown here may come to be followed, and is then known. Until then it counts no more than a commit of
    another lineage. Otherwise two holders who each know only the spine that they left would prefer each other's branch.
    """

    is_with_spine: bool
    work_tokens: int
    rewind: int = 0
    """The newest rewind on the branch (R28), by its number; 0 for none."""


def best_head(
    tree: CommitTree,
    start: CommitId | None = None,
    spine: SpineView | None = None,
    without: Collection[CommitId] = (),
) -> CommitId:
    """The head to follow: from `start`, or the root, at each fork the preferred child (R22; with `spine` R23 comes first).
    `without`: commits that are not available now; neither they nor later ones count.
    """
    if not tree.has_fork and not without:
        return tree.tip
    children: dict[CommitId, list[ChainLink]] = {}
    for commit, node in tree.nodes.items():
        if node.link.parent is not None and commit != tree.root and commit not in without:
            children.setdefault(node.link.parent, []).append(node.link)
    followed = spine.lineage() if spine is not None else frozenset[CommitId]()
    here = tree.root if start is None else start
    while here in children:
        fork, ahead = tree.nodes[here].link, children[here]
        if len(ahead) > 1:
            merits = _merits(tree, children, fork, spine, followed)
            ahead = [max(ahead, key=lambda child: _preference(fork, child, merits[child.commit]))]
        here = ahead[0].commit
    return here


def best_stood_on(tree: CommitTree, commits: Collection[CommitId]) -> CommitId:
    """The head to follow if only these commits of the tree, and those behind them, count."""
    nodes = {tree.root: tree.nodes[tree.root]}
    for commit in commits:
        nodes.update((node.link.commit, node) for node in tree.path(tree.root, commit) or ())
    newest = max(nodes.values(), key=lambda node: node.link.index).link.commit
    return best_head(CommitTree(tree.root, newest, MappingProxyType(nodes), tree.has_fork))


def _merits(
    tree: CommitTree,
    children: Mapping[CommitId, list[ChainLink]],
    fork: ChainLink,
    spine: SpineView | None,
    followed: frozenset[CommitId],
) -> dict[CommitId, _Merit]:
    """For each commit after the index of `fork`: whether a line from it to an end stands with the spine, and the most work on such
    a line. One commit that was made with another spine spoils the whole line: later commits build on it.
    """
    merits: dict[CommitId, _Merit] = {}
    later = [node.link for node in tree.nodes.values() if node.link.index > fork.index]
    for link in sorted(later, key=lambda link: -link.index):
        cited = link.spine
        own = spine is None or cited in followed or spine.standing(cited) is Standing.FOLLOWED
        below = [merits[child.commit] for child in children.get(link.commit, ())]
        is_with_spine = own and (not below or any(merit.is_with_spine for merit in below))
        counted = (merit.work_tokens for merit in below if merit.is_with_spine or not is_with_spine)
        rewind = max(link.rewind, *(merit.rewind for merit in below)) if below else link.rewind
        merits[link.commit] = _Merit(is_with_spine, work_after(fork, [link]) + max(counted, default=0), rewind)
    return merits


def work_after(fork: ChainLink, links: Iterable[ChainLink]) -> int:
    """Tokens credited in these commits after a fork, of each contributor in each of them at most the weight cap of the fork's own
    record (R22). Every record names its own cap, so a peer that commits alone could write any number; both sides agreed on the
    fork's.
    """
    cap = fork.cap_tokens
    return sum(min(tokens, cap) for link in links for tokens in link.credited)


def work_class(fork: ChainLink, work_tokens: int) -> int:
    """Bit length of the rounds' worth of work since the fork: it changes when the work doubles (R22)."""
    return (work_tokens // max(1, fork.target_tokens)).bit_length()


def _preference(fork: ChainLink, child: ChainLink, merit: _Merit) -> tuple[int, bool, bool, int, int, int, int]:
    """The newest rewind of the host comes before all else (R28). A quorum of the fork's roster comes before any work:
    peers that commit alone can sign as much work as they like. Among lone commits the one with more of the fork's voters comes first,
    for the same reason.
    """
    return (
        merit.rewind,
        merit.is_with_spine,
        not child.is_lone,
        _num_voters(fork, child) if child.is_lone else 0,
        work_class(fork, merit.work_tokens),
        len(child.roster),
        -int.from_bytes(child.commit, "big"),
    )


def is_outvoted(fork: ChainLink, lone: ChainLink, other: ChainLink) -> bool:
    """Whether a child of a fork is lone and can never be preferred to another one, whatever follows either of them."""
    if not lone.is_lone:
        return False
    return not other.is_lone or _num_voters(fork, lone) < _num_voters(fork, other)


def is_taken_back(tree: CommitTree, head: CommitId, end: CommitId) -> bool:
    """Whether the lineage of `head` leaves that of `end` with a newer rewind: then nobody comes to follow `end` (R28)."""
    fork = tree.common(head, end)
    ours, theirs = (tree.path(fork, each) or () if fork is not None else () for each in (head, end))
    newest = max((node.link.rewind for node in ours), default=0)
    return newest > max((node.link.rewind for node in theirs), default=0)


def goes_on(tree: CommitTree, commit: CommitId) -> bool:
    """Whether commits on top of this one are known. Longer lineages beside it do not count: a rewind may have taken them back."""
    return any(node.link.parent == commit for node in tree.nodes.values())


def _num_voters(fork: ChainLink, lone: ChainLink) -> int:
    voters = frozenset(fork.roster)
    return sum(peer in voters for peer in lone.roster)


def known_commits(tree: CommitTree, head: CommitId) -> tuple[CommitId, ...]:
    """Commits to name when asking for newer ones: the head, ten before it, then in doubling steps back to the root."""
    behind = [head]
    nodes = tree.path(tree.root, head) or ()
    lineage = [tree.root, *(node.link.commit for node in nodes)]
    distance, step = 1, 1
    while distance < len(lineage) and len(behind) < MAX_KNOWN - 1:
        behind.append(lineage[-1 - distance])
        step = step if distance < NUM_DENSE else step * 2
        distance += step
    return tuple(dict.fromkeys((*behind, tree.root)))
