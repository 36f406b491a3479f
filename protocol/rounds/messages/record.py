"""A commit record and its parts. Its bytes are made once, by the leader that settles it, and carried as received ever after.

Rules: R2, R3, R20, R21, R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeVar

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.received import require
from protocol.rounds.messages.bounds import (
    MAX_MEMBERS,
    MAX_SLICES,
    require_credential,
    require_disagreement,
    require_hash,
    require_lost,
    require_range,
    require_tiling,
    require_tokens,
)
from protocol.rounds.messages.lane_parts import LanePart, require_once

MAX_REWINDS: Final = 64
"""Most rewinds of a run (R28). A run that needs more needs its owner."""

LAST_ATTEMPT: Final = (1 << 32) - 1
"""No attempt has this number: a promise of it says that its peer left (R3)."""

NO_SPINE: Final = CommitId(b"")
"""In the spine's own proposals and records, which cite no spine commit: their base is one."""


def require_spine(spine: CommitId) -> None:
    """Raise RemoteProtocolError for a spine commit of a wrong length."""
    if spine != NO_SPINE:
        require_hash("spine", spine)


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """(attempt, peer id), ordered. Attempt 0 belongs to the first opener of the base roster alone and needs no promises."""

    attempt: int
    peer: PeerId

    def __post_init__(self) -> None:
        require(0 <= self.attempt < 1 << 32, f"attempt {self.attempt}", "0 to 2^32")


@dataclass(frozen=True, slots=True)
class OuterStep:
    """Every number of the outer step of one commit; `kind` is a name in protocol/kinds/outer_table.py."""

    kind: str
    learning_rate: float
    momentum: float


class OmissionCode(IntEnum):
    """Why a member is left out of a slice, in a record. There it is a number: text could say anything."""

    UNKNOWN = 0
    LATE = 1
    REFUSED = 2
    NOTHING = 3
    GONE = 4
    NO_PART = 5
    LANE_TWICE = 6


@dataclass(frozen=True, slots=True)
class Omission:
    """A member left out of a slice, and why (P9). The text is the reducer's; a record has the code alone, older ones the text."""

    peer: PeerId
    reason: str
    code: int = OmissionCode.UNKNOWN

    def __post_init__(self) -> None:
        require(self.code in _OMISSION_WORDS, f"omission code {self.code}", f"0 to {max(OmissionCode)}")

    @property
    def words(self) -> str:
        """The reason, for people."""
        return self.reason or _OMISSION_WORDS[OmissionCode(self.code)]


_OMISSION_WORDS: Final = {
    OmissionCode.UNKNOWN: "no reason given",
    OmissionCode.LATE: "late",
    OmissionCode.REFUSED: "what it sent was refused",
    OmissionCode.NOTHING: "nothing to offer",
    OmissionCode.GONE: "gone",
    OmissionCode.NO_PART: "a spare, with no part in this round",
    OmissionCode.LANE_TWICE: "its part of a lane came from another peer",
}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Chunks of a contribution that are left out of the means of a slice because they disagree with most others (P9).

    Attributes:
        num_chunks: how many of the slice's chunks.
        agreement_percent: their agreement in the mean, as a share of the median agreement; the rule asks for 70, and a member that
            sends the opposite has -100.
    """

    peer: PeerId
    num_chunks: int
    agreement_percent: int

    def __post_init__(self) -> None:
        require_disagreement(self.num_chunks, self.agreement_percent)


@dataclass(frozen=True, slots=True)
class Included:
    """A contribution summed into a slice, with the values of its claim.

    Attributes:
        session, seal: its process, and the seal of its claim (claim.py), from which others rebuild what it signed.
        credential: proof of its admission, of a peer that is not in the base roster; empty otherwise.
        num_left_out, agreement_percent: of its chunks in the slice that disagree, as in `Disagreement`; 0 and 0 where none does.
        is_stranger: whether its claim says that its signer is a stranger.
    """

    peer: PeerId
    incarnation: int
    root: Root
    tokens: int
    attested: CommitId
    attested_root: Root
    lanes: tuple[LanePart, ...] = ()
    session: int = 0
    seal: bytes = b""
    credential: bytes = b""
    num_left_out: int = 0
    agreement_percent: int = 0
    is_stranger: bool = False

    def __post_init__(self) -> None:
        require_tokens(self.tokens)
        require_credential(self.credential)
        if self.num_left_out or self.agreement_percent:
            require_disagreement(self.num_left_out, self.agreement_percent)


@dataclass(frozen=True, slots=True)
class SliceRecord:
    """One slice in a commit record: its reducer, the hash of its bytes, and the members left out and why. `lost_ppm` is the share
    of the mean that its codec left out, as its reducer signed it; `seal` is that of its sum (claim.py). `credential` proves the
    admission of a reducer that neither voted before nor contributed. `disagreeing` are the contributions that it sums in part only, in
    the order of peers.
    """

    first_chunk: int
    stop_chunk: int
    reducer: PeerId
    result_hash: Root
    omitted: tuple[Omission, ...]
    lost_ppm: int = 0
    seal: bytes = b""
    credential: bytes = b""
    disagreeing: tuple[Disagreement, ...] = ()

    def __post_init__(self) -> None:
        require_range(self.first_chunk, self.stop_chunk)
        require_lost(self.lost_ppm)
        require_credential(self.credential)


@dataclass(frozen=True, slots=True)
class Contributor:
    """One member's part in a commit. `credited_tokens` = floor(tokens x counted chunks / all chunks) (R20). `lanes`: the lanes'
    parts that it brought, in a run of lanes.

    Attributes:
        session, seal: of its claim, as in `Included`.
        attests: the place in the record's `attestations` of the pair that it attests, from 1; 0 in older records.
        credential: proof of its admission, where the parent's roster does not have it.
        is_stranger: as in `Included`.
    """

    peer: PeerId
    incarnation: int
    root: Root
    tokens: int
    credited_tokens: int
    lanes: tuple[LanePart, ...] = ()
    session: int = 0
    seal: bytes = b""
    attests: int = 0
    credential: bytes = b""
    is_stranger: bool = False

    def __post_init__(self) -> None:
        require_credential(self.credential)


@dataclass(frozen=True, slots=True)
class Attestation:
    """The state root that most contributors computed for an earlier commit (R21)."""

    commit: CommitId
    state_root: Root


_A = TypeVar("_A")


def is_agreed(attested: _A, attestations: Sequence[_A], attests: Sequence[int], rules: int) -> bool:
    """Whether more than half of the contributors name the `attested` pair. `attests`: the place of each one's pair, from 1."""
    if not rules or attested not in attestations:
        return True
    return 2 * sum(place == attestations.index(attested) + 1 for place in attests) > len(attests)


@dataclass(frozen=True, slots=True)
class LightRecord:
    """An old record without its contributors: the values by which forks are chosen, and its bytes for everything else.

    Attributes:
        credited: the credited tokens of each contributor.
        agreed: as `CommitRecord.agreed`.
        rewind: as `CommitRecord.rewind`.
    """

    raw: bytes
    parent: CommitId
    weight_cap_tokens: int
    lone: bool
    spine: CommitId
    credited: Sequence[int]
    agreed: Attestation | None
    rewind: int = 0


@dataclass(frozen=True, slots=True)
class RecordGlance:
    """A record that was read whole at an earlier time, as a link of its lineage: the voters that it hands on, and a light form."""

    unit: UnitName
    index: int
    total_tokens: int
    next_target_tokens: int
    roster: tuple[PeerId, ...]
    incarnations: tuple[int, ...]
    rules: int
    light: LightRecord


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """Everything that one commit did (R2). Its bytes, hashed with the parent id, are the commit id.

    Attributes:
        ballot: the ballot that made the record; a successor settles the same bytes under a ballot of its own.
        total_tokens: W of this commit: W(parent) + credited tokens.
        next_target_tokens: ready tokens at which the next round is due.
        roster: the voters of the next round: the proposal's members not suspected at settle time.
        incarnations: the disks that they vote with, in the roster's order: a peer that lost its disk may have voted already.
        lone: committed without a quorum, after patience.
        codec, result_codec, spine: as in the proposal.
        rules: the rules by which it can be checked (lineage/record_rules.py); 0 in records of older releases.
        attestations: the different pairs that contributors attest; `attested` is that of most.
    """

    unit: UnitName
    parent: CommitId
    index: int
    ballot: Ballot
    slices: tuple[SliceRecord, ...]
    contributors: tuple[Contributor, ...]
    codec: str
    weight_cap_tokens: int
    total_tokens: int
    outer: OuterStep
    next_target_tokens: int
    roster: tuple[PeerId, ...]
    incarnations: tuple[int, ...]
    attested: Attestation | None = None
    lone: bool = False
    level: int = 0
    spine: CommitId = NO_SPINE
    result_codec: str = ""
    rules: int = 0
    attestations: tuple[Attestation, ...] = ()

    def __post_init__(self) -> None:
        require_hash("parent", self.parent)
        require_spine(self.spine)
        if self.slices or self.contributors:
            require(1 <= len(self.slices) <= MAX_SLICES, f"{len(self.slices)} slices", f"1 to {MAX_SLICES}")
            fits = 1 <= len(self.contributors) <= MAX_MEMBERS
            require(fits, f"{len(self.contributors)} contributors", f"1 to {MAX_MEMBERS}")
        else:
            require(1 <= self.ballot.attempt <= MAX_REWINDS, f"rewind {self.ballot.attempt}", f"1 to {MAX_REWINDS}")
        contributors = {entry.peer for entry in self.contributors}
        require(len(contributors) == len(self.contributors), "a peer twice among the contributors", "each once")
        require(1 <= len(self.roster) <= MAX_MEMBERS, f"roster of {len(self.roster)}", f"1 to {MAX_MEMBERS}")
        require(len(set(self.roster)) == len(self.roster), "a peer twice in the roster", "each once")
        require(len(self.incarnations) == len(self.roster), f"{len(self.incarnations)} incarnations", "one a voter")
        require_tiling([(part.first_chunk, part.stop_chunk) for part in self.slices])
        self._require_lanes_once()

    def _require_lanes_once(self) -> None:
        """In no slice may a lane be counted twice."""
        with_lanes = [entry for entry in self.contributors if entry.lanes]
        for part in self.slices if len(with_lanes) > 1 else ():
            omitted = {entry.peer for entry in part.omitted}
            require_once(entry.lanes for entry in with_lanes if entry.peer not in omitted)

    @property
    def rewind(self) -> int:
        """The number of a rewind (R28), of which the record has neither slices nor contributors; 0 for the record of a round."""
        return 0 if self.slices else self.ballot.attempt

    @property
    def agreed(self) -> Attestation | None:
        """The attested state, where more than half of the contributors computed it, else None. Of two or three that differ one alone
        could have others make their states again for ever. Older records do not tell who attests what.
        """
        attests = [entry.attests for entry in self.contributors]
        return self.attested if is_agreed(self.attested, self.attestations, attests, self.rules) else None

    @property
    def credited(self) -> Sequence[int]:
        """The credited tokens of each contributor."""
        return [entry.credited_tokens for entry in self.contributors]

    def contributor(self, peer: PeerId) -> Contributor | None:
        """The entry of `peer`, or None when nothing of it was counted."""
        return next((c for c in self.contributors if c.peer == peer), None)
