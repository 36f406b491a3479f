from __future__ import annotations

from dataclasses import replace

import pytest

from averaging import release
from peer import doctor_host_core, joining
from peer.doctor_core import Finding, Level
from peer.doctor_host_core import Answer, HostReadings, NoAnswer, judge_host

FINE = HostReadings(Answer("10.0.0.1:7000", 0.4, "0.1.0", "0.1.0"))
ANSWER = FINE.answer


def find(readings: HostReadings, name: str) -> Finding:
    (found,) = [finding for finding in judge_host(readings) if finding.name == name]
    return found


@pytest.mark.parametrize(("is_needed", "level"), [(True, Level.FAIL), (False, Level.WARN)])
def test_host_that_does_not_answer_is_a_fail_where_nothing_begins_without_it(is_needed: bool, level: Level) -> None:
    silent = NoAnswer("no coordinator answers at 10.0.0.1:7000", "check host and firewall", is_needed)
    (found,) = judge_host(HostReadings(silent))
    assert (found.name, found.level, found.fix) == ("host", level, "check host and firewall")
    assert found.found.startswith("no coordinator answers")
    assert ("goes on without it" in found.found) == (not is_needed)


@pytest.mark.parametrize(
    ("there", "here", "level", "says"),
    [
        ("0.1.0", "0.1.0", Level.OK, "answers at 10.0.0.1:7000, with the same potluck 0.1.0"),
        ("0.2.0", "0.1.0", Level.WARN, "with potluck 0.2.0, here is 0.1.0; install potluck 0.2.0"),
        ("", "0.1.0", Level.OK, "with the same protocol"),
        ("from a checkout", "0.1.0", Level.OK, "with the same protocol"),
        ("0.1.0", "from a checkout", Level.OK, "with the same protocol"),
    ],
)
def test_release(there: str, here: str, level: Level, says: str) -> None:
    found = find(HostReadings(Answer("10.0.0.1:7000", 0.0, there, here)), "host")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


@pytest.mark.parametrize(
    ("ahead_s", "level", "says"),
    [
        (0.4, Level.OK, "0.4 s behind the host's"),
        (-5.0, Level.OK, "5.0 s ahead of the host's"),
        (5.1, Level.WARN, "timedatectl"),
        (-120.0, Level.WARN, "120.0 s ahead of"),
        (120.1, Level.FAIL, "timedatectl"),
        (float("nan"), Level.FAIL, "timedatectl"),
    ],
)
def test_clock(ahead_s: float, level: Level, says: str) -> None:
    assert isinstance(ANSWER, Answer)
    found = find(replace(FINE, answer=replace(ANSWER, ahead_s=ahead_s)), "clock")
    assert found.level is level
    assert says in f"{found.found}; {found.fix}"


def test_constants_are_those_of_the_code_that_acts_on_them() -> None:
    assert doctor_host_core.CLOCK_MOST_S == joining.MAX_CLOCK_ERROR_S
    assert doctor_host_core.FROM_A_CHECKOUT == release.FROM_A_CHECKOUT
