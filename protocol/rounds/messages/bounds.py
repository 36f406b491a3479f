"""Bounds that every message checks when it is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from protocol.identity.envelope import SEAL_BYTES
from protocol.identity.identity import KEY_BYTES
from protocol.ids import HASH_BYTES
from protocol.received import dropped, require

MAX_TOKENS: Final = 1 << 53
"""Exact as a float64, and more than any run counts."""

MAX_MEMBERS: Final = 64
MAX_SLICES: Final = 32
"""Control bytes grow with members plus slices, so both are bounded."""

MAX_VOTE_BYTES: Final = 1024
"""An ack or a pre-vote in its envelope. Certificates and proposals carry up to MAX_MEMBERS of them."""

VOTE_BYTES: Final = KEY_BYTES + SEAL_BYTES
"""An ack in a certificate, without its payload: the voter's public key and its seal."""

MAX_RECORDED_VOTE_BYTES: Final = 1 << 17
"""A promise or a goodbye in its envelope, with the record that it names. A record of MAX_MEMBERS newcomers takes half of that."""

MAX_CHUNKS: Final = 1 << 22
"""Of a unit: with the longest default chunks 2.7e11 values."""

LOST_ALL_PPM: Final = 1_000_000


def require_hash(name: str, value: bytes) -> None:
    """Check that a hash has 32 bytes."""
    require(len(value) == HASH_BYTES, f"{name} of {len(value)} bytes", f"{HASH_BYTES} bytes")


def require_range(first_chunk: int, stop_chunk: int) -> None:
    """Check the chunks of a slice: at least one, and none beyond the most that a unit has."""
    require(0 <= first_chunk < stop_chunk <= MAX_CHUNKS, f"slice [{first_chunk}, {stop_chunk})", "a range")


def require_tokens(tokens: int) -> None:
    """Check a count of tokens. Every heartbeat passes here several times, so the error's words are made only for a wrong one."""
    if not 0 <= tokens <= MAX_TOKENS:
        raise dropped(f"{tokens} tokens", "0 to 2^53")


def require_lost(lost_ppm: int) -> None:
    """Check the share that a codec left out, in millionths."""
    require(0 <= lost_ppm <= LOST_ALL_PPM, f"{lost_ppm} millionths left out", f"0 to {LOST_ALL_PPM}")


def require_disagreement(num_chunks: int, agreement_percent: int) -> None:
    """Check how many chunks disagree with the others, and how much."""
    require(0 < num_chunks <= MAX_CHUNKS, f"{num_chunks} chunks left out", f"1 to {MAX_CHUNKS}")
    require(-100 <= agreement_percent <= 100, f"an agreement of {agreement_percent} percent", "-100 to 100")


def require_tiling(slices: Sequence[tuple[int, int]]) -> None:
    """Check first and stop chunk of slices: they follow one another from chunk 0 on."""
    expected = 0
    for first_chunk, stop_chunk in slices:
        require(first_chunk == expected, f"slice starts at chunk {first_chunk}", f"{expected}: slices tile the vector")
        expected = stop_chunk


MAX_CREDENTIAL_BYTES: Final = 2048


def require_credential(credential: bytes) -> None:
    """Check the length of a credential; none is fine."""
    found = f"a credential of {len(credential)} bytes"
    require(len(credential) <= MAX_CREDENTIAL_BYTES, found, f"at most {MAX_CREDENTIAL_BYTES}")
