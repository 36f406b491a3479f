"""`python -m tests.benchmarks.card --json FILE [--quick]`: what one card reaches, beside a tight loop without anything around it.

Both take steps in turn, in one process, on the card that is there: models of 136M, 350M and 1B values with 32,768 tokens in the
vocabulary and contexts of 1024 and 2048; on a CPU 5M and 24M. On a card times are wall-clock seconds until it is done, and the share
of its peak is told (peer/training/plan/speed_core.py). On a CPU they are processor seconds of this process, with one thread.

Two more rows compare the chunked loss with a plain cross-entropy at that vocabulary.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch.nn import functional

from averaging.models.llama.config import LlamaConfig
from peer.machine.device import choose_device, wait_for
from peer.models.chunked_loss import chunked_cross_entropy
from peer.training.local_training import LocalTrainer
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.tight_loop import tight_step
from tests.peer.pretended_card import PretendedCard

BENCH: Final = "card"
VOCAB: Final = 32_768
LEAST_SHARE: Final = 0.97
"""Of the tight loop's speed, on a card."""

MOST_RATIO: Final = 1.02
"""Of the tight loop's processor time, on a CPU."""

MOST_LOSS_MEMORY: Final = 1 / 3
MOST_LOSS_TIME: Final = 1.05
LOSS_TOKENS: Final = 1024
LOSS_DIM: Final = 512


def _llama(dim: int, num_layers: int, context_tokens: int) -> LlamaConfig:
    """A decoder with heads of 64 values, a quarter of them for keys, and a feed-forward of about 8/3 widths."""
    heads = dim // 64
    ffn_dim = -(-dim * 8 // 3 // 64) * 64
    return LlamaConfig(
        vocab_size=VOCAB,
        dim=dim,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=max(1, heads // 4),
        ffn_dim=ffn_dim,
        context_tokens=context_tokens,
    )


CARD_MODELS: Final = {"136M": (768, 16), "350M": (1024, 28), "1B": (1792, 26)}
CPU_MODELS: Final = {"5M": (128, 4), "24M": (384, 8)}
CARD_STEP_TOKENS: Final = 1 << 16
CPU_SEQUENCES: Final = 4


@dataclass(frozen=True, slots=True)
class Contest:
    """One model on one device.

    Attributes:
        sequences: of a step.
        micro_batch: of both; 0 to take what the product's search finds.
    """

    name: str
    model: LlamaConfig
    sequences: int
    micro_batch: int


def contests(device: torch.device, quick: bool) -> list[Contest]:
    """The models of a device."""
    if device.type == "cpu":
        sizes = list(CPU_MODELS.items())[: 1 if quick else None]
        return [Contest(name, _llama(*size, 256), CPU_SEQUENCES, CPU_SEQUENCES) for name, size in sizes]
    names = list(CARD_MODELS.items())[: 1 if quick else None]
    return [
        Contest(f"{name}, context {context}", _llama(*size, context), CARD_STEP_TOKENS // context, 0)
        for name, size in names
        for context in (1024, 2048)[: 1 if quick else None]
    ]


def measured(contest: Contest, device: torch.device, trials: int) -> list[Row]:
    """The rows of one model: steps of the product and of the tight loop in turn."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(contest, device, Path(folder))
        micro_batch = trainer.micro_batch or trainer.find_micro_batch()
        tight = tight_step(contest.model, device, contest.sequences, micro_batch)
        ours_s: list[float] = []
        theirs_s: list[float] = []
        for trial in range(trials + 1):
            for step, times_s in ((lambda: trainer.step(), ours_s), (tight, theirs_s)):
                taken_s = _time_s(step, device)
                if trial:  # the first of each compiles and allocates
                    times_s.append(taken_s)
    return _rows(contest, device, micro_batch, ours_s, theirs_s)


def _trainer(contest: Contest, device: torch.device, folder: Path) -> LocalTrainer:
    shard = folder / "shard"
    chance = np.random.default_rng(1)
    chance.integers(VOCAB, size=1 << 20, dtype=np.uint16).astype("<u2").tofile(shard)
    batch_tokens = contest.sequences * contest.model.context_tokens
    plan = TrainingPlan(
        model=contest.model,
        inner=InnerSection(learning_rate=1e-4, batch_tokens=batch_tokens),
        seed=1,
        peer="benchmark",
        total_tokens=1 << 40,
        train_shards=(shard,),
        heldout_shards=(shard,),
        device=device.type,
        micro_batch=contest.micro_batch,
    )
    trainer = LocalTrainer(plan)
    chance_N = torch.randn(model_schema(contest.model).num_elements, generator=torch.Generator().manual_seed(1))
    trainer.load(chance_N * 0.02, 0)
    return trainer


def _time_s(step: Callable[[], object], device: torch.device) -> float:
    """Processor seconds on a CPU, wall-clock seconds on a card."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    wait_for(device)
    begin_s = clock()
    step()
    wait_for(device)
    return clock() - begin_s


def _rows(
    contest: Contest, device: torch.device, micro_batch: int, ours_s: Sequence[float], theirs_s: Sequence[float]
) -> list[Row]:
    tokens = contest.sequences * contest.model.context_tokens
    ours, theirs = statistics.median(ours_s), statistics.median(theirs_s)
    ratios = [mine / other for mine, other in zip(ours_s, theirs_s, strict=True)]
    ratio = statistics.median(ratios)
    limit = MOST_RATIO if device.type == "cpu" else 1 / LEAST_SHARE
    settings = machine() | {
        "values": model_schema(contest.model).num_elements,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
        "micro_batch": micro_batch,
        "step_tokens": tokens,
    }
    spread = {"best": round(min(ratios), 4), "worst": round(max(ratios), 4)}
    return [
        Row(BENCH, f"{contest.name}: speed", round(tokens / ours), "tokens/s", round(tokens / theirs), round(theirs / ours, 4),
            trials=len(ours_s), settings=settings),
        Row(BENCH, f"{contest.name}: time of a step over the tight loop's", round(ratio, 4), "ratio", None, None,
            f"median <= {limit:.3g}", ratio <= limit, len(ratios), spread, settings),
    ]  # fmt: skip


def loss_rows(trials: int) -> list[Row]:
    """Memory and processor time of the chunked loss over those of a plain one, forward and backward, on the CPU."""
    peaks = [_loss_peak_bytes(loss) for loss in (chunked_cross_entropy, _plain_loss)]
    times_s: tuple[list[float], list[float]] = ([], [])
    for trial in range(trials + 1):
        for loss, found in zip((chunked_cross_entropy, _plain_loss), times_s, strict=True):
            inputs = _loss_inputs()
            taken_s = _time_s(lambda loss=loss, inputs=inputs: loss(*inputs).backward(), torch.device("cpu"))  # type: ignore[misc]
            if trial:
                found.append(taken_s)
    ratios = [mine / other for mine, other in zip(*times_s, strict=True)]
    memory, settings = peaks[0] / peaks[1], machine() | {"vocabulary": VOCAB, "tokens": LOSS_TOKENS, "dim": LOSS_DIM}
    ratio = statistics.median(ratios)
    spread = {"best": round(min(ratios), 4), "worst": round(max(ratios), 4)}
    return [
        Row(BENCH, "chunked loss: peak memory over a plain one's", round(memory, 4), "ratio", None, None,
            "<= 0.333", memory <= MOST_LOSS_MEMORY, 1, {}, settings),
        Row(BENCH, "chunked loss: time over a plain one's", round(ratio, 4), "ratio", None, None,
            f"median <= {MOST_LOSS_TIME}", ratio <= MOST_LOSS_TIME, len(ratios), spread, settings),
    ]  # fmt: skip


def _plain_loss(x_BTD: torch.Tensor, head_VD: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    logits_BTV = functional.linear(x_BTD, head_VD)
    return functional.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


def _loss_inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    x_BTD = torch.randn(1, LOSS_TOKENS, LOSS_DIM, generator=chance).requires_grad_()
    head_VD = (torch.randn(VOCAB, LOSS_DIM, generator=chance) * 0.02).requires_grad_()
    return x_BTD, head_VD, torch.randint(VOCAB, (1, LOSS_TOKENS), generator=chance)


def _loss_peak_bytes(loss: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> int:
    inputs = _loss_inputs()
    with PretendedCard() as card:
        torch.autograd.backward(loss(*inputs))
    peak_bytes: int = card.peak_bytes
    return peak_bytes


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU, so that processor seconds mean work."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.card", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="the smallest model and few steps")
    options = parser.parse_args(arguments)
    device, trials = choose_device("auto"), 3 if options.quick else 12
    rows: list[Row] = []
    with one_thread(device):
        for contest in contests(device, options.quick):
            rows += measured(contest, device, trials)
        rows += loss_rows(trials)
    write_rows(rows, options.json)
    print_rows(rows, f"one card beside a tight loop ({device.type})")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
