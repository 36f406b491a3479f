"""Which commits the host signs as milestones (R26). Pure.

A milestone must stay on the lineage that everybody follows. Another branch could only win (R22) where ours was lone, and a quorum made
the other one. So a milestone waits until all commits since the one before it were made by quorums, or lie so deep that no fork from
there is followed.

Rules: R22, R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import MAX_DEPTH
from protocol.rounds.lineage.milestones import MILESTONE_EVERY, SETTLED


def is_one_due(newest_index: int, head_index: int) -> bool:
    """Whether the lineage has come so far that there may be a milestone after that of round `newest_index`."""
    return head_index - SETTLED >= (newest_index // MILESTONE_EVERY + 1) * MILESTONE_EVERY


def due_milestones(newest_index: int, links: Sequence[ChainLink]) -> list[ChainLink]:
    """The links to sign, oldest first.

    Args:
        newest_index: the round of the newest milestone; 0 before the first.
        links: of the followed lineage, without a gap, oldest first, up to the head. Those up to the newest milestone may be left out.
    """
    found: list[ChainLink] = []
    head_index = links[-1].index if links else 0
    for link in links:
        if link.index <= newest_index:
            continue
        if head_index - link.index < SETTLED or (link.is_lone and head_index - link.index < MAX_DEPTH):
            break
        if link.index % MILESTONE_EVERY == 0:
            found.append(link)
    return found
