from __future__ import annotations

import pytest
import trio.testing

from averaging.network.memory_storage import MemoryDisk, MemoryStorage
from averaging.unit_log import LOG_NAME, LoggedContribution, UnitLog
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.messages import AckedRecord, Ballot

Clock = trio.testing.MockClock
BASE, NEXT = CommitId(b"b" * 32), CommitId(b"n" * 32)
ROOT = Root(b"r" * 32)
LOW, HIGH = Ballot(1, PeerId("p")), Ballot(4, PeerId("q"))


async def test_everything_about_the_open_base_is_read_back(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    await log.log_contribution(BASE, LoggedContribution(ROOT, 77, 5))
    await log.log_ack(BASE, LOW, b"record")
    await log.log_promise(BASE, HIGH)
    known = (await UnitLog(MemoryStorage(disk)).load()).bases[BASE]
    assert known.contribution == LoggedContribution(ROOT, 77, 5)
    assert known.promised == HIGH
    assert known.acked == AckedRecord(LOW, b"record")


async def test_an_ack_is_also_a_promise_and_a_lower_promise_never_lowers_it(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    await log.log_ack(BASE, HIGH, b"record")
    await log.log_promise(BASE, LOW)
    assert (await log.load()).bases[BASE].promised == HIGH


async def test_certificates_keep_their_order_and_votes_outlive_them(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    await log.log_ack(BASE, LOW, b"record")
    await log.log_certificate(BASE, b"first")
    await log.log_promise(NEXT, LOW)
    await log.log_certificate(NEXT, b"second")
    logged = await log.load()
    assert logged.certificates == [(BASE, b"first"), (NEXT, b"second")]
    assert logged.bases[BASE].acked == AckedRecord(LOW, b"record")
    assert logged.bases[NEXT].promised == LOW


async def test_results_are_held_by_hash_and_leftovers_can_be_dropped(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    other = Root(b"o" * 32)
    await log.write_result(BASE, ROOT, b"bytes")
    await log.write_result(BASE, other, b"leftover")
    assert await log.holds_results(BASE, [ROOT, other])
    assert not await log.holds_results(NEXT, [ROOT])
    await log.drop_results(BASE, [ROOT])
    assert await log.read_result(BASE, ROOT) == b"bytes"
    assert await log.read_result(BASE, other) is None


async def test_an_entry_that_nobody_writes_is_named_as_damage(autojump_clock: Clock) -> None:
    storage = MemoryStorage(MemoryDisk())
    await storage.append(LOG_NAME, b"Z" + BASE + b"?")
    with pytest.raises(StorageError, match="rejoin"):
        await UnitLog(storage).load()
