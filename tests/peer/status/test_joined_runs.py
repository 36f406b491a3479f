"""Runs in a peer's state folder, as `potluck runs` lists them: nobody is asked, and what is damaged hides nothing else."""

from __future__ import annotations

from pathlib import Path

import trio

from averaging.network.seams.offload import ThreadOffload
from averaging.state.log_entries import LOG_NAME
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from peer.membership.saved_membership import FILE_NAME
from peer.status.joined_runs import joined_runs
from protocol.ids import RunId
from protocol.rounds.messages.record import Ballot
from tests.coordinator.chain_world import HOST, Chain
from tests.peer.checks.test_known_runs import MANIFEST, keep


def _state(folder: Path, index: int) -> None:
    """As averaging/state/generations.py names it."""
    path = folder / "fragment-0" / "generations" / f"{index:012d}-{'ab' * 32}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"state")


def test_run_is_told_with_name_newest_state_and_size(tmp_path: Path) -> None:
    assert joined_runs(tmp_path) == []
    folder = keep(tmp_path)
    (row,) = joined_runs(tmp_path)
    assert (row["name"], row["run_id"], row["index"]) == (MANIFEST.config.run.name, MANIFEST.run_id.hex(), 0)
    for index in (9, 10, 11):
        _state(folder, index)
    (row,) = joined_runs(tmp_path)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert (row["index"], row["disk_bytes"], row["folder"], row["note"]) == (11, size, str(folder), "")
    assert row["target_total_tokens"] == MANIFEST.config.run.total_tokens


def test_the_round_is_that_of_the_log_where_the_newest_state_is_older(tmp_path: Path) -> None:
    folder, chain = keep(tmp_path), Chain()
    _state(folder, 1)
    log = UnitLog(FileStorage(folder / "fragment-0", ThreadOffload()))
    for expected in (1, 2, 3):
        parent = chain.head[0]
        chain.commit()
        trio.run(log.log_certificate, parent, chain.certificates[-1])
        assert joined_runs(tmp_path)[0]["index"] == expected
    fork, other = chain.head[0], chain.clone()
    other.commit()
    trio.run(log.log_switch, fork, other.certificates[-1:])
    trio.run(log.log_promise, other.head[0], Ballot(1, HOST.peer_id))
    assert joined_runs(tmp_path)[0]["index"] == 4
    trio.run(log.compact, ())
    assert joined_runs(tmp_path)[0]["index"] == 4
    path = folder / "fragment-0" / LOG_NAME
    path.write_bytes(b"\xff" * 20 + path.read_bytes())
    (row,) = joined_runs(tmp_path)
    assert (row["index"], "rounds.log" in str(row["note"])) == (None, True)


def test_damaged_membership_is_named_and_the_other_runs_are_told(tmp_path: Path) -> None:
    damaged, whole = keep(tmp_path, RunId(b"d" * 32)), keep(tmp_path)
    _state(damaged, 4)
    (damaged / FILE_NAME).write_bytes(b"{")
    rows = {row["folder"]: row for row in joined_runs(tmp_path)}
    assert (rows[str(damaged)]["name"], rows[str(damaged)]["index"]) == (None, 4)
    assert f"{damaged / FILE_NAME} cannot be read" in str(rows[str(damaged)]["note"])
    assert rows[str(whole)]["name"] == MANIFEST.config.run.name


def test_folder_of_a_run_that_never_admitted_us_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs" / ("0" * 16)).mkdir(parents=True)
    (tmp_path / "runs" / "events").mkdir()
    (row,) = joined_runs(tmp_path)
    assert (row["index"], row["disk_bytes"], row["is_joined"], row["note"]) == (0, 0, False, "")
