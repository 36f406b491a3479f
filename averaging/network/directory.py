"""What may stand in the directory: short, signed records that expire soon.

A record's subkey is the peer id of its owner and its value is an envelope of domain "directory" signed by that peer, whose own
expiry bounds the record's. So nobody can write in another's name, squat a key with a far-off expiry, or bring back an old
record with a later one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.envelope import Envelope, open_envelope, seal
from protocol.errors import PotluckError
from protocol.identity import Signer, Verifier
from protocol.ids import PeerId, RunId

DOMAIN: Final = "directory"
MAX_RECORD_BYTES: Final = 8192
MAX_RECORD_LIFE_S: Final = 3600.0
CLOCK_SLACK_S: Final = 5.0
"""Two honest clocks may differ by this much."""


class Record(NamedTuple):
    """A record as somebody offers it."""

    subkey: str
    value: bytes
    expires_unix_s: float


RecordRule = Callable[[Record, float], str]
"""(record, unix time now in s) -> why it may not be stored, "" when it may."""


def seal_record(signer: Signer, run_id: RunId, sequence: int, expires_unix_s: float, payload: bytes) -> bytes:
    """The value of our own record: publish it under our peer id as subkey, with the same expiry."""
    return seal(signer, DOMAIN, run_id, sequence, round(expires_unix_s * 1000), payload)


def open_record(value: bytes, *, verifier: Verifier, run_id: RunId) -> Envelope:
    """A looked-up value, checked.

    Raises:
        RemoteProtocolError, VersionError: as `open_envelope`.
    """
    return open_envelope(value, verifier=verifier, domain=DOMAIN, run_id=run_id, now_unix_ms=None)


def sized_record_rule(record: Record, now_unix_s: float) -> str:
    """The rule without signatures: size and expiry."""
    if len(record.value) > MAX_RECORD_BYTES:
        return f"{len(record.value)} bytes, at most {MAX_RECORD_BYTES}"
    if not now_unix_s - CLOCK_SLACK_S < record.expires_unix_s <= now_unix_s + MAX_RECORD_LIFE_S + CLOCK_SLACK_S:
        return f"expires in {record.expires_unix_s - now_unix_s:.0f} s, allowed are 0 to {MAX_RECORD_LIFE_S:.0f} s"
    return ""


def signed_record_rule(verifier: Verifier, run_id: RunId, admits: Callable[[PeerId], bool] | None = None) -> RecordRule:
    """The whole rule: size, expiry, and the owner's signature in this run; `admits` may refuse peers without credential."""

    def judge(record: Record, now_unix_s: float) -> str:
        reason = sized_record_rule(record, now_unix_s)
        if reason:
            return reason
        try:
            envelope = open_record(record.value, verifier=verifier, run_id=run_id)
        except PotluckError as error:
            return error.one_line()
        if envelope.sender != record.subkey:
            return f"signed by {envelope.sender}, stored for {record.subkey}"
        if record.expires_unix_s > envelope.expires_unix_ms / 1000 + 0.001:
            return "kept longer than its owner allowed"
        if admits is not None and not admits(envelope.sender):
            return f"{envelope.sender} is not admitted"
        return ""

    return judge
