"""The outer state before the first commit. Host and peers each compute it from the manifest, or from the shards that it names.

The genesis commit id is the hash of the start record, which names the state's root. So that root is computed with a head of 32 zero
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.start_weights import StartShard, is_needed
from averaging.state.state import UnitState, state_root
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import HASH_BYTES, CommitId, Root
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

NO_HEAD: Final = CommitId(bytes(HASH_BYTES))
_VALUE_BYTES: Final = 4
_READ_BYTES: Final = 1 << 20
"""Part of a shard that is in memory at a time; a multiple of a value's bytes."""


def start_state(
    schema: TensorSchema,
    seed: int,
    head: CommitId = NO_HEAD,
    given: Sequence[StartShard] = (),
    model: TensorSchema | None = None,
) -> UnitState:
    """Genesis anchor, momentum zero, no tokens.

    Args:
        schema: the unit's tensors.
        seed: seed of the values, unless they are given.
        head: the genesis commit id once it is known.
        given: the shards of the run's first weights; blocks while those are read that hold some of the unit.
        model: all tensors of the model, in the order of `given`, if the unit has only some of them; None if it has all.

    Raises:
        StorageError: a shard cannot be read or is damaged.
        RemoteProtocolError: the shards do not make up the unit's values.
    """
    whole = model or schema
    anchor_N = _given_anchor(schema, whole, given) if given else genesis_anchor(schema, seed, whole)
    # zeros of NumPy take no memory until they are written
    momentum_N = torch.from_numpy(np.zeros(anchor_N.numel(), dtype=np.float32))
    return UnitState(schema.unit, head, 0, 0, anchor_N, momentum_N)


def start_root(
    schema: TensorSchema,
    grid: ChunkGrid,
    seed: int,
    given: Sequence[StartShard] = (),
    model: TensorSchema | None = None,
) -> Root:
    """The state root that the start record names for a unit. Arguments and errors as of `start_state`."""
    return state_root(start_state(schema, seed, given=given, model=model), grid)


def _given_anchor(schema: TensorSchema, model: TensorSchema, given: Sequence[StartShard]) -> torch.Tensor:
    """The values of the tensors of `schema`, which shards of all tensors of `model` hold. They are read in small parts."""
    sources = {spec.name: model.offset(spec.name) for spec in schema.tensors}
    anchor, num_values, is_finite = np.empty(schema.num_elements, dtype=np.float32), 0, True
    found = sum(shard.num_values for shard in given)
    if found != model.num_elements:
        raise RemoteProtocolError(f"{found} weights to start with", f"{model.num_elements}")
    for shard in given:
        if not is_needed(sources, model, num_values, num_values + shard.num_values):
            num_values += shard.num_values
            continue
        for values in _values_of(shard):
            is_finite = is_finite and bool(np.isfinite(values).all())
            for spec, first, stop in model.pieces(num_values, num_values + len(values)):
                if spec.name in sources:
                    begin, source = schema.offset(spec.name), sources[spec.name] - num_values
                    anchor[begin + first : begin + stop] = values[source + first : source + stop]
            num_values += len(values)
    if not is_finite:
        raise RemoteProtocolError("weights to start with that are not finite", "numbers")
    return torch.from_numpy(anchor)


def _values_of(shard: StartShard) -> Iterator[npt.NDArray[np.float32]]:
    """A shard's values, a part at a time. They are known to be right only once all of them were read."""
    path, digest = shard.path, sha256()
    try:
        if path.stat().st_size != _VALUE_BYTES * shard.num_values:
            raise StorageError(f"{path} is damaged", "a shard of the run's first weights", "restore a copy")
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
                yield np.frombuffer(data, dtype="<f4", count=len(data) // _VALUE_BYTES)
    except OSError as error:
        raise StorageError(f"{path} cannot be read ({error.strerror})", "a shard of the run's first weights") from error
    if digest.hexdigest() != path.name:
        raise StorageError(f"{path} is damaged", "a shard of the run's first weights", "restore a copy")
