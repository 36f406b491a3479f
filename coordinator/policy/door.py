"""The rule of the open door: decides on one stranger, as a pure function of facts.

The shell (coordinator/admission/open_door.py) gathers the facts inside one ledger transaction, so a place is taken exactly when a
stranger is admitted to it.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from coordinator.policy.admission import AdmissionDecision, Verdict
from coordinator.policy.audited_work_core import AuditedWork
from protocol.errors import RefusedError, TemporaryError
from protocol.identity.standing import PeerStanding
from protocol.tables import duration, several

UNKNOWN_PREFIX: Final = "unknown"
"""Of a caller without an IP address."""

V4_PREFIX: Final = 24
V6_PREFIX: Final = 48
"""Bits of an address that one owner has in common: one customer of a provider gets at most so large a block."""

DAY_S: Final = 86_400
CHECKS_PER_S: Final = 5.0
"""Answers that are checked in a second, from everybody: one check takes a hundredth of a second or two of one core."""

CHECK_BURST: Final = 20.0
PREFIX_PAUSE_S: Final = 5.0
"""Seconds between two checks of answers from one prefix, so that one owner does not use up everybody's."""


@dataclass(frozen=True, slots=True)
class DoorRules:
    """The numbers of one run's door.

    Attributes:
        puzzle_bits: difficulty of the puzzle; 0 for none.
        max_strangers: places for strangers. Members take none.
        prefix_places, prefix_daily: peers of one address prefix that came by the door: at a time, and new ones within a day.
        first_s, life_s: life of a stranger's first credential and of later ones, in seconds.
    """

    puzzle_bits: int
    max_strangers: int
    prefix_places: int
    prefix_daily: int
    first_s: float
    life_s: float


@dataclass(frozen=True, slots=True)
class JuniorFacts:
    """The row of a peer that came by the door.

    Attributes:
        ends_unix_s: when its newest credential ends.
        tokens_then, tokens_now: its credited tokens when that was issued, and now.
    """

    standing: PeerStanding
    ends_unix_s: int
    tokens_then: int
    tokens_now: int


@dataclass(frozen=True, slots=True)
class DoorFacts:
    """Everything that the decision depends on, beside the rules.

    Attributes:
        junior: the peer itself, if it came by the door before.
        is_keeper: it was admitted with an invite.
        num_taken: places that others have: credentials that have not ended.
        num_of_prefix, num_today: of these those of its prefix, and how many came from there within a day.
    """

    junior: JuniorFacts | None
    is_keeper: bool
    is_banned: bool
    num_taken: int
    num_of_prefix: int
    num_today: int


def address_prefix(host: str) -> str:
    """The block of addresses that counts as one owner, as "192.0.2.0/24"; "unknown" for what is no IP address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return UNKNOWN_PREFIX
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    bits = V4_PREFIX if address.version == 4 else V6_PREFIX
    return str(ipaddress.ip_network((address, bits), strict=False))


def decide_stranger(facts: DoorFacts, rules: DoorRules, now_unix_s: float) -> AdmissionDecision:
    """Admit or refuse a peer that solved the puzzle. One that has a place keeps it, and a keeper needs none."""
    if facts.is_banned:
        return _no(RefusedError("this peer is banned from the run", "a peer in good standing", "ask the run's owner"))
    if facts.is_keeper:
        return AdmissionDecision(Verdict.ADMIT_AGAIN, "admitted before with an invite")
    if facts.junior is not None and now_unix_s < facts.junior.ends_unix_s:
        return AdmissionDecision(Verdict.ADMIT_AGAIN, "it has a place already")
    if facts.num_today >= rules.prefix_daily:
        found = f"{several(facts.num_today, 'stranger')} of your part of the network came within a day"
        return _no(
            TemporaryError(found, f"fewer than {rules.prefix_daily}", "try again tomorrow, or ask for an invite")
        )
    if facts.num_of_prefix >= rules.prefix_places:
        found = f"{several(facts.num_of_prefix, 'stranger')} of your part of the network are in the run"
        return _no(TemporaryError(found, f"fewer than {rules.prefix_places}", "try again later, or ask for an invite"))
    if facts.num_taken >= rules.max_strangers:
        found = f"all {several(rules.max_strangers, 'place')} for strangers are taken"
        return _no(TemporaryError(found, "a free place", "try again in an hour, or ask the run's owner for an invite"))
    return AdmissionDecision(Verdict.ADMIT_WITH_INVITE, "it solved the puzzle, and there is a place")


def decide_return(junior: JuniorFacts, now_unix_s: float) -> AdmissionDecision:
    """Whether a peer that came by the door gets a new credential without the door: while its last one holds, once work of it was
    counted since.
    """
    if now_unix_s >= junior.ends_unix_s:
        ago = duration(now_unix_s - junior.ends_unix_s)
        found = f"a place at the open door that ended {ago} ago"
        return _no(RefusedError(found, "a place in time", "join again with the run's open line"))
    if junior.tokens_now <= junior.tokens_then:
        found = "no work of yours was counted since your last credential"
        return _no(RefusedError(found, "at least one counted contribution", "train on; it is asked for again"))
    return AdmissionDecision(Verdict.ADMIT_AGAIN, "its work was counted")


def why_aside(audited: AuditedWork, now_unix_s: float) -> RefusedError | None:
    """Why a peer that auditors put aside gets no credential now; None for all others. The line says how to appeal."""
    left_s = audited.aside_until_unix_s - now_unix_s
    if not audited.is_doubted or left_s <= 0.0:
        return None
    return RefusedError(
        "two auditors did your work of some rounds again, and found other work",
        "work on the windows that the run assigns",
        f"check this machine's memory and card, join again in {duration(left_s)}, or ask the run's owner",
    )


def _no(error: RefusedError | TemporaryError) -> AdmissionDecision:
    return AdmissionDecision(Verdict.REFUSE, error.one_line(), error)


@dataclass(frozen=True, slots=True)
class CheckState:
    """How many answers may be checked now, and what was checked lately. Times are monotonic seconds.

    Attributes:
        spent: nonces of challenges that were answered, with the unix time at which each challenge ends.
    """

    allowance: float = CHECK_BURST
    at_s: float = 0.0
    last_s: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    spent: Mapping[bytes, int] = field(default_factory=lambda: MappingProxyType({}))


def may_check(
    state: CheckState, prefix: str, nonce: bytes, end_unix_s: int, now_s: float, now_unix_s: float
) -> tuple[CheckState, RefusedError | TemporaryError | None]:
    """Whether an answer from this prefix to this challenge is checked now, and the state after that. Each challenge is checked once,
    whether the answer is right or wrong.
    """
    allowance = min(CHECK_BURST, state.allowance + (now_s - state.at_s) * CHECKS_PER_S)
    if nonce in state.spent:
        return state, RefusedError("a challenge that was answered before", "a fresh one", "join again")
    if allowance < 1.0 or now_s - state.last_s.get(prefix, -math.inf) < PREFIX_PAUSE_S:
        return state, TemporaryError("a crowd at the door", "a free moment", f"try again in {PREFIX_PAUSE_S:.0f} s")
    last_s = {known: at_s for known, at_s in state.last_s.items() if now_s - at_s < PREFIX_PAUSE_S}
    spent = {known: end for known, end in state.spent.items() if end >= now_unix_s}
    last_s[prefix], spent[nonce] = now_s, end_unix_s
    return CheckState(allowance - 1.0, now_s, MappingProxyType(last_s), MappingProxyType(spent)), None
