"""The rules number of records: the version of the checks they keep, whether their run is open, and its weight cap.

The versions: SIGNED, and TURNS where voters take turns (turns.py). Each of them plus TOLD_VOTES is the same with one more rule: a
goodbye makes a quorum smaller only if its signer tells all its votes by it (chain.py). New records have that rule.

A record's bytes alone must tell how it is checked, now or years later. So all stand in one number that each record hands on to the
next: the version in its lowest VERSION_BITS, in them OPEN_RUN where strangers are admitted and BOUNDED_STRANGERS where their weight is
bounded, and above them the cap factor, or 0 for CAP_FACTOR. The start record has the first one, and the host signed that.

Rules: R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from typing import Final

VERSION_BITS: Final = 8

SIGNED: Final = 1
"""Rules of a record whose statements are signed by those whom they are about. All later rules ask for that, too."""

TURNS: Final = 2
"""Rules of a record that leaves contributors out of the next roster, and of all after it."""

TOLD_VOTES: Final = 2
"""Added to the version of records that count no goodbye of a new disk, nor of a release that does not tell whether it knows all its
votes.
"""

NEW_RUNS: Final = SIGNED + TOLD_VOTES
"""The version that a new run begins with."""

NEWEST: Final = TURNS + TOLD_VOTES
"""The highest version that this release knows."""

OPEN_RUN: Final = 1 << 6
"""In the rules of a run that admits strangers. Releases that know no standing refuse such records: to them it is a newer version."""

BOUNDED_STRANGERS: Final = 1 << 5
"""In the rules of an open run whose claims tell strangers, which weigh little (stranger_weights.py). Every new open run has it."""

CAP_FACTOR: Final = 4
"""A member's weight is at most this many times the median of the members' tokens, if run.toml does not say otherwise (R10)."""

NO_CAP: Final = (1 << 24) - 1
"""The factor of runs in which every member has the weight of all its tokens."""

MOST_CAP_FACTOR: Final = 1000
"""The largest factor that run.toml may ask for."""


def version_of(rules: int) -> int:
    """The version of the checks that a rules number asks for; 0 for none."""
    return rules & ((1 << VERSION_BITS) - 1) & ~(OPEN_RUN | BOUNDED_STRANGERS)


def is_open(rules: int) -> bool:
    """Whether a rules number is that of a run that admits strangers."""
    return bool(rules & OPEN_RUN)


def bounds_strangers(rules: int) -> bool:
    """Whether claims say that their signer is a stranger, and strangers weigh little. An open run of an older release has neither."""
    return bool(rules & BOUNDED_STRANGERS)


def cap_factor_of(rules: int) -> int:
    """The factor of a rules number: a member's weight is at most so many times the median. NO_CAP for no limit."""
    return rules >> VERSION_BITS or CAP_FACTOR


def takes_turns(rules: int) -> bool:
    """Whether contributors may be left out of the next roster."""
    return version_of(rules) in (TURNS, TURNS + TOLD_VOTES)


def asks_told_votes(rules: int) -> bool:
    """Whether a goodbye counts only where it tells all votes of its signer."""
    return version_of(rules) > TOLD_VOTES


def may_follow(rules: int, parent_rules: int) -> bool:
    """Whether a record may have this version on a parent with that one: no check that was made once is left out later."""
    has_turns = takes_turns(rules) or not takes_turns(parent_rules)
    return has_turns and version_of(rules) >= version_of(parent_rules)


def rules_with(version: int, cap_factor: int, *, is_open_run: bool = False) -> int:
    """The rules number of these."""
    above = 0 if cap_factor == CAP_FACTOR else cap_factor << VERSION_BITS
    return version | (OPEN_RUN | BOUNDED_STRANGERS if is_open_run else 0) | above


def rules_after(parent_rules: int, *, in_turns: bool) -> int:
    """The rules number of a new record on a parent with this one, with or without turns."""
    version = TURNS if in_turns or takes_turns(parent_rules) else SIGNED
    return parent_rules - version_of(parent_rules) + version + TOLD_VOTES
