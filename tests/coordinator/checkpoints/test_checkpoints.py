"""Checkpoints: whole or not at all, and believed only after verification."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints import checkpoints
from coordinator.checkpoints.checkpoints import (
    CheckpointContent,
    UnitContent,
    remove_checkpoint,
    remove_leftovers,
    stored_unit,
    unlisted_checkpoints,
    verify_checkpoint,
    write_checkpoint,
)
from coordinator.run.run_files import RunTokenizer
from protocol.errors import ConfigError, StorageError
from protocol.ids import CommitId, Root, UnitName
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.model_units import model_units
from protocol.tensors.stage_schema import StageMap
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema, TensorSpec
from tests.at_once import stage_units
from tests.coordinator.checkpoints.loaded import load_checkpoint

UNIT = UnitName("fragment-0")
SCHEMA = TensorSchema(UNIT, (TensorSpec("embed.weight", (5, 4)), TensorSpec("norm.weight", (4,))))
GRID = ChunkGrid(24, 7)


def content(index: int = 3) -> CheckpointContent:
    anchor_N = torch.arange(24, dtype=torch.float32) * 0.1 + index
    state = UnitState(UNIT, CommitId(bytes([index]) * 32), index, 600 * index, anchor_N, -anchor_N)
    return CheckpointContent("run", "ab" * 32, SCHEMA, GRID, {"dim": 4}, state, state_root(state, GRID))


def decoder(**changes: object) -> LlamaConfig:
    values = {"dim": 16, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "ffn_dim": 24, "context_tokens": 12}
    return LlamaConfig.model_validate({**values, **changes})


def checkpoint_of(
    folder: Path,
    config: ModelConfig,
    scale: float = 10.0,
    tokenizer: RunTokenizer | None = None,
    anchor_N: torch.Tensor | None = None,
    template: bytes = b"",
) -> Path:
    """A checkpoint with these weights, or some large enough that every part of the model matters, norms that are not all one
    included.
    """
    schema = model_schema(config)
    grid = ChunkGrid(schema.num_elements, 1024)
    if anchor_N is None:
        anchor_N = genesis_anchor(schema, 5) * scale + genesis_anchor(schema, 6)
    state = UnitState(schema.unit, CommitId(b"c" * 32), 3, 600, anchor_N, torch.zeros_like(anchor_N))
    what = CheckpointContent(
        "run",
        "ab" * 32,
        schema,
        grid,
        config.model_dump(),
        state,
        state_root(state, grid),
        tokenizer,
        template=template,
    )
    return folder / write_checkpoint(folder, what, now_unix_s=7).path


def checkpoint_of_stages(folder: Path, stages: StageMap) -> Path:
    """The same weights as of `checkpoint_of`, of a run whose peers hold one stage each."""
    whole, parts = model_schema(stages.decoder), stage_units(stages)
    anchor_N, units = genesis_anchor(whole, 5) * 10 + genesis_anchor(whole, 6), []
    for place, (schema, (begin, stop)) in enumerate(zip(parts.schemas, parts.spans, strict=True)):
        grid, part_N = ChunkGrid(schema.num_elements, 1024), anchor_N[begin:stop].clone()
        state = UnitState(schema.unit, CommitId(bytes([place + 1]) * 32), 3, 600, part_N, torch.zeros_like(part_N))
        units.append(UnitContent(schema, grid, state, state_root(state, grid)))
    spine = units[0]
    what = CheckpointContent(
        "run",
        "ab" * 32,
        parts.whole,
        spine.grid,
        stages.decoder.model_dump(),
        units[0].state,
        spine.root,
        units=tuple(units),
    )
    return folder / write_checkpoint(folder, what, now_unix_s=7).path


MIXTURE = MixtureConfig(num_experts=2, ffn_dim=8)


def checkpoint_of_experts(folder: Path, config: LlamaConfig) -> Path:
    """As `checkpoint_of`, of a trunk and two experts, each at a commit of its own."""
    model, units = held_units(config, MIXTURE, range(MIXTURE.num_experts)), []
    for place, schema in enumerate(model.schemas):
        grid = ChunkGrid(schema.num_elements, 1024)
        anchor_N = genesis_anchor(schema, 5, model.whole) * 10 + genesis_anchor(schema, 6, model.whole)
        head = CommitId(bytes([place + 1]) * 32)
        state = UnitState(schema.unit, head, 3 - place, 600, anchor_N, torch.zeros_like(anchor_N))
        units.append(UnitContent(schema, grid, state, state_root(state, grid)))
    spine = units[0]
    what = CheckpointContent(
        "run",
        "ab" * 32,
        model.whole,
        spine.grid,
        config.model_dump(),
        units[0].state,
        spine.root,
        units=tuple(units),
        mixture=MIXTURE,
    )
    return folder / write_checkpoint(folder, what, now_unix_s=7).path


def test_a_unit_of_several_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    config = decoder()
    path = checkpoint_of_experts(tmp_path, config)
    schema = held_units(config, MIXTURE, [1]).schemas[1]
    back = stored_unit(path, schema, ChunkGrid(schema.num_elements, 1024))
    assert (back.state.unit, back.state.index) == ("expert-1", 1)
    assert state_root(back.state, back.grid) == back.root
    other = held_units(config, MixtureConfig(num_experts=3, ffn_dim=8), [2]).schemas[1]
    with pytest.raises(StorageError, match="it has no unit expert-2"):
        stored_unit(path, other, ChunkGrid(other.num_elements, 1024))


def test_written_checkpoint_verifies_and_loads_bit_equal(tmp_path: Path) -> None:
    what = content()
    row = write_checkpoint(tmp_path / "checkpoints", what, now_unix_s=7)
    manifest, state = load_checkpoint(tmp_path / "checkpoints" / row.path)
    assert torch.equal(state.anchor_N, what.state.anchor_N)
    assert torch.equal(state.momentum_N, what.state.momentum_N)
    assert (manifest.index, manifest.state_root, manifest.model) == (3, what.root.hex(), {"dim": 4})
    assert (row.commit, row.state_root, row.written_unix_s) == (what.state.head, what.root, 7)


def units_content() -> CheckpointContent:
    """Two fragments and the embeddings, each at a commit of its own."""
    config = decoder(num_layers=3)
    model, units = model_schema(config), []
    for place, schema in enumerate(model_units(config, 2).schemas):
        grid = ChunkGrid(schema.num_elements, 1024)
        anchor_N = genesis_anchor(schema, 5, model)
        head = CommitId(bytes([place + 1]) * 32)
        state = UnitState(schema.unit, head, place + 3, 100 * place, anchor_N, anchor_N * 0.5)
        units.append(UnitContent(schema, grid, state, state_root(state, grid)))
    spine = units[0]
    return CheckpointContent(
        "run",
        "ab" * 32,
        model,
        spine.grid,
        config.model_dump(),
        units[0].state,
        spine.root,
        units=tuple(units),
    )


def test_several_units_are_one_model_in_its_own_order_and_each_is_verified(tmp_path: Path) -> None:
    what = units_content()
    row = write_checkpoint(tmp_path, what, now_unix_s=7)
    manifest, state = load_checkpoint(tmp_path / row.path)
    assert torch.equal(state.anchor_N, genesis_anchor(what.schema, 5))
    assert (manifest.unit, manifest.index, manifest.commit) == ("model", 3, "01" * 32)
    assert manifest.units is not None
    assert [(unit.unit, unit.index) for unit in manifest.units] == [
        ("fragment-0", 3),
        ("fragment-1", 4),
        ("embeddings", 5),
    ]
    assert unlisted_checkpoints(tmp_path, [], "ab" * 32) == [row]


def test_a_unit_whose_root_does_not_fit_is_said(tmp_path: Path) -> None:
    what = units_content()
    odd = (*what.units[:2], replace(what.units[2], root=Root(b"x" * 32)))
    with pytest.raises(StorageError, match="a state of embeddings with root"):
        write_checkpoint(tmp_path, replace(what, units=odd), now_unix_s=7)
    assert list(tmp_path.iterdir()) == []
    row = write_checkpoint(tmp_path, what, now_unix_s=7)
    path = tmp_path / row.path / "manifest.json"
    manifest = checkpoints.CheckpointManifest.model_validate_json(path.read_bytes())
    assert manifest.units is not None
    lie = (*manifest.units[:2], manifest.units[2].model_copy(update={"index": 9}))
    path.write_text(manifest.model_copy(update={"units": lie}).sealed().model_dump_json(exclude_none=True))
    with pytest.raises(StorageError, match="its tensors of embeddings have the root"):
        load_checkpoint(tmp_path / row.path)


def test_state_without_the_attested_root_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="attested root"):
        write_checkpoint(tmp_path, replace(content(), root=Root(b"x" * 32)), now_unix_s=7)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_one_clear_error_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = write_checkpoint(tmp_path, content(2), now_unix_s=6)

    def full(_path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "sync_path", full)
    with pytest.raises(StorageError, match="No space left"):
        write_checkpoint(tmp_path, content(3), now_unix_s=7)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [older.path]
    verify_checkpoint(tmp_path / older.path)


def test_checkpoint_left_by_a_crash_before_its_ledger_row_is_written_again(tmp_path: Path) -> None:
    first = write_checkpoint(tmp_path, content(), now_unix_s=7)
    assert write_checkpoint(tmp_path, content(), now_unix_s=8).path == first.path
    assert verify_checkpoint(tmp_path / first.path).written_unix_s == 8


@pytest.mark.parametrize("name", ["fragment-0.safetensors", "fragment-0.momentum.safetensors"])
def test_flipped_bit_in_a_file_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    data = bytearray((path / name).read_bytes())
    data[-1] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(StorageError, match="SHA-256"):
        verify_checkpoint(path)


def test_manifest_that_lies_about_its_state_is_found(tmp_path: Path) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["total_tokens"] += 1
    lie = checkpoints.CheckpointManifest.model_validate(manifest, strict=False).sealed()
    (path / "manifest.json").write_text(lie.model_dump_json())
    with pytest.raises(StorageError, match="root"):
        verify_checkpoint(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match="damaged"):
        verify_checkpoint(path)


def test_manifest_with_a_number_beyond_all_numbers_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"index": 10**40}))
    with pytest.raises(StorageError, match="damaged at index"):
        verify_checkpoint(path)


def test_any_flipped_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    data = (path / "manifest.json").read_bytes()
    for position in (n for n, byte in enumerate(data) if not chr(byte).isspace()):
        flipped = bytes([data[position] ^ 1])
        (path / "manifest.json").write_bytes(data[:position] + flipped + data[position + 1 :])
        with pytest.raises(StorageError, match=r"manifest\.json"):
            verify_checkpoint(path)


@pytest.mark.parametrize("name", ["fragment-0.safetensors", "fragment-0.momentum.safetensors", "manifest.json"])
@pytest.mark.parametrize("num_bytes", [0, 100])
def test_truncated_file_is_found(tmp_path: Path, name: str, num_bytes: int) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    os.truncate(path / name, num_bytes)
    with pytest.raises(StorageError, match=name):
        verify_checkpoint(path)


@pytest.mark.parametrize("name", ["fragment-0.safetensors", "fragment-0.momentum.safetensors"])
def test_missing_file_is_found(tmp_path: Path, name: str) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    (path / name).unlink()
    with pytest.raises(StorageError, match=rf"{name} could not be read \(No such file or directory\)"):
        verify_checkpoint(path)


@pytest.mark.parametrize("name", ["fragment-0.safetensors", "fragment-0.momentum.safetensors", "manifest.json"])
def test_device_in_the_place_of_a_file_is_named_and_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    (path / name).unlink()
    (path / name).symlink_to("/dev/null")
    with pytest.raises(ConfigError, match=f"{name} is a device"):
        verify_checkpoint(path)


def test_folder_without_a_checkpoint_and_a_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ConfigError, match="no checkpoint at"):
            verify_checkpoint(path)


def test_a_removed_checkpoint_leaves_nothing_and_a_second_removal_is_harmless(tmp_path: Path) -> None:
    rows = [write_checkpoint(tmp_path, content(index), now_unix_s=index) for index in (1, 2)]
    remove_checkpoint(tmp_path, rows[0])
    remove_checkpoint(tmp_path, rows[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == [rows[1].path]


def test_leftovers_of_unfinished_writes_are_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / ".writing-00000009-ab").mkdir()
    row = write_checkpoint(tmp_path, content(), now_unix_s=7)
    assert remove_leftovers(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == [row.path]


def test_the_runs_tokenizer_is_part_of_the_checkpoint_and_verified(tmp_path: Path) -> None:
    plain = tmp_path / write_checkpoint(tmp_path, content(), now_unix_s=7).path
    assert "tokenizer" not in json.loads((plain / "manifest.json").read_text())
    what = replace(content(4), tokenizer=RunTokenizer(b"words", 9))
    path = tmp_path / write_checkpoint(tmp_path, what, now_unix_s=7).path
    stored = verify_checkpoint(path).tokenizer
    assert stored is not None
    assert (stored.end, stored.num_bytes) == (9, 5)
    (path / "tokenizer.json").write_bytes(b"wards")
    with pytest.raises(StorageError, match=r"tokenizer\.json has SHA-256"):
        verify_checkpoint(path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(StorageError, match=r"tokenizer\.json could not be read"):
        verify_checkpoint(path)
