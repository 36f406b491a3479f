"""The state before the first commit."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from averaging.data.start_weights import StartShard, is_needed
from averaging.models.llama.config import LlamaConfig
from averaging.state.start_state import NO_HEAD, start_root, start_state
from averaging.state.state import state_root
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from protocol.ids import CommitId, UnitName
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_units import model_units
from protocol.tensors.stage_schema import StageMap, stage_schema
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema, TensorSpec
from tests.averaging.arithmetic.picked_tensors import picked

SCHEMA = TensorSchema(UnitName("fragment-0"), (TensorSpec("embed.weight", (5, 4)), TensorSpec("norm.weight", (4,))))
MODEL = LlamaConfig(vocab_size=9, dim=4, num_layers=3, num_heads=2, num_kv_heads=1, ffn_dim=6, context_tokens=8)
GRID = ChunkGrid(SCHEMA.num_elements, 7)


def test_start_root_is_that_of_the_state_before_its_head_is_known() -> None:
    state = start_state(SCHEMA, seed=1)
    assert (state.head, state.index, state.total_tokens) == (NO_HEAD, 0, 0)
    assert not state.momentum_N.any()
    assert start_root(SCHEMA, GRID, seed=1) == state_root(state, GRID)
    assert start_root(SCHEMA, GRID, seed=2) != start_root(SCHEMA, GRID, seed=1)


def test_head_changes_the_root_but_not_the_values() -> None:
    plain, named = start_state(SCHEMA, 1), start_state(SCHEMA, 1, CommitId(b"g" * 32))
    assert torch.equal(plain.anchor_N, named.anchor_N)
    assert state_root(plain, GRID) != state_root(named, GRID)


def _given(folder: Path, *parts: bytes) -> list[StartShard]:
    shards = [StartShard(folder / sha256(part).hexdigest(), len(part) // 4) for part in parts]
    for shard, part in zip(shards, parts, strict=True):
        shard.path.write_bytes(part)
    return shards


def test_given_weights_stand_in_the_place_of_those_from_the_seed(tmp_path: Path) -> None:
    values = np.arange(24, dtype="<f4") / 3
    given = _given(tmp_path, values[:10].tobytes(), values[10:].tobytes())
    state = start_state(SCHEMA, 1, given=given)
    assert torch.equal(state.anchor_N, torch.arange(24) / 3)
    assert start_root(SCHEMA, GRID, 1, given) == start_root(SCHEMA, GRID, 2, given) == state_root(state, GRID)


@pytest.mark.parametrize(
    "data",
    [bytes(4 * 23), bytes(4 * 25), b"x", np.full(24, np.inf, "<f4").tobytes()],
    ids=["too few", "too many", "no value", "not finite"],
)
def test_given_weights_that_are_not_the_units_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        start_state(SCHEMA, 1, given=_given(tmp_path, data))


def test_given_weights_that_are_lost_or_damaged_are_named(tmp_path: Path) -> None:
    (shard,) = given = _given(tmp_path, bytes(4 * 24))
    for data in (bytes(4 * 23) + b"abcd", bytes(4 * 23), bytes(4 * 24 + 1)):
        shard.path.write_bytes(data)
        with pytest.raises(StorageError, match="is damaged"):
            start_state(SCHEMA, 1, given=given)
    shard.path.unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        start_state(SCHEMA, 1, given=given)


def test_given_weights_of_a_model_without_the_units_tensor_are_refused(tmp_path: Path) -> None:
    model = TensorSchema(UnitName("model"), (TensorSpec("embed.weight", (6, 4)),))
    with pytest.raises(LocalProtocolError, match="norm"):
        start_state(SCHEMA, 1, given=_given(tmp_path, bytes(4 * 24)), model=model)


def test_units_of_a_model_begin_with_the_values_that_the_whole_begins_with(tmp_path: Path) -> None:
    units = model_units(MODEL, 2)
    model = model_schema(MODEL)
    values = np.arange(model.num_elements, dtype="<f4")
    for given in ([], _given(tmp_path, values.tobytes())):
        whole_N = start_state(model, 1, given=given).anchor_N
        parts = [start_state(schema, 1, given=given, model=model).anchor_N for schema in units.schemas]
        assert torch.equal(torch.cat(parts), picked(whole_N, model, units.whole))


@pytest.mark.parametrize("shard_values", [1, 7, 50, 10_000])
def test_a_stage_begins_with_its_own_rows_and_needs_no_others_on_its_disk(tmp_path: Path, shard_values: int) -> None:
    stages = StageMap(MODEL.model_copy(update={"is_tied": False}), (1, 2, 0))
    model = model_schema(stages.decoder)
    values = np.arange(model.num_elements, dtype="<f4")
    parts = [values[begin : begin + shard_values].tobytes() for begin in range(0, len(values), shard_values)]
    found = []
    for stage in range(stages.num_stages):
        given = _given(tmp_path, *parts)
        schema, begin = stage_schema(stages, stage), 0
        names = [spec.name for spec in schema.tensors]
        for shard in given:
            if not is_needed(names, model, begin, begin + shard.num_values):
                shard.path.unlink()
            begin += shard.num_values
        assert len(parts) == 1 or not all(shard.path.exists() for shard in given)
        found.append(start_state(schema, 1, given=given, model=model).anchor_N)
    assert torch.equal(torch.cat(found), torch.from_numpy(values)), "the stages one after another are the model"
