"""Local training in plain torch: the optimizer's steps on the peer's own windows, and the operations between steps.

Rules: R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict

from averaging.data.assignment import heldout_starts, window_starts
from averaging.data.shards import ShardPath, TokenBytes, TokenReader
from averaging.models.llama.config import require_llama
from peer.machine.device import autocast_dtype, choose_device, give_back_memory, is_out_of_memory, limit_memory
from peer.machine.memory import forget_own_peak, memory_use
from peer.machine.memory_core import MemoryUse, may_double
from peer.models.decoder import Decoder, parameters_in_order, parts_of
from peer.models.mixture import MixtureDecoder
from peer.models.optimizer import make_optimizer
from peer.training.expert_turns import expert_of_step
from protocol.run.training_sections import InnerSection
from protocol.tensors.expert_schema import MixtureConfig, held_units
from protocol.tensors.model_families import ModelSection
from protocol.tensors.model_units import ModelUnits, model_units

HELDOUT_WINDOWS: Final = 64
EVALUATED_WINDOWS: Final = 16
"""Windows evaluated at a time."""

WORTH: Final = 0.05
"""A larger micro-batch must save at least this share of the time per token, because it takes more memory. Measured; see
tests/benchmarks/LOG.md.
"""

MEASURED_STEPS: Final = 2
MIN_LEARNING_RATE_SHARE: Final = 0.1


class TextPlan(BaseModel):
    """The text of one data set that a training process reads.

    Attributes:
        train_bytes_per_token: mean length of a token, likewise the fields named so. Losses leave this process in nats per byte, so
            that they can be compared across tokenizers. For the byte tokenizer that is nats per token.
        expert_shards: the training text of each expert held here, in numeric order; `expert_heldout_shards` is its held-out text.
            Empty if every expert trains on all of the text.
        expert_heldout_bytes_per_token: mean length of a token of each expert's held-out text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_shards: tuple[ShardPath, ...]
    heldout_shards: tuple[ShardPath, ...]
    prose_shards: tuple[ShardPath, ...] = ()
    token_bytes: TokenBytes = 2
    train_bytes_per_token: float = 1.0
    heldout_bytes_per_token: float = 1.0
    prose_bytes_per_token: float = 1.0
    expert_shards: tuple[tuple[ShardPath, ...], ...] = ()
    expert_heldout_shards: tuple[tuple[ShardPath, ...], ...] = ()
    expert_heldout_bytes_per_token: tuple[float, ...] = ()


class TrainingPlan(TextPlan):
    """All inputs of a training process, including its text.

    Attributes:
        total_tokens: of the run, for the learning-rate schedule.
        first_step: the data position to resume from.
        schedule_tokens: the run's committed tokens at the first anchor, for the learning rate.
        micro_batch: sequences at a time; 0 to find it by measuring.
        num_threads: torch threads, 0 for torch's own choice.
        trains: False for a process that holds the state, obeys commands, and never takes a step.
        max_gpu_memory_bytes: most memory of the card that torch may take, 0 for all of it.
        max_memory_bytes: most memory of all of the peer's processes together, 0 for any.
        num_fragments: number of fragments that are averaged separately (protocol/tensors/model_units.py), 0 for the whole model at
            once.
        mixture: in a run of experts; `experts` are those held here, in numeric order.
    """

    model: ModelSection
    inner: InnerSection
    seed: int
    peer: str
    total_tokens: int
    device: str = "auto"
    num_threads: int = 0
    slowdown: float = 1.0
    is_paused: bool = False
    first_step: int = 0
    schedule_tokens: int = 0
    micro_batch: int = 0
    trains: bool = True
    max_gpu_memory_bytes: int = 0
    max_memory_bytes: int = 0
    num_fragments: int = 0
    mixture: MixtureConfig | None = None
    experts: tuple[int, ...] = ()

    @property
    def units(self) -> ModelUnits:
        """The units held here, in the order of the vectors that are shared with the daemon."""
        if self.mixture is not None:
            return held_units(self.model, self.mixture, self.experts)
        return model_units(self.model, self.num_fragments)

    def places_of(self, expert: int | None) -> range | tuple[int, int]:
        """Indexes of the units that a step trains: all of them, or the trunk and one expert."""
        return range(len(self.units.schemas)) if expert is None else (0, 1 + self.experts.index(expert))


def learning_rate_at(inner: InnerSection, total_tokens: int, tokens: int) -> float:
    """Warm-up, stable, then 1 - sqrt decay to a tenth over the last `decay_fraction` (WSD as in INTELLECT-1, 2412.01152).

    Indexed by the run's tokens, so that a joining peer has the same rate as the others.
    """
    if tokens < inner.warmup_tokens:
        return inner.learning_rate * (tokens + 1) / (inner.warmup_tokens + 1)
    decay_begins = total_tokens * (1.0 - inner.decay_fraction)
    if tokens <= decay_begins or inner.decay_fraction == 0.0:
        return inner.learning_rate
    progress = min(1.0, (tokens - decay_begins) / (total_tokens - decay_begins))
    return inner.learning_rate * max(MIN_LEARNING_RATE_SHARE, 1.0 - math.sqrt(progress))


@dataclass(frozen=True, slots=True)
class Counters:
    """The trainer's counters. A unit's ready tokens are lost if and only if its theta is lost (R20)."""

    step: int = 0
    ready: tuple[int, ...] = (0,)
    tokens_trained: int = 0
    loss_nats: float | None = None

    @property
    def tokens_ready(self) -> int:
        """Ready tokens of the spine, which the run's tokens are counted by."""
        return self.ready[0]


def _model_of(plan: TrainingPlan) -> Decoder | MixtureDecoder:
    """The part of the model that this peer builds: in a run of experts, the trunk and its own experts."""
    if plan.mixture is None:
        return Decoder(plan.model)
    return MixtureDecoder(require_llama(plan.model), plan.mixture, plan.experts)


def _readers(
    plan: TrainingPlan, shards: Sequence[Path], of_experts: Sequence[Sequence[Path]]
) -> dict[int | None, TokenReader]:
    """A text reader for each expert. Without experts, or if all of them train on all of the text, one reader under None."""
    if of_experts:
        pairs = zip(plan.experts, of_experts, strict=True)
        return {expert: TokenReader(own, plan.token_bytes) for expert, own in pairs}
    whole = TokenReader(shards, plan.token_bytes)
    return dict.fromkeys(plan.experts or (None,), whole)


class LocalTrainer:
    """Model, optimizer and data position of one training process."""

    def __init__(self, plan: TrainingPlan) -> None:
        if plan.num_threads:
            torch.set_num_threads(plan.num_threads)
        self.plan = plan
        self.units = plan.units
        self.schema = self.units.whole
        self._device = choose_device(plan.device)
        if plan.max_gpu_memory_bytes:
            limit_memory(self._device, plan.max_gpu_memory_bytes)  # before anything is allocated there
        self._dtype = autocast_dtype(self._device)
        self._model = _model_of(plan).to(self._device)
        self._parameters = parameters_in_order(self._model, self.schema)
        self._optimizer = make_optimizer(plan.inner, self.schema, self._parameters)
        self._train = _readers(plan, plan.train_shards, plan.expert_shards)
        self._heldout = _readers(plan, plan.heldout_shards, plan.expert_heldout_shards)
        self._prose = TokenReader(plan.prose_shards, plan.token_bytes)
        self._schedule_tokens = 0
        self.micro_batch = plan.micro_batch
        self.counters = Counters(step=plan.first_step, ready=(0,) * len(self.units.schemas))

    @property
    def sequences_per_step(self) -> int:
        """Windows of one local step."""
        return self.plan.inner.batch_tokens // self.plan.model.context_tokens

    def find_micro_batch(self) -> int:
        """Time doubling micro-batches and keep the fastest per token. A larger one must be faster by at least WORTH. The search
        ends at the first size that does not fit in memory. Under a memory limit it begins with one sequence, and ends before a size
        that would exceed the limit.
        """
        best, best_s = 1, math.inf
        before = self._memory_before_search() if self.plan.max_memory_bytes else None
        size = min(4, self.sequences_per_step) if before is None else 1
        while size <= self.sequences_per_step:
            try:
                elapsed_s = self._time_micro_batch(size) / size
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._optimizer.zero_grad()
                break
            if elapsed_s < best_s * (1.0 - WORTH):
                best, best_s = size, elapsed_s
            if before is not None and not self._may_double(before):
                break
            size *= 2
        self.micro_batch = best
        self.give_back_memory()  # memory of the sizes that were not kept
        return best

    def give_back_memory(self) -> None:
        """Free cached memory of the card for other programs, if no steps come now."""
        give_back_memory(self._device)

    def _memory_before_search(self) -> MemoryUse:
        """Memory use after a first pass. Libraries allocate some memory once, which larger sizes do not take again."""
        self._time_micro_batch(1)
        forget_own_peak()
        return memory_use()

    def _may_double(self, before: MemoryUse) -> bool:
        is_to_come = self._device.type == "cpu" and not self._optimizer.has_moments
        moments_bytes = self._optimizer.moments_bytes if is_to_come else 0
        return may_double(self.plan.max_memory_bytes, moments_bytes, before, memory_use())

    def _time_micro_batch(self, size: int) -> float:
        tokens_BT = torch.zeros((size, self.plan.model.context_tokens + 1), dtype=torch.long, device=self._device)
        expert = expert_of_step(self.plan.experts, 0)
        torch.autograd.backward(self._loss(tokens_BT, expert))
        self._wait_for_device()
        begin_s = time.perf_counter()
        for _ in range(MEASURED_STEPS):
            torch.autograd.backward(self._loss(tokens_BT, expert))
        self._wait_for_device()
        elapsed_s = time.perf_counter() - begin_s
        self._optimizer.zero_grad()
        return elapsed_s / MEASURED_STEPS

    def _wait_for_device(self) -> None:
        """Accelerators run asynchronously: wait until they are done before reading a clock."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        """One local step: `batch_tokens` tokens, gradient clipped. `goes_on` is called between micro-batches; if it returns False,
        the step is given up and changes nothing.

        A step with a non-finite gradient only advances the data position, and its tokens do not count. If it were applied, no later
        shift could repair the parameters.
        """
        plan, counters = self.plan, self.counters
        window = plan.model.context_tokens + 1
        expert = expert_of_step(plan.experts, counters.step)
        reader = self._train[expert]
        starts = window_starts(plan.seed, plan.peer, counters.step, self.sequences_per_step, reader.num_tokens, window)
        losses: list[torch.Tensor] = []
        for begin in range(0, len(starts), self.micro_batch):
            if begin:
                losses[-1].item()  # else an accelerator would still have the whole step queued when a pause comes
                if not goes_on():
                    self._optimizer.zero_grad()
                    return counters
            part = starts[begin : begin + self.micro_batch]
            tokens_BT = self._batch(reader, part, window)
            loss = self._loss(tokens_BT, expert) * (len(part) / len(starts))
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        norm_tensor = torch.nn.utils.clip_grad_norm_(self._parameters, plan.inner.clip_norm)
        *parts, norm = torch.stack([*losses, norm_tensor]).tolist()  # one synchronisation for all of them
        total = sum(parts) / plan.train_bytes_per_token
        if not math.isfinite(norm) or not math.isfinite(total):
            self._optimizer.zero_grad()
            self.counters = replace(counters, step=counters.step + 1, loss_nats=total)
            return self.counters
        rate = learning_rate_at(plan.inner, plan.total_tokens, self._schedule_tokens + counters.tokens_ready)
        self._optimizer.step(rate)
        self._optimizer.zero_grad()
        num_tokens, trained = plan.inner.batch_tokens, plan.places_of(expert)
        self.counters = Counters(
            counters.step + 1,
            tuple(ready + num_tokens * (place in trained) for place, ready in enumerate(counters.ready)),
            counters.tokens_trained + num_tokens,
            total,
        )
        return self.counters

    def _batch(self, reader: TokenReader, starts: tuple[int, ...], window: int) -> torch.Tensor:
        rows = np.stack([reader.read(start, window) for start in starts]).astype(np.int64)
        return torch.from_numpy(rows).to(self._device)

    def _loss(self, tokens_BT: torch.Tensor, expert: int | None = None) -> torch.Tensor:
        enabled, model, inputs_BT, targets_BT = self._dtype is not None, self._model, tokens_BT[:, :-1], tokens_BT[:, 1:]
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=enabled):
            if isinstance(model, MixtureDecoder):
                return model.loss(inputs_BT, targets_BT, expert)
            return model.loss(inputs_BT, targets_BT)

    # --- between steps ---

    def load(self, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """Theta <- A in all units; ready tokens <- 0. The optimizer's moments stay (DiLoCo keeps them local)."""
        for place, (begin, stop) in enumerate(self.units.spans):
            self.load_unit(place, anchor_N[begin:stop], schedule_tokens)

    def load_unit(self, place: int, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """The same for one unit of N values."""
        with torch.no_grad():
            for parameter, part in self._of_unit(place, anchor_N):
                parameter.copy_(part)
        self._count(place, 0, schedule_tokens)

    def theta(self, place: int = 0) -> torch.Tensor:
        """A copy of one unit's theta, (N,) float32."""
        theta_N = torch.empty(self.units.schemas[place].num_elements, dtype=torch.float32)
        self.theta_into(theta_N, place)
        return theta_N

    def theta_into(self, room_N: torch.Tensor, place: int = 0) -> None:
        """Write a unit's theta into a (N,) float32 vector on the CPU."""
        for parameter, room in self._of_unit(place, room_N):
            room.copy_(parameter.detach())

    def shift(self, shift_N: torch.Tensor, credited_tokens: int, schedule_tokens: int, place: int = 0) -> None:
        """Theta <- theta + shift in one unit; its ready tokens -= credited."""
        with torch.no_grad():
            for parameter, shift in self._of_unit(place, shift_N):
                parameter.add_(shift.to(self._device))
        self._count(place, max(0, self.counters.ready[place] - credited_tokens), schedule_tokens)

    def keep(self, place: int, parts: Sequence[tuple[int, int, float]]) -> None:
        """Theta <- share theta in the values [begin, stop) of each of these parts of a unit."""
        schema = self.units.schemas[place]
        with torch.no_grad():
            for begin, stop, share in parts:
                for parameter, first in zip(self._in_unit(place), schema.offsets.values(), strict=True):
                    parameter.view(-1)[max(0, begin - first) : max(0, stop - first)].mul_(share)

    def steps_ready(self, place: int = 0) -> int:
        """Local steps behind a unit's ready tokens."""
        return self.counters.ready[place] // self.plan.inner.batch_tokens

    def _count(self, place: int, ready: int, schedule_tokens: int) -> None:
        self._schedule_tokens = schedule_tokens
        before = self.counters.ready
        self.counters = replace(self.counters, ready=(*before[:place], ready, *before[place + 1 :]))

    def _of_unit(self, place: int, values_N: torch.Tensor) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
        """A unit's parameters, each with its part of a (N,) vector."""
        return zip(self._in_unit(place), parts_of(values_N, self.units.schemas[place]), strict=True)

    def _in_unit(self, place: int) -> list[torch.nn.Parameter]:
        first = sum(len(schema.tensors) for schema in self.units.schemas[:place])
        return self._parameters[first : first + len(self.units.schemas[place].tensors)]

    def evaluate(self, anchor_N: torch.Tensor, expert: int | None = None) -> float:
        """Held-out loss of other parameters in nats per byte on the fixed windows; theta does not change. With `expert`: the loss
        of that expert on its own text. Without it: the mean over the experts held here. If all experts share all of the text, the
        loss of the first.
        """
        own = self.plan.experts if self.plan.expert_heldout_shards else self.plan.experts[:1]
        experts = (own or (None,)) if expert is None else (expert,)
        losses = [
            self._evaluate(self._heldout[each], anchor_N, each) / self._heldout_bytes_per_token(each)
            for each in experts
        ]
        return sum(losses) / len(losses)

    def _heldout_bytes_per_token(self, expert: int | None) -> float:
        of_experts = self.plan.expert_heldout_bytes_per_token
        if expert is None or not of_experts:
            return self.plan.heldout_bytes_per_token
        return of_experts[self.plan.experts.index(expert)]

    def evaluate_prose(self, anchor_N: torch.Tensor) -> float:
        """The same over the run's prose.

        Raises:
            ConfigError: it has none.
        """
        expert = expert_of_step(self.plan.experts, 0)
        return self._evaluate(self._prose, anchor_N, expert) / self.plan.prose_bytes_per_token

    def _evaluate(self, reader: TokenReader, anchor_N: torch.Tensor, expert: int | None = None) -> float:
        window = self.plan.model.context_tokens + 1
        starts = heldout_starts(HELDOUT_WINDOWS, reader.num_tokens, window)
        size = EVALUATED_WINDOWS
        with self._standing_in(anchor_N), torch.no_grad():
            parts = [starts[i : i + size] for i in range(0, len(starts), size)]
            losses = [float(self._loss(self._batch(reader, part, window), expert)) * len(part) for part in parts]
        return sum(losses) / len(starts)

    @contextmanager
    def _standing_in(self, anchor_N: torch.Tensor) -> Iterator[None]:
        """Run the block with other parameters in place of theta. On the CPU they are used in place, without a copy."""
        theta = [parameter.data for parameter in self._parameters]
        try:
            for parameter, anchor in zip(self._parameters, parts_of(anchor_N, self.schema), strict=True):
                parameter.data = anchor.to(self._device)
            yield
        finally:
            for parameter, own in zip(self._parameters, theta, strict=True):
                parameter.data = own
