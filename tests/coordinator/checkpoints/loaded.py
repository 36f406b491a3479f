"""A whole checkpoint in memory, as tests compare it."""

from __future__ import annotations

from pathlib import Path

from averaging.state.state import UnitState
from coordinator.checkpoints.checkpoints import (
    CheckpointManifest,
    momentum_name,
    parameters_name,
    stored_states,
    verify_checkpoint,
)
from coordinator.checkpoints.tensor_files import StoredVector
from protocol.ids import CommitId, UnitName
from protocol.tensors.tensor_schema import TensorSchema, TensorSpec


def load_checkpoint(path: Path) -> tuple[CheckpointManifest, UnitState]:
    """The manifest, and all tensors of the checkpoint in the order of its manifest.

    Raises:
        ConfigError, StorageError: it does not verify.
    """
    manifest = verify_checkpoint(path)
    if manifest.units is None:
        return manifest, stored_states(path, manifest)[0].load()
    unit = UnitName(manifest.unit)
    schema = TensorSchema(unit, tuple(TensorSpec(tensor.name, tensor.shape) for tensor in manifest.tensors))
    anchor_N, momentum_N = (
        StoredVector(path / name, schema).vector() for name in (parameters_name(unit), momentum_name(unit))
    )
    head = CommitId(bytes.fromhex(manifest.commit))
    return manifest, UnitState(unit, head, manifest.index, manifest.total_tokens, anchor_N, momentum_N)
