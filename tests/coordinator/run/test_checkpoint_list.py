"""`potluck checkpoint list`: a header, and of each checkpoint what helps to choose one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest

from averaging.state.run_model import PeerModels
from coordinator.checkpoints.checkpoints import write_checkpoint
from coordinator.checkpoints.verify import verify_checkpoint
from coordinator.ledger.ledger import LEDGER_FILE, LossPoint, open_ledger
from coordinator.run.checkpoint_list import NONE_YET, checkpoint_lines, list_checkpoints
from coordinator.run.named_checkpoint import fetch_checkpoint
from protocol.errors import ConfigError
from protocol.ids import PeerId
from tests.coordinator.checkpoints.test_checkpoints import content
from tests.coordinator.run.test_named_checkpoint import Models, model_at


def _no_peer() -> NoReturn:
    raise AssertionError("a host's list asks no peer")


def test_a_hosts_checkpoints_are_listed_with_tokens_date_loss_and_size(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    points = [LossPoint("heldout", 9, 5400, 0.7, PeerId("p")), LossPoint("train", 3, 1800, 9.0, PeerId("p"))]
    with open_ledger(tmp_path / "host" / LEDGER_FILE) as ledger:
        for index in (3, 9):
            ledger.add_checkpoint(write_checkpoint(tmp_path / "host/checkpoints", content(index), now_unix_s=7))
        ledger.add_progress((), points)
    rows = list_checkpoints(tmp_path / "host", _no_peer)
    first, second = json.loads(json.dumps(rows))
    assert (first["heldout_nats_per_byte"], second["heldout_nats_per_byte"]) == (None, 0.7)
    path = Path(second["path"])
    assert second["num_bytes"] == sum(file.stat().st_size for file in path.iterdir())
    assert verify_checkpoint(path).startswith("verified: round 9 of run")
    folder, header, line_of_first, line = checkpoint_lines(rows)
    assert folder == f"in {path.parent}"
    assert header.split() == ["ROUND", "TOKENS", "DATE", "BITS/BYTE", "SIZE", "NAME"]
    assert line.split()[:2] == ["9", "5,400"]
    assert "1.010" in line
    assert " - " in line_of_first
    assert line.endswith(path.name)


def test_a_peers_fetched_checkpoints_are_listed_likewise(tmp_path: Path) -> None:
    models = Models(tmp_path / "peer", fetched=model_at(7))
    models.run.mkdir(parents=True)

    def load() -> PeerModels:
        return models

    assert checkpoint_lines(list_checkpoints(models.folder, load)) == [NONE_YET]
    fetch_checkpoint(models, "", "", None, None)
    (row,) = list_checkpoints(models.folder, load)
    assert (row["index"], row["heldout_nats_per_byte"]) == (7, None)


def test_a_folder_of_neither_host_nor_peer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run is hosted from"):
        list_checkpoints(tmp_path, lambda: Models(tmp_path / "peer"))
