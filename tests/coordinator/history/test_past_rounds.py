from __future__ import annotations

import itertools

import pytest

from coordinator.history.past_rounds import MOST_OLD, RECENT_ROUNDS, PastRound, pack, thinned, unpack
from coordinator.ledger.ledger import LossPoint
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId


def _point(index: int, kind: str = "train") -> LossPoint:
    return LossPoint(kind, index, 100 * index, 2.0, PeerId(""))


def test_rounds_come_back_from_one_value_with_what_was_not_measured() -> None:
    rounds = [
        PastRound(7, CommitId(b"a" * 32), 1 << 52, 1_800_000_000, 64, 2.5, None),
        PastRound(8, CommitId(b"b" * 32), (1 << 52) + 9, 1_800_000_060, 1, None, 3.25),
    ]
    assert unpack(pack(rounds), 7) == rounds
    assert unpack(b"", 1) == []
    with pytest.raises(StorageError, match="whole rows"):
        unpack(pack(rounds)[:-1], 7)


def test_all_losses_of_a_short_run_and_of_the_newest_rounds_are_kept() -> None:
    short = [_point(index) for index in range(RECENT_ROUNDS)]
    assert thinned(short, RECENT_ROUNDS) == short
    head = 50_000
    long = [_point(index) for index in range(head + 1)]
    kept = thinned(long, head)
    assert [p.index for p in kept if p.index >= head - RECENT_ROUNDS] == list(range(head - RECENT_ROUNDS, head + 1))
    old = [p.index for p in kept if p.index < head - RECENT_ROUNDS]
    assert MOST_OLD / 2 <= len(old) <= MOST_OLD + 1
    assert {later - earlier for earlier, later in itertools.pairwise(old)} == {64}


def test_each_curve_keeps_its_own_places_and_thinning_again_takes_no_others() -> None:
    points = [_point(index, kind) for index in range(0, 30_000, 3) for kind in ("train", "heldout")]
    once = thinned(points, 30_000)
    assert thinned(once, 30_000) == once
    assert sum(p.kind == "train" for p in once) == sum(p.kind == "heldout" for p in once)
    later = thinned(once, 60_000)
    assert set(later) <= set(once)
    assert later == thinned(points, 60_000), "the first of an interval stays the first"
    assert thinned([], 9) == []
