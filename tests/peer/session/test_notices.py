"""The notices of a peer, from its status."""

from __future__ import annotations

import pytest

from peer.owner.controls_core import TrainingAllowance
from peer.session.notices import peer_conditions
from peer.status.status import PeerStatus

HOT = TrainingAllowance(share=0.0, reason="paused until the card was at 75 C or less", is_too_hot=True)


def _status(**changes: object) -> PeerStatus:
    values = {"peer": "12D3KooW", "name": "rosy-relish", "run": "tiny", "state": "training", "reason": ""}
    return PeerStatus.model_validate({**values, **changes})


@pytest.mark.parametrize(
    ("status", "allowed", "event", "text"),
    [
        (_status(), HOT, "too_hot", HOT.reason),
        (
            _status(worker_state="restarting", worker_reason="out of memory"),
            TrainingAllowance(),
            "training_stopped",
            "training stopped: out of memory",
        ),
        (
            _status(state="finished", run_rounds_counted=7, apart="apart from the run"),
            TrainingAllowance(),
            "run_complete",
            "the run is complete; 7 of its rounds count work of this peer",
        ),
        (_status(apart="apart from the run"), TrainingAllowance(), "apart", "apart from the run"),
    ],
)
def test_what_is_unusual_or_final_is_told(
    status: PeerStatus, allowed: TrainingAllowance, event: str, text: str
) -> None:
    assert [(each.event, each.text) for each in peer_conditions(status, allowed, "")] == [(event, text)]


def test_a_full_disk_is_told_and_a_peer_that_trains_or_is_paused_by_its_owner_has_nothing_to_tell() -> None:
    paused = TrainingAllowance(share=0.0, reason="paused until `potluck resume`")
    assert peer_conditions(_status(), TrainingAllowance(), "") == []
    assert peer_conditions(_status(state="paused"), paused, "") == []
    assert [each.event for each in peer_conditions(_status(), TrainingAllowance(), "full")] == ["disk_full"]
