"""The first frame of a stream: a contribution to a reducer with its header, or a request to a holder.

Rules: R8, R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from protocol.ids import CommitId, Root, UnitName
from protocol.received import require
from protocol.rounds.messages.bounds import MAX_CHUNKS, MAX_MEMBERS, require_credential, require_hash, require_tokens
from protocol.rounds.messages.lane_parts import LanePart, require_parts
from protocol.rounds.messages.messages import Member
from protocol.rounds.messages.record import Ballot

NOTHING_TO_OFFER: Final = "nothing to offer"
"""Why a member is left out whose snapshot failed, or is not ready yet."""

NO_PART: Final = "a spare, with no part in this round"
"""Why a member is left out that serves no lane and was to bring nothing: nothing of the round is missing without it."""

LATER: Final = b"later"
"""In place of a header that follows. A reducer of an older release refuses it and goes on waiting for the member. With an empty
header it would take the member for one that offers nothing, and close its slice without it.
"""

BUSY: Final = b"B"
"""In place of chunks: the donor serves as many others as it can. No chunk is as short."""

MAX_KNOWN: Final = 64
"""Ten single steps and then doubling ones reach back 2^54 commits."""


@dataclass(frozen=True, slots=True)
class ContributionHeader:
    """A member's offer for one (unit, base), signed as a claim (claim.py); one for all attempts (R8).

    Attributes:
        root: Merkle root over the hashes of all encoded chunks.
        tokens: tokens trained into the delta.
        attested, attested_root: the newest commit whose state root this member computed, and that root: P1's evidence.
        lanes: the lanes' parts that it brings, in a run of lanes; none elsewhere.
        is_stranger: whether the member came by the open door, and its work was not yet counted for long.
    """

    unit: UnitName
    base: CommitId
    member: Member
    tokens: int
    codec: str
    root: Root
    attested: CommitId
    attested_root: Root
    lanes: tuple[LanePart, ...] = ()
    is_stranger: bool = False

    def __post_init__(self) -> None:
        for name in ("base", "root", "attested", "attested_root"):
            require_hash(name, getattr(self, name))
        require_tokens(self.tokens)
        require_parts(self.lanes, self.tokens)


@dataclass(frozen=True, slots=True)
class ExchangeHello:
    """Opens a member's stream to a reducer: the slice and attempt, and what the member offers for it.

    Attributes:
        contribution: the signed ContributionHeader, empty for a member that offers nothing and only wants the result; LATER where
            it is still being encoded.
        chunk_hashes: leaf hashes (32 bytes each) of the slice's chunks, in order.
        hashes_follow: whether they come in frames of their own instead, because the slice has more than fit into this message. An
            older reducer refuses such a hello; between older peers such a slice could not be scattered at all.
        path: the hashes that lead from them to the header's root (protocol/merkle.py, `MerkleTree.path`), 32 bytes each.
        no_part: of a member that offers nothing, whether it was to bring nothing.
        credential: proof of our admission, where the base roster does not have us; empty otherwise.
        carried: whether the contribution is that of a member that left, which its carrier brings (R8). Then the credential is the
            leaver's.
    """

    unit: UnitName
    base: CommitId
    ballot: Ballot
    first_chunk: int
    contribution: bytes
    chunk_hashes: bytes
    path: bytes = b""
    no_part: bool = False
    credential: bytes = b""
    carried: bool = False
    hashes_follow: bool = False

    def __post_init__(self) -> None:
        require_credential(self.credential)
        require(not (self.hashes_follow and self.chunk_hashes), "chunk hashes here and in frames", "one of the two")
        require(not (self.no_part and self.contribution), "a contribution of a member without a part", "one of the two")
        is_whole = self.contribution not in (b"", LATER)
        require(
            is_whole or not self.carried,
            "a carried contribution without its header",
            "the header that the leaver signed",
        )

    @property
    def follows(self) -> bool:
        """Whether chunks come before their header, which a second hello brings once it is signed."""
        return self.contribution == LATER

    def is_of(self, other: ExchangeHello) -> bool:
        """Whether both are about the same slice of the same attempt."""
        mine = (self.unit, self.base, self.ballot, self.first_chunk)
        return mine == (other.unit, other.base, other.ballot, other.first_chunk)

    @property
    def why_nothing(self) -> str:
        """The reason of a member that offers nothing."""
        return NO_PART if self.no_part else NOTHING_TO_OFFER


@dataclass(frozen=True, slots=True)
class CarryHello:
    """Opens a leaver's stream to the peer that is to bring its contribution into the round to come (R8).

    Attributes:
        contribution: the signed ContributionHeader.
        credential: proof of the leaver's admission, where the base roster does not have it; empty otherwise.
    """

    unit: UnitName
    base: CommitId
    contribution: bytes
    credential: bytes = b""

    def __post_init__(self) -> None:
        require_hash("base", self.base)
        require_credential(self.credential)


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Asks for the bytes of a slice's result."""

    unit: UnitName
    base: CommitId
    first_chunk: int
    stop_chunk: int
    result_hash: Root


@dataclass(frozen=True, slots=True)
class FetchCommits:
    """Asks for the certificates after the newest commit of `known` that is on the donor's lineage, oldest first.

    `known` runs from the asker's head back to the start of the run, in single steps first and then in doubling ones. So a donor on
    another lineage finds the fork without a dialogue.
    """

    unit: UnitName
    known: tuple[CommitId, ...]

    def __post_init__(self) -> None:
        require(1 <= len(self.known) <= MAX_KNOWN, f"{len(self.known)} known commits", f"1 to {MAX_KNOWN}")


@dataclass(frozen=True, slots=True)
class FetchState:
    """Asks for chunks of a generation: [first_chunk, stop_chunk), or only for its header when the range is empty.

    `knows_busy`: whether the asker takes BUSY for an answer, and asks again later.
    """

    unit: UnitName
    first_chunk: int
    stop_chunk: int
    commit: bytes
    knows_busy: bool = False


@dataclass(frozen=True, slots=True)
class FetchHashes:
    """Asks for the leaf hashes of all chunks of a generation, which the donor then keeps while it is downloaded."""

    unit: UnitName
    commit: CommitId


@dataclass(frozen=True, slots=True)
class FetchParts:
    """Asks which chunks of the state at a commit are here. The donor may be a newcomer that fetches that state itself.

    The answer has a bit for each `group` chunks, the lowest bit of a byte first: whether all of them are here. It is empty where
    none is.
    """

    unit: UnitName
    commit: CommitId
    group: int

    def __post_init__(self) -> None:
        require_hash("commit", self.commit)
        require(0 < self.group <= MAX_CHUNKS, f"groups of {self.group} chunks", f"1 to {MAX_CHUNKS}")


@dataclass(frozen=True, slots=True)
class FetchMilestones:
    """Asks for the milestones of a unit that the donor has, in the host's envelopes, one a frame."""

    unit: UnitName


@dataclass(frozen=True, slots=True)
class FetchChunk:
    """Asks for one chunk of each of these contributions on a base, to compute a sum again (R27).

    The answer has a `ShownChunk` for each of them that the donor has, one a frame.
    """

    unit: UnitName
    base: CommitId
    chunk: int
    roots: tuple[bytes, ...]

    def __post_init__(self) -> None:
        require_hash("base", self.base)
        require(0 <= self.chunk < MAX_CHUNKS, f"chunk {self.chunk}", f"0 to {MAX_CHUNKS - 1}")
        require(1 <= len(self.roots) <= MAX_MEMBERS, f"{len(self.roots)} contributions", f"1 to {MAX_MEMBERS}")
        for root in self.roots:
            require_hash("root", root)


@dataclass(frozen=True, slots=True)
class FetchProof:
    """Asks for the proof of a false sum, by the SHA-256 of its bytes."""

    unit: UnitName
    proof_hash: bytes

    def __post_init__(self) -> None:
        require_hash("proof_hash", self.proof_hash)


@dataclass(frozen=True, slots=True)
class FetchSteps:
    """Asks a contributor which local steps made its contribution with this root. The answer is a `StepsTaken`, or an empty end where
    it has forgotten them.
    """

    unit: UnitName
    base: CommitId
    root: Root

    def __post_init__(self) -> None:
        require_hash("base", self.base)
        require_hash("root", self.root)


@dataclass(frozen=True, slots=True)
class StepsTaken:
    """The local steps of a contribution, as its contributor says: `num_steps` of them, from `first_step` of its data on."""

    root: Root
    first_step: int
    num_steps: int

    def __post_init__(self) -> None:
        require_hash("root", self.root)
        require(0 <= self.first_step < 1 << 63, f"a first step of {self.first_step}", "0 to 2^63")
        require(0 < self.num_steps < 1 << 32, f"{self.num_steps} steps", "1 to 2^32")


FetchRequest = (
    FetchResult
    | FetchCommits
    | FetchState
    | FetchHashes
    | FetchMilestones
    | FetchParts
    | FetchChunk
    | FetchProof
    | FetchSteps
)
"""The requests of the stream channel "fetch", one per stream."""
