"""What the coordinator knows of a unit's commits: every certificate is verified against its parent before it counts.

No I/O and no clock in here. The coordinator follows the lineage that peers follow, by the same rule; it votes nowhere, so this is
what it shows and hints, never what a peer must follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.identity import Verifier
from protocol.ids import CommitId, PeerId, Root, RunId
from protocol.rounds.chain import ChainLink, verify_certificate
from protocol.rounds.lineage import best_head, tree_of
from protocol.wire import commit_id, decode_certificate, decode_record

_STEP_BACK: Final = 32
"""How far to go back when a peer's certificates start behind an unknown parent: it is on a fork."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A commit that was not known before, with its certificate as received."""

    link: ChainLink
    parent: CommitId
    certificate: bytes


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a batch of certificates brought, and the index of the first one wanted next."""

    new: tuple[Verified, ...]
    want_from_index: int


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One commit for people (P9). Shares are of the summed weights, coverage of members times chunks; both 0 to 1."""

    index: int
    commit: CommitId
    members: tuple[PeerId, ...]
    shares: tuple[float, ...]
    coverage: float
    omitted: tuple[tuple[PeerId, str], ...]
    is_lone: bool


class ChainLog:
    """All verified commits of one unit, and the head of the best lineage."""

    def __init__(self, genesis: ChainLink, run_id: RunId, verifier: Verifier) -> None:
        self._links: dict[CommitId, ChainLink] = {genesis.commit: genesis}
        self._roots: dict[CommitId, Root] = {}
        self._run_id = run_id
        self._verifier = verifier
        self._tree = tree_of(genesis)
        self._head = genesis

    @property
    def head(self) -> ChainLink:
        """Tip of the lineage to follow."""
        return self._head

    def knows(self, commit: CommitId) -> bool:
        """Whether this commit, or genesis, was verified here."""
        return commit in self._links

    def link(self, commit: CommitId) -> ChainLink | None:
        """A verified link, or None."""
        return self._links.get(commit)

    def attested_root(self, commit: CommitId) -> Root | None:
        """The state root that a later commit attests for `commit`, or None."""
        return self._roots.get(commit)

    def lineage(self, limit: int) -> Sequence[ChainLink]:
        """At most `limit` newest commits of the head's lineage, oldest first, genesis left out."""
        links: list[ChainLink] = []
        link: ChainLink | None = self._head
        while link is not None and link.record is not None and len(links) < limit:
            links.append(link)
            link = self._links.get(link.record.parent)
        return links[::-1]

    def verify(self, certificates: Sequence[bytes]) -> Accepted:
        """Check certificates in order, without adding them; safe to run in a thread while nothing else is added.

        Raises:
            RemoteProtocolError: a certificate whose parent is known does not verify.
        """
        pending: dict[CommitId, ChainLink] = {}
        new: list[Verified] = []
        last_index: int | None = None
        for raw in certificates:
            certificate = decode_certificate(raw)
            record = decode_record(certificate.record)
            parent = pending.get(record.parent) or self._links.get(record.parent)
            if parent is None:
                want = last_index + 1 if last_index is not None else max(1, record.index - _STEP_BACK)
                return Accepted(tuple(new), want)
            known = self._links.get(commit_id(parent.commit, certificate.record))
            link = known or verify_certificate(certificate, parent, verifier=self._verifier, run_id=self._run_id)
            if known is None:
                new.append(Verified(link, parent.commit, raw))
            pending[link.commit] = link
            last_index = link.index
        return Accepted(tuple(new), (self._head.index if last_index is None else last_index) + 1)

    def add(self, new: Sequence[Verified]) -> bool:
        """Add what `verify` returned; True when the head moved."""
        before = self._head
        for item in new:
            self._links[item.link.commit] = item.link
            record = item.link.record
            if record is not None and record.attested is not None:
                self._roots.setdefault(record.attested.commit, record.attested.state_root)
            self._tree = self._tree.add(item.link, decode_certificate(item.certificate))
        self._head = self._tree.nodes[best_head(self._tree)].link
        self._tree = self._tree.pruned(self._head.commit)
        return self._head is not before

    def replay(self, certificates: Sequence[bytes]) -> None:
        """Rebuild from the ledger after a restart; what was verified once is verified again.

        Raises:
            RemoteProtocolError: the ledger holds what it cannot hold.
        """
        for raw in certificates:
            accepted = self.verify([raw])
            if not accepted.new and not self._is_known(raw):
                raise RemoteProtocolError("a commit in the ledger without its parent", "a chain", "restore the ledger")
            self.add(accepted.new)

    def _is_known(self, raw: bytes) -> bool:
        certificate = decode_certificate(raw)
        return self.knows(commit_id(decode_record(certificate.record).parent, certificate.record))


def round_row(link: ChainLink) -> RoundRow:
    """Who took part in a commit, with what weight, what was left out and why.

    Raises:
        RemoteProtocolError: `link` is a genesis.
    """
    record = link.record
    if record is None:
        raise RemoteProtocolError("a genesis asked for its round", "a commit")
    weights = [min(c.tokens, record.weight_cap_tokens) for c in record.contributors]
    total = sum(weights) or 1
    omitted = sorted({(o.peer, o.reason) for part in record.slices for o in part.omitted})
    members = {c.peer for c in record.contributors} | {peer for peer, _ in omitted}
    chunks = record.slices[-1].stop_chunk
    covered = sum(
        (part.stop_chunk - part.first_chunk) * (len(members) - len({o.peer for o in part.omitted}))
        for part in record.slices
    )
    return RoundRow(
        index=link.index,
        commit=link.commit,
        members=tuple(c.peer for c in record.contributors),
        shares=tuple(w / total for w in weights),
        coverage=covered / (chunks * len(members)),
        omitted=tuple(omitted),
        is_lone=record.lone,
    )
