"""The host's signed word that documents lie with experts otherwise from a round on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.errors import RemoteProtocolError
from protocol.host.reassignment import (
    MAX_ENTRY_BYTES,
    MAX_MANIFEST_BYTES,
    REASSIGN_DOMAIN,
    Reassignment,
    in_force,
    is_measured,
    open_reassignment,
    seal_reassignment,
)
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Ed25519Verifier, Identity
from protocol.ids import Root, RunId

RUN = RunId(b"r" * 32)
HOST, STRANGER = (Identity(letter * 32) for letter in (b"h", b"s"))
ENTRY = Reassignment(2, 14, "ab" * 32, Root(b"t" * 32), "cd" * 32, 4_000, 1_700_000_000)


def _open(sealed: bytes) -> Reassignment:
    return open_reassignment(sealed, verifier=Ed25519Verifier(), run_id=RUN, host_public_key=HOST.public_key)


def test_an_entry_says_what_the_host_signed_and_names_the_manifests_file() -> None:
    sealed = seal_reassignment(HOST, RUN, ENTRY)
    assert _open(sealed) == ENTRY
    assert (ENTRY.sha256, ENTRY.num_bytes) == ("cd" * 32, 4_000)
    assert len(sealed) < MAX_ENTRY_BYTES


@pytest.mark.parametrize(
    ("sealed", "reason"),
    [
        (seal_reassignment(STRANGER, RUN, ENTRY), "the host did not sign"),
        (seal_reassignment(HOST, RunId(b"x" * 32), ENTRY), "of run"),
        (seal_reassignment(HOST, RUN, ENTRY)[:-1] + b"?", "bad signature"),
        (seal(HOST, "potluck start", RUN, 1, NEVER_MS, b"payload"), "an envelope for"),
        (seal(HOST, REASSIGN_DOMAIN, RUN, 1, NEVER_MS, b"short"), "cannot be read"),
        (bytes(MAX_ENTRY_BYTES + 1), "a re-assignment of 513 bytes"),
    ],
)
def test_what_the_host_did_not_sign_for_this_run_is_refused(sealed: bytes, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason):
        _open(sealed)


@pytest.mark.parametrize("changes", [{"number": 0}, {"from_round": 0}, {"manifest_bytes": MAX_MANIFEST_BYTES + 1}])
def test_numbers_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError):
        replace(ENTRY, **changes)  # type: ignore[arg-type]


def test_a_rounds_text_is_the_last_that_has_begun_by_then() -> None:
    entries = [(4, "one"), (9, "other")]
    found = [in_force(entries, index, "first") for index in (0, 3, 4, 8, 9, 99)]
    assert found == [(0, "first"), (0, "first"), (4, "one"), (4, "one"), (9, "other"), (9, "other")]
    assert in_force([], 99, "first") == (0, "first")


def test_experts_are_measured_at_every_so_manieth_round_and_never_at_the_start() -> None:
    assert [index for index in range(10) if is_measured(index, 3)] == [3, 6, 9]
    assert not any(is_measured(index, 0) for index in range(10))
