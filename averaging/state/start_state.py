"""The outer state before the first commit. Host and peers each compute it from the manifest, or from the shards that it names.

The genesis commit id is the hash of the start record, which names the state's root. So that root is computed with a head of 32 zero
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.vectors import picked
from averaging.state.state import UnitState, state_root
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import HASH_BYTES, CommitId, Root
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

NO_HEAD: Final = CommitId(bytes(HASH_BYTES))


def start_state(
    schema: TensorSchema,
    seed: int,
    head: CommitId = NO_HEAD,
    given: Sequence[Path] = (),
    model: TensorSchema | None = None,
) -> UnitState:
    """Genesis anchor, momentum zero, no tokens.

    Args:
        schema: the unit's tensors.
        seed: seed of the values, unless they are given.
        head: the genesis commit id once it is known.
        given: the shards of the run's first weights, each file named by its hash; blocks while they are read.
        model: all tensors of the model, in the order of `given`, if the unit has only some of them; None if it has all.

    Raises:
        StorageError: a shard cannot be read or is damaged.
        RemoteProtocolError: the shards do not make up the unit's values.
    """
    whole = model or schema
    anchor_N = picked(_given_anchor(whole, given), whole, schema) if given else genesis_anchor(schema, seed, whole)
    # zeros of NumPy take no memory until they are written
    momentum_N = torch.from_numpy(np.zeros(anchor_N.numel(), dtype=np.float32))
    return UnitState(schema.unit, head, 0, 0, anchor_N, momentum_N)


def start_root(
    schema: TensorSchema,
    grid: ChunkGrid,
    seed: int,
    given: Sequence[Path] = (),
    model: TensorSchema | None = None,
) -> Root:
    """The state root that the start record names for a unit. Arguments and errors as of `start_state`."""
    return state_root(start_state(schema, seed, given=given, model=model), grid)


def _given_anchor(schema: TensorSchema, given: Sequence[Path]) -> torch.Tensor:
    parts = [_shard(path) for path in given]
    num_values = sum(map(len, parts))
    if num_values != schema.num_elements:
        raise RemoteProtocolError(f"{num_values} weights to start with", f"{schema.num_elements}")
    anchor_N = torch.from_numpy(np.concatenate(parts).astype(np.float32))
    if not bool(torch.isfinite(anchor_N).all()):
        raise RemoteProtocolError("weights to start with that are not finite", "numbers")
    return anchor_N


def _shard(path: Path) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})", "a shard of the run's first weights") from error
    if sha256(data).hexdigest() != path.name:
        raise StorageError(f"{path} is damaged", "a shard of the run's first weights", "restore a copy")
    if len(data) % 4:
        raise RemoteProtocolError(f"a shard of {len(data)} bytes of weights", "whole float32 values")
    return np.frombuffer(data, dtype="<f4")
