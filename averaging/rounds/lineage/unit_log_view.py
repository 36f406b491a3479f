"""What the log of a unit says of earlier votes and of commits that were abandoned.

What our log knows of votes on bases on which we may come to stand: also on the one on which we stood before (R19).

Rules: R19 (protocol/rounds/RULES.md).

Commits of lineages that were left, put back into the tree when a process starts: so the host hears of both sides of a fork, also if
it was away while they were known to running processes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import structlog

from averaging.state.unit_log import LoggedBase, LoggedRounds
from protocol.errors import RemoteProtocolError, VersionError
from protocol.ids import CommitId, short
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.messages.messages import LAST_ATTEMPT, Certificate
from protocol.rounds.messages.wire import decode_certificate
from protocol.rounds.state import OpenRound


class EarlierVotes:
    """Votes of the log as it was read last, on all bases but those that our head has behind it.

    A start that lost the bytes of newer commits stands further back than we voted. It comes to those bases again by applying what
    follows, and who forgot there what it acked could ack another record beside it: two commits of a quorum on one base.
    """

    def __init__(self) -> None:
        self._bases: Mapping[CommitId, LoggedBase] = {}

    def read(self, logged: LoggedRounds, behind: Collection[CommitId]) -> None:
        """The log was read; our head has these commits behind it."""
        self._bases = {base: known for base, known in logged.bases.items() if base not in behind}

    def on(self, base: CommitId) -> OpenRound:
        """The round on a base that becomes our head, as far as we voted on it before the log was read."""
        known = self._bases.get(base)
        if known is None:
            return OpenRound()
        promised = known.promised
        # it may have helped to decide this base: what else it would ack could be decided beside that
        has_left = known.has_forgotten
        if promised is not None and promised.attempt == LAST_ATTEMPT:
            promised, has_left = None, True
        return OpenRound(
            promised=promised,
            acked=known.acked,
            acked_lone=known.acked_lone,
            highest_attempt=promised.attempt if promised is not None else 0,
            has_left=has_left,
        )


log = structlog.get_logger()


def with_displaced(
    tree: CommitTree,
    displaced: Sequence[tuple[CommitId, bytes]],
    verified: Callable[[Certificate, ChainLink], ChainLink],
) -> CommitTree:
    """The tree of the followed lineage with these (parent commit, certificate bytes), parents first, each verified as if somebody had
    sent it. One that proves nothing goes with what follows it: nothing here rests on it.
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
    # where there is no fork the tip must be the end of the only line
    return replace(tree, tip=tip) if tree.has_fork else tree
