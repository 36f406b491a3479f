"""The host's report after its own restart: the round the run is at, and whether work was lost. Pure.

The ledger is durable, so the newest round is known at once. Only the peers have the state. Their reports tell whether any of them
still has it, or whether they continued from an older round without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.ids import CommitId

GATHER_S: Final = 60.0
"""How long to wait for a peer with the newest round before work is reported as lost, in seconds. Longer than a restart takes."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The ledger's head when it was read.

    Attributes:
        lineage: the head and all its ancestors, with their rounds.
        index: the head's round.
        read_s: when it was read, monotonic seconds.
    """

    lineage: Mapping[CommitId, int]
    index: int
    read_s: float


@dataclass(frozen=True, slots=True)
class PeerStand:
    """The position of a peer whose head was verified: its round, and the newest round that it shares with the ledger's head. Equal
    rounds of two lineages hold different work, so only the shared round counts.
    """

    index: int
    common_index: int


def stand_of(restart: Restart, behind: Iterable[tuple[CommitId, int]]) -> PeerStand | None:
    """Compare a peer with the ledger. `behind` is its head and that head's ancestors, newest first. None for an unknown head."""
    index: int | None = None
    for commit, commit_index in behind:
        index = commit_index if index is None else index
        if commit in restart.lineage:
            return PeerStand(index, restart.lineage[commit])
    return None


def was_nothing_lost(restart: Restart, stands: Sequence[PeerStand]) -> bool:
    """Whether a peer has everything that the ledger records."""
    return any(stand.common_index >= restart.index for stand in stands)


def restart_sentence(restart: Restart, stands: Sequence[PeerStand], now_s: float) -> str:
    """The report in one sentence; empty while it is not known yet. `stands` are the peers that have reported since the restart."""
    if was_nothing_lost(restart, stands):
        return f"restarted at round {restart.index}; nothing was lost"
    if not stands or now_s - restart.read_s < GATHER_S:
        return ""
    best = max(stands, key=lambda stand: (stand.common_index, stand.index))
    if best.index == best.common_index:
        return (
            f"restarted at round {restart.index}, but no peer that is back has more than round {best.index}: "
            f"work since round {best.index} was lost unless another one brings it"
        )
    lost = restart.index - best.common_index
    return (
        f"restarted at round {restart.index}, but the peers that are back went on from round {best.common_index} with other commits: "
        f"{lost} {'round was' if lost == 1 else 'rounds were'} lost unless another peer brings {'it' if lost == 1 else 'them'}"
    )


@dataclass(frozen=True, slots=True)
class RestartWatch:
    """The report of a restart so far. `restart`: None if there was none, or once nothing more can follow."""

    restart: Restart | None = None
    sentence: str = ""

    def look(
        self, peers_behind: Iterable[Iterable[tuple[CommitId, int]]], now_s: float, *, until_s: float
    ) -> RestartWatch:
        """The state after a look at the peers that have reported.

        Args:
            peers_behind: for each, its head and that head's ancestors, newest first.
            until_s: seconds after which a report that is not empty stands.
        """
        restart = self.restart
        if restart is None:
            return self
        stands = [stand for behind in peers_behind if (stand := stand_of(restart, behind)) is not None]
        sentence = restart_sentence(restart, stands, now_s) or self.sentence
        is_over = was_nothing_lost(restart, stands) or (sentence and now_s - restart.read_s > until_s)
        return RestartWatch(None if is_over else restart, sentence)
