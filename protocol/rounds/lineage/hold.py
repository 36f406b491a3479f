"""Holds: the host's signed word that no round is to be opened for a while, because the held-out loss rose (R28). Pure.

A hold is an envelope of domain HOLD_DOMAIN that the run's certificate authority signed. Its sequence is the number of the rewind that
may follow. Its payload:

    length of the unit's name u8 | unit, ASCII | genesis 32 | last bad commit 32 | unix time u64, s | lasts u32, s
    | last good round u64 | its loss f64 | last bad round u64 | its loss f64

Integers and floats are big-endian, losses are in nats a byte. A hold ends with its time, with the rewind of its number, or with a
later hold of the same number: one that lasts 0 s lifts it. A peer keeps the newest alone. Without the host every hold ends by itself.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer
from protocol.ids import HASH_BYTES, CommitId, UnitName, short
from protocol.received import require
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.record import MAX_REWINDS

HOLD_DOMAIN: Final = "potluck hold"
MAX_HOLD_S: Final = 3600
"""Longest time of a hold, in seconds: a host that dies stops its run for no more."""

CLOCK_SLACK_S: Final = 300
"""A hold counts from so many seconds before its date: clocks differ."""

MAX_HOLD_BYTES: Final = 1024

_NUMBERS: Final = struct.Struct(f">{HASH_BYTES}s{HASH_BYTES}sQIQdQd")


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold.

    Attributes:
        number: of the rewind that may follow, from 1.
        commit: the last bad commit, when it was signed.
        unix_s, lasts_s: when it was signed, and for how long it counts; 0 lifts the hold.
        good_index, good_nats: the last good round, and its held-out loss in nats a byte.
        bad_index, bad_nats: likewise of the last bad one.
    """

    number: int
    unit: UnitName
    genesis: CommitId
    commit: CommitId
    unix_s: int
    lasts_s: int
    good_index: int
    good_nats: float
    bad_index: int
    bad_nats: float

    def __post_init__(self) -> None:
        require(1 <= self.number <= MAX_REWINDS, f"hold {self.number}", f"1 to {MAX_REWINDS}")
        require(0 <= self.lasts_s <= MAX_HOLD_S, f"a hold of {self.lasts_s} s", f"at most {MAX_HOLD_S} s")
        require(
            self.good_index < self.bad_index, f"round {self.bad_index} after {self.good_index}", "the good one first"
        )
        losses = (self.good_nats, self.bad_nats)
        require(all(map(math.isfinite, losses)), f"losses {losses} in a hold", "finite numbers")

    @property
    def words(self) -> str:
        """The cause, in one sentence for people."""
        good = f"{self.good_nats:.4g} at round {self.good_index}"
        return (
            f"the host holds the run: held-out loss rose from {good} to {self.bad_nats:.4g} at round {self.bad_index}"
        )

    def is_on(self, now_unix_s: float) -> bool:
        """Whether it counts at this time, as far as the clock tells."""
        return bool(self.lasts_s) and self.unix_s - CLOCK_SLACK_S <= now_unix_s < self.unix_s + self.lasts_s

    def is_followed(self, behind: Iterable[ChainLink]) -> bool:
        """Whether its rewind is among these commits. `behind`: a head and its ancestors, newest first."""
        later = takewhile(lambda link: link.index > self.good_index, behind)
        return any(link.rewind >= self.number for link in later)


def seal_hold(authority: Signer, run_id: bytes, hold: Hold) -> bytes:
    """The hold, signed with the key of the run's certificate authority."""
    unit = hold.unit.encode("ascii")
    numbers = (hold.unix_s, hold.lasts_s, hold.good_index, hold.good_nats, hold.bad_index, hold.bad_nats)
    payload = bytes([len(unit)]) + unit + _NUMBERS.pack(hold.genesis, hold.commit, *numbers)
    return seal(authority, HOLD_DOMAIN, run_id, hold.number, NEVER_MS, payload)


def open_hold(sealed: bytes, *, check: SignatureCheck, genesis: CommitId) -> Hold:
    """Check a hold of the run that began with `genesis`.

    Raises:
        RemoteProtocolError: malformed, of another run or start, or not signed by the run's authority.
        VersionError: signed by a version that is not read any more.
    """
    if len(sealed) > MAX_HOLD_BYTES:
        raise RemoteProtocolError(f"a hold of {len(sealed)} bytes", f"at most {MAX_HOLD_BYTES}")
    envelope = open_envelope(sealed, verifier=check.verifier, domain=HOLD_DOMAIN, run_id=check.run_id, now_unix_ms=None)
    if envelope.sender != check.verifier.authority:
        found = f"a hold that {short(envelope.sender)} signed"
        raise RemoteProtocolError(found, "one that the run's authority signed", "it is ignored")
    try:
        length = envelope.payload[0]
        unit = UnitName(envelope.payload[1 : 1 + length].decode("ascii"))
        found_genesis, commit, *numbers = _NUMBERS.unpack(envelope.payload[1 + length :])
    except (IndexError, UnicodeDecodeError, struct.error) as error:
        raise RemoteProtocolError("a hold that cannot be read", "a unit, two commits and numbers") from error
    if found_genesis != genesis:
        raise RemoteProtocolError(f"a hold of a run with start {short(found_genesis)}", f"this run's {short(genesis)}")
    return Hold(envelope.sequence, unit, genesis, CommitId(commit), *numbers)


def newer(held: Hold | None, offered: Hold) -> Hold:
    """The hold to keep of these two.

    Raises:
        RemoteProtocolError: the offered one is older than the one that is held.
    """
    if held is not None and (offered.number, offered.unix_s) < (held.number, held.unix_s):
        found = f"an older hold, number {offered.number} of round {offered.bad_index}"
        expected = f"one after number {held.number} of round {held.bad_index}, which is held"
        raise RemoteProtocolError(found, expected, "it is ignored")
    return offered
