"""Re-assignments: the host's signed word that documents lie with experts otherwise from a round on, in a data set packed anew.

An entry is an envelope of domain "potluck reassign" whose sequence is the unix time, s, at which it was signed: of two, the later
counts, whatever copies of a ledger there are. Its payload, integers big-endian:

    number u32 | from round u64 | data set's id 32 | router's root 32 | SHA-256 of the data set's manifest 32 | its length u64

The data set's manifest travels by that hash as a shard does. Rounds are those of the run's spine, the trunk.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.identity.identity import Signer, Verifier
from protocol.ids import Root, RunId
from protocol.received import require

REASSIGN_DOMAIN: Final = "potluck reassign"
LEAD_ROUNDS: Final = 2
"""Between the round at which the host signs and the first of the new text: time to fetch it."""

KEPT_ENTRIES: Final = 2
"""Of a run at its host: the one that is read and the one that comes, or came before."""

MAX_SAMPLE_WINDOWS: Final = 1024
"""Of the sample on which experts are compared."""

MAX_ENTRY_BYTES: Final = 512
MAX_MANIFEST_BYTES: Final = 32 << 20
_MAX_ROUND: Final = 1 << 60
_BODY: Final = struct.Struct(">IQ32s32s32sQ")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reassignment:
    """Which data set is read from a round on.

    Attributes:
        number: of the host's re-assignments of this run, from 1.
        from_round: of the trunk, from whose commit on the text is read.
        dataset_id: of the data set, 64 hex digits.
        router_root: of the router by which it was packed.
        manifest_sha256: of the data set's manifest, 64 hex digits, and `manifest_bytes` its length.
        signed_unix_s: 0 before it is signed.
    """

    number: int
    from_round: int
    dataset_id: str
    router_root: Root
    manifest_sha256: str
    manifest_bytes: int
    signed_unix_s: int = 0

    def __post_init__(self) -> None:
        require(1 <= self.number < 1 << 32, f"re-assignment {self.number}", "1 to 2^32 - 1")
        require(1 <= self.from_round <= _MAX_ROUND, f"a re-assignment from round {self.from_round}", "1 to 2^60")
        found = self.manifest_bytes
        require(1 <= found <= MAX_MANIFEST_BYTES, f"a data set's manifest of {found} bytes", "at most 32 MiB")

    @property
    def sha256(self) -> str:
        """Name of the manifest's file."""
        return self.manifest_sha256

    @property
    def num_bytes(self) -> int:
        """Length of the manifest's file."""
        return self.manifest_bytes


def seal_reassignment(host: Signer, run_id: RunId, entry: Reassignment) -> bytes:
    """The entry, signed by the run's host, as of its `signed_unix_s`."""
    payload = _BODY.pack(
        entry.number,
        entry.from_round,
        bytes.fromhex(entry.dataset_id),
        entry.router_root,
        bytes.fromhex(entry.manifest_sha256),
        entry.manifest_bytes,
    )
    return seal(host, REASSIGN_DOMAIN, run_id, entry.signed_unix_s, NEVER_MS, payload)


def open_reassignment(sealed: bytes, *, verifier: Verifier, run_id: RunId, host_public_key: bytes) -> Reassignment:
    """What an entry says, after its signature was checked.

    Raises:
        RemoteProtocolError, VersionError: malformed, of another run, or not signed by this host.
    """
    require(len(sealed) <= MAX_ENTRY_BYTES, f"a re-assignment of {len(sealed)} bytes", f"at most {MAX_ENTRY_BYTES}")
    envelope = open_envelope(sealed, verifier=verifier, domain=REASSIGN_DOMAIN, run_id=run_id, now_unix_ms=None)
    if envelope.public_key != host_public_key:
        raise RemoteProtocolError("a re-assignment that the host did not sign", "the host's signature")
    try:
        number, from_round, dataset, root, manifest, num_bytes = _BODY.unpack(envelope.payload)
    except struct.error as error:
        raise RemoteProtocolError("a re-assignment that cannot be read", f"{_BODY.size} bytes") from error
    return Reassignment(number, from_round, dataset.hex(), Root(root), manifest.hex(), num_bytes, envelope.sequence)


def in_force(entries: Sequence[tuple[int, T]], index: int, first: T) -> tuple[int, T]:
    """The text of a round: of (first round, what is read from it on), oldest first, the last one that has begun by then; else `first`,
    from round 0.
    """
    return next(((begin, each) for begin, each in reversed(entries) if begin <= index), (0, first))


def is_measured(index: int, every_rounds: int) -> bool:
    """Whether experts are measured on the sample at the trunk's commit of this round."""
    return every_rounds > 0 and index > 0 and index % every_rounds == 0
