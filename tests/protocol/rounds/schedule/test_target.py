from __future__ import annotations

import pytest

from protocol.rounds.schedule.target import MeasuredRound, RoundTarget

FIXED = RoundTarget(1000)
RAMP = RoundTarget(1000, 10, ramp_share=0.1)
AUTO = RoundTarget(1000, 10, exchange_share=0.5)


def _measured(target_tokens: int, exchange_s: float, tokens: int = 100, round_s: float = 10.0) -> MeasuredRound:
    return MeasuredRound(target_tokens, tokens, round_s, exchange_s)


def _rounds(target: RoundTarget, total_tokens: int) -> list[int]:
    done, rounds = 0, list[int]()
    while done < total_tokens:
        rounds.append(target.planned(done, 2))
        done += rounds[-1]
    return rounds


def test_without_more_all_rounds_are_alike() -> None:
    assert {FIXED.planned(total, 3) for total in (0, 1, 999, 10**9)} == {1000}
    assert FIXED.after(5000, 3, _measured(1000, 9.0)) == 1000


def test_a_ramp_begins_small_and_takes_a_share_of_what_is_committed_up_to_the_most() -> None:
    totals = (0, 199, 200, 2000, 9999, 10**6)
    assert [RAMP.planned(total, 2) for total in totals] == [20, 20, 20, 200, 999, 1000]
    rounds = _rounds(RAMP, 20_000)
    assert rounds == sorted(rounds)
    assert (rounds[0], rounds[-1]) == (20, 1000)
    assert RAMP.after(2000, 2, _measured(200, 9.0)) == 200


def test_every_member_has_its_first_steps_in_the_smallest_round_however_many_they_are() -> None:
    assert [RAMP.planned(0, members) for members in (1, 2, 64, 200)] == [10, 20, 640, 1000]
    assert AUTO.planned(10**9, 7) == 70


def test_no_round_is_smaller_than_that_of_a_member_alone_or_than_all_where_all_are_alike() -> None:
    assert [target.fewest_tokens for target in (FIXED, RAMP, AUTO)] == [1000, 10, 10]


@pytest.mark.parametrize("target", [FIXED, RAMP, RoundTarget(1000, 5, 0.01), RoundTarget(10**6, 5, 0.2)])
@pytest.mark.parametrize("total_tokens", [50, 3000, 200_000])
def test_the_number_of_rounds_is_told_beforehand(target: RoundTarget, total_tokens: int) -> None:
    counted = len(_rounds(target, total_tokens))
    assert target.num_rounds(total_tokens, 2) == pytest.approx(counted, rel=0.12, abs=2)


@pytest.mark.parametrize(
    ("exchange_s", "expected"),
    [
        (4.0, 80),
        (0.1, 50),
        (60.0, 200),
    ],  # 10 tokens a second, half of the time; at most twice or half of the 100 before
)
def test_a_measured_round_lasts_as_long_as_its_exchange_asks_for_and_changes_step_by_step(
    exchange_s: float, expected: int
) -> None:
    assert AUTO.after(5000, 2, _measured(100, exchange_s)) == expected


def test_measured_rounds_stay_within_the_manifests_bounds() -> None:
    assert AUTO.after(5000, 2, _measured(20, 0.0)) == 20
    assert AUTO.after(5000, 2, _measured(900, 1e9)) == 1000
    assert AUTO.after(5000, 2, _measured(900, 1.0, round_s=0.0)) == 20


def test_where_both_are_asked_for_the_larger_one_counts() -> None:
    both = RoundTarget(1000, 10, ramp_share=0.1, exchange_share=0.5)
    assert both.after(1000, 2, _measured(100, 4.0)) == 100
    assert both.after(500, 2, _measured(100, 4.0)) == 80


def test_what_is_trained_until_a_round_that_is_due_is_proposed_is_not_waited_for_as_well() -> None:
    assert AUTO.after(5000, 2, _measured(80, 4.0, tokens=100)) == 60


@pytest.mark.parametrize(("heartbeat_s", "expected"), [(0.0, 4211), (1.0, 4111), (30.0, 3211)])
def test_what_is_trained_while_the_exchange_before_goes_on_is_waited_for_but_for_a_heartbeats_worth(
    heartbeat_s: float, expected: int
) -> None:
    target = RoundTarget(100_000, 10, exchange_share=0.95)
    assert target.after(10**6, 2, MeasuredRound(3000, 4000, 40.0, 40.0, heartbeat_s)) == expected


@pytest.mark.parametrize(
    ("tokens_per_s", "exchange_s"), [(10.0, 3.0), (1000.0, 0.5), (200.0, 0.05)], ids=["slow", "fast", "short"]
)
def test_rounds_of_a_steady_swarm_settle_where_the_exchange_takes_its_share(
    tokens_per_s: float, exchange_s: float
) -> None:
    target = RoundTarget(100_000, 4, exchange_share=0.8)
    tokens = target.planned(0, 2)
    for _ in range(20):
        round_s = max(exchange_s, tokens / tokens_per_s)
        offered = int(tokens_per_s * round_s)
        tokens = target.after(10**6, 2, MeasuredRound(tokens, offered, round_s, exchange_s))
    assert tokens == pytest.approx(max(8, tokens_per_s * exchange_s / 0.8), rel=0.05, abs=1)
