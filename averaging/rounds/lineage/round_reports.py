"""Reports of a unit's rounds, to be shown or counted. Nothing in the rounds waits for a report, and no report changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.ids import PeerId, Root, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import TreeNode
from protocol.rounds.messages.messages import FalseSum
from protocol.tables import in_bytes, several


@dataclass(frozen=True, slots=True)
class RoundCommitted:
    """A commit was applied here, the newest one or one that was missed."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class Contributed:
    """A contribution of ours is ready for the next round, under this root."""

    root: Root


@dataclass(frozen=True, slots=True)
class LineageSwitched:
    """The head moved to another lineage: `path` from below the fork to the new head; `lost` were ours and do not count any more."""

    path: tuple[TreeNode, ...]
    lost: tuple[ChainLink, ...]


@dataclass(frozen=True, slots=True)
class HeadsMoved:
    """The heads of these units moved together."""

    units: tuple[UnitName, ...]


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is, in bytes, and how many donors are left. `index` is the round of a state. `what` names it for people."""

    index: int
    bytes_here: int
    bytes_all: int
    num_donors: int
    what: str = "the run's state"

    def left_s(self, bytes_per_s: float | None) -> float | None:
        """Seconds to its end at this rate; None for an unknown one."""
        return (self.bytes_all - self.bytes_here) / bytes_per_s if bytes_per_s else None

    def __str__(self) -> str:
        """For screens and logs."""
        here = f"{in_bytes(self.bytes_here)} of {in_bytes(self.bytes_all)}"
        return f"fetching {self.what} of round {self.index}: {here} from {several(self.num_donors, 'peer')}"


@dataclass(frozen=True, slots=True)
class Downloading:
    """A state is being downloaded."""

    progress: DownloadProgress


@dataclass(frozen=True, slots=True)
class DownloadEnded:
    """The download has ended or failed: no further progress follows."""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the rounds failed. `is_of_disk`: the disk refused something, which the owner can fix."""

    task: str
    reason: str
    is_of_disk: bool


@dataclass(frozen=True, slots=True)
class StateDiffers:
    """Our state is not the attested one. It is being replaced."""

    reason: str


@dataclass(frozen=True, slots=True)
class StateHealed:
    """Our state is the attested one again."""

    reason: str


@dataclass(frozen=True, slots=True)
class RoundReason:
    """The round machine has a new reason for what it does."""

    reason: str


@dataclass(frozen=True, slots=True)
class VoterConvicted:
    """A voter's own signatures convict it; `one` and `other` are the acks or claims that prove it."""

    voter: PeerId
    one: bytes
    other: bytes


@dataclass(frozen=True, slots=True)
class SumConvicted:
    """A reducer signed a false sum; `notice` names the proof, which lies on this disk, and `words` what it proves."""

    notice: FalseSum
    words: str


@dataclass(frozen=True, slots=True)
class SumNotShown:
    """A sum could not be computed again: neither its reducer nor the contributors gave some chunks that it counts."""

    reducer: PeerId
    reason: str


@dataclass(frozen=True, slots=True)
class SumsAudited:
    """Chunks of others' sums were computed again here. `num_suspect` of them belong to slices that looked wrong at first sight."""

    num_chunks: int
    num_bytes: int
    num_suspect: int = 0


RoundReport = (
    RoundCommitted
    | Contributed
    | LineageSwitched
    | HeadsMoved
    | Downloading
    | DownloadEnded
    | TaskFailed
    | StateDiffers
    | StateHealed
    | RoundReason
    | VoterConvicted
    | SumConvicted
    | SumNotShown
    | SumsAudited
)

Publish = Callable[[RoundReport], None]
"""Takes the reports of a unit's rounds. It must not block and must not raise."""
