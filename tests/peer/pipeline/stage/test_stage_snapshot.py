"""A stage's snapshot as bytes: it goes on elsewhere as it was, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save

from peer.pipeline.stage.stage_snapshot import (
    decode_snapshot,
    encode_snapshot,
    most_snapshot_bytes,
)
from peer.pipeline.stage.stage_trainer import StageSnapshot, StageTrainer
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.run.training_sections import InnerSection
from protocol.tensors.stage_schema import stage_schema
from tests.peer.lane_world import INNER
from tests.peer.stage_world import MODEL, STAGES, micro_batch, stage_model

MUON = InnerSection(learning_rate=0.01, batch_tokens=16, optimizer="muon")
SCHEMA = stage_schema(STAGES, 1)


def _trainer(inner: InnerSection = INNER, dtype: torch.dtype = torch.float64, steps: int = 1) -> StageTrainer:
    """The middle stage after some steps on noise."""
    trainer = StageTrainer(stage_model(1, dtype), inner, most_kept=1)
    for step in range(steps):
        noise_BTD = torch.randn(1, 4, MODEL.dim, generator=torch.Generator().manual_seed(step), dtype=dtype)
        batch = micro_batch(step=step)
        trainer.passes.forward(batch, noise_BTD)
        trainer.passes.backward(batch, noise_BTD)
        trainer.take_step(trainer.gradient_square(), 0.01)
    return trainer


def _same(one: StageSnapshot, other: StageSnapshot) -> bool:
    pairs = zip((one.theta_N, *one.moments), (other.theta_N, *other.moments), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("inner", [INNER, MUON])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_snapshot_comes_back_as_it_was_and_goes_on_as_if_it_had_been_there(
    inner: InnerSection, dtype: torch.dtype
) -> None:
    snapshot = _trainer(inner, dtype).snapshot()
    data = encode_snapshot(snapshot)
    assert len(data) <= most_snapshot_bytes(SCHEMA)
    decoded = decode_snapshot(data, SCHEMA)
    assert _same(decoded, snapshot)
    other = _trainer(inner, dtype, steps=0)
    other.restore(decoded)
    assert _same(other.snapshot(), snapshot)


def test_a_snapshot_before_the_first_step_has_no_moments() -> None:
    decoded = decode_snapshot(encode_snapshot(_trainer(steps=0).snapshot()), SCHEMA)
    assert decoded.moments == ()


def test_a_snapshot_of_another_stage_is_refused() -> None:
    data = encode_snapshot(_trainer().snapshot())
    with pytest.raises(RemoteProtocolError, match="values"):
        decode_snapshot(data, stage_schema(STAGES, 0))


def test_values_that_are_not_finite_or_no_floats_are_refused() -> None:
    snapshot = _trainer().snapshot()
    theta_N = snapshot.theta_N.clone()
    theta_N[3] = torch.nan
    with pytest.raises(RemoteProtocolError, match="not finite"):
        decode_snapshot(encode_snapshot(replace(snapshot, theta_N=theta_N)), SCHEMA)
    with pytest.raises(RemoteProtocolError, match="not finite"):
        decode_snapshot(
            encode_snapshot(replace(snapshot, theta_N=torch.zeros(theta_N.shape, dtype=torch.int64))), SCHEMA
        )


def test_damaged_bytes_and_other_names_are_refused() -> None:
    data = encode_snapshot(_trainer().snapshot())
    for wrong in (b"", data[:100], data[:-8], b"\xff" * 64, save({"other": torch.zeros(3)})):
        with pytest.raises(RemoteProtocolError):
            decode_snapshot(bytes(wrong), SCHEMA)


@pytest.mark.parametrize("inner", [INNER, MUON])
def test_moments_of_other_shapes_are_not_loaded(inner: InnerSection) -> None:
    snapshot = _trainer(inner).snapshot()
    wrong = replace(snapshot, moments=tuple(torch.zeros(1, dtype=torch.float64) for _ in snapshot.moments))
    with pytest.raises(LocalProtocolError, match="of shape"):
        _trainer(inner, steps=0).restore(wrong)
