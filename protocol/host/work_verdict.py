"""An auditor's finding on a contributor's local steps of a round, which it did again, as it signs it for the host, and its bytes.

The wire form is protocol/proto/coordinator.proto. A verdict is two numbers and the contribution that they are about. It convicts
nobody: the host looks at those of several auditors together (coordinator/policy/audited_work_core.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES, CommitId, PeerId, Root, UnitName
from protocol.pb import coordinator_pb2 as pb
from protocol.received import MAX_TEXT, parse, require

VERDICT_DOMAIN: Final = "potluck verdict"
MAX_VERDICT_BYTES: Final = 2048

PPM: Final = 1_000_000
PERMILLE: Final = 1000
MOST_LENGTH_PERMILLE: Final = 1_000_000
"""A contribution that is longer says no more."""


@dataclass(frozen=True, slots=True)
class WorkVerdict:
    """One verdict.

    Attributes:
        unit, commit: the commit that counts the contribution.
        contributor, root: whose, and the root of its chunks.
        gap_ppm: how much nearer the contribution is to the redone delta than to that of as many steps on other windows, in millionths
            of the distance between these two, -2,000,000 to 2,000,000 (peer/audits/work_audit_core.py).
        length_permille: length of the contribution over that of the redone delta, in thousandths, 0 to 1,000,000.
        is_untold: the auditor asked the contributor which steps it took, and could not take again what it was told. Both numbers are
            0 then.
    """

    unit: UnitName
    commit: CommitId
    contributor: PeerId
    root: Root
    gap_ppm: int
    length_permille: int
    is_untold: bool = False

    def __post_init__(self) -> None:
        for name, value in (("commit", self.commit), ("root", self.root)):
            require(len(value) == HASH_BYTES, f"a {name} of {len(value)} bytes in a verdict", f"{HASH_BYTES} bytes")
        require(0 < len(self.unit) <= MAX_TEXT, f"a unit of {len(self.unit)} letters", f"1 to {MAX_TEXT}")
        require(0 < len(self.contributor) <= MAX_TEXT, f"a peer of {len(self.contributor)} letters", f"1 to {MAX_TEXT}")
        require(abs(self.gap_ppm) <= 2 * PPM, f"a gap of {self.gap_ppm} millionths", "-2 to 2 million")
        is_fine = 0 <= self.length_permille <= MOST_LENGTH_PERMILLE
        require(is_fine, f"a length of {self.length_permille} thousandths", f"0 to {MOST_LENGTH_PERMILLE}")
        is_bare = not (self.gap_ppm or self.length_permille)
        require(is_bare or not self.is_untold, "numbers about steps that nobody told", "none")


def verdict_of(
    unit: UnitName, commit: CommitId, contributor: PeerId, root: Root, *, gap: float, length_ratio: float
) -> WorkVerdict:
    """The verdict with these findings, rounded; `gap` within [-2, 2], `length_ratio` at least 0."""
    permille = min(MOST_LENGTH_PERMILLE, round(PERMILLE * length_ratio))
    return WorkVerdict(unit, commit, contributor, root, round(PPM * gap), permille)


def untold_of(unit: UnitName, commit: CommitId, contributor: PeerId, root: Root) -> WorkVerdict:
    """The verdict on a contributor that was asked for its steps, and told none that can be taken again."""
    return WorkVerdict(unit, commit, contributor, root, 0, 0, is_untold=True)


def encode_verdict(verdict: WorkVerdict) -> bytes:
    """The payload of a verdict's envelope."""
    body = pb.WorkVerdictBody(
        unit=verdict.unit,
        commit=verdict.commit,
        contributor=verdict.contributor,
        root=verdict.root,
        gap_ppm=verdict.gap_ppm,
        length_permille=verdict.length_permille,
        untold=verdict.is_untold,
    )
    return body.SerializeToString(deterministic=True)


def decode_verdict(data: bytes) -> WorkVerdict:
    """A verdict from the payload of its envelope.

    Raises:
        RemoteProtocolError: no verdict, a value out of its bounds, or bytes that `encode_verdict` does not write.
    """
    body = parse(pb.WorkVerdictBody, data, MAX_VERDICT_BYTES)
    verdict = WorkVerdict(
        unit=UnitName(body.unit),
        commit=CommitId(body.commit),
        contributor=PeerId(body.contributor),
        root=Root(body.root),
        gap_ppm=body.gap_ppm,
        length_permille=body.length_permille,
        is_untold=body.untold,
    )
    if encode_verdict(verdict) != data:
        raise RemoteProtocolError(f"a verdict of {len(data)} bytes with others among them", "its own bytes only")
    return verdict
