"""Runs in folders, as `potluck runs` lists them: nobody is asked, and what is damaged hides nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio.testing

from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD
from coordinator.run.hosted_runs import MANIFEST_FILE, hosted_runs
from coordinator.status.ledger_curve import read_curve
from protocol.ids import UnitName
from protocol.run.manifest import sign_manifest
from protocol.tensors.model_config import WHOLE_MODEL
from protocol.tensors.spines import SPINES
from tests.coordinator.chain_world import HOST, Chain, rows_of
from tests.coordinator.host_world import open_host


def _hosted(folder: Path, num_rounds: int | None, spine: UnitName = WHOLE_MODEL) -> str:
    """A folder as a host leaves it, after so many rounds; None before the start. The run's id."""
    with open_host(folder) as host:
        (folder / MANIFEST_FILE).write_bytes(sign_manifest(host.manifest, HOST))
        if num_rounds is not None:
            chain = Chain(host.run_id)
            for _ in range(num_rounds):
                chain.commit()
            host.ledger.put_once(START_RECORD, chain.sealed_start)
            host.ledger.add_progress([replace(row, unit=spine) for row in rows_of(chain.certificates)], [])
        return host.run_id.hex()


async def test_run_is_told_with_name_phase_round_and_size(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    assert hosted_runs(tmp_path) == []
    run_id = _hosted(tmp_path, 1)
    (row,) = hosted_runs(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert (row["name"], row["run_id"], row["phase"], row["index"]) == ("tiny", run_id, "training", 1)
    assert (row["total_tokens"], row["target_total_tokens"], row["disk_bytes"]) == (600, 1000, size)
    assert (row["folder"], row["note"]) == (str(tmp_path), "")


@pytest.mark.parametrize("spine", SPINES)
async def test_progress_is_that_of_the_spine_whatever_the_kind_of_run(
    spine: UnitName, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    _hosted(tmp_path, 2, spine)
    (row,) = hosted_runs(tmp_path)
    assert (row["phase"], row["index"], row["total_tokens"]) == ("finished", 2, 1200)
    curve = read_curve(tmp_path)
    assert curve is not None
    assert [point.index for point in curve.points] == [1, 2]


async def test_phase_follows_the_start_record_and_the_target(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    phases = []
    for number, num_rounds in enumerate((None, 0, 1, 2)):
        (tmp_path / str(number)).mkdir()
        _hosted(tmp_path / str(number), num_rounds)
        (row,) = hosted_runs(tmp_path / str(number))
        phases.append((row["phase"], row["index"]))
    assert phases == [("gathering", 0), ("training", 0), ("training", 1), ("finished", 2)]


async def test_damaged_part_is_named_and_the_rest_is_told(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    _hosted(tmp_path, 1)
    whole = (tmp_path / LEDGER_FILE).read_bytes()
    (tmp_path / LEDGER_FILE).write_bytes(b"no ledger at all" * 300)
    (row,) = hosted_runs(tmp_path)
    assert (row["name"], row["index"], row["phase"]) == ("tiny", None, None)
    assert "ledger.sqlite3 is damaged" in str(row["note"])
    (tmp_path / LEDGER_FILE).write_bytes(whole)
    (tmp_path / MANIFEST_FILE).write_bytes(b"x")
    (row,) = hosted_runs(tmp_path)
    assert (row["name"], row["index"]) == (None, 1)
    assert row["note"]


async def test_listing_makes_no_ledger_where_the_host_ended_before_it_had_one(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    _hosted(tmp_path, None)
    for path in tmp_path.glob(LEDGER_FILE + "*"):
        path.unlink()
    (row,) = hosted_runs(tmp_path)
    assert (row["name"], row["phase"], row["index"], row["note"]) == ("tiny", "gathering", 0, "")
    assert list(tmp_path.glob(LEDGER_FILE + "*")) == []
