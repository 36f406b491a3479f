"""Places from which a lineage may begin, signed by the host: the start of the run, and settled commits long after it."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.received import require, require_hash_or_none
from protocol.rounds.messages.bounds import require_hash


@dataclass(frozen=True, slots=True)
class StartUnit:
    """A unit at the start of the run. `roster` votes on its first round; where it is empty, the run's roster does."""

    unit: UnitName
    schema_fingerprint: bytes
    state_root: Root
    roster: tuple[PeerId, ...] = ()


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Signed by the host: the run begins with this roster from this state. Its hash is the genesis commit id.

    Attributes:
        incarnations: the disks that founders vote with, in the roster's order: a founder that loses its disk before the first
            commit may have voted on it already. Empty for a run that an older host started.
        rules: what every record must be signed for (lineage/record_rules.py); 0 for a run that an older host started.
    """

    run_id: bytes
    units: tuple[StartUnit, ...]
    roster: tuple[PeerId, ...]
    target_tokens: int
    started_unix_s: int
    incarnations: tuple[int, ...] = ()
    rules: int = 0

    def __post_init__(self) -> None:
        numbers = len(self.incarnations)
        require(numbers in (0, len(self.roster)), f"{numbers} incarnations in a start record", "one a founder, or none")


@dataclass(frozen=True, slots=True)
class Milestone:
    """Signed by the host: a commit of the lineage that it has verified from the start on.

    Attributes:
        genesis: the commit id before the first commit.
        record: of the commit. Its id, voters, disks, tokens and rules follow from these bytes.
        state_root: of the state after the commit, as a later commit attests it; empty where none does.
    """

    genesis: CommitId
    record: bytes
    state_root: Root

    def __post_init__(self) -> None:
        require_hash("genesis", self.genesis)
        require_hash_or_none("state_root", self.state_root)
