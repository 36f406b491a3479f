"""A unit's log read for its lineage, earlier votes and abandoned commits.

Earlier votes are those on bases that may become our head, including one that was our head earlier (R19), with the goodbyes on which
they rely. Commits of abandoned lineages are put back into the tree when a process starts. So the host learns both sides of a fork,
even if it was away while only running processes knew them.

Rules: R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import structlog

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.state.log_entries import LoggedBase, LoggedRounds
from protocol.errors import RemoteProtocolError, StorageError, VersionError
from protocol.ids import CommitId, PeerId, short
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.chain_link import ChainLink, light_link_of
from protocol.rounds.lineage.lineage import NUM_WHOLE, CommitTree, tree_of
from protocol.rounds.messages.messages import Certificate, Leave
from protocol.rounds.messages.record import LAST_ATTEMPT
from protocol.rounds.messages.wire import commit_id, decode_certificate
from protocol.rounds.state import OpenRound, SignedLeave

log = structlog.get_logger()

Verified = Callable[[Certificate, ChainLink], ChainLink]
"""The link of a certificate on this parent, checked."""

OpenedLeave = Callable[[bytes], tuple[PeerId, Leave]]
"""The signer of a goodbye in its envelope, and its vote. Raises RemoteProtocolError and VersionError."""

Lineage: TypeAlias = tuple[FollowedLine, CommitTree]
"""A lineage, and the tree of all that is proven, also beside it."""


class EarlierVotes:
    """Votes of the log as it was last read, on all bases that are not behind our head.

    A start that lost the bytes of newer commits has an older head than the one we voted on. It reaches those bases again as it
    applies the commits. A peer that forgot its acks there could ack a second record, and a quorum could commit twice on one base. If
    all forgot a goodbye that an acked record relies on, nobody could finish the record, nor begin another one.
    """

    def __init__(self, opened: OpenedLeave) -> None:
        self._opened = opened
        self._bases: Mapping[CommitId, LoggedBase] = {}

    def read(self, logged: LoggedRounds, behind: Collection[CommitId]) -> None:
        """The log was read; these commits are behind our head."""
        self._bases = {base: known for base, known in logged.bases.items() if base not in behind}

    def on(self, base: CommitId) -> OpenRound:
        """The round on a base that becomes our head, with the votes of the log."""
        known = self._bases.get(base)
        if known is None:
            return OpenRound()
        promised = known.promised
        # its lost ack may have decided this base: acking another record could decide it twice
        has_left = known.has_forgotten
        if promised is not None and promised.attempt == LAST_ATTEMPT:
            promised, has_left = None, True
        return OpenRound(
            promised=promised,
            acked=known.acked,
            acked_lone=known.acked_lone,
            acked_before=known.acked_before,
            highest_attempt=promised.attempt if promised is not None else 0,
            has_left=has_left,
            leaves=self._leaves_of(known),
        )

    def _leaves_of(self, known: LoggedBase) -> Mapping[PeerId, SignedLeave]:
        found: dict[PeerId, SignedLeave] = {}
        for raw in known.leaves:
            try:
                peer, leave = self._opened(raw)
            except (RemoteProtocolError, VersionError) as error:
                log.warning("goodbye_dropped", reason=error.one_line())
                continue
            found[peer] = SignedLeave(leave, raw)
        return MappingProxyType(found)


def with_displaced(
    tree: CommitTree,
    displaced: Sequence[tuple[CommitId, bytes]],
    verified: Verified,
) -> CommitTree:
    """The tree of the followed lineage with these (parent commit, certificate bytes) added, parents first. Each is verified as if
    a peer had sent it. One that proves nothing is dropped with all that follows it; nothing here depends on it.
    """
    tip, num_dropped, problem = tree.tip, 0, ""
    for base, raw in displaced:
        parent = tree.nodes.get(base)
        try:
            if parent is None:
                raise RemoteProtocolError(f"a certificate on the unknown commit {short(base)}", "its parent before it")
            certificate = decode_certificate(raw)
            tree = tree.add(verified(certificate, parent.link), certificate)
        except (RemoteProtocolError, VersionError) as error:
            num_dropped, problem = num_dropped + 1, problem or error.one_line()
    if num_dropped:
        log.warning("left_commits_dropped", num_commits=num_dropped, reason=problem)
    # without a fork the tip must be the end of the only line
    return replace(tree, tip=tip) if tree.has_fork else tree


def followed(first: ChainLink, logged: LoggedRounds, verified: Verified) -> Lineage:
    """The lineage that the log describes; the tree also holds abandoned lineages. An entry on a base behind the head was
    written after a start that had lost later bytes. The lineage continues from that entry.

    Certificates of the lineage were verified before they were logged, and the log has checksums. So their signatures are not checked
    again, and old links are read light. Each must continue the one before it.

    Args:
        first: the genesis, or the link of the milestone at which the log begins.
    """
    links, certificates = [first], list[Certificate]()
    places = {links[0].commit: 0}
    found: list[tuple[ChainLink, Certificate]] = []
    num_light = len(logged.certificates) - NUM_WHOLE
    for number, (base, raw) in enumerate(logged.certificates):
        certificate, position = _read(raw), places.get(base)
        if position is None:
            raise _gap()
        if position + 1 < len(links):
            if commit_id(base, certificate.record) == links[position + 1].commit:
                continue
            for link in links[position + 1 :]:
                del places[link.commit]
            del links[position + 1 :], certificates[position:]
        links.append(_reread(links[-1], certificate.record, is_light=number < num_light))
        certificates.append(certificate)
        places[links[-1].commit] = position + 1
        found.append((links[-1], certificate))
    tree = tree_of(first).add_all(found)
    return FollowedLine(links, certificates), with_displaced(tree, logged.displaced, verified)


def _read(raw: bytes) -> Certificate:
    try:
        return decode_certificate(raw)
    except RemoteProtocolError as error:
        raise StorageError(f"a log with {error.found}", error.expected, "use another folder") from error


def _reread(parent: ChainLink, record: bytes, *, is_light: bool) -> ChainLink:
    try:
        if not is_light:
            return link_after(parent, record)
        link = light_link_of(record)
    except RemoteProtocolError as error:
        raise StorageError(f"a log with {error.found}", error.expected, "use another folder") from error
    if (link.parent, link.unit, link.index) != (parent.commit, parent.unit, parent.index + 1):
        raise _gap()
    return link


def _gap() -> StorageError:
    return StorageError("a log with a gap or of another run", "one chain from the run's start", "use another folder")


def led_to(
    first: ChainLink, tree: CommitTree, head: CommitId, certificates: Sequence[Certificate], verified: Verified
) -> Lineage:
    """The lineage from the first link up to a commit, each certificate verified. The tree keeps what it knows beside it."""
    links, proofs = [first], list[Certificate]()
    for certificate in certificates:
        if links[-1].commit == head:
            break
        links.append(verified(certificate, links[-1]))
        proofs.append(certificate)
    if links[-1].commit != head:
        raise RemoteProtocolError("a state that is not on the chain offered with it", "a commit of the chain")
    kept = tree if first.commit in tree.nodes else tree_of(first)
    return FollowedLine(links, proofs), kept.add_all(zip(links[1:], proofs, strict=True))
