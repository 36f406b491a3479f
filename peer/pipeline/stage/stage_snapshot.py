"""A stage's snapshot as bytes, for a neighbour to keep and a spare to continue from: safetensors, theta first, then the moments."""

from __future__ import annotations

from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from peer.pipeline.stage.stage_trainer import StageSnapshot
from protocol.errors import RemoteProtocolError
from protocol.tensors.tensor_schema import TensorSchema

_THETA: Final = "theta"
_MOMENT: Final = "moment."
_HEAD_BYTES: Final = 65_536
_TENSOR_HEAD_BYTES: Final = 512
_WIDEST_BYTES: Final = 8
_VECTORS: Final = 3
"""Parameters and at most two moments."""


def most_snapshot_bytes(schema: TensorSchema) -> int:
    """Upper bound on the size of a snapshot of this stage, with any optimizer."""
    heads = _HEAD_BYTES + _VECTORS * len(schema.tensors) * _TENSOR_HEAD_BYTES
    return heads + _VECTORS * schema.num_elements * _WIDEST_BYTES


def encode_snapshot(snapshot: StageSnapshot) -> bytes:
    """Encode every value unchanged, in its own type."""
    named = {f"{_MOMENT}{number}": moment.contiguous() for number, moment in enumerate(snapshot.moments)}
    return bytes(save({_THETA: snapshot.theta_N, **named}))


def decode_snapshot(data: bytes, schema: TensorSchema) -> StageSnapshot:
    """Decode the bytes of `encode_snapshot`, on the CPU. `StageTrainer.restore` checks whether the moments fit the optimizer.

    Raises:
        RemoteProtocolError: not a snapshot, a snapshot of another stage, or values that are not finite.
    """
    try:
        named = load(data)
    except SafetensorError as error:
        raise RemoteProtocolError(f"bytes that are no snapshot ({error})", "safetensors") from error
    moments = [f"{_MOMENT}{number}" for number in range(len(named) - 1)]
    if set(named) != {_THETA, *moments}:
        raise RemoteProtocolError(f"a snapshot with {len(named)} tensors of other names", "theta, moment.0 and so on")
    theta_N = named[_THETA]
    if theta_N.shape != (schema.num_elements,):
        raise RemoteProtocolError(f"a snapshot of shape {tuple(theta_N.shape)}", f"{schema.num_elements} values")
    for name, values in named.items():
        if not values.dtype.is_floating_point or not bool(torch.isfinite(values).all()):
            raise RemoteProtocolError(f"{name} of a snapshot in {values.dtype}, or not finite", "finite floats")
    return StageSnapshot(theta_N, tuple(named[name] for name in moments))
