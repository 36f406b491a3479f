"""A unit's log read for earlier votes and abandoned commits.

Earlier votes are those on bases that may become our head, including one that was our head earlier (R19). Commits of abandoned
lineages are put back into the tree when a process starts. So the host learns both sides of a fork, even if it was away while only
running processes knew them.

Rules: R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from averaging.state.unit_log import LoggedBase, LoggedRounds
from protocol.errors import RemoteProtocolError, VersionError
from protocol.ids import CommitId, short
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.record import LAST_ATTEMPT
from protocol.rounds.messages.wire import decode_certificate
from protocol.rounds.state import OpenRound


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
    verified: Callable[[Certificate, ChainLink], ChainLink],
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
