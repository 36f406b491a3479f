"""The start of a run, signed by the host: its first voters, and the state from which each unit begins."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import PeerId, Root, UnitName
from protocol.received import require


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
