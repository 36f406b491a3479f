"""The real training process with a tiny model: one process for the whole story, brought back twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import torch
import trio

from averaging.data.corpus import Document
from averaging.data.shards import pack
from averaging.genesis import genesis_anchor
from peer.local_training import TrainingPlan
from peer.trainer import WorkerTrainer, open_worker_trainer
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.manifest import InnerSection

MODEL = DecoderConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
BACK_WITHIN_S = 10.0


def _plan(folder: Path) -> TrainingPlan:
    documents = []
    for name in ("train", "heldout"):
        path = folder / f"{name}.txt"
        path.write_text("potluck trains one model. " * 200)
        documents.append(Document(name, path, name == "heldout"))
    manifest = pack(documents, folder / "data", shard_bytes=4096, source="text", licence="none")
    return TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.01, batch_tokens=64),
        seed=1,
        peer="peer",
        total_tokens=10_000_000,
        train_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("train")),
        heldout_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("heldout")),
        device="cpu",
        num_threads=1,
        micro_batch=4,
    )


async def _until_tokens(trainer: WorkerTrainer, at_least: int) -> None:
    with trio.fail_after(60):
        while trainer.progress().tokens_ready < at_least:
            await trio.sleep(0.02)


async def _back_after(trainer: WorkerTrainer, restarts: int) -> None:
    with trio.fail_after(BACK_WITHIN_S):
        while trainer.progress().restarts < restarts or trainer.progress().state != "training":
            await trio.sleep(0.02)


async def test_a_training_process_obeys_at_step_boundaries_and_comes_back_from_the_anchor(tmp_path: Path) -> None:
    plan = _plan(tmp_path)
    anchor_N = genesis_anchor(decoder_schema(MODEL), 1)
    async with open_worker_trainer(plan, anchor_N) as trainer:
        before = await trainer.evaluate(anchor_N)
        await _until_tokens(trainer, 64 * 40)
        snapshot = await trainer.snapshot()
        assert snapshot.tokens == 64 * snapshot.num_steps >= 64 * 40
        assert await trainer.evaluate(snapshot.theta_N) < before - 0.2

        # Adoption while training goes on: theta + (A' - theta_snapshot), and the credited tokens are gone.
        trained = trainer.progress().tokens_trained
        await trainer.set_anchor(anchor_N)
        await trainer.shift(
            anchor_N - snapshot.theta_N, credited_tokens=snapshot.tokens, schedule_tokens=snapshot.tokens
        )
        assert trainer.progress().tokens_ready <= trainer.progress().tokens_trained - snapshot.tokens
        assert trainer.progress().tokens_trained >= trained

        worker = trainer.worker_pid
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        await _back_after(trainer, 1)
        assert trainer.worker_pid != worker

        await trainer.inject_out_of_memory()
        await _back_after(trainer, 2)
        assert trainer.micro_batch == 2
        await trainer.set_slowdown(1e6)
        assert trainer.progress().tokens_trained >= trained
        at_anchor = await trainer.snapshot()
        # Brought back from the anchor: whatever it is ahead of the anchor it has trained since.
        drift = float((at_anchor.theta_N - anchor_N).abs().max())
        assert drift == 0.0 or at_anchor.tokens > 0
        await trainer.load(anchor_N, schedule_tokens=0)
        loaded = await trainer.snapshot()
        assert loaded.tokens == 0
        assert torch.equal(loaded.theta_N, anchor_N)
        last = trainer.worker_pid
    assert last is not None
    assert not psutil.pid_exists(last)
