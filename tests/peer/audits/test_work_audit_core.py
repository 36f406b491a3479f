from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from peer.audits.work_audit_core import (
    COMPARED_CHUNKS,
    LARGEST_GAP,
    MOST_COMPARED,
    STRANGERS_WEIGHT,
    Finding,
    Products,
    audits_round,
    claimed_steps,
    compared,
    compared_chunks,
    drawn_contributor,
    is_large,
    why_untold,
)
from protocol.host.work_rules import LEAST_STEPS, MOST_STEPS
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, Root
from protocol.rounds.messages.lane_parts import LanePart
from protocol.rounds.messages.record import Contributor, Omission, SliceRecord
from protocol.rounds.messages.requests import StepsTaken
from tests.protocol.rounds.messages.test_wire import RECORD

ME, A, B, C = (PeerId(name) for name in ("me", "alice", "bob", "carol"))


def _products(contribution_n: Sequence[float], redone_n: Sequence[float], control_n: Sequence[float]) -> Products:
    three = (contribution_n, redone_n, control_n)
    squared = [math.fsum(value * value for value in each) for each in three]
    pairs = ((contribution_n, redone_n), (contribution_n, control_n), (redone_n, control_n))
    return Products(*squared, *(math.fsum(a * b for a, b in zip(*pair, strict=True)) for pair in pairs))


def test_the_gap_is_1_for_the_redone_delta_and_minus_1_for_the_control_however_near_they_are() -> None:
    for redone_n, control_n in (((4.0, 0.0), (0.0, 3.0)), ((4.0, 0.0), (3.9, 0.5)), ((4.0, 0.0), (-1.0, 0.0))):
        near = compared(_products(redone_n, redone_n, control_n))
        far = compared(_products(control_n, redone_n, control_n))
        assert near is not None
        assert far is not None
        assert (near.gap, far.gap) == (pytest.approx(1.0), pytest.approx(-1.0))
        assert near.length_ratio == pytest.approx(1.0)


def test_the_length_is_over_that_of_the_redone_delta_and_changes_no_gap() -> None:
    short, long = (compared(_products((size, size), (4.0, 0.0), (0.0, 3.0))) for size in (1.0, 100.0))
    assert short is not None
    assert long is not None
    assert (short.gap, long.gap) == (pytest.approx(0.0), pytest.approx(0.0))
    assert long.length_ratio == pytest.approx(100.0 * short.length_ratio) == pytest.approx(100.0 * math.sqrt(2.0) / 4.0)


def test_a_gap_beyond_its_bounds_is_cut() -> None:
    found = compared(_products((1.0, -10.0), (100.0, 0.0), (100.0, 10.0)))
    assert found is not None
    assert found.gap == LARGEST_GAP


def test_where_the_windows_make_no_difference_there_is_no_finding() -> None:
    assert compared(_products((1.0, 1.0), (4.0, 0.0), (4.0, 0.001))) is None


@pytest.mark.parametrize("wrong", [0.0, math.inf, math.nan, -1.0])
def test_deltas_of_the_auditor_that_say_nothing_give_no_finding(wrong: float) -> None:
    assert compared(Products(1.0, wrong, 1.0, 0.0, 0.0, 0.0)) is None
    assert compared(Products(1.0, 1.0, wrong, 0.0, 0.0, 0.0)) is None


def test_a_contribution_of_zeros_has_no_gap_and_no_length_and_one_beyond_all_numbers_no_finding() -> None:
    assert compared(Products(0.0, 1.0, 1.0, 0.0, 0.0, 0.0)) == Finding(0.0, 0.0)
    assert compared(Products(math.inf, 1.0, 1.0, 0.0, 0.0, 0.0)) is None


def test_strangers_are_drawn_ten_times_as_often_and_nobody_audits_itself() -> None:
    chance = random.Random(3)
    standings = {C: PeerStanding.STRANGER, B: PeerStanding.MEMBER}
    drawn = Counter(drawn_contributor([A, B, C, ME], ME, standings, chance.random) for _ in range(6000))
    assert set(drawn) == {A, B, C}
    assert drawn[C] / drawn[A] == pytest.approx(STRANGERS_WEIGHT, rel=0.2)
    assert drawn[B] / drawn[A] == pytest.approx(1.0, rel=0.2)
    assert drawn_contributor([A, B], ME, standings, chance.random) is None, "it has no beginning of its own"
    assert drawn_contributor([ME], ME, standings, chance.random) is None


def test_keepers_audit_their_share_of_rounds_and_others_none() -> None:
    chance = random.Random(4)
    for own, expected in ((PeerStanding.KEEPER, 0.01), (PeerStanding.MEMBER, 0.0), (PeerStanding.STRANGER, 0.0)):
        share = sum(audits_round(0.01, own, chance.random) for _ in range(50_000)) / 50_000
        assert share == pytest.approx(expected, abs=0.002)
    assert not audits_round(0.0, PeerStanding.KEEPER, lambda: 0.0)
    assert audits_round(1.0, PeerStanding.KEEPER, lambda: 0.999)


def _entry(tokens: int) -> Contributor:
    return replace(RECORD.contributors[0], tokens=tokens)


def test_tokens_that_are_no_whole_steps_or_too_few_or_too_many_of_them_are_not_done_again() -> None:
    assert claimed_steps(_entry(64 * LEAST_STEPS), 64) == LEAST_STEPS
    assert claimed_steps(_entry(64 * LEAST_STEPS + 10), 64) == 0
    assert claimed_steps(_entry(64 * (LEAST_STEPS - 1)), 64) == 0
    assert claimed_steps(_entry(64 * MOST_STEPS), 64) == MOST_STEPS
    assert claimed_steps(_entry(64 * (MOST_STEPS + 1)), 64) == 0
    assert claimed_steps(replace(_entry(1280), lanes=(LanePart(1, 1, 1280),)), 64) == 0


def test_told_steps_are_those_that_the_tokens_claim_and_were_not_told_before() -> None:
    told, entry = StepsTaken(Root(bytes(32)), 100, 20), _entry(64 * 20)
    assert why_untold(entry, told, 100, 64) == ""
    assert "no steps" in why_untold(entry, None, 0, 64)
    assert "as several replicas do" in why_untold(_entry(64 * 40), told, 0, 64)
    assert "told those up to 101" in why_untold(entry, told, 101, 64)


def test_a_claim_of_many_tokens_that_are_no_steps_escapes_no_audit() -> None:
    told = StepsTaken(Root(bytes(32)), 100, 20)
    for tokens in (64 * 20 + 1, 64 * (MOST_STEPS + 1)):
        assert is_large(_entry(tokens), 64)
        assert "no whole number of steps" in why_untold(_entry(tokens), told, 0, 64)
    assert not is_large(_entry(64 * LEAST_STEPS - 1), 64)
    assert not is_large(replace(_entry(1280), lanes=(LanePart(1, 1, 1280),)), 64)


def test_chunks_are_drawn_from_slices_that_sum_the_contribution_and_not_more_than_a_process_holds() -> None:
    chance = random.Random(5)
    slices = (
        SliceRecord(0, 40, A, Root(bytes(32)), (Omission(C, "late"),)),
        SliceRecord(40, 100, B, Root(bytes(32)), ()),
    )
    record = replace(RECORD, slices=slices)
    drawn = [compared_chunks(record, C, 1024, chance.random) for _ in range(200)]
    assert {len(set(chunks)) for chunks in drawn} == {COMPARED_CHUNKS}
    assert set().union(*drawn) == set(range(40, 100))
    assert set().union(*(compared_chunks(record, A, 1024, chance.random) for _ in range(200))) == set(range(100))
    assert len(compared_chunks(record, C, MOST_COMPARED // 2, chance.random)) == 2
    assert len(compared_chunks(record, C, 2 * MOST_COMPARED, chance.random)) == 1
    nowhere = replace(record, slices=(replace(slices[0], stop_chunk=100),))
    assert compared_chunks(nowhere, C, 1024, chance.random) == ()
