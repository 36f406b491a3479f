"""Readings of a picture of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.ledger.ledger import CheckpointRow, LossPoint
from coordinator.presence.presence import PeerEntry
from coordinator.progress.run_core import Phase, RunState
from coordinator.progress.run_view import RunPicture, TimedRound, Yardsticks, eta_s, root_by_majority
from protocol.host.reports import PeerReport
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.lineage.round_row import RoundRow
from tests.coordinator.chain_world import PEERS

UNIT = UnitName("fragment-0")
A, B, C = (peer.peer_id for peer in PEERS)
COMMIT = CommitId(b"c" * 32)
ROOT = Root(b"r" * 32)


def peer(speed: float = 100.0, loss: float | None = 2.0, root: Root = ROOT, state: str = "training") -> PeerReport:
    return PeerReport(state, "", UNIT, tokens_per_s=speed, loss_nats=loss, state_commit=COMMIT, state_root=root)


def timed(index: int, tokens: int, unix_s: int) -> TimedRound:
    row = RoundRow(index, COMMIT, (A, B), (0.25, 0.75), 0.9, ((C, "too late"),), False)
    return TimedRound(row, tokens, unix_s)


def picture(rounds: tuple[TimedRound, ...] = (), points: tuple[LossPoint, ...] = ()) -> RunPicture:
    return RunPicture(
        run_name="tiny",
        run_id_hex="ab" * 32,
        reason="all is well",
        state=RunState(phase=Phase.TRAINING, head=COMMIT, index=2, total_tokens=600),
        target_tokens=1000,
        peers={A: PeerEntry(peer(), 95.0), B: PeerEntry(peer(loss=None), 40.0)},
        rounds=rounds,
        loss_points=points,
        checkpoints=(CheckpointRow(COMMIT, UNIT, 2, 600, ROOT, "00000002-cc", 9),),
        checkpoint_folder=Path("/state/checkpoints"),
        yardsticks=Yardsticks(1.9, 2.5),
        restarted="restarted at round 2; nothing was lost",
        banned=frozenset((PeerId("banned 1"), PeerId("banned 2"))),
        num_forks=1,
    )


def test_root_of_most_peers_counts() -> None:
    other = Root(b"x" * 32)
    peers = {A: PeerEntry(peer(), 0.0), B: PeerEntry(peer(), 0.0), C: PeerEntry(peer(root=other), 0.0)}
    assert root_by_majority(peers, COMMIT) == ROOT
    assert root_by_majority({A: peers[A], C: peers[C]}, COMMIT) == min(ROOT, other)
    assert root_by_majority(peers, CommitId(b"?" * 32)) is None


def test_eta_follows_the_pace_of_the_latest_rounds() -> None:
    rounds = (timed(1, 300, 100), timed(2, 600, 110))
    assert eta_s(rounds, 600, 1200) == pytest.approx(20.0)
    assert eta_s(rounds[:1], 300, 1200) is None
    assert eta_s((timed(1, 300, 100), timed(2, 600, 100)), 600, 1200) is None
    assert eta_s(rounds, 1200, 1200) == 0.0
