"""The common workload of the lane and of torch's pipeline, with which it is compared: the same stages, text, micro-batches and
optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.assignment import window_starts
from averaging.data.token_reader import TokenReader
from averaging.models.llama.config import LlamaConfig
from peer.pipeline.stage.stage_channel import StagePlan
from protocol.ids import RunId
from protocol.run.pipeline_section import PipelineSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap
from tests.at_once import stage_units

Codec = Literal["fp32", "int8"]

MODEL: Final = LlamaConfig(
    vocab_size=256, dim=128, num_layers=6, num_heads=4, num_kv_heads=4, ffn_dim=384, context_tokens=128, is_tied=False
)
STAGES: Final = StageMap(MODEL, (2, 2, 2))
NUM_STAGES: Final = STAGES.num_stages
NUM_MICRO_BATCHES: Final = 12
SEQUENCES: Final = 4
"""Of a micro-batch."""

INNER: Final = InnerSection(
    learning_rate=0.001, batch_tokens=NUM_MICRO_BATCHES * SEQUENCES * MODEL.context_tokens, warmup_tokens=0
)
LANE: Final = 0
SEED: Final = 5
RUN: Final = RunId(b"p" * 32)
_NUM_TOKENS: Final = 1 << 17
_TEXT: Final = "text.tokens"
_MANY_STEPS: Final = 1 << 20
"""Of a round: none ends while anything is measured."""


def write_text(folder: Path) -> None:
    """Tokens of which the next one can be learned."""
    drawn = np.random.default_rng(1).integers(0, 3, _NUM_TOKENS)
    (np.cumsum(drawn) % MODEL.vocab_size).astype("<u2").tofile(folder / _TEXT)


def pipeline_section(codec: Codec, schedule: Literal["gpipe", "1f1b"]) -> PipelineSection:
    """All else as runs have it, the snapshots too."""
    return PipelineSection(
        layers=", ".join(map(str, STAGES.layers)),
        inner_steps=_MANY_STEPS,
        schedule=schedule,
        micro_batches=NUM_MICRO_BATCHES,
        forward_codec=codec,
        backward_codec=codec,
    )


def stage_plan(folder: Path, stage: int, pipeline: PipelineSection) -> StagePlan:
    """The settings of a training process; one thread."""
    return StagePlan(
        run_id=RUN.hex(),
        model=MODEL,
        pipeline=pipeline,
        inner=INNER,
        stage=stage,
        seed=SEED,
        total_tokens=1 << 50,
        train_shards=(folder / _TEXT,),
        heldout_shards=(folder / _TEXT,),  # a lane measures where a round begins: once, before anything is timed
        device="cpu",
        num_threads=1,
    )


def anchor_of(stage: int) -> torch.Tensor:
    """(N,) a stage's parameters at the start."""
    begin, stop = stage_units(STAGES).spans[stage]
    return genesis_anchor(model_schema(MODEL), SEED)[begin:stop]


def step_tokens(folder: Path, step: int) -> torch.Tensor:
    """(micro-batches times sequences, T + 1) int64 of an inner step, as the training processes of LANE draw them."""
    text, window = TokenReader((folder / _TEXT,)), MODEL.context_tokens + 1
    starts = window_starts(SEED, f"lane {LANE}", step, NUM_MICRO_BATCHES * SEQUENCES, text.num_tokens, window)
    return torch.from_numpy(np.stack([text.read(start, window) for start in starts]).astype(np.int64))
