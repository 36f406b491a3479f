from __future__ import annotations

from averaging.network.pacing.bulk_counters import MAX_KINDS, BulkTally
from averaging.network.seams.interfaces import BulkCount, BulkKind, Way

KIND = BulkKind(Way.DIRECT, "exchange", "trunk", "int8")


def test_bytes_are_summed_by_kind_and_in_all() -> None:
    tally = BulkTally()
    tally.sent(KIND, 5)
    tally.received(KIND, 7)
    tally.sent(BulkKind(Way.LIBP2P, "fetch"), 11)
    tally.sent(KIND, 1)
    assert tally.counts() == (BulkCount(KIND, 6, 7), BulkCount(BulkKind(Way.LIBP2P, "fetch"), 11, 0))
    assert (tally.bytes_up, tally.bytes_down) == (17, 7)


def test_kinds_are_bounded_and_nothing_is_left_uncounted() -> None:
    tally = BulkTally()
    for number in range(2 * MAX_KINDS):
        tally.sent(BulkKind(Way.DIRECT, "exchange", f"unit {number}", "int8"), 1)
    assert len(tally.counts()) <= MAX_KINDS + 1
    assert sum(count.bytes_up for count in tally.counts()) == tally.bytes_up == 2 * MAX_KINDS
