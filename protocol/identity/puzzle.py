"""The puzzle at the door of an open run: memory-bound work that is long to do and short to check.

The host gives a fresh challenge, bound to one key, for a short time. It keeps nothing until an answer comes, for it knows its own
challenges again by a code over them. An answer is a number with which scrypt, over run, key, challenge and number, begins with
`bits` zero bits. Each try takes 4 MiB of memory, so that special hardware gains little. That makes identities cost something;
it is no defence against somebody with many machines.

    challenge: nonce 16 | end u64 (unix s) | bits u8 | code 16

Source: scrypt, RFC 7914; client puzzles, Juels and Brainard 1999.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from hashlib import scrypt
from typing import Final

from protocol.errors import RefusedError
from protocol.ids import RunId

NONCE_BYTES: Final = 16
CODE_BYTES: Final = 16
MOST_BITS: Final = 20
"""A peer does no harder puzzle: each bit doubles the tries, and so many take hours."""

LIFE_S: Final = 900
"""Seconds in which an answer has to come."""

_N: Final = 1 << 12
_R: Final = 8
"""Memory of one try: 4 MiB, and a hundredth of a second or two of one core."""

_LAYOUT: Final = struct.Struct(f">{NONCE_BYTES}sQB{CODE_BYTES}s")
_NUMBER: Final = struct.Struct(">Q")
CHALLENGE_BYTES: Final = _LAYOUT.size
_SALT: Final = b"potluck door 1"
_CODE_DOMAIN: Final = b"potluck challenge"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge, read but not checked. `bits`: 0 to 255. `end_unix_s`: until when an answer is taken."""

    nonce: bytes
    end_unix_s: int
    bits: int
    code: bytes

    @property
    def raw(self) -> bytes:
        """The bytes on the wire."""
        return _LAYOUT.pack(self.nonce, self.end_unix_s, self.bits, self.code)


def read_challenge(data: bytes) -> Challenge:
    """The challenge in these bytes.

    Raises:
        RefusedError: they have another length.
    """
    if len(data) != CHALLENGE_BYTES:
        raise RefusedError(f"a challenge of {len(data)} bytes", f"{CHALLENGE_BYTES} bytes", "join again")
    return Challenge(*_LAYOUT.unpack(data))


def make_challenge(
    secret: bytes, run_id: RunId, public_key: bytes, *, bits: int, nonce: bytes, now_unix_s: float
) -> Challenge:
    """A challenge for the owner of this key. `secret` is the host's alone; `nonce` has NONCE_BYTES random bytes."""
    end_unix_s = int(now_unix_s) + LIFE_S
    return Challenge(nonce, end_unix_s, bits, _code(secret, run_id, public_key, nonce, end_unix_s, bits))


def check_challenge(
    challenge: Challenge, secret: bytes, run_id: RunId, public_key: bytes, *, bits: int, now_unix_s: float
) -> None:
    """Check that the host made this challenge for this key, and that it still holds.

    Raises:
        RefusedError: it is another's, too old, or easier than the host asks for now.
    """
    code = _code(secret, run_id, public_key, challenge.nonce, challenge.end_unix_s, challenge.bits)
    if not hmac.compare_digest(code, challenge.code):
        raise RefusedError("a challenge that this host did not make for this peer", "its own", "join again")
    if now_unix_s > challenge.end_unix_s or challenge.bits < bits:
        raise RefusedError("a challenge that holds no more", f"an answer within {LIFE_S // 60} minutes", "join again")


def is_answer(challenge: Challenge, run_id: RunId, public_key: bytes, number: int) -> bool:
    """Whether this number, 0 to 2^64 - 1, solves the puzzle. Blocks for one try."""
    if not 0 <= number < 1 << 64:
        return False
    about = run_id + public_key + challenge.raw + _NUMBER.pack(number)
    digest = scrypt(about, salt=_SALT, n=_N, r=_R, p=1, dklen=32)
    return int.from_bytes(digest, "big") >> (256 - challenge.bits) == 0


def find_answer(challenge: Challenge, run_id: RunId, public_key: bytes, first: int, count: int) -> int | None:
    """The first answer among `count` numbers from `first` on; None if none is one. Blocks.

    Raises:
        RefusedError: the puzzle is harder than any host should ask for.
    """
    if challenge.bits > MOST_BITS:
        raise RefusedError(
            f"a puzzle of {challenge.bits} bits", f"at most {MOST_BITS}", "ask the run's owner to lower puzzle_bits"
        )
    return next((n for n in range(first, first + count) if is_answer(challenge, run_id, public_key, n)), None)


def _code(secret: bytes, run_id: RunId, public_key: bytes, nonce: bytes, end_unix_s: int, bits: int) -> bytes:
    about = _CODE_DOMAIN + run_id + public_key + nonce + _NUMBER.pack(end_unix_s) + bytes([bits])
    return hmac.digest(secret, about, "sha256")[:CODE_BYTES]
