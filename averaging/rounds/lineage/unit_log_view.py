"""A unit's log read for its lineage, earlier votes and abandoned commits.

Earlier votes are those on bases that may become our head, including one that was our head earlier (R19). Commits of abandoned
lineages are put back into the tree when a process starts. So the host learns both sides of a fork, even if it was away while only
running processes knew them.

Rules: R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog

from averaging.state.unit_log import LoggedBase, LoggedRounds
from protocol.errors import RemoteProtocolError, StorageError, VersionError
from protocol.ids import CommitId, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree, tree_of
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import LAST_ATTEMPT
from protocol.rounds.messages.wire import commit_id, decode_certificate, encode_certificate
from protocol.rounds.state import OpenRound

Verified = Callable[[Certificate, ChainLink], ChainLink]
"""The link of a certificate on this parent, checked."""

Lineage: TypeAlias = tuple[list[ChainLink], list[bytes], CommitTree]
"""Links from the genesis on, the certificates of all links after the genesis, and the tree of all that they prove."""


class EarlierVotes:
    """Votes of the log as it was last read, on all bases that are not behind our head.

    A start that lost the bytes of newer commits has an older head than the one we voted on. It reaches those bases again as it
    applies the commits. A peer that forgot its acks there could ack a second record, and a quorum could commit twice on one base.
    """

    def __init__(self) -> None:
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
        )


log = structlog.get_logger()


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
    """
    links, raws = [first], list[bytes]()
    places = {links[0].commit: 0}
    found: list[tuple[ChainLink, Certificate]] = []
    for base, raw in logged.certificates:
        certificate, position = decode_certificate(raw), places.get(base)
        if position is None:
            raise StorageError(
                "a log with a gap or of another run", "one chain from the run's start", "use another folder"
            )
        if position + 1 < len(links):
            if commit_id(base, certificate.record) == links[position + 1].commit:
                continue
            for link in links[position + 1 :]:
                del places[link.commit]
            del links[position + 1 :], raws[position:]
        links.append(verified(certificate, links[-1]))
        raws.append(raw)
        places[links[-1].commit] = position + 1
        found.append((links[-1], certificate))
    tree = tree_of(links[0]).add_all(found)
    return links, raws, with_displaced(tree, logged.displaced, verified)


def led_to(
    first: ChainLink, tree: CommitTree, head: CommitId, certificates: Sequence[Certificate], verified: Verified
) -> Lineage:
    """The lineage up to a commit, each certificate verified."""
    links, raws = [first], list[bytes]()
    found: list[tuple[ChainLink, Certificate]] = []
    for certificate in certificates:
        if links[-1].commit == head:
            break
        links.append(verified(certificate, links[-1]))
        raws.append(encode_certificate(certificate))
        found.append((links[-1], certificate))
    if links[-1].commit != head:
        raise RemoteProtocolError("a state that is not on the chain offered with it", "a commit of the chain")
    return links, raws, tree.add_all(found)  # keeps the other lineages of the log
