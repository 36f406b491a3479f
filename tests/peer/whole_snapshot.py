"""Snapshots of a stage as whole bytes: those of safetensors' own writer, and those that a stage in the test's process writes."""

from __future__ import annotations

import torch
from safetensors.torch import load, save

from peer.pipeline.stage.lane_compute import LaneWork
from peer.pipeline.stage.snapshot_bytes import SnapshotBytes
from peer.pipeline.stage.stage_snapshot import check_snapshot, most_snapshot_bytes
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from protocol.tensors.tensor_schema import TensorSchema


def encode_snapshot(snapshot: StageSnapshot) -> bytes:
    """Every value unchanged, in its own type."""
    named = {f"moment.{number}": moment.contiguous() for number, moment in enumerate(snapshot.moments)}
    return bytes(save({"theta": snapshot.theta_N, **named}))


def decode_snapshot(data: SnapshotBytes, schema: TensorSchema) -> StageSnapshot:
    """A snapshot of this stage as safetensors' own reader finds it. Raises as `check_snapshot`."""
    check_snapshot(data, schema)
    named = load(bytes(data))
    return StageSnapshot(named["theta"], tuple(named[f"moment.{number}"] for number in range(len(named) - 1)))


def snapshot_of(trainer: StageTrainer) -> StageSnapshot:
    """A copy of everything that its next step depends on."""
    return StageSnapshot(trainer.theta(), tuple(moment.clone() for moment in trainer.replica.optimizer.moments()))


def restore(trainer: StageTrainer, snapshot: StageSnapshot) -> None:
    """Have the trainer continue from a snapshot, as `own_rows` and `restore_rows`."""
    trainer.restore_rows(*trainer.own_rows(snapshot))


def taken(work: LaneWork) -> bytes:
    """A snapshot of a stage in this process."""
    out = torch.zeros(most_snapshot_bytes(work.schema), dtype=torch.uint8)
    num_bytes = work.snapshot(out)
    return out[:num_bytes].numpy().tobytes()


def in_memory(data: bytes) -> torch.Tensor:
    """Bytes of a snapshot, uint8, for a stage to read."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
