"""The loss that codecs between the stages of a pipeline cost: the same training with int8 and with fp32 between them.

A small decoder in three stages learns Python's standard library byte by byte. The stages are the product's, and what goes between them
is encoded, checked and decoded as between peers; all of them are in this process. Held-out loss is that of the whole model, without
any codec: of the parameters that a run's checkpoint has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Final, Literal

import numpy as np
import torch
from torch.nn import functional

from averaging.arithmetic.genesis import genesis_anchor
from averaging.codecs.rows.boundary import Boundary, decode_boundary, encode_boundary
from averaging.data.assignment import heldout_starts, window_starts
from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder, load_flat
from peer.models.stage_model import StageDecoder
from peer.pipeline.stage.stage_trainer import StageTrainer
from peer.training.optimizers.learning_rate import learning_rate_at
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MicroBatch
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.stage_schema import StageMap
from tests.at_once import stage_units
from tests.benchmarks.convergence import corpus
from tests.benchmarks.convergence_training import Corpus, Text
from tests.benchmarks.results import Row

BENCH: Final = "pipeline"
STEPS: Final = 300
LIMIT_NATS: Final = 0.01
SEEDS: Final = (1, 2, 3)
MODEL: Final = LlamaConfig(
    vocab_size=256, dim=96, num_layers=6, num_heads=4, num_kv_heads=4, ffn_dim=256, context_tokens=64, is_tied=False
)
STAGES: Final = StageMap(MODEL, (2, 2, 2))
MICRO_BATCHES: Final = 4
SEQUENCES: Final = 8
"""Of a micro-batch."""

STEP_TOKENS: Final = MICRO_BATCHES * SEQUENCES * MODEL.context_tokens
INNER: Final = InnerSection(learning_rate=0.001, batch_tokens=STEP_TOKENS, warmup_tokens=30 * STEP_TOKENS)
HELDOUT_WINDOWS: Final = 512
AT_ONCE: Final = 64
Codec = Literal["fp32", "int8", "int4"]
_RUN: Final = RunId(b"l" * 32)


@dataclass
class StagesHere:
    """All stages of a lane, one after another, with what crosses between them in bytes.

    Attributes:
        crossed_bytes: by direction, heads with them.
    """

    forward_codec: Codec
    backward_codec: Codec
    seed: int
    trainers: list[StageTrainer] = field(default_factory=list)
    crossed_bytes: dict[str, int] = field(default_factory=lambda: {"forward": 0, "backward": 0})

    def __post_init__(self) -> None:
        anchor_N = genesis_anchor(model_schema(MODEL), self.seed)
        for stage, (begin, stop) in enumerate(stage_units(STAGES).spans):
            trainer = StageTrainer(StageDecoder(STAGES, stage), INNER, most_kept=1)
            trainer.load(anchor_N[begin:stop])
            self.trainers.append(trainer)

    def step(self, windows_BT: torch.Tensor, step: int) -> None:
        """One inner step on (micro-batches times sequences, T + 1)."""
        for number, tokens_BT in enumerate(torch.split(windows_BT, SEQUENCES)):
            batch = MicroBatch(_RUN, 0, step, number, step)
            moved = tokens_BT[:, :-1]
            for stage, trainer in enumerate(self.trainers[:-1]):
                moved = self._crossed(trainer.passes.forward(batch, moved), batch, stage + 1, is_backward=False)
            self.trainers[-1].passes.forward(batch, moved, targets_BT=tokens_BT[:, 1:], share=1.0 / MICRO_BATCHES)
            grad_BTD: torch.Tensor | None = None
            for stage in reversed(range(STAGES.num_stages)):
                grad_BTD = self.trainers[stage].passes.backward(batch, grad_BTD)
                if grad_BTD is not None and stage:
                    grad_BTD = self._crossed(grad_BTD, batch, stage - 1, is_backward=True)
        square = sum(trainer.gradient_square() for trainer in self.trainers)
        for trainer in self.trainers:
            trainer.take_step(square, learning_rate_at(INNER, STEPS * STEP_TOKENS, step * STEP_TOKENS))

    def _crossed(self, values_BTD: torch.Tensor, batch: MicroBatch, to: int, *, is_backward: bool) -> torch.Tensor:
        codec = self.backward_codec if is_backward else self.forward_codec
        shape = (SEQUENCES, MODEL.context_tokens, MODEL.dim)
        boundary = Boundary(codec, "backward" if is_backward else "forward", to, batch, shape)
        message = encode_boundary(values_BTD, boundary)
        self.crossed_bytes[boundary.direction] += len(message)
        return decode_boundary(message, boundary)

    def heldout_nats(self, text: Text) -> float:
        """Nats a byte of the whole model, on fixed windows."""
        model = Decoder(MODEL)
        load_flat(model, model_schema(MODEL), torch.cat([trainer.theta() for trainer in self.trainers]))
        windows_BT = _windows(text, heldout_starts(HELDOUT_WINDOWS, len(text), MODEL.context_tokens + 1))
        with torch.no_grad():
            losses = [
                functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
                for part in torch.split(windows_BT, AT_ONCE)
            ]
        return float(torch.stack(losses).mean())


def _windows(text: Text, starts: Sequence[int]) -> torch.Tensor:
    """(B, T + 1) int64."""
    places = np.array(starts)[:, None] + np.arange(MODEL.context_tokens + 1)
    return torch.from_numpy(text[places].astype(np.int64))


def trained(forward: Codec, backward: Codec, seed: int, steps: int, text: Corpus) -> tuple[float, StagesHere]:
    """Held-out loss in nats a byte after so many steps."""
    stages = StagesHere(forward, backward, seed)
    for step in range(steps):
        starts = window_starts(
            seed, "lane 0", step, MICRO_BATCHES * SEQUENCES, len(text.train), MODEL.context_tokens + 1
        )
        stages.step(_windows(text.train, starts), step)
    return stages.heldout_nats(text.heldout), stages


def loss_rows(*, is_quick: bool) -> Iterator[list[Row]]:
    """int8 both ways beside fp32 both ways. The mean gap of the seeds is judged: two trainings that differ in rounding alone come
    apart, too, either way.
    """
    text, seeds, steps = corpus(), SEEDS[:1] if is_quick else SEEDS, STEPS // 10 if is_quick else STEPS
    losses: dict[Codec, list[float]] = {"fp32": [], "int8": []}
    bytes_a_token: dict[str, float] = {}
    for seed in seeds:
        for codec, found in losses.items():
            nats, stages = trained(codec, codec, seed, steps, text)
            found.append(nats)
            crossings = steps * STEP_TOKENS * (STAGES.num_stages - 1) * MODEL.dim
            for direction, crossed in stages.crossed_bytes.items():
                bytes_a_token[f"{codec} {direction}"] = round(crossed / crossings, 4)
    gaps = [b - a for a, b in zip(losses["fp32"], losses["int8"], strict=True)]
    settings: dict[str, object] = {
        "steps": steps,
        "seeds": list(seeds),
        "fp32_nats": [round(nats, 4) for nats in losses["fp32"]],
        "int8_nats": [round(nats, 4) for nats in losses["int8"]],
        "bytes_a_token_and_d": bytes_a_token,
    }
    spread = {"best": round(min(gaps), 5), "worst": round(max(gaps), 5)}
    metric = f"int8 between stages, held-out loss after {steps} steps over fp32's"
    value, target, is_met = round(mean(gaps), 5), f"<= {LIMIT_NATS:g}", mean(gaps) <= LIMIT_NATS
    yield [Row(BENCH, metric, value, "nats a byte", None, None, target, is_met, len(gaps), spread, settings)]
