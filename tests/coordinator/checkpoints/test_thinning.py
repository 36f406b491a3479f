"""Old checkpoints become few, and lose their momentum but nothing that is verified."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from coordinator.checkpoints import thinning
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import (
    read_manifest,
    stored_states,
    stored_unit,
    verify_checkpoint,
    write_checkpoint,
    write_manifest,
)
from coordinator.checkpoints.stored_file import hash_file
from coordinator.checkpoints.thinning import CheckpointRules, drop_momentum, old_ones, surplus
from coordinator.ledger.ledger import CheckpointRow
from protocol.errors import PotluckError, StorageError
from protocol.estimates.kept_checkpoints import kept_checkpoints
from protocol.ids import CommitId, Root
from tests.coordinator.checkpoints.test_checkpoints import (
    SCHEMA,
    checkpoint_of,
    checkpoint_of_experts,
    content,
    decoder,
)


def row_of(index: int) -> CheckpointRow:
    return CheckpointRow(CommitId(index.to_bytes(32, "big")), SCHEMA.unit, index, 0, Root(bytes(32)), "", index)


def kept_after(indices: range | tuple[int, ...], rules: CheckpointRules) -> list[CheckpointRow]:
    """The rest where each is followed by a pruning."""
    rows: list[CheckpointRow] = []
    for index in indices:
        rows.append(row_of(index))
        doomed = surplus(rows, rules)
        rows = [row for row in rows if row not in doomed]
    return rows


def test_the_newest_are_kept_and_of_the_rest_none_without_intervals() -> None:
    rows = list(map(row_of, (1, 2, 3, 4)))
    assert surplus(rows[::-1], CheckpointRules(1, keep=3, keep_every=0)) == rows[:1]


def test_the_first_of_every_newer_interval_is_kept_whenever_pruning_happens() -> None:
    indices = (3, 5, 8, 11, 12, 14, 22, 25, 31, 33)
    assert [row.index for row in kept_after(indices, CheckpointRules(5, 2, 2))] == [3, 11, 22, 31, 33]


def test_the_older_they_are_the_fewer_are_kept_and_those_that_pruning_once_kept_suffice() -> None:
    rules = CheckpointRules(every_rounds=1, keep=1, keep_every=1)
    indices = [row.index for row in kept_after(range(1, 201), rules)]
    assert indices == [row.index for row in map(row_of, range(1, 201)) if row not in surplus_of(200, rules)]
    gaps = [newer - older for older, newer in pairwise(indices)]
    assert gaps[-8:] == [1] * 8
    assert gaps[1:] == sorted(gaps[1:], reverse=True)
    assert all(
        (200 - index) / 9 <= gap <= (200 - index) / 4
        for index, gap in zip(indices[1:], gaps[1:], strict=False)
        if gap > 1
    )


def surplus_of(num_rounds: int, rules: CheckpointRules) -> list[CheckpointRow]:
    return list(surplus(list(map(row_of, range(1, num_rounds + 1))), rules))


@pytest.mark.parametrize("every", [1, 5, 7])
@pytest.mark.parametrize(("keep", "keep_every"), [(3, 10), (1, 1), (3, 0), (10, 2)])
def test_no_more_checkpoints_are_kept_than_estimated_and_few_less(every: int, keep: int, keep_every: int) -> None:
    rules = CheckpointRules(every, keep, keep_every)
    for num_rounds in (1, 4, 5, 50, 63, 400):
        rows: list[CheckpointRow] = []
        most_whole = most_old = 0
        for index in sorted({*range(every, num_rounds + 1, every), num_rounds}):
            rows.append(row_of(index))
            most_whole = max(most_whole, len(rows) - len(old_ones(rows, rules)) - len(surplus(rows, rules)))
            doomed = surplus(rows, rules)
            rows = [row for row in rows if row not in doomed]
            most_old = max(most_old, len(old_ones(rows, rules)))
        estimated = kept_checkpoints(num_rounds, every_rounds=every, keep=keep, keep_every=keep_every)
        assert most_whole <= estimated.whole <= most_whole + 1
        assert estimated.old - max(2, keep) <= most_old <= estimated.old


def test_those_of_lineages_that_were_left_go_first_whatever_their_rounds_and_none_lasts() -> None:
    rows = list(map(row_of, (3, 5, 8, 100, 102)))
    left = {row.commit for row in rows if row.index in (3, 100, 102)}
    for keep, kept in ((1, [5, 8]), (3, [5, 8, 102]), (4, [5, 8, 100, 102])):
        rules = CheckpointRules(5, keep, 2)
        doomed = surplus(rows, rules, left)
        assert [row.index for row in rows if row not in doomed] == kept
        assert [row.index for row in old_ones(rows, rules, left)] == ([5] if keep == 1 else [])


def one_unit(folder: Path) -> Path:
    return checkpoint_of(folder, decoder())


def several_units(folder: Path) -> Path:
    return checkpoint_of_experts(folder, decoder())


@pytest.mark.parametrize("written", [one_unit, several_units])
def test_without_its_momentum_a_checkpoint_has_half_the_bytes_and_still_verifies(
    tmp_path: Path, written: Callable[[Path], Path]
) -> None:
    path = written(tmp_path)
    whole, num_bytes = verify_checkpoint(path), sum(file.stat().st_size for file in path.iterdir())
    drop_momentum(path)
    old = verify_checkpoint(path)
    assert old.state_root == whole.state_root
    assert sum(file.stat().st_size for file in path.iterdir()) < 0.6 * num_bytes
    first, second = (hashed(path), drop_momentum(path), hashed(path))[::2]
    assert first == second
    for state in stored_states(path, old):
        with pytest.raises(StorageError, match="without momentum"):
            stored_unit(path, state.schema, state.grid)


def hashed(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_an_old_checkpoint_is_exported_as_a_whole_one(tmp_path: Path) -> None:
    path = one_unit(tmp_path)
    export_checkpoint(path, tmp_path / "whole")
    drop_momentum(path)
    export_checkpoint(path, tmp_path / "old")
    assert hashed(tmp_path / "whole") == hashed(tmp_path / "old")


@pytest.mark.parametrize("damaged", ["fragment-0.safetensors", "fragment-0.momentum.sha256"])
def test_a_changed_byte_of_an_old_checkpoint_is_found(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    drop_momentum(path)
    data = bytearray((path / damaged).read_bytes())
    data[-1] ^= 1
    (path / damaged).write_bytes(data)
    with pytest.raises(StorageError, match=f"{damaged} has SHA-256"):
        verify_checkpoint(path)


def test_hashes_of_another_momentum_do_not_verify_even_with_a_manifest_that_fits(tmp_path: Path) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    drop_momentum(path)
    for data in (bytes(32 * 4), bytes(32)):
        forged = path / "fragment-0.momentum.sha256"
        forged.write_bytes(data)
        manifest = read_manifest(path)
        write_manifest(path, manifest.model_copy(update={"momentum_hashes": hash_file(forged)}))
        with pytest.raises(StorageError, match=r"the root|hashes of the momentum"):
            verify_checkpoint(path)


def test_a_damaged_checkpoint_keeps_its_momentum(tmp_path: Path) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    (path / "fragment-0.safetensors").write_bytes(b"x")
    before = hashed(path)
    with pytest.raises(PotluckError):
        drop_momentum(path)
    assert hashed(path) == before


def test_a_crash_at_any_step_leaves_a_checkpoint_that_verifies_and_the_next_call_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("save_bytes", "write_manifest", "unlink"):
        path = tmp_path / write_checkpoint(tmp_path / step, content(), now_unix_s=7).path
        path = tmp_path / step / path.name
        with monkeypatch.context() as cut:

            def fail(*_: object) -> None:
                raise OSError(5, "power is gone")

            cut.setattr(*((Path, step) if step == "unlink" else (thinning, step)), fail)
            with pytest.raises(StorageError, match="power is gone"):
                drop_momentum(path)
        verify_checkpoint(path)
        drop_momentum(path)
        assert verify_checkpoint(path).momentum is None
        assert sorted(file.name for file in path.iterdir()) == [
            "fragment-0.momentum.sha256",
            "fragment-0.safetensors",
            "manifest.json",
        ]
