"""Tests of peer/status/traffic.py."""

from __future__ import annotations

from averaging.network.seams.interfaces import BulkCount, BulkKind, ControlCount, TrafficCount, Way
from peer.status.traffic import KEPT_ROUNDS, RoundBytes, RoundTraffic
from protocol.ids import CommitId, UnitName


def _commit(number: int) -> CommitId:
    return CommitId(number.to_bytes(32, "big"))


def test_a_round_has_the_bytes_since_the_commit_before() -> None:
    rounds = RoundTraffic()
    assert rounds.committed(_commit(1), TrafficCount(1, 2, 10, 20)) == RoundBytes(11, 22, 1, 2)
    assert rounds.committed(_commit(2), TrafficCount(1, 2, 10, 20)) == RoundBytes(0, 0)
    assert rounds.committed(_commit(3), TrafficCount(2, 2, 15, 21)) == RoundBytes(6, 1, 1, 0)
    assert rounds.of(_commit(1)) == RoundBytes(11, 22, 1, 2)
    assert rounds.of(_commit(4)) is None


def test_a_rounds_bytes_are_told_by_lane_and_those_of_bulk_by_unit_and_codec_where_any_moved() -> None:
    up, down = (BulkKind(Way.DIRECT, "exchange", "trunk", codec) for codec in ("topk", "top6"))
    late = BulkKind(Way.LIBP2P, "exchange", "expert-0", "int8")
    rounds = RoundTraffic()
    rounds.committed(_commit(1), TrafficCount(5, 6, 10, 20, (BulkCount(up, 10, 0), BulkCount(down, 0, 20))))
    then = (BulkCount(up, 10, 0), BulkCount(down, 3, 29), BulkCount(late, 7, 1))
    taken = rounds.committed(_commit(2), TrafficCount(6, 8, 20, 30, then))
    assert taken == RoundBytes(11, 12, 1, 2, (BulkCount(down, 3, 9), BulkCount(late, 7, 1)))
    assert taken.up == taken.control_up + sum(count.bytes_up for count in taken.bulk)
    assert taken.down == taken.control_down + sum(count.bytes_down for count in taken.bulk)


def test_a_rounds_control_bytes_are_told_by_channel_where_any_moved() -> None:
    first = (ControlCount("round", 5, 4), ControlCount("beat", 0, 2))
    rounds = RoundTraffic()
    assert rounds.committed(_commit(1), TrafficCount(5, 6, 0, 0, control=first)).control == first
    then = (ControlCount("round", 5, 4), ControlCount("beat", 1, 2), ControlCount("directory", 8, 9))
    taken = rounds.committed(_commit(2), TrafficCount(14, 15, 0, 0, control=then))
    assert taken == RoundBytes(9, 9, 9, 9, control=(ControlCount("beat", 1, 0), ControlCount("directory", 8, 9)))


def test_a_unit_beside_the_spine_has_its_own_bulk_since_its_own_commit_before_whatever_else_moved() -> None:
    spine, one, two = (BulkKind(Way.DIRECT, "exchange", unit, "int8") for unit in ("trunk", "expert-1", "expert-2"))
    rounds, unit = RoundTraffic(), UnitName("expert-1")
    begun = (BulkCount(spine, 100, 200), BulkCount(one, 10, 20))
    assert rounds.other_unit_committed(unit, TrafficCount(5, 6, 110, 220, begun)) == RoundBytes(10, 20, bulk=begun[1:])
    then = (BulkCount(spine, 150, 250), BulkCount(one, 13, 20), BulkCount(two, 7, 8))
    traffic = TrafficCount(9, 9, 170, 278, then)
    assert rounds.committed(_commit(1), traffic) == RoundBytes(179, 287, 9, 9, then), "the spine's rounds have all"
    assert rounds.other_unit_committed(unit, traffic) == RoundBytes(3, 0, bulk=(BulkCount(one, 3, 0),))
    assert rounds.other_unit_committed(UnitName("expert-2"), traffic) == RoundBytes(7, 8, bulk=then[2:])
    assert rounds.other_unit_committed(unit, traffic) == RoundBytes(0, 0)


def test_old_rounds_are_forgotten() -> None:
    rounds = RoundTraffic()
    for number in range(KEPT_ROUNDS + 1):
        rounds.committed(_commit(number), TrafficCount(0, 0, number, 0))
    assert rounds.of(_commit(0)) is None
    assert rounds.of(_commit(KEPT_ROUNDS)) == RoundBytes(1, 0)
