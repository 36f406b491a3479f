"""Memory and traffic of a peer in a run of stages, without its rounds, for dry runs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from protocol.estimates.dry_run import Estimate
from protocol.kinds.boundary_table import BOUNDARY_CODECS
from protocol.tables import in_bytes, several, whole
from protocol.tensors.stage_schema import StageMap, stage_schema

if TYPE_CHECKING:
    from protocol.run.manifest import RunConfig

_MOST_MOMENTS: Final = 2
"""Moments of AdamW; Muon has one for each matrix inside the model."""


def lane_round_bytes(run: RunConfig, stage: int) -> tuple[int, int]:
    """(up, down) of a lane's member in one round, in bytes, without the average: activations and gradients of every token, and
    copies of its training state to a neighbour, at the round's beginning and every few steps.
    """
    pipeline, stages = run.pipeline, run.stages
    if pipeline is None or stages is None:
        return 0, 0
    tokens = pipeline.inner_steps * run.inner.batch_tokens
    forward, backward = (
        tokens * BOUNDARY_CODECS[c].row_bytes(run.model.dim) for c in (pipeline.forward_codec, pipeline.backward_codec)
    )
    num_copies = 1 + pipeline.inner_steps // pipeline.snapshot_every_steps
    own, before = (
        num_copies * 4 * (1 + _MOST_MOMENTS) * stage_schema(stages, place % stages.num_stages).num_elements
        for place in (stage, stage - 1)
    )
    has_next, has_before = not stages.is_last(stage), not stages.is_first(stage)
    return forward * has_next + backward * has_before + own, forward * has_before + backward * has_next + before


def stage_estimates(run: RunConfig) -> tuple[Estimate, ...]:
    """The layers and memory of each stage, and the traffic of a lane; empty for other runs."""
    pipeline, stages = run.pipeline, run.stages
    if pipeline is None or stages is None:
        return ()
    memory = pipeline.memory(run.model, run.inner)
    lines = [_stage(stages, stage, memory.of(stages, stage)) for stage in range(stages.num_stages)]
    each = tuple(Estimate("" if stage else "stages", line) for stage, line in enumerate(lines))
    return (*each, *_lane(run))


def _stage(stages: StageMap, stage: int, memory_bytes: int) -> str:
    ends = [" and the embedding"] * stages.is_first(stage) + [" and the head"] * stages.is_last(stage)
    schema = stage_schema(stages, stage)
    has = f"{several(stages.layers[stage], 'layer')}{''.join(ends)}"
    return f"{schema.unit}: {has}, {whole(schema.num_elements)} parameters, {in_bytes(memory_bytes)} of memory"


def _lane(run: RunConfig) -> tuple[Estimate, ...]:
    stages = range(run.stages.num_stages if run.stages is not None else 0)
    up, down = map(max, zip(*(lane_round_bytes(run, stage) for stage in stages), strict=True))
    return (
        Estimate("in a lane", f"up {in_bytes(up)}, down {in_bytes(down)} a round at most, beside what follows:"),
        Estimate("", "activations and gradients of all its tokens, and copies of training states"),
    )
