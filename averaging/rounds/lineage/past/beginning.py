"""The beginning of a unit's lineage on this disk: the genesis, or a milestone that moves on as the lineage grows (R26).

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import structlog

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.past.offered_work import OfferedWork
from averaging.state.log_entries import LoggedMilestone
from averaging.state.unit_log import UnitLog
from protocol.errors import RemoteProtocolError, StorageError, VersionError
from protocol.ids import short
from protocol.rounds.lineage import lineage
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.milestones import SignedMilestone

log = structlog.get_logger()

_ANOTHER_FOLDER = "use another folder"


def first_link(milestones: HeldMilestones | None, genesis: ChainLink, begins: LoggedMilestone | None) -> ChainLink:
    """The link at which a log begins.

    Raises:
        StorageError: the log begins at a milestone that the run's host did not sign.
    """
    if begins is None:
        return genesis
    if milestones is None:
        raise StorageError("a log that begins at a milestone", "one from the run's start", _ANOTHER_FOLDER)
    try:
        link = milestones.opened(begins.sealed).link
    except (RemoteProtocolError, VersionError) as error:
        raise StorageError(f"a log that begins at {error.found}", error.expected, _ANOTHER_FOLDER) from error
    if (link.commit, link.unit) != (begins.commit, genesis.unit):
        raise StorageError(
            f"a log that begins at {short(link.commit)} of {link.unit}",
            f"{short(begins.commit)} of {genesis.unit}",
            _ANOTHER_FOLDER,
        )
    return link


async def begin_later(
    unit_log: UnitLog, milestones: HeldMilestones | None, line: FollowedLine, offered: OfferedWork
) -> bool:
    """Forget all before the newest milestone that lies MAX_DEPTH behind the head: no fork from before it is followed any more.
    Returns whether the log must be rewritten. If the disk refuses, the next commit tries again.
    """
    unit, head = line.head.unit, line.head.index
    if milestones is None or head - line.root.index < lineage.MAX_DEPTH:
        return False
    milestones.settle(line)
    found = milestones.of(unit).behind(head - lineage.MAX_DEPTH, line.commit_at)
    place = line.place(found.link.commit) if found is not None else None
    if found is None or not place:
        return False
    offered.begin_at(line, place)
    try:
        await unit_log.log_milestone(LoggedMilestone(found.link.commit, found.sealed, offered.settled_step))
    except StorageError as error:
        log.warning("milestone_not_logged", unit=unit, reason=error.one_line())
        return False
    line.begin_at(place)
    milestones.settle(line)
    return True


async def begin_anew(unit_log: UnitLog, milestone: SignedMilestone, line: FollowedLine, offered: OfferedWork) -> None:
    """Log that the lineage begins at a milestone to which ours does not lead.

    Raises:
        StorageError: the disk refuses; nothing has changed.
    """
    next_step = offered.next_step(line)
    await unit_log.log_milestone(LoggedMilestone(milestone.link.commit, milestone.sealed, next_step))
    offered.begin_anew(next_step)
