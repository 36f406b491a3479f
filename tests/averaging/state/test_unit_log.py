from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.interfaces import LOG_FRAME_BYTES, BegunFile
from averaging.network.seams.offload import ThreadOffload
from averaging.state import log_sizes, unit_log
from averaging.state.log_entries import LOG_NAME, LoggedContribution, LoggedRounds, certificate_entry
from averaging.state.unit_log import WRITE_BYTES, LogLimits, UnitLog
from averaging.storage.file_storage import FileBegun, FileStorage
from averaging.storage.memory_storage import UNBOUNDED_BYTES, MemoryDisk, MemoryStorage
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.messages import AckedRecord, Certificate
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, OuterStep, SliceRecord
from protocol.rounds.messages.wire import commit_id, decode_certificate, encode_certificate, encode_record
from tests.virtual import InlineOffload

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


@pytest.mark.parametrize("is_compacted", [False, True])
async def test_goodbyes_are_on_disk_with_the_ack_that_may_rely_on_them_and_as_long_as_it_is(
    is_compacted: bool, autojump_clock: Clock
) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    await log.log_ack(BASE, LOW, b"record", leaves=[b"first"])
    await log.log_ack(BASE, HIGH, b"record", leaves=[b"first", b"second"])
    await log.log_ack(NEXT, LOW, b"record")
    num_entries = len(disk.logs[LOG_NAME])
    await log.log_ack(BASE, HIGH, b"record", leaves=[b"first", b"second"])
    assert len(disk.logs[LOG_NAME]) == num_entries + 1, "what is there already is not written again"
    if is_compacted:
        await log.compact({BASE, NEXT})
    bases = (await UnitLog(MemoryStorage(disk)).load()).bases
    assert (bases[BASE].leaves, bases[NEXT].leaves) == ((b"first", b"second"), ())
    assert bases[BASE].acked == AckedRecord(HIGH, b"record")
    await log.log_certificate(BASE, _certificate(BASE, b"c"))
    await log.compact({NEXT})
    assert (await log.load()).bases[BASE].leaves == ()


async def test_goodbyes_are_written_again_after_the_log_was_written_anew_without_them(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()), LogLimits(kept_bases=0))
    for _ in range(2):
        await log.log_ack(BASE, LOW, b"record", leaves=[b"goodbye"])
        assert (await log.load()).bases[BASE].leaves == (b"goodbye",)
        await log.compact(())
        assert (await log.load()).bases[BASE].leaves == ()


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


async def test_a_whole_lineage_is_written_in_as_few_entries_as_may_hold_it(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = [CommitId(bytes([number]) * 32) for number in range(1, 8)]
    certificates = [_certificate(base, b"%d" % number) for number, base in enumerate(bases)]
    for most_bytes, num_entries in ((1 << 20, 1), (2 * len(certificates[0]), 4), (1, 7)):
        monkeypatch.setattr(unit_log, "MAX_ENTRY_BYTES", most_bytes)
        disk = MemoryDisk()
        log = UnitLog(MemoryStorage(disk))
        await log.log_certificate(BASE, b"shared")
        await log.log_lineage(bases[0], certificates)
        assert len(disk.logs[LOG_NAME]) == 1 + num_entries
        expected = [(BASE, b"shared"), *zip(bases, certificates, strict=True)]
        assert (await UnitLog(MemoryStorage(disk)).load()).certificates == expected
        await log.log_lineage(LAST, [])
        assert len(disk.logs[LOG_NAME]) == 1 + num_entries


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


class _Counting(MemoryStorage):
    """Counts how often it is asked what there is, and may refuse to write."""

    num_listed = 0
    is_full = False

    async def list_names(self, prefix: str) -> Sequence[str]:
        self.num_listed += 1
        return await super().list_names(prefix)

    def begin(self, name: str) -> BegunFile:
        if self.is_full:
            raise StorageError("no space left", "room for a result")
        return super().begin(name)


async def test_what_results_a_base_has_is_asked_of_the_disk_once_and_known_from_what_is_written_then(
    autojump_clock: Clock,
) -> None:
    storage, other = _Counting(MemoryDisk()), Root(b"o" * 32)
    log = UnitLog(storage)
    assert not await log.holds_results(BASE, [ROOT])
    await log.write_result(BASE, ROOT, b"bytes")
    await log.write_result(NEXT, other, b"of another base")
    for _ in range(3):
        assert await log.holds_results(BASE, [ROOT])
        assert len(await log.list_results(BASE)) == 1
    assert storage.num_listed == 1
    storage.is_full = True
    with pytest.raises(StorageError):
        await log.write_result(BASE, other, b"leftover")
    assert not await log.holds_results(BASE, [other])
    assert storage.num_listed == 2, "what the disk has refused is not taken for written"
    await log.drop_results(BASE, [])
    assert not await log.holds_results(BASE, [ROOT])


async def test_a_result_that_somebody_else_has_deleted_is_missed_once_it_could_not_be_read(
    autojump_clock: Clock,
) -> None:
    storage = MemoryStorage(MemoryDisk())
    log = UnitLog(storage)
    await log.write_result(BASE, ROOT, b"bytes")
    (name,) = await log.list_results(BASE)
    await storage.delete(name)
    assert await log.read_result(BASE, ROOT) is None
    assert not await log.holds_results(BASE, [ROOT])


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


# --- written anew -------------------------------------------------------------------------------------------------------------


def _used(disk: MemoryDisk) -> int:
    return sum(len(entry) + LOG_FRAME_BYTES for entry in disk.logs.get(LOG_NAME, ()))


def _base(number: int) -> CommitId:
    return CommitId(sha256(b"base %d" % number).digest())


async def _grow(log: UnitLog, chooser: random.Random, number: int) -> None:
    """Any entry, on any of a few bases."""
    base = _base(chooser.randrange(12))
    ballot = Ballot(chooser.randrange(4), PeerId(chooser.choice("pq")))
    kind = chooser.randrange(7)
    if kind == 0:
        await log.log_contribution(base, LoggedContribution(ROOT, number, number))
    elif kind <= 2:
        await log.log_promise(base, ballot)
    elif kind <= 4:
        leaves = [b"goodbye %d" % each for each in range(number % 3)]
        await log.log_ack(base, ballot, b"record %d" % number, lone=kind == 4, leaves=leaves)
    elif kind == 5:
        await log.log_certificate(base, _certificate(base, b"%d" % number))
    else:
        path = [_base(chooser.randrange(12)) for _ in range(chooser.randrange(3))]
        await log.log_switch(base, [_certificate(on, b"%d" % number) for on in path])


@pytest.mark.parametrize("seed", range(8))
async def test_a_log_that_is_written_anew_tells_the_same_but_for_votes_that_were_dropped(
    seed: int, autojump_clock: Clock
) -> None:
    whole, disk, chooser = UnitLog(MemoryStorage(MemoryDisk())), MemoryDisk(), random.Random(seed)
    log = UnitLog(MemoryStorage(disk), LogLimits(kept_bases=2))
    forgotten: set[CommitId] = set()
    for number in range(120):
        state = chooser.getstate()
        await _grow(whole, chooser, number)
        chooser.setstate(state)
        await _grow(log, chooser, number)
        if chooser.random() < 0.2:
            newest = {_base(chooser.randrange(12)) for _ in range(2)}
            before = await log.load()
            await log.compact(newest)
            after = await UnitLog(MemoryStorage(disk)).load()
            assert after == await log.load()
            expected = await whole.load()
            assert after.certificates == before.certificates == expected.certificates
            assert after.displaced == before.displaced == expected.displaced
            for base, known in after.bases.items():
                if known == before.bases[base]:
                    continue
                assert base not in newest
                assert known == replace(
                    before.bases[base],
                    acked=None,
                    acked_lone=None,
                    acked_before=None,
                    has_forgotten=True,
                    leaves=(),
                )
                forgotten.add(base)
            log = UnitLog(MemoryStorage(disk), LogLimits(kept_bases=2)) if chooser.random() < 0.5 else log
    expected, reported = await whole.load(), await log.load()
    assert forgotten
    assert set(reported.bases) == set(expected.bases)
    for base, known in reported.bases.items():
        assert (known.promised, known.contributions) == (
            expected.bases[base].promised,
            expected.bases[base].contributions,
        )
        assert known.has_forgotten == (base in forgotten), "it is said for ever"


async def test_acks_stay_on_the_newest_bases_and_on_those_without_a_certificate_that_were_voted_on_last(
    autojump_clock: Clock,
) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()), LogLimits(kept_bases=2))
    for number in range(8):
        await log.log_ack(_base(number), LOW, b"record")
    await log.log_ack(_base(4), HIGH, b"record")
    await log.log_promise(_base(9), HIGH)
    for number in (0, 1, 7):
        await log.log_certificate(_base(number), _certificate(_base(number), b"c"))
    await log.compact({_base(1), _base(7)})
    bases = (await log.load()).bases
    assert {number for number in range(8) if bases[_base(number)].acked is not None} == {1, 4, 6, 7}
    assert {number for number in range(8) if bases[_base(number)].has_forgotten} == {0, 2, 3, 5}
    assert bases[_base(9)].promised == HIGH
    assert not bases[_base(9)].has_forgotten, "nothing of it was dropped"


async def test_that_votes_were_dropped_is_still_known_when_their_lineage_was_left(autojump_clock: Clock) -> None:
    log = UnitLog(MemoryStorage(MemoryDisk()))
    await log.log_ack(NEXT, LOW, b"record")
    await log.log_certificate(BASE, b"shared")
    await log.log_certificate(NEXT, _certificate(NEXT, b"ours"))
    await log.compact({LAST})
    await log.log_switch(BASE, [_certificate(BASE, b"theirs")])
    await log.compact({LAST})
    logged = await log.load()
    assert [base for base, _ in logged.certificates] == [BASE]
    assert (logged.bases[NEXT].has_forgotten, logged.bases[NEXT].promised) == (True, LOW)


async def test_what_a_log_would_take_if_it_were_written_anew_is_known_without_reading_it(autojump_clock: Clock) -> None:
    disk, chooser = MemoryDisk(), random.Random(5)
    log = UnitLog(MemoryStorage(disk), LogLimits(kept_bases=3, growth=1, slack_bytes=0))
    for number in range(200):
        await _grow(log, chooser, number)
        assert _used(disk) <= log.bound_bytes
        if number % 10 == 9:
            newest = {_base(number % 12)}
            await log.tidy(newest)
            assert log.bound_bytes == _used(disk), "growth and slack are such that nothing needless stays"
            records = list(disk.logs[LOG_NAME])
            await log.compact(newest)
            assert disk.logs[LOG_NAME] == records


async def test_a_log_is_written_anew_only_when_most_of_it_says_nothing_any_more(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk), LogLimits(slack_bytes=1000))
    sizes: list[int] = []
    for attempt in range(400):
        await log.log_ack(BASE, Ballot(attempt, PeerId("p")), b"r" * 50)
        await log.tidy({BASE})
        sizes.append(len(disk.logs[LOG_NAME]))
        assert _used(disk) <= log.bound_bytes <= 2 * 300 + 1000
    num_compactions = sum(after < before for before, after in itertools.pairwise(sizes))
    assert 20 < num_compactions < 60


@pytest.mark.parametrize("seed", range(6))
async def test_a_crash_while_a_log_is_written_anew_loses_nothing_of_it(seed: int, autojump_clock: Clock) -> None:
    disk, chooser = MemoryDisk(), random.Random(seed)
    log = UnitLog(MemoryStorage(disk))
    for number in range(60):
        await _grow(log, chooser, number)
    newest = {_base(number) for number in range(12)}
    before = await log.load()

    async def compact() -> None:
        with pytest.raises(StorageError):
            await log.compact(newest)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(compact)
        await trio.sleep(0.001)
        disk.crash(chooser)
    disk.power_on()
    assert await UnitLog(MemoryStorage(disk)).load() == before


async def test_a_vote_that_comes_while_the_log_is_written_anew_is_not_lost(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    for attempt in range(5):
        await log.log_ack(BASE, Ballot(attempt, PeerId("p")), b"record")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.compact, {BASE})
        await trio.sleep(0.001)
        nursery.start_soon(log.log_promise, BASE, Ballot(9, PeerId("p")))
        nursery.start_soon(log.log_ack, NEXT, HIGH, b"another")
    bases = (await UnitLog(MemoryStorage(disk)).load()).bases
    assert bases[BASE].promised == Ballot(9, PeerId("p"))
    assert bases[NEXT].acked == AckedRecord(HIGH, b"another")
    assert len(disk.logs[LOG_NAME]) == 4


async def test_a_log_with_acks_of_two_records_on_one_base_is_written_anew_once(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk), LogLimits(growth=1, slack_bytes=0))
    for attempt, record in enumerate((b"one", b"one", b"another")):
        await log.log_ack(BASE, Ballot(attempt, PeerId("p")), record)
    await log.tidy({BASE})
    assert [entry[:1] for entry in disk.logs[LOG_NAME]] == [b"P", b"A", b"A"]
    disk.fail_with_disk_full_after(0)
    with capture_logs() as entries:
        await log.tidy({BASE})
    assert entries == [], "nothing in it is out of date"


async def test_what_the_disk_refuses_leaves_the_log_as_it_is_and_is_tried_again(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk), LogLimits(growth=1, slack_bytes=0))
    for attempt in range(5):
        await log.log_ack(BASE, Ballot(attempt, PeerId("p")), b"record")
    before = list(disk.logs[LOG_NAME])
    disk.fail_with_disk_full_after(10)
    with capture_logs() as entries:
        await log.tidy({BASE})
    assert [entry["event"] for entry in entries] == ["log_not_compacted"]
    assert disk.logs[LOG_NAME] == before
    assert _used(disk) <= log.bound_bytes
    disk.capacity_bytes = UNBOUNDED_BYTES
    await log.tidy({BASE})
    assert len(disk.logs[LOG_NAME]) == 2


async def test_a_switch_that_is_owed_is_written_before_the_log_is_written_anew(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk), LogLimits(growth=1, slack_bytes=0))
    ours, theirs = _certificate(NEXT, b"o"), _certificate(NEXT, b"t")
    await log.log_certificate(BASE, b"shared")
    await log.log_certificate(NEXT, ours)
    for attempt in range(5):
        await log.log_ack(LAST, Ballot(attempt, PeerId("p")), b"record")
    disk.fail_with_disk_full_after(10)
    assert not await log.log_moved(NEXT, [theirs])
    await log.tidy({LAST})
    assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, ours)]
    disk.capacity_bytes = UNBOUNDED_BYTES
    await log.tidy({LAST})
    assert (await log.load()).certificates == [(BASE, b"shared"), (NEXT, theirs)]
    assert [entry[:1] for entry in disk.logs[LOG_NAME]] == [b"T", b"T", b"D", b"P", b"A"]


# --- lineages that were left --------------------------------------------------------------------------------------------------


def _side(fork: CommitId, text: bytes, length: int) -> list[tuple[CommitId, bytes]]:
    """The certificates of a line of commits on `fork`, by base."""
    side: list[tuple[CommitId, bytes]] = []
    for number in range(length):
        raw = _certificate(fork, text + b"%d" % number)
        side.append((fork, raw))
        fork = commit_id(fork, decode_certificate(raw).record)
    return side


def _raws(side: Sequence[tuple[CommitId, bytes]]) -> list[bytes]:
    return [raw for _, raw in side]


async def test_what_a_switch_displaced_is_read_back_until_it_is_followed_again(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    ours, theirs, third = _side(BASE, b"o", 3), _side(BASE, b"t", 2), _side(BASE, b"3", 1)
    for base, raw in ours:
        await log.log_certificate(base, raw)
    assert not (await log.load()).displaced
    await log.log_switch(BASE, _raws(theirs))
    logged = await UnitLog(MemoryStorage(disk)).load()
    assert (logged.certificates, logged.displaced) == (theirs, ours)
    await log.log_switch(BASE, _raws(third))
    assert (await log.load()).displaced == [*theirs, *ours], "what was left last comes first"
    await log.log_switch(BASE, _raws(ours[:2]))
    assert (await log.load()).displaced == [*third, *theirs, *ours[2:]]
    await log.log_certificate(*ours[2])
    assert (await log.load()).displaced == [*third, *theirs]


async def test_commits_that_are_brought_once_more_are_not_displaced(autojump_clock: Clock) -> None:
    """A start had lost their bytes and downloaded a state further on."""
    log = UnitLog(MemoryStorage(MemoryDisk()))
    ours = _side(BASE, b"o", 5)
    for base, raw in ours[:3]:
        await log.log_certificate(base, raw)
    await log.log_lineage(ours[1][0], _raws(ours[1:]))
    logged = await log.load()
    assert (logged.certificates, logged.displaced) == (ours, [])


async def test_what_was_displaced_is_kept_when_the_log_is_written_anew(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    ours, theirs, third = _side(BASE, b"o", 3), _side(BASE, b"t", 2), _side(BASE, b"3", 1)
    for base, raw in ours:
        await log.log_certificate(base, raw)
    await log.log_switch(BASE, _raws(theirs))
    for _ in range(2):
        await log.compact(())
        log = UnitLog(MemoryStorage(disk))
        logged = await log.load()
        assert (logged.certificates, logged.displaced) == (theirs, ours)
    assert [entry[:1] for entry in disk.logs[LOG_NAME]] == [b"T"] * 2 + [b"D"] * 3
    await log.log_switch(BASE, _raws(third))
    assert (await log.load()).displaced == [*theirs, *ours]


async def test_of_what_was_displaced_as_much_is_kept_as_the_bounds_allow_and_never_a_child_without_its_parent(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, older, newer, last = (_side(BASE, text, 4) for text in (b"a", b"b", b"c", b"d"))
    entry_bytes = 33 + LOG_FRAME_BYTES + len(last[0][1])
    for most, most_bytes in ((6, 1 << 20), (256, 6 * entry_bytes), (256, 7 * entry_bytes - 1)):
        monkeypatch.setattr(log_sizes, "MAX_DISPLACED", most)
        monkeypatch.setattr(log_sizes, "MAX_DISPLACED_BYTES", most_bytes)
        disk = MemoryDisk()
        log = UnitLog(MemoryStorage(disk), LogLimits(growth=1, slack_bytes=0))
        for side in (oldest, older, newer, last):
            await log.log_switch(BASE, _raws(side))
        assert (await log.load()).displaced == [*newer, *older[:2]]
        await log.tidy(())
        assert log.bound_bytes == _used(disk) == 10 * entry_bytes
        assert (await UnitLog(MemoryStorage(disk)).load()).displaced == [*newer, *older[:2]]


async def test_a_log_without_such_entries_is_written_anew_as_before(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    log = UnitLog(MemoryStorage(disk))
    ours = _side(BASE, b"o", 3)
    for base, raw in ours:
        await log.log_certificate(base, raw)
    before = list(disk.logs[LOG_NAME])
    await log.compact(())
    assert disk.logs[LOG_NAME] == before
    assert await log.load() == LoggedRounds(ours)


async def test_a_long_result_is_written_in_parts_and_nothing_of_one_that_the_disk_refuses_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, add = list[int](), FileBegun.add

    async def noted(begun: FileBegun, part: bytes | memoryview) -> None:
        added.append(len(part))
        if len(added) > 3:
            raise StorageError("no space left", "room for a result")
        await add(begun, part)

    monkeypatch.setattr(FileBegun, "add", noted)
    log, data = UnitLog(FileStorage(tmp_path, ThreadOffload())), bytes(range(256)) * (2 * WRITE_BYTES // 256) + b"rest"
    await log.write_result(BASE, ROOT, data)
    assert added == [WRITE_BYTES, WRITE_BYTES, len(b"rest")]
    assert await log.read_result(BASE, ROOT) == data
    with pytest.raises(StorageError, match="no space left"):
        await log.write_result(NEXT, ROOT, data)
    assert await log.list_results(NEXT) == []
    assert not list(tmp_path.rglob("*.unfinished"))


async def test_a_result_of_which_a_file_has_the_beginning_gets_the_rest(autojump_clock: Clock) -> None:
    log, data = UnitLog(MemoryStorage(MemoryDisk())), bytes(range(256)) * (2 * WRITE_BYTES // 256)
    begun = log.begin_result(NEXT, ROOT)
    await begun.add(data[: WRITE_BYTES + 1])
    await log.write_result(NEXT, ROOT, data, begun)
    assert await log.read_result(NEXT, ROOT) == data


async def test_a_long_log_is_in_memory_about_twice_while_it_is_rewritten(tmp_path: Path) -> None:
    """As read from the disk, and record by record; what is written is made in parts."""
    storage, size_bytes = FileStorage(tmp_path, InlineOffload()), 1 << 13
    certificates = [random.Random(number).randbytes(size_bytes) for number in range(1 << 10)]
    bases = [CommitId(sha256(raw).digest()) for raw in certificates]
    await storage.replace_log(LOG_NAME, list(map(certificate_entry, bases, certificates)))
    log = UnitLog(storage)
    long_bytes = size_bytes * len(certificates)
    del certificates
    tracemalloc.start()
    try:
        await log.compact(bases)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_bytes <= 2.5 * long_bytes
    assert [base for base, _ in (await log.load()).certificates] == bases
