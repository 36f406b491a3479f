"""Files of tensors: the library's bytes, without its copies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from coordinator.checkpoints.tensor_files import StoredVector, TensorSource, source_of, write_tensors
from protocol.errors import LocalProtocolError, StorageError
from protocol.ids import UnitName
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder

TENSORS = {
    "z.weight": torch.arange(6.0).reshape(2, 3),
    "a.weight": -torch.ones(3),
    "B": torch.tensor(0.5),
    'ä"\\\n\x01': torch.full((1, 2, 1), 1e-45),
}
SCHEMA = TensorSchema(UnitName("unit"), (TensorSpec("z.weight", (2, 3)), TensorSpec("a.weight", (3,))))


def _written(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    write_tensors(path, {name: source_of(tensor) for name, tensor in tensors.items()}, metadata)
    return path.read_bytes()


@pytest.mark.parametrize("length", range(8), ids="header of 8n+{}".format)
def test_the_bytes_are_those_that_the_library_writes(tmp_path: Path, length: int) -> None:
    metadata = {"unit": "x" * length}
    save_file(TENSORS, tmp_path / "library", metadata)
    assert _written(tmp_path / "ours", TENSORS, metadata) == (tmp_path / "library").read_bytes()
    assert (tmp_path / "ours").read_bytes()[8:].startswith(b'{"__metadata__":{"unit":')


def test_metadata_of_several_keys_differ_from_the_librarys_in_their_order_at_most(tmp_path: Path) -> None:
    metadata = {"format": "pt", "unit": "fragment-0", "potluck_run": 'our "run"'}
    save_file(TENSORS, tmp_path / "library", metadata)
    ours, theirs = _written(tmp_path / "ours", TENSORS, metadata), (tmp_path / "library").read_bytes()
    begin = ours.index(b'"B"')
    assert ours[begin:] == theirs[begin:]
    assert ours[:8] == theirs[:8]
    assert json.loads(ours[8 : 8 + ours[0] + 256 * ours[1]])["__metadata__"] == metadata


def test_the_library_reads_what_lay_in_a_longer_vector(tmp_path: Path) -> None:
    flat_N = torch.arange(100.0)
    write_tensors(tmp_path / "file", {"part": source_of(flat_N[7:13], (2, 3))}, {})
    assert torch.equal(load_file(tmp_path / "file")["part"], flat_N[7:13].reshape(2, 3))


def test_a_source_that_ends_early_or_late_and_other_numbers_are_refused(tmp_path: Path) -> None:
    for parts in ([bytes(8)], [bytes(12), bytes(4)]):
        with pytest.raises(LocalProtocolError, match="tensor a that ends at byte"):
            write_tensors(tmp_path / "file", {"a": TensorSource((3,), parts.copy)}, {})
    with pytest.raises(LocalProtocolError, match="bfloat16"):
        source_of(torch.zeros(3, dtype=torch.bfloat16))


def test_a_vector_comes_back_as_it_was_with_its_zeros(tmp_path: Path) -> None:
    values = {"z.weight": torch.zeros(2, 3), "a.weight": -torch.zeros(3)}
    _written(tmp_path / "file", values, {})
    stored = StoredVector(tmp_path / "file", SCHEMA)
    expected = np.concatenate([values[spec.name].numpy().reshape(-1) for spec in SCHEMA.tensors])
    assert stored.vector().numpy().tobytes() == expected.tobytes()
    assert stored.tensor(SCHEMA.tensors[0]).shape == (2, 3)


def test_a_part_of_a_vector_is_read_from_the_tensors_that_it_lies_in(tmp_path: Path) -> None:
    config = decoder()
    path = checkpoint_of(tmp_path, config)
    schema, anchor_N = model_schema(config), load_checkpoint(path)[1].anchor_N
    stored = StoredVector(path / f"{schema.unit}.safetensors", schema)
    for start, stop in ((0, schema.num_elements), (5, 6), (700, 2900), (schema.num_elements - 3, schema.num_elements)):
        assert stored.read(start, stop) == anchor_N[start:stop].numpy().tobytes()


@pytest.mark.parametrize("data", [b"", b"{}", b"\x05" + b"\0" * 7 + b"[1,2]", b"\x02" + b"\0" * 7 + b"{}"])
def test_a_file_that_holds_no_weights_is_named_and_not_served(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    with pytest.raises(StorageError, match=r"x\.safetensors has .*expected a checkpoint's weights"):
        StoredVector(tmp_path / "x.safetensors", model_schema(decoder()))


def _entry(name: str, key: str, value: object) -> Callable[[dict[str, dict[str, object]]], None]:
    return lambda header: header[name].update({key: value})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header: header.pop("a.weight"), "no a.weight as float32"),
        (_entry("a.weight", "dtype", "I32"), "no a.weight as float32"),
        (_entry("a.weight", "shape", [3, 1]), "no a.weight as float32"),
        (_entry("a.weight", "shape", None), "a header that cannot be read"),
        (_entry("a.weight", "data_offsets", [0, 8]), "no a.weight as float32"),
        (_entry("a.weight", "data_offsets", [1 << 80, (1 << 80) + 12]), "an early end"),
        (_entry("a.weight", "data_offsets", [-4096, -4084]), "an early end"),
    ],
    ids=["missing", "kind", "shape", "no shape", "length", "beyond the end", "before the beginning"],
)
def test_a_header_that_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[dict[str, dict[str, object]]], None], says: str
) -> None:
    data = _written(tmp_path / "file", TENSORS, {})
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    with pytest.raises(StorageError, match=says):
        StoredVector(tmp_path / "file", SCHEMA)


def test_a_file_that_is_shortened_before_or_while_it_is_read_is_an_error_and_no_signal(tmp_path: Path) -> None:
    data = _written(tmp_path / "file", TENSORS, {})
    stored = StoredVector(tmp_path / "file", SCHEMA)
    os.truncate(tmp_path / "file", len(data) - 12)
    for reads in (stored.vector, lambda: StoredVector(tmp_path / "file", SCHEMA)):
        with pytest.raises(StorageError, match="has an early end"):
            reads()
