"""Commits of lineages that were left, put back into the tree when a process starts: so the host hears of both sides of a fork, also if
it was away while they were known to running processes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from protocol.errors import RemoteProtocolError, VersionError
from protocol.ids import CommitId, short
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import decode_certificate

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
