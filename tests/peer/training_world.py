"""A tiny model and a little packed text, for tests of training."""

from __future__ import annotations

from pathlib import Path

from averaging.data.packing.packing import Packing, pack
from averaging.data.sources.corpus import Document
from averaging.data.sources.texts import read_files
from averaging.data.tokenizer import ByteTokenizer
from averaging.models.llama.config import LlamaConfig
from peer.training.training_plan import TrainingPlan
from protocol.run.training_sections import InnerSection

MODEL = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=16)
BATCH_TOKENS = 64


def training_plan(folder: Path, text: str = "potluck trains one model. " * 200, **changes: object) -> TrainingPlan:
    """A plan for MODEL on one core, with the shards of this text in `folder`. `changes`: fields with other values."""
    documents = []
    for name in ("train", "heldout"):
        path = folder / f"{name}.txt"
        path.write_text(text)
        documents.append(Document(name, path, name == "heldout"))
    texts = read_files(documents, is_utf8=False)
    manifest = pack(texts, ByteTokenizer(), folder / "data", Packing(4096, "text", "none"))
    plan = TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.01, batch_tokens=BATCH_TOKENS),
        seed=1,
        peer="peer",
        total_tokens=10_000_000,
        train_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("train")),
        heldout_shards=tuple(folder / "data" / entry.sha256 for entry in manifest.part("heldout")),
        device="cpu",
        num_threads=1,
        micro_batch=4,
    )
    return plan.model_copy(update=changes)
