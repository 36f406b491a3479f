"""The rules number of records: the version of the checks they keep, whether their run is open, and its weight cap.

A record's bytes alone must tell how it is checked, now or years later. So all stand in one number that each record hands on to the
next: the version in its lowest VERSION_BITS, in them OPEN_RUN where strangers are admitted, and above them the cap factor, or 0 for
CAP_FACTOR. The start record has the first one, and the host signed that.

Rules: R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

VERSION_BITS: Final = 8

OPEN_RUN: Final = 1 << 6
"""In the rules of a run that admits strangers. Releases that know no standing refuse such records: to them it is a newer version."""

CAP_FACTOR: Final = 4
"""A member's weight is at most this many times the median of the members' tokens, if run.toml does not say otherwise (R10)."""

NO_CAP: Final = (1 << 24) - 1
"""The factor of runs in which every member has the weight of all its tokens."""

MOST_CAP_FACTOR: Final = 1000
"""The largest factor that run.toml may ask for."""


def version_of(rules: int) -> int:
    """The version of the checks that a rules number asks for; 0 for none."""
    return rules & ((1 << VERSION_BITS) - 1) & ~OPEN_RUN


def is_open(rules: int) -> bool:
    """Whether a rules number is that of a run that admits strangers."""
    return bool(rules & OPEN_RUN)


def cap_factor_of(rules: int) -> int:
    """The factor of a rules number: a member's weight is at most so many times the median. NO_CAP for no limit."""
    return rules >> VERSION_BITS or CAP_FACTOR


def rules_with(version: int, cap_factor: int, *, is_open_run: bool = False) -> int:
    """The rules number of these."""
    above = 0 if cap_factor == CAP_FACTOR else cap_factor << VERSION_BITS
    return version | (OPEN_RUN if is_open_run else 0) | above


def with_version(rules: int, version: int) -> int:
    """The same number with at least this version."""
    return rules - version_of(rules) + max(version_of(rules), version)
