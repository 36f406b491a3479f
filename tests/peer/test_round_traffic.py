from __future__ import annotations

from averaging.network.seams import TrafficCount
from peer.round_traffic import KEPT_ROUNDS, RoundBytes, RoundTraffic
from protocol.ids import CommitId


def _commit(number: int) -> CommitId:
    return CommitId(number.to_bytes(32, "big"))


def test_a_round_has_the_bytes_since_the_commit_before() -> None:
    rounds = RoundTraffic()
    assert rounds.committed(_commit(1), TrafficCount(1, 2, 10, 20)) == RoundBytes(11, 22)
    assert rounds.committed(_commit(2), TrafficCount(1, 2, 10, 20)) == RoundBytes(0, 0)
    assert rounds.committed(_commit(3), TrafficCount(2, 2, 15, 21)) == RoundBytes(6, 1)
    assert rounds.of(_commit(1)) == RoundBytes(11, 22)
    assert rounds.of(_commit(4)) is None


def test_old_rounds_are_forgotten() -> None:
    rounds = RoundTraffic()
    for number in range(KEPT_ROUNDS + 1):
        rounds.committed(_commit(number), TrafficCount(0, 0, number, 0))
    assert rounds.of(_commit(0)) is None
    assert rounds.of(_commit(KEPT_ROUNDS)) == RoundBytes(1, 0)
