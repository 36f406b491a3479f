"""One commit for people."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import link_of
from protocol.rounds.lineage.round_row import (
    RECENT_ROUNDS,
    Counted,
    counted_by_peer,
    left_out_by_peer,
    round_json,
    round_row,
)
from protocol.rounds.messages.record import Disagreement
from protocol.rounds.messages.requests import NO_PART, NOTHING_TO_OFFER
from protocol.rounds.messages.wire import decode_certificate, decode_record, encode_record
from tests.coordinator.chain_world import PEERS, Chain


def test_round_row_says_shares_coverage_and_omissions() -> None:
    chain = Chain()
    late = PeerId("late")
    chain.commit((100, 200, 350), omitted=((late, "too late"),))
    row = round_row(link_of(decode_certificate(chain.certificates[0]).record))
    assert row.members == tuple(p.peer_id for p in PEERS)
    assert row.shares == pytest.approx((100 / 600, 200 / 600, 300 / 600))
    assert row.coverage == pytest.approx((3 * 3 + 1 * 4) / (4 * 4))
    assert row.omitted == ((late, "too late"),)
    shown = round_json(row, 600, None)
    assert (shown["index"], shown["total_tokens"], shown["unix_s"]) == (1, 600, None)
    assert shown["omitted"] == [{"peer": "late", "reason": "too late"}]
    assert (row.lost, shown["lost"]) == (0.0, 0.0)
    with pytest.raises(RemoteProtocolError):
        round_row(chain.genesis)


def test_a_spare_leaves_nothing_uncovered_and_is_named_and_a_member_whose_snapshot_failed_leaves_its_part() -> None:
    chain = Chain()
    spare, failed = PeerId("spare"), PeerId("failed")
    chain.commit((100, 200, 350), omitted=((spare, NO_PART),))
    chain.commit((100, 200, 350), omitted=((spare, NO_PART), (failed, NOTHING_TO_OFFER)))
    alone, beside = (round_row(link_of(decode_certificate(raw).record)) for raw in chain.certificates)
    assert (alone.coverage, alone.omitted) == (1.0, ((spare, "a spare, with no part in this round"),))
    assert beside.coverage == pytest.approx((3 * 3 + 1 * 4) / (4 * 4))


def test_what_the_codec_had_no_room_for_is_the_mean_over_the_chunks_of_all_slices() -> None:
    chain = Chain()
    chain.commit((100, 200, 350))
    record = decode_record(decode_certificate(chain.certificates[0]).record)
    slices = tuple(replace(part, lost_ppm=lost) for part, lost in zip(record.slices, (200_000, 1_000_000), strict=True))
    row = round_row(link_of(encode_record(replace(record, slices=slices))))
    assert row.lost == pytest.approx((3 * 0.2 + 1 * 1.0) / 4)


def test_whose_work_was_left_out_in_part_is_named_with_its_share_and_how_far_it_disagreed() -> None:
    chain = Chain()
    chain.commit((100, 200, 350))
    record = decode_record(decode_certificate(chain.certificates[0]).record)
    liar, other = record.contributors[0].peer, record.contributors[1].peer
    first, second = record.slices
    assert (first.stop_chunk, second.stop_chunk) == (3, 4)
    slices = (
        replace(first, disagreeing=(Disagreement(liar, 2, -100),)),
        replace(second, disagreeing=(Disagreement(liar, 1, 20),)),
    )
    row = round_row(link_of(encode_record(replace(record, slices=slices))))
    (found,) = row.disagreed
    assert (found.peer, found.share) == (liar, 0.75)
    assert found.agreement == pytest.approx((2 * -1.0 + 0.2) / 3)
    assert found.words == "75% of its work disagreed with most others' (agreement -60% of the usual)"
    assert row.left_out == pytest.approx(0.25)
    assert round_json(row, 600, None)["disagreed"] == [
        {"peer": liar, "share": 0.75, "agreement": found.agreement, "reason": found.words}
    ]
    honest = replace(row, disagreed=())
    assert left_out_by_peer([honest, row])[liar] == pytest.approx(0.375)
    assert left_out_by_peer([honest, row])[other] == 0.0
    assert left_out_by_peer([row, *[honest] * RECENT_ROUNDS])[liar] == 0.0, "older rounds are not told any more"


def test_tokens_are_counted_by_peer_over_rounds() -> None:
    chain = Chain()
    chain.commit((100, 200, 350))
    chain.commit((10, 20, 30))
    rows = [round_row(link_of(decode_certificate(raw).record)) for raw in chain.certificates]
    one, two, three = (p.peer_id for p in PEERS)
    assert counted_by_peer(rows) == {one: Counted(110, 2), two: Counted(220, 2), three: Counted(330, 2)}
    assert counted_by_peer(rows[1:])[three] == Counted(30, 1)
    assert counted_by_peer(()) == {}
