"""Votes and goodbyes on their way to disk. A peer says them only after they are written.

Rules: R14, R16, R19 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from averaging.state.unit_log import UnitLog
from protocol.ids import PeerId
from protocol.rounds.events import AckLogged, Event, LeaveLogged, PromiseLogged
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.orders import LogAck, LogLeave, LogPromise


async def logged_vote(log: UnitLog, action: LogAck | LogPromise | LogLeave, me: PeerId) -> Event:
    """Write a vote, and return the event that tells the round machine of it. A goodbye is a promise of the last attempt: after it this
    disk votes on its base no more.

    Raises:
        StorageError: the disk did not take it. The vote must not be sent.
    """
    match action:
        case LogAck():
            await log.log_ack(action.base, action.ballot, action.record, lone=action.lone, leaves=action.leaves)
            return AckLogged(action.base, action.ballot, action.commit)
        case LogPromise():
            await log.log_promise(action.base, action.ballot)
            return PromiseLogged(action.base, action.ballot)
        case LogLeave():
            await log.log_promise(action.leave.base, Ballot(LAST_ATTEMPT, me))
            return LeaveLogged(action.leave)
