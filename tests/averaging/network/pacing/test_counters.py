"""Tests of averaging/network/pacing/counters.py."""

from __future__ import annotations

from averaging.network.pacing.counters import DIRECTORY_CHANNEL, MAX_CHANNELS, MAX_KINDS, BulkTally, ControlTally
from averaging.network.seams.interfaces import BulkCount, BulkKind, ControlCount, DirectoryEntry, Way

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


def test_bytes_are_summed_by_channel_and_in_all() -> None:
    tally = ControlTally()
    tally.sent("round", 5)
    tally.received("beat", 11)
    tally.received("round", 7)
    tally.sent("round", 1)
    assert tally.counts() == (ControlCount("round", 6, 7), ControlCount("beat", 0, 11))
    assert (tally.bytes_up, tally.bytes_down) == (6, 18)


def test_what_did_not_leave_after_all_is_not_counted() -> None:
    tally = ControlTally()
    tally.sent("round", 5)
    tally.not_sent("round", 5)
    assert tally.counts() == (ControlCount("round", 0, 0),)


def test_what_is_said_to_the_directory_has_a_channel_of_its_own() -> None:
    tally = ControlTally()
    tally.published("key", "peer", bytes(100))
    assert tally.counts() == (ControlCount(DIRECTORY_CHANNEL, 107, 0),)
    tally.looked_up("key")
    tally.found([DirectoryEntry("peer", bytes(100), 1.0), DirectoryEntry("other", bytes(50), 1.0)])
    assert tally.counts() == (ControlCount(DIRECTORY_CHANNEL, 110, 159),)


def test_channels_are_bounded_and_nothing_is_left_uncounted() -> None:
    tally = ControlTally()
    for number in range(2 * MAX_CHANNELS):
        tally.sent(f"channel {number}", 1)
    assert len(tally.counts()) <= MAX_CHANNELS + 1
    assert sum(count.bytes_up for count in tally.counts()) == tally.bytes_up == 2 * MAX_CHANNELS
