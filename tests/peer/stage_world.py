"""A small decoder in stages and whole, with the same parameters, and micro-batches for both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat, parameters_in_order
from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.stage_passes import StagePasses
from peer.training.plan.card_plan import FLOAT32, CardPlan
from peer.training.replica.replica import Replica
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MicroBatch
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap, stage_schema
from tests.at_once import stage_units

MODEL = LlamaConfig(
    vocab_size=29, dim=16, num_layers=4, num_heads=2, num_kv_heads=1, ffn_dim=24, context_tokens=8, is_tied=False
)
STAGES = StageMap(MODEL, (1, 2, 1))
SCHEMA = model_schema(MODEL)
RUN = RunId(bytes(range(32)))
ANCHOR_N = genesis_anchor(SCHEMA, 3) * 4


def micro_batch(number: int = 0, *, step: int = 0, lane: int = 0, weights: int = 0) -> MicroBatch:
    return MicroBatch(RUN, lane, step, number, weights)


def tokens(seed: int, sequences: int = 2) -> torch.Tensor:
    """(B, T + 1) of noise."""
    shape = (sequences, MODEL.context_tokens + 1)
    return torch.randint(MODEL.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def part_of(flat_N: torch.Tensor, stage: int, stages: StageMap = STAGES) -> torch.Tensor:
    """A stage's part of the whole model's vector."""
    begin, stop = stage_units(stages).spans[stage]
    return flat_N[begin:stop]


def stage_model(stage: int, dtype: torch.dtype = torch.float64, **options: Any) -> StageDecoder:
    model = StageDecoder(STAGES, stage, **options).to(dtype)
    load_flat(model, stage_schema(STAGES, stage), part_of(ANCHOR_N, stage))
    return model


def stage_passes(
    model: StageDecoder, *, most_kept: int, recomputes: bool = False, plan: CardPlan = FLOAT32
) -> StagePasses:
    replica = Replica(
        model, stage_schema(model.stages, model.stage), InnerSection(learning_rate=0.01, batch_tokens=64), plan
    )
    return StagePasses(model, replica, most_kept=most_kept, recomputes=recomputes)


def whole_model(dtype: torch.dtype = torch.float64) -> Decoder:
    model = Decoder(MODEL).to(dtype)
    load_flat(model, SCHEMA, ANCHOR_N)
    return model


def whole_loss(model: Decoder, tokens_BT: torch.Tensor) -> torch.Tensor:
    return model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])


def gradients(model: torch.nn.Module, stage: int | None = None) -> torch.Tensor:
    """(N,) of a stage, or of the whole model."""
    schema = SCHEMA if stage is None else stage_schema(STAGES, stage)
    return torch.cat([parameter.grad.flatten() for parameter in parameters_in_order(model, schema)])


@dataclass
class Pipeline:
    """All stages in one process, each with its passes."""

    models: list[StageDecoder]
    passes: list[StagePasses]

    @classmethod
    def of(cls, dtype: torch.dtype = torch.float64, *, recomputes: bool = False, **options: Any) -> Pipeline:
        models = [stage_model(stage, dtype, **options) for stage in range(STAGES.num_stages)]
        return cls(models, [stage_passes(model, most_kept=8, recomputes=recomputes) for model in models])

    def forward(self, batch: MicroBatch, tokens_BT: torch.Tensor, share: float = 1.0) -> torch.Tensor:
        moved = tokens_BT[:, :-1]
        for passes in self.passes[:-1]:
            moved = passes.forward(batch, moved)
        return self.passes[-1].forward(batch, moved, targets_BT=tokens_BT[:, 1:], share=share)

    def backward(self, batch: MicroBatch) -> None:
        moved = None
        for passes in reversed(self.passes):
            moved = passes.backward(batch, moved)

    def gradients(self) -> torch.Tensor:
        return torch.cat([gradients(model, stage) for stage, model in enumerate(self.models)])
