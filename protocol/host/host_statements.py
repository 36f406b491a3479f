"""Statements that the host of a run signed, as reports and replies bring them: start record, revocations, milestones, and words of
the loss gate.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from protocol.identity.revocation import check_fingerprints
from protocol.received import require
from protocol.rounds.lineage.hold import MAX_HOLD_BYTES

MAX_MILESTONES: Final = 4
"""Milestones that one report brings to a host with an old copy of its ledger."""

MOST_NEWS: Final = 4
"""Rewinds in one reply."""

_MAX_START_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class HostStatements:
    """Statements that the host signed: those that a peer has, by fingerprint, and those that it brings because the host lacks them.

    Attributes:
        start_record: the host's envelope, sent while the coordinator reports that the run has not started, if the peer has it.
        known_revocations: fingerprints of the host's revocations that this peer has.
        revocations: signed entries that the coordinator asked for.
        known_milestones: fingerprints of the newest milestones that this peer has.
        milestones: in the host's envelopes, where its head is before them: it was restored from an old copy.
    """

    start_record: bytes = b""
    known_revocations: bytes = b""
    revocations: tuple[bytes, ...] = ()
    known_milestones: bytes = b""
    milestones: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        for known in (self.known_revocations, self.known_milestones):
            check_fingerprints(known)
        found = len(self.start_record)
        require(found <= _MAX_START_BYTES, f"{found} bytes of start", f"at most {_MAX_START_BYTES}")
        require(
            len(self.milestones) <= MAX_MILESTONES, f"{len(self.milestones)} milestones", f"at most {MAX_MILESTONES}"
        )

    @property
    def known(self) -> HostStatements:
        """Without what is brought."""
        return HostStatements(known_revocations=self.known_revocations, known_milestones=self.known_milestones)

    @property
    def brought(self) -> HostStatements:
        """Without the fingerprints."""
        return replace(self, known_revocations=b"", known_milestones=b"")

    def beside(self, known: HostStatements) -> HostStatements:
        """The statements that are brought here, with the fingerprints of another report."""
        return replace(self, known_revocations=known.known_revocations, known_milestones=known.known_milestones)


NO_STATEMENTS: Final = HostStatements()


@dataclass(frozen=True, slots=True)
class RevocationNews:
    """The host's revocations, as a reply to a report tells them.

    Attributes:
        revocations: signed entries that the peer lacks, for it to verify.
        asks_revocations: the coordinator lacks some that the peer has.
        known_revocations: fingerprints of the coordinator's own if it asks; 8 bytes each.
    """

    revocations: tuple[bytes, ...] = ()
    asks_revocations: bool = False
    known_revocations: bytes = b""

    def __post_init__(self) -> None:
        check_fingerprints(self.known_revocations)


NO_REVOCATION_NEWS: Final = RevocationNews()


@dataclass(frozen=True, slots=True)
class GateNews:
    """Words of the host's loss gate, as a reply to a report tells them (R28).

    Attributes:
        hold: its newest hold in the authority's envelope; empty for none that may count.
        rewinds: certificates of rewinds that the peer does not follow.
    """

    hold: bytes = b""
    rewinds: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        found = len(self.hold)
        require(found <= MAX_HOLD_BYTES, f"a hold of {found} bytes", f"at most {MAX_HOLD_BYTES}")
        require(len(self.rewinds) <= MOST_NEWS, f"{len(self.rewinds)} rewinds", f"at most {MOST_NEWS}")


NO_GATE_NEWS: Final = GateNews()
