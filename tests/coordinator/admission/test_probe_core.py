from __future__ import annotations

import pytest

from coordinator.admission.probe_core import (
    CALLS_WITHIN,
    MAX_CALLERS,
    TURN_BYTES,
    TURN_S,
    WITHIN_S,
    CallLimit,
    Turns,
    caller_of,
)
from protocol.errors import TemporaryError

HERE, THERE = "192.0.2.1", "192.0.2.2"


@pytest.mark.parametrize(
    ("host", "caller"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_caller_is_an_address_or_the_network_that_one_machine_has(host: str, caller: str) -> None:
    assert caller_of(host) == caller


def test_one_call_too_many_waits_until_the_first_is_a_minute_old() -> None:
    limit = CallLimit()
    for second in range(CALLS_WITHIN):
        limit.take(HERE, float(second))
    with pytest.raises(TemporaryError, match="try again in 50 s"):
        limit.take(HERE, 10.0)
    limit.take(THERE, 10.0)
    limit.take(HERE, WITHIN_S)
    with pytest.raises(TemporaryError):
        limit.take(HERE, WITHIN_S + 0.5)


def test_addresses_of_one_ipv6_network_count_together() -> None:
    limit = CallLimit()
    for number in range(CALLS_WITHIN):
        limit.take(f"2001:db8::{number}", 0.0)
    with pytest.raises(TemporaryError):
        limit.take("2001:db8::ffff", 0.0)


def test_who_called_longest_ago_is_forgotten_first() -> None:
    limit = CallLimit()
    for number in range(MAX_CALLERS + 1):
        for _ in range(CALLS_WITHIN):
            limit.take(f"caller {number}", 0.0)
    limit.take("caller 0", 0.0)
    with pytest.raises(TemporaryError):
        limit.take(f"caller {MAX_CALLERS}", 0.0)


def test_bandwidth_is_one_callers_turn_and_then_anothers() -> None:
    turns = Turns()
    turns.take(HERE, 100, 0.0)
    turns.take(HERE, 100, 1.0)
    with pytest.raises(TemporaryError, match=r"somebody else's line.*try again in 11 s"):
        turns.take(THERE, 0, 1.0)
    turns.take(THERE, 0, TURN_S)
    with pytest.raises(TemporaryError, match="somebody else's line"):
        turns.take(HERE, 0, TURN_S)


def test_a_turn_brings_bounded_bytes() -> None:
    turns = Turns()
    turns.take(HERE, TURN_BYTES - 1, 0.0)
    with pytest.raises(TemporaryError, match=r"check of this line has just been made.*17 MiB"):
        turns.take(HERE, 2, 0.0)
    turns.take(HERE, 1, 0.0)
    turns.take(HERE, TURN_BYTES, TURN_S)


def test_turns_of_one_caller_are_counted() -> None:
    turns = Turns()
    for number in range(CALLS_WITHIN):
        turns.take(HERE, 0, number * TURN_S)
    with pytest.raises(TemporaryError, match="checks from"):
        turns.take(HERE, 0, CALLS_WITHIN * TURN_S)
    turns.take(THERE, 0, CALLS_WITHIN * TURN_S)
