"""Verdicts of several auditors make members and put peers aside; those of one alone do nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coordinator.policy.audited_work_core import (
    ASIDE_S,
    FEWEST_FITS,
    MEMBER_AUDITORS,
    MEMBER_PASSES,
    NOT_AUDITED,
    REMEMBERED,
    KnownVerdict,
    audited_work,
    passes,
    usual_fit,
)
from protocol.ids import CommitId, PeerId

STRANGER, KEEPER = PeerId("stranger"), PeerId("keeper")
USUAL, GOOD, BAD = 0.8, 0.7, 0.1


def _verdicts(*found: tuple[str, float], contributor: PeerId = STRANGER, length: float = 1.0) -> list[KnownVerdict]:
    """Verdicts by auditors with these names, one for each of as many commits, a second apart."""
    return [
        KnownVerdict(PeerId(auditor), contributor, CommitId(number.to_bytes(32, "big")), gap, length, float(number))
        for number, (auditor, gap) in enumerate(found)
    ]


def _by_turns(auditors: str, gaps: Sequence[float]) -> list[KnownVerdict]:
    return _verdicts(*((auditors[number % len(auditors)], gap) for number, gap in enumerate(gaps)))


@pytest.mark.parametrize(
    ("auditors", "num_passes", "makes_member"),
    [
        ("abc", MEMBER_PASSES, True),
        ("abc", MEMBER_PASSES - 1, False),
        ("ab", 3 * MEMBER_PASSES, False),
        ("a", 100, False),
        ("abcdefgh", MEMBER_PASSES, True),
    ],
)
def test_ten_passes_by_three_auditors_make_a_member(auditors: str, num_passes: int, makes_member: bool) -> None:
    found = audited_work(_by_turns(auditors, [GOOD] * num_passes), USUAL)
    assert found.makes_member == makes_member
    assert (found.num_passes, len(found.auditors)) == (num_passes, len(auditors))
    assert MEMBER_AUDITORS == 3


def test_one_auditor_puts_nobody_aside_however_often_it_finds_other_work() -> None:
    found = audited_work(_by_turns("a", [BAD] * 50), USUAL)
    assert not found.is_doubted
    assert found.num_fails == REMEMBERED


def test_two_fails_by_two_auditors_put_a_peer_aside_with_no_passes_left() -> None:
    verdicts = _verdicts(*[("a", GOOD), ("b", GOOD), ("c", GOOD)] * 4, ("a", BAD), ("b", GOOD), ("b", BAD))
    assert audited_work(verdicts[:-1], USUAL).makes_member
    found = audited_work(verdicts, USUAL)
    assert found.is_doubted
    assert (found.num_passes, found.num_aside) == (0, 1)
    assert found.aside_until_unix_s == verdicts[-1].unix_s + ASIDE_S


def test_whoever_was_put_aside_earns_its_standing_again_by_as_many_passes() -> None:
    aside = _verdicts(("a", BAD), ("b", BAD))
    again = [*aside, *_by_turns("abc", [GOOD] * MEMBER_PASSES)]
    assert not audited_work(again, USUAL).is_doubted
    assert audited_work(again[:-1], USUAL).is_doubted
    assert audited_work([*again, *aside], USUAL).num_aside == 2


def test_fails_that_lie_far_apart_are_accidents() -> None:
    gaps = ([("a", BAD)] + [("b", GOOD)] * (REMEMBERED - 1) + [("c", BAD)] + [("b", GOOD)] * (REMEMBERED - 1)) * 5
    found = audited_work(_verdicts(*gaps), USUAL)
    assert found.num_aside == 0
    assert found.makes_member is False, "fails are no passes, and one auditor alone found most of these"


def test_a_contribution_of_fewer_steps_than_it_claims_fails_though_it_points_right() -> None:
    (half,) = _verdicts(("a", 0.8 * USUAL), length=0.6)
    (whole,) = _verdicts(("a", 0.8 * USUAL), length=0.9)
    (longer,) = _verdicts(("a", 0.4 * USUAL), length=30.0)
    assert passes(whole, USUAL)
    assert not passes(half, USUAL)
    assert not passes(longer, USUAL), "a larger copy fits no better"


def test_the_usual_fit_is_the_median_over_trusted_work_whatever_strangers_send() -> None:
    about_keeper = _verdicts(*[("a", 0.8), ("b", 0.4), ("c", 0.9)] * 3, contributor=KEEPER)
    about_stranger = _verdicts(*[("a", -2.0)] * 1000)
    assert usual_fit([*about_keeper, *about_stranger], {KEEPER}) == 0.8
    assert usual_fit(about_stranger, {KEEPER}) is None
    assert usual_fit(about_keeper[: FEWEST_FITS - 1], {KEEPER}) is None


def test_one_auditor_of_three_moves_no_usual_fit_however_many_verdicts_it_signs() -> None:
    honest = _verdicts(*[("a", 0.7), ("b", 0.9)] * 4, contributor=KEEPER)
    for gap in (2.0, -2.0):
        flood = _verdicts(*[("liar", gap)] * 1000, contributor=KEEPER)
        assert usual_fit([*honest, *flood], {KEEPER}) in (0.7, 0.9)
    of_two = [*honest[::2], *_verdicts(*[("liar", 2.0)] * 1000, contributor=KEEPER)]
    assert usual_fit(of_two, {KEEPER}) == 0.7, "of two the lower one: honest work must not fail"


@pytest.mark.parametrize("gap", [0.19, 0.0, -0.5])
def test_where_honest_work_cannot_be_told_from_other_work_no_verdict_counts(gap: float) -> None:
    about_keeper = _verdicts(*[("a", gap)] * 20, contributor=KEEPER)
    usual = usual_fit(about_keeper, {KEEPER})
    assert usual is None
    assert audited_work(_by_turns("abc", [-1.0] * 20), usual) == NOT_AUDITED


def _untold(auditors: str) -> list[KnownVerdict]:
    return [
        replace(each, gap=0.0, length_ratio=0.0, is_untold=True) for each in _by_turns(auditors, [0.0] * len(auditors))
    ]


def test_a_peer_that_tells_several_auditors_none_of_its_steps_is_known_for_that_without_a_usual_fit() -> None:
    found = audited_work(_untold("ab"), None)
    assert found.tells_nothing
    assert (found.num_untold, found.num_passes, found.num_fails) == (2, 0, 0)
    assert not audited_work(_untold("aaaaa"), None).tells_nothing, "one auditor may lie"


def test_a_peer_that_tells_its_steps_more_often_than_not_may_be_silent_now_and_then() -> None:
    told = _by_turns("abc", [GOOD] * 6)
    for usual in (None, USUAL):
        assert not audited_work([*told, *_untold("abcab")], usual).tells_nothing
        assert audited_work([*told, *_untold("abc" * 3)], usual).tells_nothing
        assert not audited_work([*_untold("abc" * 10), *told, *told, *told], usual).tells_nothing


def test_two_auditors_that_lie_about_a_peers_silence_do_nothing_where_as_many_others_hear_it() -> None:
    told = _by_turns("cd", [GOOD] * 2)
    assert not audited_work([*told, *_untold("ab" * 50)], USUAL).tells_nothing
    assert audited_work([*told[:1], *_untold("ab" * 50)], USUAL).tells_nothing, "two of three are most"


def test_verdicts_on_steps_that_nobody_told_are_neither_passes_nor_fails_and_move_no_usual_fit() -> None:
    about_keeper = _verdicts(*[("a", 0.8)] * FEWEST_FITS, contributor=KEEPER)
    silent = [replace(each, contributor=KEEPER) for each in _untold("ab" * 20)]
    assert usual_fit([*about_keeper, *silent], {KEEPER}) == 0.8
    assert usual_fit([*about_keeper[1:], *silent], {KEEPER}) is None
    found = audited_work([*_untold("ab"), *_by_turns("abc", [GOOD] * MEMBER_PASSES)], USUAL)
    assert (found.num_passes, found.num_fails) == (MEMBER_PASSES, 0)
