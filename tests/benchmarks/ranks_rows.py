"""Rows of `cards`: tokens a second of ranks that share a replica, beside one process with as many threads and a plain FSDP2 loop."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

from averaging.models.llama.config import LlamaConfig
from peer.models.decoder import Decoder
from peer.training.local_training import LocalTrainer
from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_group import meet
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection
from tests.benchmarks.results import Row, machine
from tests.peer.training.ranks.rank_processes import Found, run_ranks
from tests.peer.training_world import training_plan

MODEL: Final = LlamaConfig(dim=256, num_layers=4, num_heads=8, num_kv_heads=2, ffn_dim=704, context_tokens=256)
SEQUENCES: Final = 8
MICRO_BATCH: Final = 2
LEAST_OF_PLAIN: Final = 0.95
PLAN_FILE: Final = "plan.json"
TRIALS_FILE: Final = "trials"
RATE: Final = 1e-3


def rank_rows(bench: str, *, num_ranks: int = 2, trials: int = 8, device: str = "cpu") -> list[Row]:
    """Times of interleaved steps.

    Args:
        device: "cuda" gives each rank the card of its number. Only then the figures are judged.
    """
    shared = _times(Mesh(shard=num_ranks, keeps_parameters=True), trials, device)
    alone = _times(Mesh(), trials, device, num_ranks if device == "cpu" else 0)
    tokens = SEQUENCES * MODEL.context_tokens
    ours = [tokens / float(seconds) for seconds in shared["ours"]]
    of_plain = [float(plain / own) for plain, own in zip(shared["plain"], shared["ours"], strict=True)]
    of_one = [float(one / own) for one, own in zip(alone["ours"], shared["ours"], strict=True)]
    settings = machine() | {
        "ranks": num_ranks,
        "device": device,
        "sequences": SEQUENCES,
        "micro_batch": MICRO_BATCH,
    }
    return [
        _row(bench, f"{num_ranks} ranks: tokens a second", "tokens/s", ours, settings),
        _row(bench, f"{num_ranks} ranks: speed of a plain FSDP2 loop's", "ratio", of_plain, settings, LEAST_OF_PLAIN),
        _row(bench, f"{num_ranks} ranks: speed of one process' with as many threads", "ratio", of_one, settings),
    ]


def _row(
    bench: str, metric: str, unit: str, values: list[float], settings: dict[str, object], least: float | None = None
) -> Row:
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    is_judged = least is not None and settings["device"] != "cpu"
    return Row(
        bench,
        metric,
        round(middle, 3),
        unit,
        target="" if least is None else f">= {least:g}",
        met=middle >= least if least is not None and is_judged else None,
        trials=len(values),
        spread={"best": round(ordered[-1], 3), "worst": round(ordered[0], 3)},
        settings=settings,
    )


def _times(mesh: Mesh, trials: int, device: str, num_threads: int = 0) -> Found:
    """Seconds of each step, as the first rank saw them."""
    with tempfile.TemporaryDirectory() as folder:
        inner = InnerSection(learning_rate=RATE, batch_tokens=SEQUENCES * MODEL.context_tokens)
        plan = training_plan(
            Path(folder), model=MODEL, inner=inner, micro_batch=MICRO_BATCH, device=device, num_threads=num_threads or 1
        )
        Path(folder, PLAN_FILE).write_text(plan.model_dump_json())
        Path(folder, TRIALS_FILE).write_text(str(trials))
        return run_ranks(mesh, timed_steps, Path(folder), 600.0)[0]


def timed_steps(mesh: Mesh, rank: int, folder: Path) -> Found:
    """The work of one rank: a step of ours and one of the plain loop in turn, after one of each that is not counted."""
    plan = TrainingPlan.model_validate_json((folder / PLAN_FILE).read_text())
    meeting = folder / "meeting"
    device = f"{plan.device}:{rank}" if plan.device == "cuda" else plan.device
    own = {"device": device, "mesh": mesh, "rank": rank, "meeting": meeting}
    group = meet(mesh, rank, meeting)
    trainer = LocalTrainer(plan.model_copy(update=own), group)
    trainer.load(torch.randn(trainer.schema.num_elements, generator=torch.Generator().manual_seed(1)) * 0.02, 0)
    ways: dict[str, Callable[[], object]] = {"ours": trainer.step}
    if mesh.shard > 1:
        ways["plain"] = _plain_step(torch.device(device), SEQUENCES // mesh.shard)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + int((folder / TRIALS_FILE).read_text())):
        for name, way in ways.items():
            group.wait()
            begin_s = time.perf_counter()
            way()
            group.wait()
            found[name].append(time.perf_counter() - begin_s)
    return {name: torch.tensor(times[1:], dtype=torch.float64) for name, times in found.items()}


def _plain_step(device: torch.device, sequences: int) -> Callable[[], None]:
    """A step as torch's own tutorial writes it: fully_shard by layer, its clip and its optimizer on DTensors."""
    model = Decoder(MODEL).to(device)
    for layer in model.layers_in_order():
        fully_shard(layer, reshard_after_forward=False)
    root = fully_shard(model)
    register_fsdp_forward_method(model, "loss")
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), fused=True)
    tokens_BT = torch.randint(MODEL.vocab_size, (sequences, MODEL.context_tokens + 1), device=device)
    narrow = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")

    def step() -> None:
        for begin in range(0, sequences, MICRO_BATCH):
            part_BT = tokens_BT[begin : begin + MICRO_BATCH]
            root.set_requires_gradient_sync(begin + MICRO_BATCH >= sequences)
            with narrow:
                loss = model.loss(part_BT[:, :-1], part_BT[:, 1:]) * (len(part_BT) / sequences)
            torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        optimizer.step()
        optimizer.zero_grad()

    return step
