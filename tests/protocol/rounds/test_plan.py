from __future__ import annotations

import random
from fractions import Fraction
from itertools import pairwise

from protocol.ids import PeerId
from protocol.rounds.plan import ReducerOffer, covered_chunks, plan_slices, weight_cap
from tests.protocol.rounds.round_table import Table


def _offers(*uploads: int) -> list[ReducerOffer]:
    return [ReducerOffer(PeerId(f"p{i:02}"), upload) for i, upload in enumerate(uploads)]


def test_slices_tile_the_vector_whatever_the_uploads() -> None:
    chooser = random.Random(1)
    for _ in range(500):
        offers = _offers(*(chooser.choice((0, 1, 10, 10**6, 10**9)) for _ in range(chooser.randint(1, 40))))
        num_chunks = chooser.randint(1, 200)
        slices = plan_slices(num_chunks, offers, chooser.randint(len(offers), 64))
        assert slices[0].first_chunk == 0
        assert slices[-1].stop_chunk == num_chunks
        assert all(a.stop_chunk == b.first_chunk for a, b in pairwise(slices))
        assert len({part.reducer for part in slices}) == len(slices) <= 32


def test_no_reducer_gets_more_than_its_cap_when_one_link_is_far_faster() -> None:
    slices = plan_slices(1000, _offers(10**9, 1, 1, 1, 1, 1, 1, 1), 8)
    cap = max(Fraction(2, 8), Fraction(1, 8))
    assert all(Fraction(part.stop_chunk - part.first_chunk, 1000) <= cap + Fraction(1, 1000) for part in slices)


def test_two_reachable_reducers_of_five_members_still_place_the_whole_vector() -> None:
    slices = plan_slices(10, _offers(100, 100), 5)
    assert [(part.first_chunk, part.stop_chunk) for part in slices] == [(0, 5), (5, 10)]


def test_shares_follow_measured_upload_below_the_cap() -> None:
    slices = plan_slices(600, _offers(100, 200, 300), 3)
    assert [part.stop_chunk - part.first_chunk for part in slices] == [100, 200, 300]


def test_the_weight_cap_is_four_times_the_median_and_never_zero() -> None:
    assert weight_cap([10, 20, 1000]) == 80
    assert weight_cap([0]) == 1


def test_a_record_credits_tokens_in_proportion_to_covered_chunks() -> None:
    table = Table(3)
    table.run_until(lambda: all(seat.head.index >= 1 for seat in table.live()))
    record = table.live()[0].head.record
    assert record is not None
    assert [c.credited_tokens for c in record.contributors] == [c.tokens for c in record.contributors]
    peer = record.contributors[0].peer
    assert sum(stop - begin for begin, stop in covered_chunks(record, peer)) == record.slices[-1].stop_chunk
    assert covered_chunks(record, PeerId("stranger")) == ()
