"""The judgement of `potluck doctor` on the way to the host, pure: what was read over the wire -> findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from peer.doctor_core import Finding, Level

CLOCK_GOOD_S: Final = 5.0
"""Messages live for two minutes; a clock that is off by seconds costs nothing yet, and says that nobody sets it."""

CLOCK_MOST_S: Final = 120.0
"""As peer/joining.py refuses it; a test says so."""

FROM_A_CHECKOUT: Final = "from a checkout"
"""As averaging/release.py says it: nobody knows then whether two of them are the same."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The host answered.

    Attributes:
        address: as the invite or the last run names it.
        ahead_s: how far its clock is ahead of ours.
        release, own_release: of Potluck, there and here.
    """

    address: str
    ahead_s: float
    release: str
    own_release: str


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The host could not be asked: what was found, and what to do. `is_needed` is False for a peer that has been admitted before: it
    goes on without the host.
    """

    found: str
    fix: str
    is_needed: bool


@dataclass(frozen=True, slots=True)
class HostReadings:
    """Everything that was read of the way to the host."""

    answer: Answer | NoAnswer


def judge_host(readings: HostReadings) -> tuple[Finding, ...]:
    """The findings about the way to the host, in the order of the report."""
    answer = readings.answer
    if isinstance(answer, NoAnswer):
        return (_silence(answer),)
    return (_release(answer), _clock(answer))


def _silence(answer: NoAnswer) -> Finding:
    if answer.is_needed:
        return Finding("host", Level.FAIL, answer.found, answer.fix)
    return Finding("host", Level.WARN, f"{answer.found}; the peer goes on without it", answer.fix)


def _release(answer: Answer) -> Finding:
    found = f"answers at {answer.address}"
    if answer.release in ("", FROM_A_CHECKOUT) or answer.own_release == FROM_A_CHECKOUT:
        return Finding("host", Level.OK, f"{found}, with the same protocol")
    if answer.release != answer.own_release:
        return Finding(
            "host",
            Level.WARN,
            f"{found} with potluck {answer.release}, here is {answer.own_release}",
            f"install potluck {answer.release} should anything go wrong",
        )
    return Finding("host", Level.OK, f"{found}, with the same potluck {answer.release}")


def _clock(answer: Answer) -> Finding:
    off_s = abs(answer.ahead_s)
    side = "behind" if answer.ahead_s > 0 else "ahead of"
    found = f"this machine's clock is {off_s:.1f} s {side} the host's"
    fix = "set it, for example with: sudo timedatectl set-ntp true"
    # Written so that NaN, which only a broken host says, fails.
    if off_s <= CLOCK_GOOD_S:
        return Finding("clock", Level.OK, found)
    if off_s <= CLOCK_MOST_S:
        return Finding("clock", Level.WARN, found, fix)
    return Finding("clock", Level.FAIL, f"{found}: all its messages would count as expired or as too early", fix)
