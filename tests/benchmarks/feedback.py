"""`python -m tests.benchmarks.feedback --json FILE [--quick]`: what a lossy codec costs in held-out loss, with and without error
feedback, against float32 at equal tokens; and what feedback takes of memory.

Peers are trained one after another in this process by the product's own trainer on Python's standard library, and averaged by the
product's codecs, sums and outer step: each takes H local steps from the anchor, its contribution is encoded with the codec, their
mean once more, and theta starts from the new anchor. A trial is a seed; all ways of it see the same data and the same first
parameters, and trainings are processes of their own, as many at once as `--workers` says. The gap of a way is its loss over that of
float32, in percent. Peak memory is that of a process of its own, which holds what the daemon holds of a unit for three rounds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.error_feedback import Feedback, no_residual
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import Codec, codec_by_name, codec_names
from averaging.data.sources.corpus import python_stdlib_documents
from averaging.models.llama.config import LlamaConfig
from peer.training.local_training import LocalTrainer
from peer.training.training_plan import TrainingPlan
from protocol.rounds.messages.record import OuterStep
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import apply_outer_step, encode_chunks, encode_contribution, encode_with_feedback
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "feedback"
MODEL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=2, num_kv_heads=2, ffn_dim=176, context_tokens=64)
BATCH_TOKENS: Final = 1024
TEXT_BYTES: Final = 4 << 20
HELDOUT_BYTES: Final = 1 << 16
CHUNK: Final = 16_384
MEMORY_VALUES: Final = 1 << 24
MEMORY_ROUNDS: Final = 3
MOST_BYTES: Final = 9.0
"""A value: two residuals are 8; measured is half a byte more, as much as an encoded vector takes in four bits, and some MB."""


@dataclass(frozen=True)
class Way:
    """How contributions travel; `beta` is the share of the residual that is offered again, 0 without error feedback; `result` is the
    codec of their mean, "" for the same.
    """

    codec: str
    beta: float = 0.0
    result: str = ""

    @property
    def name(self) -> str:
        """As in the table."""
        codecs = f"{self.codec} up, {self.result} down" if self.result else self.codec
        return f"{codecs}, feedback {self.beta:g}" if self.beta else codecs

    @property
    def result_codec(self) -> Codec:
        """Of their mean."""
        return codec_by_name(self.result or self.codec)


def ways_of(text: str, shares: Sequence[float]) -> list[Way]:
    """The codecs that "--codecs" names, each with these shares: names by commas, "topk/top6" for another codec of the mean."""
    named = [name.partition("/") for name in text.split(",")]
    return [Way(codec, share, result) for codec, _, result in named for share in shares]


@dataclass(frozen=True)
class Course:
    """One training: `num_rounds` rounds of `num_peers` peers with `local_steps` each on `device`, and the outer step."""

    num_peers: int
    num_rounds: int
    local_steps: int
    outer: OuterStep
    device: str


class Member:
    """One peer, and what it did not send yet."""

    def __init__(self, plan: TrainingPlan, way: Way, grid: ChunkGrid) -> None:
        self._trainer = LocalTrainer(plan)
        self._codec = codec_by_name(way.codec)
        self._grid = grid
        self._feedback = Feedback(way.beta, grid, no_residual(grid)) if way.beta else None

    def contribution(self, anchor_N: torch.Tensor, tokens: int, local_steps: int) -> torch.Tensor:
        """(N,) float32 as others decode it, after so many local steps from the anchor; every commit counts it."""
        self._trainer.load(anchor_N, tokens)
        for _ in range(local_steps):
            self._trainer.step()
        theta_N = self._trainer.theta()
        if self._feedback is None:
            offered = encode_contribution(anchor_N, theta_N, 1, self._codec, self._grid)
        else:
            offered, fed = encode_with_feedback(anchor_N, theta_N, 1, self._codec, self._feedback)
            feedback = self._feedback.offered(offered.root, fed)
            self._feedback = feedback.counted(offered.root, range(self._grid.num_chunks))
        return decoded(offered.chunks, self._codec, self._grid)

    def evaluate(self, anchor_N: torch.Tensor) -> float:
        """Held-out loss in nats per byte."""
        return self._trainer.evaluate(anchor_N)


def decoded(chunks: Sequence[bytes | memoryview], codec: Codec, grid: ChunkGrid) -> torch.Tensor:
    """(N,) float32 of encoded chunks."""
    spans = map(grid.bounds, range(grid.num_chunks))
    return torch.cat([codec.decode(data, stop - start) for data, (start, stop) in zip(chunks, spans, strict=True)])


def train(way: Way, course: Course, seed: int, shards: tuple[Path, Path]) -> float:
    """The held-out loss at the end."""
    schema = model_schema(MODEL)
    grid = ChunkGrid(schema.num_elements, CHUNK)
    round_tokens = course.num_peers * course.local_steps * BATCH_TOKENS
    members = [Member(_plan(seed, number, course, shards), way, grid) for number in range(course.num_peers)]
    anchor_N = genesis_anchor(schema, seed)
    momentum_N, codec = torch.zeros_like(anchor_N), way.result_codec
    for number in range(course.num_rounds):
        total = WeightedSum(grid.num_elements)
        for member in members:
            total.add(1, member.contribution(anchor_N, number * round_tokens, course.local_steps))
        update_N = decoded(encode_chunks(total.mean(), codec, grid), codec, grid)
        anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, course.outer)
    return members[0].evaluate(anchor_N)


def train_in_processes(ways: Sequence[Way], course: Course, num_trials: int, workers: int) -> dict[Way, list[float]]:
    """Each way's losses by trial. A line for each training as it ends, so that a run that is cut off has not been for nothing."""
    runs = [(trial, way) for trial in range(num_trials) for way in ways]
    with ThreadPoolExecutor(workers) as pool:
        losses = list(pool.map(lambda run: _trained_elsewhere(run[1], course, run[0] + 1), runs))
    return {way: [loss for (_, of), loss in zip(runs, losses, strict=True) if of == way] for way in ways}


def _trained_elsewhere(way: Way, course: Course, seed: int) -> float:
    options = {
        "beta": way.beta,
        "peers": course.num_peers,
        "rounds": course.num_rounds,
        "local-steps": course.local_steps,
        "outer": f"{course.outer.kind},{course.outer.learning_rate},{course.outer.momentum}",
        "device": course.device,
        "seed": seed,
    }
    named = [f"--{name}={value}" for name, value in options.items()]
    codec = f"{way.codec}/{way.result}" if way.result else way.codec
    command = [sys.executable, "-m", "tests.benchmarks.feedback", "--loss-of", codec, "--json", "-", *named]
    loss = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    print(f"seed {seed}, {course.num_peers} peers, {way.name}: {loss:.4f} nats/byte", flush=True)
    return loss


def _plan(seed: int, number: int, course: Course, shards: tuple[Path, Path]) -> TrainingPlan:
    tokens = course.num_peers * course.num_rounds * course.local_steps * BATCH_TOKENS
    return TrainingPlan(
        model=MODEL,
        inner=InnerSection(learning_rate=0.003, batch_tokens=BATCH_TOKENS, warmup_tokens=tokens // 20),
        seed=seed,
        peer=f"peer {number}",
        total_tokens=tokens,
        train_shards=shards[:1],
        heldout_shards=shards[1:],
        device=course.device,
        num_threads=1,
        micro_batch=BATCH_TOKENS // MODEL.context_tokens,
    )


def write_shards(folder: Path) -> tuple[Path, Path]:
    """Text to train on, and other text to measure on."""
    text = b"".join(document.path.read_bytes() for document in islice(python_stdlib_documents(), 400))[:TEXT_BYTES]
    paths = folder / "train", folder / "heldout"
    for path, part in zip(paths, (text[:-HELDOUT_BYTES], text[-HELDOUT_BYTES:]), strict=True):
        np.frombuffer(part, dtype=np.uint8).astype("<u2").tofile(path)
    return paths


# --- memory -------------------------------------------------------------------------------------------------------------------


def peak_bytes(codec_name: str, beta: float) -> int:
    """Peak resident memory of this process after some rounds of one unit: state, snapshot, contribution, residuals."""
    grid, codec = ChunkGrid(MEMORY_VALUES, 1 << 16), codec_by_name(codec_name)
    generator = torch.Generator().manual_seed(1)
    anchor_N = torch.zeros(grid.num_elements)
    momentum_N = torch.zeros(grid.num_elements)
    feedback = Feedback(beta, grid, no_residual(grid)) if beta else None
    for _ in range(MEMORY_ROUNDS):
        theta_N = torch.randn(grid.num_elements, generator=generator)
        if feedback is None:
            offered = encode_contribution(anchor_N, theta_N, 1, codec, grid)
        else:
            offered, fed = encode_with_feedback(anchor_N, theta_N, 1, codec, feedback)
            feedback = feedback.offered(offered.root, fed)
            del fed
        update_N = torch.empty(grid.num_elements)
        for chunk, data in enumerate(offered.chunks):
            begin, stop = grid.bounds(chunk)
            update_N[begin:stop] = codec.decode(data, stop - begin)
        next_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, OuterStep("nesterov", 0.7, 0.9))
        shift_N = torch.sub(next_N, theta_N)
        if feedback is not None:
            feedback = feedback.counted(offered.root, range(grid.num_chunks))
        anchor_N = next_N
        del shift_N, theta_N, update_N, next_N
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _memory_row(codec: str, beta: float) -> Row:
    command = [sys.executable, "-m", "tests.benchmarks.feedback", "--peak-of", codec, "--json", "-", "--beta"]
    with_bytes, without_bytes = (
        int(subprocess.run([*command, str(share)], check=True, capture_output=True, text=True).stdout)
        for share in (beta, 0.0)
    )
    settings = {"values": MEMORY_VALUES, "peak_bytes": with_bytes, "peak_bytes_without": without_bytes}
    more = (with_bytes - without_bytes) / MEMORY_VALUES
    return Row(
        BENCH,
        f"{codec}: peak memory of a unit's rounds, feedback over none",
        round(more, 2),
        "B/value",
        target=f"<= {MOST_BYTES:g}",
        met=more <= MOST_BYTES,
        trials=1,
        settings=settings,
    )


# --- the table ----------------------------------------------------------------------------------------------------------------


def gap_rows(losses: dict[Way, list[float]], baseline: Way, settings: dict[str, object]) -> list[Row]:
    """Loss and gap of each way, the gap by trial against the baseline of the same seed."""
    rows = []
    for way, values in losses.items():
        gaps = [100.0 * (loss / base - 1.0) for loss, base in zip(values, losses[baseline], strict=True)]
        spread = {"best": round(min(gaps), 3), "worst": round(max(gaps), 3)}
        median, base = statistics.median(values), statistics.median(losses[baseline])
        rows += [
            Row(BENCH, f"{way.name}: held-out loss", round(median, 4), "nats/byte", round(base, 4),
                round(median / base, 4), trials=len(values), settings=settings),
            Row(BENCH, f"{way.name}: gap to fp32", round(statistics.median(gaps), 3), "%", trials=len(values),
                spread=spread, settings=settings),
        ]  # fmt: skip
    return rows


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.feedback", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and seeds")
    parser.add_argument(
        "--codecs", default="int4,e3m0", help="to compare with fp32, by commas; topk/top6: of the mean, too"
    )
    parser.add_argument("--beta", type=float, default=0.95, help="the share of the residual that is offered again")
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--trials", type=int, default=0)
    parser.add_argument("--outer", default="nesterov,0.7,0.9", help="kind, learning rate, momentum")
    parser.add_argument("--device", default="cpu", help="where members train")
    parser.add_argument("--workers", type=int, default=1, help="trainings at once, each on one core")
    parser.add_argument("--feedback-alone", action="store_true", help="leave out each codec without feedback")
    parser.add_argument("--peak-of", choices=codec_names(), help=argparse.SUPPRESS)
    parser.add_argument("--loss-of", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """0 when every target was met."""
    options = _options(arguments)
    torch.set_num_threads(1)
    if options.peak_of:
        print(peak_bytes(options.peak_of, options.beta))
        return 0
    num_rounds, num_trials = (10, 1) if options.quick else (40, 5)
    kind, rate, momentum = options.outer.split(",")
    outer = OuterStep(kind, float(rate), float(momentum))
    course = Course(options.peers, options.rounds or num_rounds, options.local_steps, outer, options.device)
    if options.loss_of:
        with tempfile.TemporaryDirectory(prefix="potluck-feedback-") as folder:
            [way] = ways_of(options.loss_of, (options.beta,))
            print(train(way, course, options.seed, write_shards(Path(folder))))
        return 0
    baseline = Way("fp32")
    shares = (options.beta,) if options.feedback_alone else (0.0, options.beta)
    ways = [baseline, *ways_of(options.codecs, shares)]
    settings: dict[str, object] = {**asdict(course), "model": MODEL.model_dump(), "machine": machine()}
    losses = train_in_processes(ways, course, options.trials or num_trials, options.workers)
    rows = [
        *gap_rows(losses, baseline, settings),
        *(_memory_row(codec, options.beta) for codec in dict.fromkeys(way.codec for way in ways if way.beta)),
    ]
    write_rows(rows, options.json)
    print_rows(rows, "error feedback")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
