"""`python -m tests.benchmarks.small_moments --json FILE [--quick]`: moments in 8 bits beside exact ones, with torchao (extra `small`).

One small decoder is trained twice on the text of Python's standard library, on the CPU, with the same windows. The figures are the
distance of the two updates after 20 steps, the difference of the mean loss in the last steps, and the bytes of the moments.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.training.local_training import LocalTrainer
from peer.training.plan.card_plan import CardPlan, Moments
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.codecs import packed_text
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "small_moments"
MODEL: Final = LlamaConfig(dim=128, num_layers=4, num_heads=4, num_kv_heads=2, ffn_dim=352, context_tokens=128)
BATCH_TOKENS: Final = 1024
UPDATE_STEPS: Final = 20
STEPS: Final = 500
QUICK_STEPS: Final = 60
LAST_STEPS: Final = 50
MOST_UPDATE: Final = 0.03
MOST_LOSS: Final = 0.005


def trained(shard: Path, moments: Moments, steps: int) -> tuple[torch.Tensor, float, int]:
    """The update after `UPDATE_STEPS` (N,), the mean loss of the last steps, and the bytes of the moments."""
    plan = TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.002, batch_tokens=BATCH_TOKENS, moments=moments),
        seed=1,
        peer="benchmark",
        total_tokens=1 << 40,
        train_shards=(shard,),
        heldout_shards=(shard,),
        device="cpu",
        num_threads=1,
        micro_batch=BATCH_TOKENS // MODEL.context_tokens,
        card_plan=CardPlan(moments=moments),
    )
    trainer, anchor_N = LocalTrainer(plan), genesis_anchor(model_schema(MODEL), 1)
    trainer.load(anchor_N, 0)
    update_N, losses = anchor_N, []
    for step in range(steps):
        losses.append(trainer.step().loss_nats or 0.0)
        if step + 1 == UPDATE_STEPS:
            update_N = trainer.theta() - anchor_N
    return update_N, sum(losses[-LAST_STEPS:]) / LAST_STEPS, trainer.moments_bytes


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.small_moments", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    options = parser.parse_args(arguments)
    steps = QUICK_STEPS if options.quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        shard = packed_text(Path(folder))
        exact_N, exact_nats, exact_bytes = trained(shard, "exact", steps)
        small_N, small_nats, small_bytes = trained(shard, "int8", steps)
    update = float((small_N - exact_N).norm() / exact_N.norm())
    loss, settings = abs(small_nats / exact_nats - 1), machine() | {"steps": steps, "values": exact_N.numel()}
    rows = [
        Row(BENCH, f"distance of the updates after {UPDATE_STEPS} steps", round(update, 4), "share", None, None,
            f"<= {MOST_UPDATE}", update <= MOST_UPDATE, 1, {}, settings),
        Row(BENCH, f"difference of the loss after {steps} steps", round(loss, 5), "share", round(exact_nats, 4), None,
            f"<= {MOST_LOSS}", loss <= MOST_LOSS, 1, {}, settings),
        Row(BENCH, "bytes of the moments", small_bytes, "B", exact_bytes, round(small_bytes / exact_bytes, 3), settings=settings),
    ]  # fmt: skip
    write_rows(rows, options.json)
    print_rows(rows, "moments in 8 bits beside exact ones")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
