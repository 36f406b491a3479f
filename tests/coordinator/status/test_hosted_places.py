"""The places of a host: its own names, and none if no run was hosted."""

from __future__ import annotations

from pathlib import Path

from coordinator.ledger.ledger import LEDGER_FILE, open_ledger
from coordinator.run.run_files import CHECKPOINT_FOLDER, DATA_FOLDER, IDENTITY_FILE
from coordinator.status.hosted_places import hosted_from, places


def test_a_hosts_folder_is_found_by_its_ledger_and_listed(tmp_path: Path) -> None:
    assert (hosted_from(tmp_path), places(tmp_path)) == (None, [])
    with open_ledger(tmp_path / LEDGER_FILE):
        pass
    assert hosted_from(tmp_path) == tmp_path
    found = {place.path: place.num_bytes for place in places(tmp_path)}
    assert (found[tmp_path / LEDGER_FILE] or 0) > 0
    for name in (CHECKPOINT_FOLDER, DATA_FOLDER, IDENTITY_FILE):
        assert found[tmp_path / name] is None
