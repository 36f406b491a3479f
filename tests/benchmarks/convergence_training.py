"""One training of `tests.benchmarks.convergence`: all peers in this process, averaged by the product's own arithmetic.

Shapes: M peers, N values of the model, n of one unit (a fragment, or all).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.error_feedback import Feedback, no_residual
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import codec_by_name
from averaging.data.assignment import heldout_starts
from peer.training.optimizers.learning_rate import learning_rate_at
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.at_once import apply_outer_step, encode_chunks, encode_contribution, encode_with_feedback
from tests.benchmarks.convergence_ways import Regime, Trial, Way
from tests.benchmarks.feedback import decoded
from tests.benchmarks.learning.round_trace import RoundTrace
from tests.benchmarks.stacked_decoder import StackedDecoder, Workers

CHUNK: Final = 16_384
FP32_BYTES: Final = 4
WARMUP_PART: Final = 80
"""One of so many tokens: 50 steps of 4,000."""

HELDOUT_WINDOWS: Final = 1024
CURVE_WINDOWS: Final = 128
AT_ONCE: Final = 64
CURVE: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Shares of the training after which the loss is looked at, on fewer windows."""

Text = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Corpus:
    """Bytes to train on and bytes to measure on."""

    train: Text
    heldout: Text


@dataclass(frozen=True)
class Outcome:
    """The result of a training.

    Attributes:
        loss: held-out, nats a byte, of the anchor at the end.
        bytes_sent: by one peer, as contributions and, for its share of the model, as results.
        curve: (share of the steps, loss on fewer windows) on the way.
        trace: the shape of the first unit's rounds (tests/benchmarks/learning/round_trace.py).
    """

    loss: float
    bytes_sent: float
    num_rounds: int
    cpu_s: float
    curve: tuple[tuple[float, float], ...]
    trace: dict[str, float] = field(default_factory=dict)


def data_parallel_bytes(regime: Regime) -> float:
    """The bytes that a peer sends in a ring's all-reduce of float32 gradients at each step."""
    num_peers, num_values = regime.num_peers, model_schema(regime.model).num_elements
    return 2 * (num_peers - 1) / num_peers * FP32_BYTES * num_values * regime.stop_steps


def heldout_loss(regime: Regime, anchor_N: torch.Tensor, text: Text, num_windows: int, device: str = "cpu") -> float:
    """Nats a byte on fixed windows."""
    model, length = StackedDecoder(regime.model, anchor_N, 1, device), regime.model.context_tokens + 1
    places = np.array(heldout_starts(num_windows, len(text), length))[:, None] + np.arange(length)
    windows = torch.from_numpy(text[places].astype(np.int64))
    with torch.no_grad():
        parts = [windows[begin : begin + AT_ONCE] for begin in range(0, num_windows, AT_ONCE)]
        return sum(float(model.loss(part[None])) * len(part) for part in parts) / num_windows


def fragments_of(schema: TensorSchema, num_fragments: int) -> list[torch.Tensor]:
    """(n,) places of each unit's values in the flat vector: embeddings and norms apart, attention and feed-forward blocks in turn."""
    if num_fragments == 1:
        return [torch.arange(schema.num_elements)]
    parts: list[list[torch.Tensor]] = [[] for _ in range(num_fragments)]
    for spec in schema.tensors:
        fields = spec.name.split(".")
        is_ffn = fields[-2] in ("ffn_norm", "w_gate", "w_up", "w_down")
        unit = 1 + (2 * int(fields[1]) + is_ffn) % (num_fragments - 1) if fields[0] == "layers" else 0
        begin = schema.offset(spec.name)
        parts[unit].append(torch.arange(begin, begin + spec.num_elements))
    return [torch.cat(part) for part in parts]


def units_of(schema: TensorSchema, way: Way) -> list[torch.Tensor]:
    """(n,) places of each unit: the layers and then everything beside them where that has a codec of its own, else fragments."""
    if not way.tables:
        return fragments_of(schema, way.num_fragments)
    beside, layers = fragments_of(schema, 2)
    return [layers, beside]


@dataclass
class Unit:
    """A part of the model with rounds of its own: the outer state, what each peer did not send yet, the commit under way."""

    places_n: torch.Tensor
    anchor_n: torch.Tensor
    momentum_n: torch.Tensor
    feedbacks: list[Feedback] | None
    next_snapshot: int
    codec: str
    result: str
    snapshot_Mn: torch.Tensor | None = None
    applies_at: int = 0
    update_n: torch.Tensor | None = None
    counted_steps: int = 0
    bytes_sent: float = 0.0
    num_rounds: int = 0


@dataclass
class Training:
    """The rounds of one trial; `run` goes through it once, `advance` a step at a time.

    Attributes:
        device: the models and the optimizers are there. Rounds are computed by the processor, as in a peer.
        trace: of the first unit, None without.
    """

    trial: Trial
    corpus: Corpus
    device: str = "cpu"
    trace: RoundTrace | None = None
    workers: Workers = field(init=False)
    units: list[Unit] = field(init=False)
    num_peers: int = field(init=False)
    inner: InnerSection = field(init=False)
    done: int = 0
    committed_steps: int = 0
    tokens_before: int = 0
    cpu_s: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        regime, way = self.trial.regime, self.trial.way
        tokens = regime.total_tokens
        self.num_peers = {"solo": 1, "rounds": regime.num_peers, "sync": 1}[way.kind]
        self.inner = InnerSection(
            learning_rate=self.trial.rate,
            batch_tokens=regime.batch_tokens,
            warmup_tokens=tokens // WARMUP_PART,
            optimizer="muon" if way.optimizer == "muon" else "adamw",
            weight_decay=way.weight_decay,
        )
        anchor_N = self._alone(genesis_anchor(model_schema(regime.model), self.trial.seed))
        names = [f"peer {number}" for number in range(regime.num_peers)]
        readers = {"sync": [names], "solo": [names[:1]], "rounds": [[name] for name in names]}[way.kind]
        self.workers = self._workers(anchor_N, readers)
        places = units_of(self.workers.model.schema, way)
        self.units = [self._unit(number, part, anchor_N[part]) for number, part in enumerate(places)]

    def _workers(self, anchor_N: torch.Tensor, readers: Sequence[Sequence[str]]) -> Workers:
        trial = self.trial
        return Workers(trial.regime.model, self.inner, anchor_N, self.corpus.train, trial.seed, readers, self.device)

    def _unit(self, number: int, places_n: torch.Tensor, anchor_n: torch.Tensor) -> Unit:
        way, grid = self.trial.way, ChunkGrid(anchor_n.numel(), CHUNK)
        codec, result = (way.tables, way.tables) if way.tables and number else (way.codec, way.result_codec)
        has_feedback = way.beta and codec == way.codec
        feedbacks = (
            [Feedback(way.beta, grid, no_residual(grid)) for _ in range(self.num_peers)] if has_feedback else None
        )
        first = way.ramp.local_steps(self._steps_before)
        offset = first if way.tables else first * (number + 1) // way.num_fragments
        return Unit(places_n, anchor_n.clone(), torch.zeros_like(anchor_n), feedbacks, max(1, offset), codec, result)

    def _alone(self, anchor_N: torch.Tensor) -> torch.Tensor:
        """One peer's training before the others begin."""
        for_it = self.trial.way.alone_steps
        if not for_it:
            return anchor_N
        workers = self._workers(anchor_N, [["peer alone"]])
        for step in range(for_it):
            workers.step(step, self._rate(self.inner.batch_tokens * step))
        self.tokens_before = for_it * self.inner.batch_tokens
        return workers.model.theta()[0]

    def _rate(self, tokens: int) -> float:
        return learning_rate_at(self.inner, self.trial.regime.total_tokens, tokens)

    @property
    def num_steps(self) -> int:
        """Of everybody, at equal tokens in all."""
        regime = self.trial.regime
        return regime.stop_steps - self._steps_before

    @property
    def _steps_before(self) -> int:
        """Of everybody, that one peer's training before the rounds comes to."""
        return self.tokens_before // (self.trial.regime.num_peers * self.inner.batch_tokens)

    @property
    def is_over(self) -> bool:
        """Whether all steps are done."""
        return self.done >= self.num_steps

    def run(self) -> Outcome:
        """Train to the end."""
        while not self.is_over:
            self.advance()
        return self.outcome()

    def advance(self) -> None:
        """One local step of everybody, and the rounds that are due after it."""
        begin_s = time.process_time()
        self.workers.step(self.done, self._rate(self._schedule_tokens(self.done)))
        self.done += 1
        if self.trial.way.kind == "rounds":
            self._rounds(self.done, is_end=self.is_over)
        looks = CURVE[len(self.curve) :]
        if looks and self.done >= looks[0] * self.num_steps:
            self.curve.append((looks[0], round(self._loss(CURVE_WINDOWS), 4)))
        self.cpu_s += time.process_time() - begin_s

    def outcome(self) -> Outcome:
        """The result, once all steps are done."""
        is_sync = self.trial.way.kind == "sync"
        sent = data_parallel_bytes(self.trial.regime) if is_sync else sum(unit.bytes_sent for unit in self.units)
        num_rounds = max(unit.num_rounds for unit in self.units)
        figures = {} if self.trace is None else self.trace.figures()
        return Outcome(self._loss(HELDOUT_WINDOWS), sent, num_rounds, self.cpu_s, tuple(self.curve), figures)

    def _loss(self, num_windows: int) -> float:
        return heldout_loss(self.trial.regime, self._anchor(), self.corpus.heldout, num_windows, self.device)

    def _schedule_tokens(self, step: int) -> int:
        """As the product counts: everybody's committed tokens, and our own since."""
        batch, way = self.inner.batch_tokens, self.trial.way
        if way.kind != "rounds":
            return self.trial.regime.num_peers * batch * step
        return self.tokens_before + batch * (self.num_peers * self.committed_steps + step - self.committed_steps)

    def _anchor(self) -> torch.Tensor:
        """(N,) float32: the outer state, or the model itself where there is none."""
        anchor_N = self.workers.model.theta()[0]
        if self.trial.way.kind == "rounds":
            for unit in self.units:
                anchor_N[unit.places_n] = unit.anchor_n
        return anchor_N

    # --- rounds ---

    def _rounds(self, done: int, *, is_end: bool) -> None:
        for unit in self.units:
            if unit.update_n is not None and (is_end or done >= unit.applies_at):
                self._apply(unit)
            if done >= unit.next_snapshot or is_end:
                self._snapshot(unit, done)
            if unit.update_n is not None and (is_end or done >= unit.applies_at):
                self._apply(unit)

    def _snapshot(self, unit: Unit, done: int) -> None:
        """Everybody's contribution, and the update that comes of it; it is applied after the delay."""
        way = self.trial.way
        unit.snapshot_Mn = self.workers.model.theta()[:, unit.places_n]
        unit.update_n = self._update(unit, unit.snapshot_Mn)
        unit.applies_at = done + way.delay
        unit.counted_steps = done
        unit.num_rounds += 1
        unit.next_snapshot = done + max(
            way.delay + 1 if way.delay else 1, way.ramp.local_steps(self._steps_before + done)
        )

    def _update(self, unit: Unit, theta_Mn: torch.Tensor) -> torch.Tensor:
        result, grid = codec_by_name(unit.result), ChunkGrid(unit.anchor_n.numel(), CHUNK)
        rows_Mn, num_bytes = self.contributions(unit, theta_Mn, grid)
        chunks = encode_chunks(self.mean(unit, rows_Mn, grid), result, grid)
        share = (self.num_peers - 1) / self.num_peers
        unit.bytes_sent += share * (num_bytes + sum(map(len, chunks)))
        update_n = decoded(chunks, result, grid)
        if self.trace is not None and unit is self.units[0]:
            left = [float(feedback.residual.values_N.norm()) for feedback in unit.feedbacks or ()]
            self.trace.add(unit.anchor_n - theta_Mn, update_n, sum(left) / max(1, len(left)))
        return update_n

    def contributions(self, unit: Unit, theta_Mn: torch.Tensor, grid: ChunkGrid) -> tuple[torch.Tensor, int]:
        """Everybody's contribution as others decode it, (M, n) float32, and the bytes of one."""
        rows_Mn, num_bytes = torch.empty_like(theta_Mn), 0
        for number, theta_n in enumerate(theta_Mn):
            rows_Mn[number], num_bytes = self._contribution(unit, number, theta_n, grid)
        return rows_Mn, num_bytes

    def _contribution(
        self, unit: Unit, number: int, theta_n: torch.Tensor, grid: ChunkGrid
    ) -> tuple[torch.Tensor, int]:
        """One peer's contribution as others decode it, (n,) float32, and its bytes."""
        codec = codec_by_name(unit.codec)
        if unit.feedbacks is None and unit.codec == "fp32":
            return pseudo_gradient(unit.anchor_n, theta_n), codec.encoded_bytes(grid.num_elements)
        if unit.feedbacks is None:
            offered = encode_contribution(unit.anchor_n, theta_n, 1, codec, grid)
        else:
            feedback = unit.feedbacks[number]
            offered, fed = encode_with_feedback(unit.anchor_n, theta_n, 1, codec, feedback)
            feedback = feedback.offered(offered.root, fed)
            unit.feedbacks[number] = feedback.counted(offered.root, range(grid.num_chunks))
        return decoded(offered.chunks, codec, grid), sum(map(len, offered.chunks))

    def mean(self, unit: Unit, rows_Mn: torch.Tensor, grid: ChunkGrid) -> torch.Tensor:
        """The mean of these contributions to a unit, (n,) float32."""
        total = WeightedSum(grid.num_elements, sum_dtype(unit.result))
        for values_n in rows_Mn:
            total.add(1, values_n)
        return total.mean().float()

    def _apply(self, unit: Unit) -> None:
        """The outer step, and what it means for everybody's parameters."""
        way: Way = self.trial.way
        if unit.update_n is None or unit.snapshot_Mn is None:
            return
        unit.anchor_n, unit.momentum_n = apply_outer_step(unit.anchor_n, unit.momentum_n, unit.update_n, way.outer)
        model = self.workers.model
        shift_MN = torch.zeros(self.num_peers, model.schema.num_elements)
        if way.keeps_work:
            shift_MN[:, unit.places_n] = (1.0 - way.mixing) * (unit.anchor_n - unit.snapshot_Mn)
        elif way.mixing or way.is_replaced:
            theta_Mn = model.theta()[:, unit.places_n]
            shift_MN[:, unit.places_n] = (1.0 - way.mixing) * (unit.anchor_n - theta_Mn)
        else:
            shift_MN[:, unit.places_n] = unit.anchor_n - unit.snapshot_Mn
        model.shift(shift_MN)
        if unit is self.units[0]:
            self.committed_steps = unit.counted_steps
        unit.update_n = unit.snapshot_Mn = None
