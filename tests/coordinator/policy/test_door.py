"""The rule of the open door, with facts made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.policy.admission import Verdict
from coordinator.policy.door import (
    CHECK_BURST,
    CHECKS_PER_S,
    PREFIX_PAUSE_S,
    UNKNOWN_PREFIX,
    CheckState,
    DoorFacts,
    DoorRules,
    JuniorFacts,
    address_prefix,
    decide_return,
    decide_stranger,
    may_check,
)
from protocol.errors import RefusedError, TemporaryError
from protocol.identity.standing import PeerStanding

NOW = 1_700_000_000.0
RULES = DoorRules(puzzle_bits=8, max_strangers=10, prefix_places=4, prefix_daily=16, first_s=3600.0, life_s=21_600.0)
FRESH = DoorFacts(junior=None, is_keeper=False, is_banned=False, num_taken=0, num_of_prefix=0, num_today=0)
HERE = JuniorFacts(PeerStanding.STRANGER, int(NOW) + 60, tokens_then=0, tokens_now=0)


@pytest.mark.parametrize(
    ("host", "prefix"),
    [
        ("192.0.2.7", "192.0.2.0/24"),
        ("::ffff:192.0.2.7", "192.0.2.0/24"),
        ("2001:db8:1:2:3::4", "2001:db8:1::/48"),
        ("", UNKNOWN_PREFIX),
        ("unix:/tmp/x", UNKNOWN_PREFIX),
    ],
)
def test_addresses_of_one_owner_have_one_prefix(host: str, prefix: str) -> None:
    assert address_prefix(host) == prefix


def test_a_stranger_with_a_free_place_is_admitted() -> None:
    assert decide_stranger(FRESH, RULES, NOW).verdict is Verdict.ADMIT_WITH_INVITE


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_taken": 10}, "all 10 places for strangers are taken"),
        ({"num_of_prefix": 4}, "4 strangers of your part of the network are in the run"),
        ({"num_today": 16}, "16 strangers of your part of the network came within a day"),
    ],
)
def test_a_full_door_says_what_is_full_and_that_it_may_be_tried_again(changes: dict[str, int], says: str) -> None:
    decision = decide_stranger(replace(FRESH, **changes), RULES, NOW)  # type: ignore[arg-type]
    assert isinstance(decision.error, TemporaryError)
    assert says in decision.reason


def test_whoever_has_a_place_keeps_it_though_the_door_is_full() -> None:
    full = replace(FRESH, num_taken=10, num_of_prefix=4, num_today=16)
    assert decide_stranger(replace(full, junior=HERE), RULES, NOW).verdict is Verdict.ADMIT_AGAIN
    assert decide_stranger(replace(full, is_keeper=True), RULES, NOW).verdict is Verdict.ADMIT_AGAIN
    gone = replace(HERE, ends_unix_s=int(NOW))
    assert decide_stranger(replace(full, junior=gone), RULES, NOW).verdict is Verdict.REFUSE


def test_a_banned_peer_finds_the_door_closed() -> None:
    decision = decide_stranger(replace(FRESH, is_banned=True), RULES, NOW)
    assert isinstance(decision.error, RefusedError)


def test_a_credential_is_renewed_only_after_counted_work_and_before_its_end() -> None:
    assert isinstance(decide_return(HERE, NOW).error, RefusedError)
    worked = replace(HERE, tokens_now=1)
    assert decide_return(worked, NOW).verdict is Verdict.ADMIT_AGAIN
    late = decide_return(worked, NOW + 60)
    assert late.error is not None
    assert "join again with the run's open line" in late.error.one_line()


# --- which answers are checked ------------------------------------------------------------------------------------------------


def _checked(state: CheckState, number: int, now_s: float) -> tuple[CheckState, bool]:
    """Whether one more answer is checked, from a prefix of its own."""
    nonce = number.to_bytes(16, "big")
    state, error = may_check(state, f"prefix {number}", nonce, int(NOW) + 900, now_s, NOW + now_s)
    return state, error is None


def test_a_challenge_is_checked_once_whoever_brings_it_again() -> None:
    state, error = may_check(CheckState(), "one", b"n" * 16, int(NOW) + 900, 0.0, NOW)
    assert error is None
    _, again = may_check(state, "other", b"n" * 16, int(NOW) + 900, 60.0, NOW + 60)
    assert isinstance(again, RefusedError)
    assert "answered before" in again.one_line()


def test_one_prefix_gets_one_check_in_a_while_and_takes_none_of_others() -> None:
    state, _ = may_check(CheckState(), "one", b"a" * 16, int(NOW) + 900, 0.0, NOW)
    state, error = may_check(state, "one", b"b" * 16, int(NOW) + 900, 1.0, NOW)
    assert isinstance(error, TemporaryError)
    state, error = may_check(state, "other", b"b" * 16, int(NOW) + 900, 1.0, NOW)
    assert error is None
    _, error = may_check(state, "one", b"c" * 16, int(NOW) + 900, PREFIX_PAUSE_S, NOW)
    assert error is None


def test_a_storm_from_everywhere_costs_a_bounded_number_of_checks_and_bounded_memory() -> None:
    state, num_checked = CheckState(), 0
    for number in range(10_000):
        state, is_checked = _checked(state, number, number / 1000)
        num_checked += is_checked
    assert num_checked <= CHECK_BURST + 10 * CHECKS_PER_S
    assert len(state.last_s) <= CHECK_BURST + PREFIX_PAUSE_S * CHECKS_PER_S
    state, is_checked = _checked(state, 20_000, 2000.0)
    assert is_checked
    assert len(state.spent) == len(state.last_s) == 1
