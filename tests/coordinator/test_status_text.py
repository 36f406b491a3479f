"""The status for people."""

from __future__ import annotations

import json

from coordinator.ledger import LossPoint
from coordinator.run_view import status_json
from coordinator.status_text import status_lines
from tests.coordinator.test_run_view import A, picture, timed


def test_lines_say_progress_loss_peers_round_and_checkpoint() -> None:
    rounds = (timed(1, 300, 100), timed(2, 600, 110))
    points = (LossPoint("heldout", 2, 600, 1.386, A),)
    text = "\n".join(status_lines(json.loads(json.dumps(status_json(picture(rounds, points), 100.0)))))
    assert "600 of 1000 tokens (60%), 13 s to go" in text
    assert "held-out 2.000" in text
    assert "25%" in text
    assert "too late" in text
    assert "newest checkpoint: round 2" in text


def test_empty_or_strange_status_is_no_error() -> None:
    assert status_lines({})
    assert status_lines({"peers": [{}], "rounds": [{}], "checkpoints": [{}], "eta_s": "soon"})
