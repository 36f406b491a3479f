from __future__ import annotations

from hashlib import sha256

import pytest
import trio.testing

from averaging.network.memory_storage import UNBOUNDED_BYTES, MemoryDisk, MemoryStorage
from averaging.unit_log import LOG_NAME, LoggedContribution, UnitLog
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages import (
    AckedRecord,
    Ballot,
    Certificate,
    CommitRecord,
    Contributor,
    OuterStep,
    SliceRecord,
)
from protocol.wire import encode_certificate, encode_record

Clock = trio.testing.MockClock
BASE, NEXT, LAST = CommitId(b"b" * 32), CommitId(b"n" * 32), CommitId(b"l" * 32)
ROOT = Root(b"r" * 32)
LOW, HIGH = Ballot(1, PeerId("p")), Ballot(4, PeerId("q"))


async def test_everything_about_the_open_base_is_read_back(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    await log.log_contribution(BASE, LoggedContribution(ROOT, 77, 5))
    await log.log_ack(BASE, LOW, b"record")
    await log.log_promise(BASE, HIGH)
    known = (await UnitLog(MemoryStorage(disk)).load()).bases[BASE]
    assert known.contributions == (LoggedContribution(ROOT, 77, 5),)
    assert known.promised == HIGH
    assert known.acked == AckedRecord(LOW, b"record")


async def test_an_ack_is_also_a_promise_and_a_lower_promise_never_lowers_it(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    await log.log_ack(BASE, HIGH, b"record")
    await log.log_promise(BASE, LOW)
    assert (await log.load()).bases[BASE].promised == HIGH


async def test_every_session_may_contribute_on_a_base_and_all_are_known(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    first, second = LoggedContribution(ROOT, 77, 5), LoggedContribution(Root(b"s" * 32), 40, 3)
    await log.log_contribution(BASE, first)
    await log.log_contribution(NEXT, first)
    await log.log_contribution(BASE, second)
    bases = (await log.load()).bases
    assert bases[BASE].contributions == (first, second)
    assert bases[NEXT].contributions == (first,)


async def test_a_lone_ack_is_kept_beside_the_other_and_both_are_promises(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    await log.log_ack(BASE, LOW, b"record of a quorum")
    await log.log_ack(BASE, HIGH, b"lone record", lone=True)
    known = (await log.load()).bases[BASE]
    assert known.acked == AckedRecord(LOW, b"record of a quorum")
    assert known.acked_lone == AckedRecord(HIGH, b"lone record")
    assert known.promised == HIGH


def _certificate(base: CommitId, text: bytes) -> bytes:
    """A certificate without votes; the log reads nothing but the parent of its record."""
    peer, ballot = PeerId("p"), Ballot(0, PeerId("p"))
    record = CommitRecord(
        UnitName("fragment-0"),
        base,
        1,
        ballot,
        (SliceRecord(0, 1, peer, Root(sha256(text).digest()), ()),),
        (Contributor(peer, 1, ROOT, 1, 1),),
        "fp32",
        1,
        1,
        OuterStep("mean", 1.0, 0.0),
        1,
        (peer,),
        (1,),
    )
    return encode_certificate(Certificate(encode_record(record), ()))


async def test_a_switch_replaces_what_followed_the_fork_in_one_entry_and_keeps_the_votes(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    ours, theirs, later = (_certificate(base, text) for base, text in ((NEXT, b"o"), (NEXT, b"t"), (LAST, b"l")))
    await log.log_certificate(BASE, b"shared")
    await log.log_ack(NEXT, LOW, b"record")
    await log.log_certificate(NEXT, ours)
    num_entries = len(disk.logs[LOG_NAME])
    await log.log_switch(NEXT, [theirs, later])
    assert len(disk.logs[LOG_NAME]) == num_entries + 1
    logged = await UnitLog(MemoryStorage(disk)).load()
    assert logged.certificates == [(BASE, b"shared"), (NEXT, theirs), (LAST, later)]
    assert logged.bases[NEXT].acked == AckedRecord(LOW, b"record")
    await log.log_switch(NEXT, [ours])
    assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, ours)]


async def test_a_switch_at_the_head_only_adds(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    following = _certificate(NEXT, b"f")
    await log.log_certificate(BASE, b"shared")
    await log.log_switch(NEXT, [following])
    assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, following)]


async def test_a_move_that_the_disk_refused_is_written_before_any_further_entry_of_the_lineage(
    autojump_clock: Clock,
) -> None:
    for is_switch in (False, True):
        disk = MemoryDisk()
        log = UnitLog(MemoryStorage(disk))
        ours, theirs, later = (_certificate(base, text) for base, text in ((NEXT, b"o"), (NEXT, b"t"), (LAST, b"l")))
        await log.log_certificate(BASE, b"shared")
        await log.log_certificate(NEXT, ours)
        disk.fail_with_disk_full_after(10)
        assert not await log.log_moved(NEXT, [theirs])
        with pytest.raises(StorageError):
            await (log.log_switch(LAST, [later]) if is_switch else log.log_certificate(LAST, later))
        assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, ours)]
        disk.capacity_bytes = UNBOUNDED_BYTES
        await (log.log_switch(LAST, [later]) if is_switch else log.log_certificate(LAST, later))
        assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, theirs), (LAST, later)]
        before = list(disk.logs[LOG_NAME])
        await log.settle()
        assert disk.logs[LOG_NAME] == before, "once is enough"


async def test_votes_do_not_wait_for_a_move_that_the_disk_refused(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    disk.fail_with_disk_full_after(80)
    assert not await log.log_moved(NEXT, [_certificate(NEXT, b"t")])
    await log.log_promise(LAST, HIGH)
    assert (await log.load()).bases[LAST].promised == HIGH


async def test_an_entry_that_a_full_disk_refused_is_not_there_and_what_was_is(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    await log.log_promise(BASE, LOW)
    disk.fail_with_disk_full_after(20)
    with pytest.raises(StorageError):
        await log.log_ack(BASE, HIGH, b"record")
    known = (await log.load()).bases[BASE]
    assert (known.promised, known.acked) == (LOW, None)


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


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"P" + BASE,
        b"P" + BASE + b"\1\0\0\0\1\0\xff",
        b"A" + BASE + b"\1\0",
        b"S" + BASE + b"\1\0",
        b"S" + BASE + b"\2\0\0\0\xff\xff",
        b"C" + BASE + b"short",
    ],
)
async def test_an_entry_that_does_not_hold_what_it_says_is_named_as_damage(entry: bytes, autojump_clock: Clock) -> None:
    storage = MemoryStorage(MemoryDisk())
    await storage.append(LOG_NAME, entry)
    with pytest.raises(StorageError, match="rejoin"):
        await UnitLog(storage).load()
