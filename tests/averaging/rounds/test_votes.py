from __future__ import annotations

import pytest
import trio.testing

from averaging.rounds.votes import logged_vote
from averaging.state.unit_log import UnitLog
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.ids import CommitId, PeerId, UnitName
from protocol.rounds.events import AckLogged, Event, LeaveLogged, PromiseLogged
from protocol.rounds.messages.messages import AckedRecord, Leave, Member
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.orders import LogAck, LogLeave, LogPromise

ME = PeerId("me")
BASE, NEXT = CommitId(b"b" * 32), CommitId(b"n" * 32)
BALLOT = Ballot(3, PeerId("leader"))
LEAVE = Leave(Member(ME, 1, 1), UnitName("model"), BASE, None, None)


@pytest.mark.parametrize(
    ("action", "event", "promised"),
    [
        (LogAck(BASE, BALLOT, b"record", NEXT), AckLogged(BASE, BALLOT, NEXT), BALLOT),
        (LogPromise(BASE, BALLOT), PromiseLogged(BASE, BALLOT), BALLOT),
        (LogLeave(LEAVE), LeaveLogged(LEAVE), Ballot(LAST_ATTEMPT, ME)),
    ],
    ids=["an ack", "a promise", "a goodbye"],
)
async def test_a_vote_is_on_disk_when_the_round_machine_hears_of_it(
    action: LogAck | LogPromise | LogLeave,
    event: Event,
    promised: Ballot,
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = MemoryDisk()
    told = await logged_vote(UnitLog(MemoryStorage(disk)), action, ME)
    known = (await UnitLog(MemoryStorage(disk)).load()).bases[BASE]
    assert told == event
    assert known.promised == promised
    assert known.acked == (AckedRecord(BALLOT, b"record") if isinstance(action, LogAck) else None)
