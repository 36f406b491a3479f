"""The host's log of commits (coordinator/progress/chain_log.py), as far as its history needs it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain_link import ChainLink


class FollowedLog(Protocol):
    """The followed lineage of a unit.

    Attributes:
        genesis: the link before the first commit.
        oldest: the round of the oldest commit that is remembered.
    """

    genesis: ChainLink
    oldest: int

    @property
    def head(self) -> ChainLink:
        """Its newest commit."""
        ...

    def behind(self, commit: CommitId, /) -> Iterator[tuple[CommitId, int]]:
        """A commit and its ancestors with their rounds, newest first, as far as they are remembered."""
        ...

    def link(self, commit: CommitId, /) -> ChainLink | None:
        """A verified link, or None."""
        ...

    def knows(self, commit: CommitId, /) -> bool:
        """Whether a commit is remembered."""
        ...

    def attested_root(self, commit: CommitId, /) -> Root | None:
        """The state root that a later commit attests for this one, or None."""
        ...
