"""Work of some days makes members."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.policy.audited_work_core import AuditedWork
from coordinator.policy.standing_core import (
    KEEPERS_TRUST,
    PeerTrust,
    StandingRules,
    WorkDay,
    kept_percent,
    standing_after,
)
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId

RULES = StandingRules(member_days=3, member_day_tokens=100, kept_percent=80)
STRANGER, MEMBER, KEEPER = PeerStanding.STRANGER, PeerStanding.MEMBER, PeerStanding.KEEPER


def _days(*credited: int, brought: int = 0) -> list[WorkDay]:
    return [WorkDay(number, tokens, brought or tokens) for number, tokens in enumerate(credited)]


@pytest.mark.parametrize(
    ("days", "standing"),
    [
        (_days(), STRANGER),
        (_days(1_000_000), STRANGER),
        (_days(100, 100), STRANGER),
        (_days(100, 99, 100), STRANGER),
        (_days(100, 99, 100, 100), MEMBER),
        (_days(100, 100, 100), MEMBER),
        (_days(100, 100, 100, brought=125), MEMBER),
        (_days(100, 100, 100, brought=126), STRANGER),
    ],
)
def test_full_days_of_kept_work_make_a_stranger_a_member(days: list[WorkDay], standing: PeerStanding) -> None:
    assert standing_after(STRANGER, days, RULES) is standing


def test_a_member_whose_newest_work_is_not_kept_is_a_stranger_again() -> None:
    turned = [*_days(*[100] * 10), *(WorkDay(number, 10, 100) for number in range(10, 13))]
    assert standing_after(MEMBER, turned, RULES) is STRANGER
    assert standing_after(MEMBER, turned[:11], RULES) is STRANGER, "one such day weighs as much as its work"


def test_a_keeper_stays_one_and_nobody_becomes_one_by_work() -> None:
    assert standing_after(KEEPER, [], RULES) is KEEPER
    assert standing_after(MEMBER, _days(*[10**9] * 100), RULES) is MEMBER


def test_without_work_nothing_was_kept() -> None:
    assert kept_percent([]) == 0.0
    assert kept_percent(_days(50, brought=100)) == 50.0


PASSED = AuditedWork(num_passes=10, auditors=frozenset(map(PeerId, "abc")))
ASIDE = AuditedWork(num_aside=1, num_fails=0)
SILENT = AuditedWork(num_untold=2, tells_nothing=True)


def test_passed_audits_make_a_member_on_the_first_day_if_reducers_kept_its_work() -> None:
    assert standing_after(STRANGER, _days(1), RULES, PASSED) is MEMBER
    assert standing_after(STRANGER, _days(1, brought=2), RULES, PASSED) is STRANGER
    assert standing_after(STRANGER, [], RULES, PASSED) is STRANGER


def test_whoever_auditors_put_aside_is_a_stranger_whatever_its_days_and_a_keeper_stays_one() -> None:
    days = _days(*[100] * 10)
    assert standing_after(MEMBER, days, RULES, ASIDE) is STRANGER
    assert standing_after(KEEPER, days, RULES, ASIDE) is KEEPER


def test_no_days_and_no_passes_make_a_member_of_a_peer_that_tells_auditors_nothing() -> None:
    days = _days(*[100] * 10)
    assert standing_after(STRANGER, days, RULES, SILENT) is STRANGER
    assert standing_after(MEMBER, days, RULES, replace(PASSED, tells_nothing=True)) is STRANGER
    assert standing_after(KEEPER, days, RULES, SILENT) is KEEPER


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (KEEPERS_TRUST, "came with an invite"),
        (PeerTrust(MEMBER), "counted for some days"),
        (PeerTrust(MEMBER, PASSED), "passed when done again"),
        (PeerTrust(STRANGER), "came by the open door"),
        (PeerTrust(STRANGER, AuditedWork(num_passes=3)), "3 of 10 passes by auditors"),
        (PeerTrust(STRANGER, ASIDE), "found other work"),
        (PeerTrust(STRANGER, SILENT), "it told none"),
    ],
)
def test_screens_tell_a_standing_and_why(trust: PeerTrust, words: str) -> None:
    assert words in trust.reason
    assert trust.row == {
        "standing": trust.standing.word,
        "standing_reason": trust.reason,
        "audits_passed": trust.audited.num_passes,
        "audits_failed": trust.audited.num_fails,
        "audits_untold": trust.audited.num_untold,
    }
