from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from peer.status.status import (
    FINAL_STATUS_FILE,
    PeerStatus,
    kept_final_status,
    last_status,
    write_final_status,
)
from protocol.errors import RefusedError


def test_final_status_replaces_the_old_one_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=2))
    assert [path.name for path in tmp_path.iterdir()] == [FINAL_STATUS_FILE]
    assert PeerStatus.model_validate_json((tmp_path / FINAL_STATUS_FILE).read_bytes()).index == 2


def test_last_status_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert last_status(tmp_path) is None
    write_final_status(tmp_path, PeerStatus(peer="p", name="n", index=1))
    found = last_status(tmp_path)
    assert found is not None
    assert found.index == 1


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (None, "left on ", "asked to leave by Ctrl-C"),
        (RefusedError("the host banned this peer", "", ""), "ended on ", "the host banned this peer"),
        (
            ExceptionGroup("nursery", [RefusedError("the host banned this peer", "", "")]),
            "ended on ",
            "the host banned",
        ),
        (ValueError("a bug"), "ended on ", "see: potluck logs"),
    ],
)
def test_final_status_tells_how_the_peer_ended(
    tmp_path: Path, error: Exception | None, state: str, reason: str
) -> None:
    status = PeerStatus(peer="p", name="n", state="leaving", reason="asked to leave by Ctrl-C")
    with suppress(Exception), kept_final_status(tmp_path, lambda: status):
        if error is not None:
            raise error
    left = last_status(tmp_path)
    assert left is not None
    assert left.state.startswith(state)
    assert reason in left.reason
