"""The followed lineage of a unit in memory: its links from the genesis or a milestone on, and the certificates that prove them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from protocol.ids import CommitId
from protocol.rounds.lineage.chain_link import ChainLink, lightened
from protocol.rounds.lineage.lineage import NUM_WHOLE
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import encode_certificate


class FollowedLine:
    """Links in order, oldest first. `certificates` proves all links but the first. Links NUM_WHOLE behind the head are light."""

    def __init__(self, links: list[ChainLink], certificates: list[Certificate]) -> None:
        self.links = links
        self.certificates = certificates

    @property
    def root(self) -> ChainLink:
        """The oldest link: the genesis, or a milestone."""
        return self.links[0]

    @property
    def head(self) -> ChainLink:
        """The newest link."""
        return self.links[-1]

    def place(self, commit: CommitId) -> int | None:
        """The place of a commit in `links`."""
        newest_first = range(len(self.links) - 1, -1, -1)
        return next((place for place in newest_first if self.links[place].commit == commit), None)

    def has(self, commit: CommitId) -> bool:
        """Whether a commit is on this lineage."""
        return self.place(commit) is not None

    def commit_at(self, index: int) -> CommitId | None:
        """The commit of a round; None after the head, and before the oldest link."""
        place = index - self.root.index
        return self.links[place].commit if 0 <= place < len(self.links) else None

    def after(self, known: Sequence[CommitId]) -> Iterator[bytes]:
        """Certificates after the newest of these commits that is on this lineage, oldest first; none if none is."""
        wanted, newest_first = frozenset(known), range(len(self.links) - 1, -1, -1)
        place = next((place for place in newest_first if self.links[place].commit in wanted), None)
        return map(encode_certificate, self.certificates[place:] if place is not None else [])

    def on(self, base: CommitId) -> Certificate | None:
        """The certificate of the commit whose parent is `base`."""
        place = self.place(base)
        return self.certificates[place] if place is not None and place < len(self.certificates) else None

    def since(self, index: int, limit: int) -> list[bytes]:
        """At most `limit` certificates from that of this round on. The oldest ones that are here, if that one is not."""
        first = max(0, index - self.root.index - 1)
        return [encode_certificate(certificate) for certificate in self.certificates[first : first + limit]]

    def append(self, link: ChainLink, certificate: Certificate) -> None:
        """Add the commit that follows the head."""
        self.links.append(link)
        self.certificates.append(certificate)
        self._lighten(len(self.links) - 1 - NUM_WHOLE)

    def replace_after(self, place: int, links: Sequence[ChainLink], certificates: Sequence[Certificate]) -> None:
        """Other commits follow the link at this place, perhaps none."""
        self.links[place + 1 :] = links
        self.certificates[place:] = certificates
        self.lighten()

    def lighten(self) -> None:
        """Make all old links light."""
        for place in range(1, len(self.links) - NUM_WHOLE):
            self._lighten(place)

    def _lighten(self, place: int) -> None:
        if place > 0:
            self.links[place] = lightened(self.links[place], self.certificates[place - 1].record)

    def begin_at(self, place: int) -> None:
        """Forget all before this place."""
        del self.links[:place]
        del self.certificates[:place]
