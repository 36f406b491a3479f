"""Exports a checkpoint of a run with an adapter: the adapter alone as `peft` reads it, or merged into its base as a whole model.

`peft` reads a folder with adapter_config.json and adapter_model.safetensors (github.com/huggingface/peft, LoraConfig). Blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from averaging.data.base_files import StoredAdapter, find_base
from averaging.data.token_reader import TokenReader
from averaging.models.family import layout_of
from coordinator.checkpoints.checkpoint_export import (
    CONFIG_NAME,
    Exported,
    as_json,
    check_tensors,
    ensure_free,
    model_of,
    origin_of,
    side_files,
    tokenizer_of,
    write_folder,
)
from coordinator.checkpoints.checkpoints import CheckpointManifest, parameters_name, verify_checkpoint
from coordinator.checkpoints.stored_file import OnRead
from coordinator.checkpoints.stored_state import reading
from coordinator.checkpoints.tensor_files import StoredVector, TensorSource
from protocol.errors import ConfigError, StorageError
from protocol.tensors.adapter_schema import adapter_schema
from protocol.tensors.model_config import ModelConfig, model_schema
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec

ADAPTER_WEIGHTS_NAME: Final = "adapter_model.safetensors"
ADAPTER_CONFIG_NAME: Final = "adapter_config.json"
_PREFIX: Final = "base_model.model."
"""The beginning of all names of `peft`, before the base's own."""

_VALUES_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    path: Path
    manifest: CheckpointManifest
    adapter: StoredAdapter
    config: ModelConfig
    schema: TensorSchema

    def stored(self) -> StoredVector:
        """The adapter's values."""
        with reading():
            return StoredVector(self.path / parameters_name(self.manifest.unit), self.schema)


def export_adapter(path: Path, target: Path, on_read: OnRead = lambda _num_bytes: None) -> Exported:
    """Verify the checkpoint in `path` and write its adapter to `target`, a folder that is missing or empty, as `peft` reads it.

    Raises:
        ConfigError: there is no checkpoint, it has no adapter, or `target` cannot be used.
        StorageError: the checkpoint does not verify, or writing failed; nothing is left in `target`.
    """
    target = target.absolute()
    ensure_free(target)
    found = _opened(path, on_read)
    layout, stored = layout_of(found.config), found.stored()
    tensors = {_peft_name(layout.name, spec.name): stored.source(spec) for spec in found.schema.tensors}
    tokenizer = tokenizer_of(path, found.manifest, found.config)
    files = {name: data for name, data in side_files(found.config, tokenizer).items() if name != CONFIG_NAME}
    files[ADAPTER_CONFIG_NAME] = as_json(_peft_config(found))
    written = write_folder(target, tensors, origin_of(found.manifest), files, ADAPTER_WEIGHTS_NAME)
    return Exported(found.manifest, written)


def export_merged(
    path: Path, target: Path, base: Path | None = None, on_read: OnRead = lambda _num_bytes: None
) -> Exported:
    """Verify the checkpoint in `path` and write its base with the adapter's products added, in float32, to `target`. Some rows of one
    matrix are in memory at a time.

    Args:
        base: the folder with the base's shards; the data folder beside the checkpoint if not given.

    Raises:
        ConfigError: as `export_adapter`, or the base is not there.
        StorageError: as `export_adapter`, or the base is damaged.
    """
    target = target.absolute()
    ensure_free(target)
    found = _opened(path, on_read)
    config, layout = found.config, layout_of(found.config)
    reader = TokenReader(find_base(path, found.adapter, base))
    whole, stored = model_schema(config), found.stored()
    if reader.num_tokens != whole.num_elements:
        raise StorageError(f"a base of {reader.num_tokens} values", f"{whole.num_elements}, as the model has")
    merging = _Merging(reader, whole, stored, found)
    tensors = {layout.name(spec.name): TensorSource(spec.shape, merging.parts_of(spec)) for spec in whole.tensors}
    files = side_files(config, tokenizer_of(path, found.manifest, config))
    return Exported(found.manifest, write_folder(target, tensors, origin_of(found.manifest), files))


def _opened(path: Path, on_read: OnRead) -> _Checkpoint:
    manifest = verify_checkpoint(path, on_read)
    if manifest.adapter is None:
        raise ConfigError(f"checkpoint {path} has no adapter", "one of a run with [adapter]", "leave the option out")
    config = model_of(path, manifest)
    schema = adapter_schema(config, manifest.adapter.numbers)
    check_tensors(path, manifest, schema)
    return _Checkpoint(path, manifest, manifest.adapter, config, schema)


def _peft_name(name_of: Callable[[str], str], tensor: str) -> str:
    """As "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"."""
    place, matrix, _ = tensor.rsplit(".", 2)
    return f"{_PREFIX}{name_of(f'{place}.weight').removesuffix('.weight')}.{matrix}.weight"


def _peft_config(found: _Checkpoint) -> dict[str, object]:
    numbers = found.adapter.numbers
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": found.adapter.base_name,
        "inference_mode": True,
        "r": numbers.rank,
        "lora_alpha": numbers.alpha,
        "lora_dropout": 0.0,
        "target_modules": list(numbers.targets) or list(found.config.linears),
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
    }


class _Merging:
    """The tensors of the merged model, read while they are written."""

    def __init__(self, reader: TokenReader, whole: TensorSchema, stored: StoredVector, found: _Checkpoint) -> None:
        self._reader, self._whole, self._stored = reader, whole, stored
        self._specs = {spec.name: spec for spec in found.schema.tensors}
        self._scale = found.adapter.numbers.scale

    def parts_of(self, spec: TensorSpec) -> Callable[[], Iterator[memoryview]]:
        """The bytes of a tensor in parts, as little-endian float32."""
        return lambda: self._parts(spec)

    def _parts(self, spec: TensorSpec) -> Iterator[memoryview]:
        place = spec.name.removesuffix(".weight")
        first, second = (self._specs.get(f"{place}.{matrix}.weight") for matrix in ("lora_A", "lora_B"))
        columns = spec.shape[-1] if len(spec.shape) > 1 else spec.num_elements
        rows, begin = spec.num_elements // columns, self._whole.offset(spec.name)
        products = None
        if first is not None and second is not None:
            products = self._stored.tensor(first), self._stored.tensor(second)
        each = max(1, _VALUES_AT_ONCE // columns)
        for row in range(0, rows, each):
            stop = min(row + each, rows)
            bits = self._reader.read(begin + row * columns, (stop - row) * columns)
            values = torch.from_numpy(bits).view(torch.bfloat16).float().view(-1, columns)
            if products is not None:
                a_RI, b_OR = products
                values += self._scale * (b_OR[row:stop] @ a_RI)
            yield values.reshape(-1).numpy().astype("<f4", copy=False).data.cast("B")
