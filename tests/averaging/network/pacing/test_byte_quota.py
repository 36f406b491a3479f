"""Allowances of strangers at one donor."""

from __future__ import annotations

import pytest

from averaging.network.pacing import byte_quota
from averaging.network.pacing.byte_quota import ByteQuota
from protocol.ids import PeerId

STRANGER, KEEPER = PeerId("stranger"), PeerId("keeper")


class _Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _quota(clock: _Clock) -> ByteQuota:
    return ByteQuota(100, 50.0, lambda peer: peer != KEEPER, clock)


def test_a_stranger_gets_its_allowance_and_then_nothing_until_it_fills_again() -> None:
    clock = _Clock()
    quota = _quota(clock)
    assert [quota.takes(STRANGER, 50) for _ in range(3)] == [True, True, False]
    clock.now_s += 10.0
    assert [quota.takes(STRANGER, 20) for _ in range(2)] == [True, False]
    clock.now_s += 1e6
    assert [quota.takes(STRANGER, 100) for _ in range(2)] == [True, False], "an allowance never grows above its size"


def test_a_keeper_is_never_limited() -> None:
    quota = _quota(_Clock())
    assert all(quota.takes(KEEPER, 1000) for _ in range(100))


def test_one_stranger_takes_nothing_of_another() -> None:
    quota = _quota(_Clock())
    assert quota.takes(STRANGER, 1000)
    assert quota.takes(PeerId("another"), 100)


def test_an_answer_larger_than_the_allowance_is_given_and_paid_for_by_waiting() -> None:
    clock = _Clock()
    quota = _quota(clock)
    assert quota.takes(STRANGER, 300)
    clock.now_s += 99.0
    assert not quota.takes(STRANGER, 1)
    clock.now_s += 2.0
    assert quota.takes(STRANGER, 1)


def test_a_crowd_of_strangers_costs_bounded_memory_and_does_not_clear_the_debts_of_the_greedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(byte_quota, "MOST_KNOWN", 10)
    quota = _quota(_Clock())
    assert quota.takes(STRANGER, 1000)
    for number in range(100):
        quota.takes(PeerId(f"sybil {number}"), 1)
    assert not quota.takes(STRANGER, 1)
