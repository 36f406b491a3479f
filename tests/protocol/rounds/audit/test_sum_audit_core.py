from __future__ import annotations

import random
from dataclasses import replace

import pytest

from protocol.ids import PeerId, Root
from protocol.rounds.audit.sum_audit_core import (
    GLANCED_CHUNKS,
    MOST_AUDITED,
    Glance,
    glanced_chunks,
    num_audited,
    others_slices,
    picks,
)
from protocol.rounds.messages.record import CommitRecord, SliceRecord
from tests.protocol.rounds.messages.test_wire import RECORD

ME, OTHER, THIRD = PeerId("me"), PeerId("other"), PeerId("third")


def _record(*bounds: tuple[int, int, PeerId]) -> CommitRecord:
    parts = tuple(SliceRecord(first, stop, reducer, Root(bytes(32)), ()) for first, stop, reducer in bounds)
    return replace(RECORD, slices=parts)


def test_the_bytes_of_audits_are_the_share_of_a_contribution_in_the_mean() -> None:
    draw, rounds = random.Random(1).random, 4000
    for share, num_chunks, num_others in ((0.01, 381, 16), (0.01, 16384, 16), (0.05, 100, 8)):
        fetched = sum(num_audited(share, num_chunks, num_others, draw) for _ in range(rounds)) * num_others
        assert fetched / rounds / num_chunks == pytest.approx(share, rel=0.1)
    assert num_audited(0.9, 1 << 20, 2, draw) == MOST_AUDITED, "there is a limit"
    assert num_audited(0.0, 1 << 20, 2, draw) == 0


@pytest.mark.parametrize(
    ("own_squared", "result_squared", "product", "looks_wrong"),
    [
        (4.0, 3.0, 3.0, False),
        (4.0, 36.0, 11.0, False),
        (4.0, 37.0, 11.0, True),
        (4.0, 3.0, 0.0, True),
        (4.0, 3.0, -1.0, True),
        (0.0, 3.0, 0.0, False),
        (4.0, 0.0, 0.0, False),
    ],
)
def test_a_result_looks_wrong_if_it_points_away_or_is_much_longer(
    own_squared: float, result_squared: float, product: float, looks_wrong: bool
) -> None:
    assert Glance(own_squared, result_squared, product).looks_wrong is looks_wrong


def test_only_others_slices_are_audited_and_each_of_their_chunks_may_be() -> None:
    record, draw = _record((0, 4, ME), (4, 7, OTHER), (7, 12, THIRD)), random.Random(2).random
    assert [part.reducer for part in others_slices(record, ME)] == [OTHER, THIRD]
    chosen = [pick for _ in range(400) for pick in picks(record, ME, 0.9, (), 0, draw)]
    assert {pick.chunk for pick in chosen} == set(range(4, 12))
    assert all(pick.part.first_chunk <= pick.chunk < pick.part.stop_chunk for pick in chosen)
    assert not any(pick.is_suspect for pick in chosen)
    assert picks(_record((0, 4, ME)), ME, 0.9, (), 0, draw) == ()


def test_a_slice_that_looks_wrong_is_audited_for_certain_and_more_seldom_after_findings_in_vain() -> None:
    record, draw = _record((0, 4, ME), (4, 7, OTHER), (7, 12, THIRD)), random.Random(3).random
    suspects = [record.slices[1]]
    for _ in range(100):
        (pick, *_) = picks(record, ME, 1e-6, suspects, 0, draw)
        assert pick.is_suspect
        assert pick.part == record.slices[1]
    followed = sum(bool(picks(record, ME, 1e-6, suspects, 2, draw)) for _ in range(2000))
    assert followed / 2000 == pytest.approx(0.25, abs=0.05)
    assert picks(record, ME, 0.0, suspects, 0, draw) == (), "a run that audits nothing follows no suspicion"


def test_the_first_sight_takes_all_of_a_short_slice_and_some_of_a_long_one() -> None:
    draw = random.Random(4).random
    short, long = _record((0, 5, ME)).slices[0], _record((0, 5000, ME)).slices[0]
    assert list(glanced_chunks(short, draw)) == [0, 1, 2, 3, 4]
    seen = {chunk for _ in range(50) for chunk in glanced_chunks(long, draw)}
    assert len(glanced_chunks(long, draw)) <= GLANCED_CHUNKS
    assert min(seen) < 500
    assert max(seen) >= 4500
