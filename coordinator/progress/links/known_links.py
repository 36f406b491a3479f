"""Verified commits by id: whole, light, or as rows of the ledger that are read on first use. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from coordinator.ledger.ledger import CommitRow
from protocol.errors import RemoteProtocolError
from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink, light_link_of, link_of
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.messages.wire import decode_certificate


@dataclass(frozen=True, slots=True)
class Followed:
    """The commits of the followed lineage from round `oldest` on. Anything kept of earlier rounds counts as followed: forks from there
    were settled long ago.
    """

    commits: frozenset[CommitId]
    oldest: int

    def has(self, commit: CommitId, index: int) -> bool:
        """Whether a commit of this round is on the followed lineage."""
        return index < self.oldest or commit in self.commits


NOTHING_FOLLOWED: Final = Followed(frozenset(), 0)


class KnownLinks:
    """Verified commits by id. A row of the ledger is decoded on first use."""

    def __init__(self, genesis: ChainLink) -> None:
        self._decoded = {genesis.commit: genesis}
        self._raw: dict[CommitId, CommitRow] = {}
        self._children: dict[CommitId, tuple[CommitId, ...]] = {}
        self._genesis = genesis
        self.light_to = 0
        """Links up to this index are light, but for those that came late."""

    def forget(self, oldest: int) -> None:
        """Forget all commits of earlier rounds, but for the genesis."""
        self._decoded = {
            commit: link for commit, link in self._decoded.items() if link.index >= oldest or link is self._genesis
        }
        self._raw = {commit: row for commit, row in self._raw.items() if row.index >= oldest}
        self._children = {base: children for base, children in self._children.items() if base in self}

    def lighten(self, tree: CommitTree) -> None:
        """Take over the light links of a tree."""
        self.light_to = tree.light_to
        for commit, link in self._decoded.items():
            node = tree.nodes.get(commit)
            if node is not None and node.link.is_light and not link.is_light:
                self._decoded[commit] = node.link

    def __len__(self) -> int:
        return len(self._decoded) + len(self._raw)

    def __contains__(self, commit: CommitId) -> bool:
        return commit in self._decoded or commit in self._raw

    def get(self, commit: CommitId) -> ChainLink | None:
        """A link, or None.

        Raises:
            RemoteProtocolError: the ledger's row is damaged.
        """
        link, row = self._decoded.get(commit), self._raw.get(commit)
        if link is None and row is not None:
            make = link_of if row.index > self.light_to else light_link_of
            link = make(decode_certificate(row.certificate).record)
            if link.commit != commit:
                raise RemoteProtocolError("a commit in the ledger under another id", "its own", "restore the ledger")
            self.add(link)
        return link

    def add(self, link: ChainLink) -> None:
        """Add a decoded commit."""
        if link.commit not in self and link.parent is not None:
            self._note_child(link.parent, link.commit)
        self._decoded[link.commit] = link
        self._raw.pop(link.commit, None)

    def add_raw(self, row: CommitRow) -> None:
        """Add a commit in the ledger's form."""
        if row.commit not in self:
            self._note_child(row.parent, row.commit)
            self._raw[row.commit] = row

    def _note_child(self, parent: CommitId, commit: CommitId) -> None:
        self._children[parent] = (*self._children.get(parent, ()), commit)

    def children(self, commit: CommitId) -> Iterator[ChainLink]:
        """The known commits on a base. Raises RemoteProtocolError as `get`."""
        for child in self._children.get(commit, ()):
            if (link := self.get(child)) is not None:
                yield link

    def place(self, commit: CommitId) -> tuple[int, CommitId | None] | None:
        """Round and parent of a commit, without decoding it; None for an unknown one."""
        link, row = self._decoded.get(commit), self._raw.get(commit)
        if link is not None:
            return link.index, link.parent
        return None if row is None else (row.index, row.parent)
