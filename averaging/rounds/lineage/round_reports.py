"""What the rounds of a unit report to whoever shows or counts it. Nothing in the rounds waits for a report, and none changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from protocol.ids import Root, UnitName
from protocol.rounds.lineage.chain import ChainLink
from protocol.rounds.lineage.lineage import TreeNode
from protocol.tables import several


@dataclass(frozen=True, slots=True)
class RoundCommitted:
    """A commit was applied here, a newest one or one that was missed."""

    link: ChainLink


@dataclass(frozen=True, slots=True)
class Contributed:
    """A contribution of ours is ready for the next round, under this root."""

    root: Root


@dataclass(frozen=True, slots=True)
class LineageSwitched:
    """The head moved to another lineage: `path` from below the fork to the new head; `lost` were ours and no longer count."""

    path: tuple[TreeNode, ...]
    lost: tuple[ChainLink, ...]


@dataclass(frozen=True, slots=True)
class HeadsMoved:
    """The heads of these units moved together."""

    units: tuple[UnitName, ...]


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How far a download is, in bytes, and how many donors are left."""

    index: int
    bytes_here: int
    bytes_all: int
    num_donors: int

    def __str__(self) -> str:
        """For screens and logs."""
        megabytes = f"{self.bytes_here / 1e6:.1f} of {self.bytes_all / 1e6:.1f} MB"
        return f"taking the state at commit {self.index}: {megabytes} from {several(self.num_donors, 'peer')}"


@dataclass(frozen=True, slots=True)
class Downloading:
    """A state is on its way here."""

    progress: DownloadProgress


@dataclass(frozen=True, slots=True)
class DownloadEnded:
    """The download is over, also where it failed: there is no further progress to expect."""


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task of the rounds came to nothing. `is_of_disk`: the disk refused something, which the owner can mend."""

    task: str
    reason: str
    is_of_disk: bool


@dataclass(frozen=True, slots=True)
class StateDiffers:
    """Our state is not the attested one. It is being made again."""

    reason: str


@dataclass(frozen=True, slots=True)
class StateHealed:
    """Our state is the attested one again."""

    reason: str


@dataclass(frozen=True, slots=True)
class RoundReason:
    """The round machine has another reason for what it does."""

    reason: str


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
)

Publish = Callable[[RoundReport], None]
"""Hears the reports of a unit's rounds. It must not block and must not raise."""
