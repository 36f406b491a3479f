"""The coordinator's view of the run: peers, rounds, curves and checkpoints, and what follows from them.

No clock in here: `now_s` is monotonic seconds, `unix_s` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

from coordinator.ledger.ledger import CheckpointRow, LossPoint
from coordinator.ledger.run_memory import RunPast
from coordinator.presence.presence import PeerEntry, live_peers
from coordinator.progress.run_core import RunState
from coordinator.progress.stage_commits import StageCommits, counted_everywhere
from coordinator.progress.stage_view import PipelineSummary, pipeline_summary
from coordinator.progress.unit_holders import UnitHolders
from protocol.estimates.eta import ProgressPoint, time_left_s
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.lineage.round_row import (
    RECENT_ROUNDS,
    Counted,
    RoundRow,
    counted_by_peer,
    left_out_by_peer,
    sum_of_counted,
)

MISSED_AFTER_S: Final = 3.0
"""How long a reported commit may still be on its way from another peer, in seconds."""

NO_PAST: Final = RunPast()

_ROUNDS_FOR_ETA: Final = 1000
"""Rounds to look back on for the time left. A host that was away finds hundreds at once, and they count as one look."""


@dataclass(frozen=True, slots=True)
class MissingCommits:
    """Commits that a peer reported and nobody has sent. They lead to `head`, at `index`.

    Attributes:
        peer: the peer that reported them; empty where the ledger itself lacks the ancestors of a commit.
        from_index: the first index that was requested; 0 when nobody was asked.
        since_s, heard_s: when they were first missed, and when one of them last arrived, monotonic seconds.
    """

    peer: PeerId
    head: CommitId
    index: int
    from_index: int
    since_s: float
    heard_s: float


@dataclass(frozen=True, slots=True)
class TimedRound:
    """A committed round, and when the coordinator first saw its certificate."""

    row: RoundRow
    total_tokens: int
    seen_unix_s: int


class SeenRounds(tuple[TimedRound, ...]):
    """The rounds of one head. Equal to itself alone, so that a sum over them is made once for each head."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@dataclass(frozen=True, slots=True)
class Yardsticks:
    """Losses of the held-out text to compare the model's with: by zlib, and by a table of pairs of bytes."""

    zlib_bits_per_byte: float
    pairs_nats_per_byte: float


@dataclass(frozen=True, slots=True)
class RunPicture:
    """One snapshot of the run.

    Attributes:
        restarted: the round this process resumed at and the work that was lost; empty until that is known.
        banned: the banned peers of the ledger when a peer last reported.
        num_forks: forks, other than the head's lineage, that may still be followed.
        min_members: how many ready peers the run starts with.
        units: the run's experts or stages (`are_stages`) with their holders; empty in a run without.
        source_names: of a mixture's sources; empty without one.
        stage_commits: content of the stages' commits, for the stages that the host has commits of.
    """

    run_name: str
    run_id_hex: str
    reason: str
    state: RunState
    target_tokens: int
    peers: Mapping[PeerId, PeerEntry]
    rounds: Sequence[TimedRound]
    loss_points: Sequence[LossPoint]
    checkpoints: Sequence[CheckpointRow]
    checkpoint_folder: Path
    yardsticks: Yardsticks
    missing: Sequence[MissingCommits] = ()
    restarted: str = ""
    banned: frozenset[PeerId] = frozenset()
    num_forks: int = 0
    min_members: int = 0
    units: Sequence[UnitHolders] = ()
    are_stages: bool = False
    stage_commits: Mapping[UnitName, StageCommits] = field(default_factory=lambda: MappingProxyType({}))
    source_names: Sequence[str] = ()

    @property
    def num_bans(self) -> int:
        """Number of banned peers."""
        return len(self.banned)


def hidden_peers(picture: RunPicture, now_s: float) -> Sequence[bool]:
    """For each live peer whether nobody can connect to it."""
    return [picture.peers[peer].report.is_outbound_only for peer in live_peers(picture.peers, now_s)]


def missed(missing: Mapping[PeerId, MissingCommits], now_s: float) -> Sequence[MissingCommits]:
    """Missing commits that are worth showing. Every member reports a commit at once, but only two of them send it
    (peer/status/duties_core.py).
    """
    return [each for each in missing.values() if now_s - each.since_s >= MISSED_AFTER_S]


def root_by_majority(peers: Mapping[PeerId, PeerEntry], commit: CommitId) -> Root | None:
    """The state root that most peers report for `commit`. Ties go to the lowest root. None if there is no report."""
    votes: dict[Root, int] = {}
    for entry in peers.values():
        if entry.report.state_commit == commit and entry.report.state_root:
            votes[entry.report.state_root] = votes.get(entry.report.state_root, 0) + 1
    return min(votes, key=lambda root: (-votes[root], root)) if votes else None


def eta_s(rounds: Sequence[TimedRound], total_tokens: int, target_tokens: int) -> float | None:
    """Seconds until the target at the speed of the latest rounds; None before the second round."""
    return time_left_s(progress_points(rounds[-_ROUNDS_FOR_ETA:]), total_tokens, target_tokens)


def progress_points(rounds: Sequence[TimedRound]) -> list[ProgressPoint]:
    """The tokens of each round, and when it was seen."""
    return [ProgressPoint(timed.total_tokens, timed.seen_unix_s) for timed in rounds]


def lanes_and_stages(picture: RunPicture, now_s: float) -> PipelineSummary:
    """Lanes and stages of a pipeline run; empty for any other run."""
    if not picture.are_stages:
        return PipelineSummary()
    live = {peer: picture.peers[peer].report for peer in live_peers(picture.peers, now_s)}
    return pipeline_summary(picture.units, live)


def tokens_per_s(picture: RunPicture, now_s: float) -> float:
    """Tokens per second of the whole run, by the live peers' reports."""
    if picture.are_stages:
        return lanes_and_stages(picture, now_s).tokens_per_s
    return sum(picture.peers[peer].report.tokens_per_s for peer in live_peers(picture.peers, now_s))


def unit_bytes(peers: Mapping[PeerId, PeerEntry]) -> dict[UnitName, tuple[int, int]]:
    """Bulk payload of each unit, up and down, in bytes, summed over all known peers since their processes started. Empty in a run
    of one unit.
    """
    moved: dict[UnitName, tuple[int, int]] = {}
    for entry in peers.values():
        for own in entry.report.unit_bytes:
            up, down = moved.get(own.unit, (0, 0))
            moved[own.unit] = up + own.bytes_up, down + own.bytes_down
    return dict(sorted(moved.items()))


def counted_in(picture: RunPicture, past: RunPast = NO_PAST) -> Mapping[PeerId, Counted]:
    """The contributions that each peer is credited with. In a run of stages it includes stages whose commits are not in the ledger."""
    rounds = picture.rounds if isinstance(picture.rounds, SeenRounds) else SeenRounds(picture.rounds)
    of_spine = sum_of_counted(past.credits.by_peer, _counted_after(rounds, past.credits.index))
    if not picture.are_stages or not picture.units:
        return of_spine
    return counted_everywhere(of_spine, picture.units[0].unit, picture.stage_commits)


def left_out_in(picture: RunPicture) -> Mapping[PeerId, float]:
    """The share of each peer's newest work that disagreed with most others' and was left out, as of `left_out_by_peer`."""
    return left_out_by_peer([timed.row for timed in picture.rounds[-RECENT_ROUNDS:]])


@lru_cache(maxsize=8)
def _counted_after(rounds: SeenRounds, index: int) -> Mapping[PeerId, Counted]:
    """Totals over the rounds after an index, counted once for each head."""
    return counted_by_peer(timed.row for timed in rounds if timed.row.index > index)


def away_peers(picture: RunPicture, counted: Mapping[PeerId, Counted]) -> list[PeerId]:
    """Contributors that this process of the host has not heard for long, if ever; the largest first."""
    return sorted(counted.keys() - picture.peers.keys(), key=lambda peer: (-counted[peer].tokens, peer))
