"""The product's part-by-part arithmetic, done at once for a whole vector. Tests and benchmarks compare the product with it."""

from __future__ import annotations

from itertools import chain

import torch

from averaging.arithmetic.batched_codec import encode_run, runs_in
from averaging.arithmetic.error_feedback import FedDelta, FedEncoder, Feedback, Residual
from averaging.arithmetic.outer_step import moved_vectors, step_into
from averaging.codecs import Codec
from averaging.rounds.traffic.contribution import DeltaEncoder, EncodedContribution
from protocol.errors import LocalProtocolError
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.model_units import ModelUnits
from protocol.tensors.stage_schema import StageMap, stage_schema
from protocol.tensors.tensor_schema import ChunkGrid


def apply_outer_step(
    anchor_N: torch.Tensor, momentum_N: torch.Tensor, update_N: torch.Tensor, outer: OuterStep
) -> tuple[torch.Tensor, torch.Tensor]:
    """The anchor and momentum after one commit, (N,) float32, or float64 for proofs; the arguments are left alone. The anchor is a
    new tensor, and so is the momentum where it changes.

    "nesterov": m <- mu m + U; A <- A - eta (U + mu m) (DiLoCo, 2311.08105, section 2; Nesterov as in torch's SGD).
    "mean": A <- A - eta U, momentum untouched; with eta = 1 this is plain parameter averaging.

    Raises:
        RemoteProtocolError: a kind that this version does not know.
    """
    before = anchor_N, momentum_N
    moved = moved_vectors(before, outer)
    step_into(moved, before, update_N, outer)
    return moved[0], moved[1]


def encode_contribution(
    anchor_N: torch.Tensor, theta_N: torch.Tensor, tokens: int, codec: Codec, grid: ChunkGrid
) -> EncodedContribution:
    """All of it at once. Arguments and errors as of `DeltaEncoder`."""
    return _at_once(DeltaEncoder(anchor_N, theta_N, tokens, codec, grid), grid)[0]


def encode_with_feedback(
    anchor_N: torch.Tensor, theta_N: torch.Tensor, tokens: int, codec: Codec, feedback: Feedback
) -> tuple[EncodedContribution, FedDelta]:
    """As `encode_contribution`, with the residual in it; and what the codec left out."""
    encoder = DeltaEncoder(anchor_N, theta_N, tokens, codec, feedback.grid, feedback)
    encoded, fed = _at_once(encoder, feedback.grid)
    if fed is None:
        raise LocalProtocolError("no rest of an encoding with feedback", "one")
    return encoded, fed


def _at_once(encoder: DeltaEncoder, grid: ChunkGrid) -> tuple[EncodedContribution, FedDelta | None]:
    for run in runs_in(0, grid.num_chunks, grid.chunk_elements):
        encoder.encode(run)
    return encoder.finished()


def encode_chunks(values_N: torch.Tensor, codec: Codec, grid: ChunkGrid) -> tuple[memoryview, ...]:
    """Each chunk of a (N,) float32 vector, encoded separately."""
    runs = runs_in(0, grid.num_chunks, grid.chunk_elements)
    spans = (slice(*grid.span(run.start, run.stop)) for run in runs)
    return tuple(chain.from_iterable(encode_run(codec, values_N[span], grid.chunk_elements) for span in spans))


def encode_fed(
    anchor_N: torch.Tensor, theta_N: torch.Tensor, residual: Residual, beta: float, codec: Codec, grid: ChunkGrid
) -> FedDelta:
    """All of it at once. Arguments and errors as of `FedEncoder`."""
    encoder = FedEncoder(anchor_N, theta_N, residual, beta, codec, grid)
    for run in runs_in(0, grid.num_chunks, grid.chunk_elements):
        encoder.encode(run)
    return encoder.finished()


def stage_units(stages: StageMap) -> ModelUnits:
    """The units of the whole run, one after another; a peer holds one of them."""
    return ModelUnits(tuple(stage_schema(stages, stage) for stage in range(stages.num_stages)))
