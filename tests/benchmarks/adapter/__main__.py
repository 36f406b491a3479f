"""`python -m tests.benchmarks.adapter --json FILE [--quick]`: an adapter against full fine-tuning, in loss and in bytes of rounds.

A base is trained on Python's standard library. Peers then fine-tune it on questions and answers made of that library's docstrings, one
after another in this process, by the product's own trainer, codecs, sums and outer step: once all of its values, and once an adapter
over the base in bfloat16. Both take the best of their learning rates. The fall is the base's held-out loss on the questions less that
at the end. Bytes are those of contributions and results as the codec writes them, in a round of these peers and by the formula of a
base of 30 million values. `--quick` takes a small base and few rounds.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import codec_by_name
from averaging.data.packing.base_shards import BaseWeights, write_base
from averaging.data.sources.corpus import python_stdlib_documents
from averaging.models.llama.config import LlamaConfig
from peer.training.local_training import LocalTrainer
from peer.training.training_plan import TrainingPlan
from protocol.rounds.messages.record import OuterStep
from protocol.run.traffic import update_bytes
from protocol.run.training_sections import InnerSection
from protocol.tensors.adapter_schema import AdapterConfig, adapter_schema
from protocol.tensors.model_config import model_schema
from protocol.tensors.round_defaults import default_chunk_elements
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import apply_outer_step, encode_chunks, encode_contribution
from tests.benchmarks.feedback import decoded
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "adapter"
SMALL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=176, context_tokens=64)
LARGE: Final = LlamaConfig(dim=512, num_layers=10, num_heads=8, num_kv_heads=4, ffn_dim=1408, context_tokens=256)
"""30 million values."""

LARGE_ADAPTER: Final = AdapterConfig(rank=4, alpha=8.0, targets=("q_proj", "v_proj"))
BATCH_TOKENS: Final = 1024
BASE_BYTES: Final = 4 << 20
HELDOUT_EVERY: Final = 10
CODEC: Final = "int8"
NUM_PEERS: Final = 2
LEAST_SHARE: Final = 0.9
MOST_BYTES_SHARE: Final = 1 / 200
FULL_RATES: Final = (0.001, 0.003)
ADAPTER_RATES: Final = (0.01, 0.03)


@dataclass(frozen=True)
class Course:
    """One comparison.

    Attributes:
        base_steps: by which the base is made.
        num_rounds: of fine-tuning, with `local_steps` of each peer.
    """

    model: LlamaConfig
    adapter: AdapterConfig
    base_steps: int
    num_rounds: int
    local_steps: int


@dataclass(frozen=True)
class Texts:
    """Shards: of the base's text, and of the questions to train on and to measure on."""

    base: Path
    train: Path
    heldout: Path


@dataclass(frozen=True)
class Outcome:
    """The held-out loss before and after, in nats per byte, and the bytes that one peer sent and received in a round."""

    before: float
    after: float
    round_bytes: int

    @property
    def fall(self) -> float:
        """By which the loss fell."""
        return self.before - self.after


def questions() -> Iterator[bytes]:
    """A question and its answer for each function of the standard library with a docstring."""
    for document in python_stdlib_documents():
        try:
            tree = ast.parse(document.path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                answer = " ".join(said.split("\n\n")[0].split())
                yield f"user: What does {node.name} do?\nassistant: {answer}\n\n".encode()


def write_texts(folder: Path) -> Texts:
    """The shards in a folder."""
    code = b"".join(document.path.read_bytes() for document in islice(python_stdlib_documents(), 400))[:BASE_BYTES]
    chat = list(questions())
    heldout = [text for place, text in enumerate(chat) if place % HELDOUT_EVERY == 0]
    train = [text for place, text in enumerate(chat) if place % HELDOUT_EVERY]
    texts = Texts(folder / "base", folder / "train", folder / "heldout")
    for path, data in ((texts.base, code), (texts.train, b"".join(train)), (texts.heldout, b"".join(heldout))):
        np.frombuffer(data, dtype=np.uint8).astype("<u2").tofile(path)
    return texts


def _plan(course: Course, train: Path, heldout: Path, rate: float, num_tokens: int, peer: str = "peer") -> TrainingPlan:
    return TrainingPlan(
        model=course.model,
        inner=InnerSection(learning_rate=rate, batch_tokens=BATCH_TOKENS, warmup_tokens=num_tokens // 20),
        seed=1,
        peer=peer,
        total_tokens=num_tokens,
        train_shards=(train,),
        heldout_shards=(heldout,),
        device="cpu",
        num_threads=1,
        micro_batch=BATCH_TOKENS // course.model.context_tokens,
    )


def train_base(course: Course, texts: Texts) -> torch.Tensor:
    """(N,) float32 with the values of bfloat16: the base."""
    trainer = LocalTrainer(_plan(course, texts.base, texts.base, 0.003, course.base_steps * BATCH_TOKENS))
    trainer.load(genesis_anchor(model_schema(course.model), 1), 0)
    for _ in range(course.base_steps):
        trainer.step()
    return trainer.theta().bfloat16().float()


def fine_tune(course: Course, plans: Sequence[TrainingPlan], anchor_N: torch.Tensor) -> Outcome:
    """All rounds of these peers from an anchor."""
    members, codec = [LocalTrainer(plan) for plan in plans], codec_by_name(CODEC)
    grid = ChunkGrid(len(anchor_N), default_chunk_elements(len(anchor_N), len(plans), None))
    momentum_N, before, round_bytes = torch.zeros_like(anchor_N), members[0].evaluate(anchor_N), 0
    for number in range(course.num_rounds):
        total, sent = WeightedSum(grid.num_elements), 0
        for member in members:
            member.load(anchor_N, number * len(plans) * course.local_steps * BATCH_TOKENS)
            for _ in range(course.local_steps):
                member.step()
            offered = encode_contribution(anchor_N, member.theta(), 1, codec, grid)
            sent = sum(map(len, offered.chunks))
            total.add(1, decoded(offered.chunks, codec, grid))
        mean = encode_chunks(total.mean(), codec, grid)
        round_bytes = sent + sum(map(len, mean))
        update_N = decoded(mean, codec, grid)
        anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, OuterStep("mean", 1.0, 0.0))
    return Outcome(before, members[0].evaluate(anchor_N), round_bytes)


def compare(course: Course, texts: Texts, folder: Path) -> tuple[Outcome, Outcome]:
    """The best of full fine-tuning, and the best of the adapter."""
    base_N, num_tokens = train_base(course, texts), NUM_PEERS * course.num_rounds * course.local_steps * BATCH_TOKENS
    bits = base_N.bfloat16().view(torch.uint16).numpy()
    shards = tuple(folder / entry.sha256 for entry in write_base(BaseWeights(len(bits), iter([bits])), folder, 1 << 20))

    def plans(rate: float) -> list[TrainingPlan]:
        names = [f"peer {number}" for number in range(NUM_PEERS)]
        return [_plan(course, texts.train, texts.heldout, rate, num_tokens, name) for name in names]

    full = [fine_tune(course, plans(rate), base_N) for rate in FULL_RATES]
    first_N = genesis_anchor(adapter_schema(course.model, course.adapter), 1)
    changes = {"adapter": course.adapter, "base_shards": shards}
    adapted = [
        fine_tune(course, [plan.model_copy(update=changes) for plan in plans(rate)], first_N) for rate in ADAPTER_RATES
    ]
    return min(full, key=lambda outcome: outcome.after), min(adapted, key=lambda outcome: outcome.after)


def bytes_by_formula(model: LlamaConfig, adapter: AdapterConfig) -> tuple[int, int]:
    """Bytes of one encoded contribution, of the adapter and of the whole model."""
    sizes = adapter_schema(model, adapter).num_elements, model_schema(model).num_elements
    found = [update_bytes(CODEC, size, default_chunk_elements(size, NUM_PEERS, None)) for size in sizes]
    return found[0], found[1]


def rows_of(course: Course, full: Outcome, adapted: Outcome) -> list[Row]:
    """The table."""
    settings: dict[str, object] = {**asdict(replace(course, model=SMALL)), "machine": machine()}
    settings |= {"model": course.model.model_dump(), "adapter": course.adapter.model_dump()}
    share, (own, whole) = adapted.fall / full.fall, bytes_by_formula(LARGE, LARGE_ADAPTER)
    counted = adapted.round_bytes / full.round_bytes
    return [
        Row(BENCH, "full fine-tuning: fall of the held-out loss", round(full.fall, 4), "nats/byte", trials=1, settings=settings),
        Row(BENCH, "adapter: fall of the held-out loss", round(adapted.fall, 4), "nats/byte", round(full.fall, 4),
            round(share, 3), f">= {LEAST_SHARE:g} of full", share >= LEAST_SHARE, 1, settings=settings),
        Row(BENCH, "adapter: bytes of a peer in a round, counted", adapted.round_bytes, "B", full.round_bytes,
            round(counted, 5), trials=1, settings=settings),
        Row(BENCH, "adapter over 30M values: bytes of a contribution, by formula", own, "B", whole, round(own / whole, 5),
            f"<= {MOST_BYTES_SHARE:g} of the whole", own / whole <= MOST_BYTES_SHARE, 1,
            settings={"model": LARGE.model_dump(), "adapter": LARGE_ADAPTER.model_dump(), "codec": CODEC}),
    ]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.adapter", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="a small base, a short training")
    parser.add_argument("--base-steps", type=int, default=0, help="steps by which the base is made")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model, adapter = (SMALL, AdapterConfig(rank=8, alpha=16.0)) if options.quick else (LARGE, LARGE_ADAPTER)
    if options.rank:
        adapter = adapter.model_copy(update={"rank": options.rank})
    base_steps, num_rounds = (300, 5) if options.quick else (2000, 20)
    course = Course(model, adapter, options.base_steps or base_steps, options.rounds or num_rounds, options.local_steps)
    with tempfile.TemporaryDirectory(prefix="potluck-adapter-") as folder:
        full, adapted = compare(course, write_texts(Path(folder)), Path(folder))
    rows = rows_of(course, full, adapted)
    write_rows(rows, options.json)
    print_rows(rows, "adapters")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
