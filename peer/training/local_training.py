"""Local training as plain torch: the optimizer's steps on the peer's own windows, and the few things that happen between steps.

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
from torch.nn import functional

from averaging.data.assignment import heldout_starts, window_starts
from averaging.data.shards import TokenBytes, TokenReader
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
"""At a time."""

WORTH: Final = 0.05
"""Of the time a token. On an H200 two peers of 136M parameters took 57 GB each: micro-batches of 128 were 4% faster than of 64."""

MEASURED_STEPS: Final = 2
MIN_LEARNING_RATE_SHARE: Final = 0.1


class TextPlan(BaseModel):
    """What a training process reads, of one data set.

    Attributes:
        train_bytes_per_token and its like: mean length of a token. Losses leave this process in nats per byte, so that
            they can be compared whatever the tokens are; for the byte tokenizer that is nats per token.
        expert_shards: the training text of each expert that is held here, in the order of their numbers, and `expert_heldout_shards`
            what is kept of it for evaluation; empty where all are trained on all of the text.
        expert_heldout_bytes_per_token: of each of these, mean length of a token of what is kept for evaluation.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    train_shards: tuple[Path, ...]
    heldout_shards: tuple[Path, ...]
    prose_shards: tuple[Path, ...] = ()
    token_bytes: TokenBytes = 2
    train_bytes_per_token: float = 1.0
    heldout_bytes_per_token: float = 1.0
    prose_bytes_per_token: float = 1.0
    expert_shards: tuple[tuple[Path, ...], ...] = ()
    expert_heldout_shards: tuple[tuple[Path, ...], ...] = ()
    expert_heldout_bytes_per_token: tuple[float, ...] = ()


class TrainingPlan(TextPlan):
    """Everything that a training process is started with, what it reads among it.

    Attributes:
        total_tokens: of the run, for the learning-rate schedule.
        first_step: the data position to go on from.
        schedule_tokens: the run's committed tokens at the anchor to begin from, for the learning rate.
        micro_batch: sequences at a time; 0 to find it by measuring.
        num_threads: torch threads, 0 for torch's own choice.
        trains: False for a process that holds the state and obeys, and never takes a step.
        max_gpu_memory_bytes: that torch may take of the card, 0 for all of it.
        max_memory_bytes: that all of the peer's processes may hold together, 0 for any.
        num_fragments: in which the model is averaged (protocol/tensors/model_units.py), 0 for the whole at once.
        mixture: of a run of experts, and `experts` those that are held here, in the order of their numbers.
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
        """The units that are held here, as they lie in the vectors that cross to the daemon."""
        if self.mixture is not None:
            return held_units(self.model, self.mixture, self.experts)
        return model_units(self.model, self.num_fragments)

    def places_of(self, expert: int | None) -> range | tuple[int, int]:
        """Places of the units that a step trains: all, or the trunk and one expert."""
        return range(len(self.units.schemas)) if expert is None else (0, 1 + self.experts.index(expert))


def learning_rate_at(inner: InnerSection, total_tokens: int, tokens: int) -> float:
    """Warm-up, stable, then 1 - sqrt decay to a tenth over the last `decay_fraction` (WSD as in INTELLECT-1, 2412.01152).

    Indexed by the run's tokens, so that a joiner and an old hand have the same rate.
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
    """What the trainer has done; a unit's tokens `ready` and its theta live and die together (R20)."""

    step: int = 0
    ready: tuple[int, ...] = (0,)
    tokens_trained: int = 0
    loss_nats: float | None = None

    @property
    def tokens_ready(self) -> int:
        """Of the spine, which the run's tokens are counted by."""
        return self.ready[0]


def _model_of(plan: TrainingPlan) -> Decoder | MixtureDecoder:
    """What this peer materialises: of a run of experts the trunk and its own."""
    if plan.mixture is None:
        return Decoder(plan.model)
    return MixtureDecoder(require_llama(plan.model), plan.mixture, plan.experts)


def _readers(
    plan: TrainingPlan, shards: Sequence[Path], of_experts: Sequence[Sequence[Path]]
) -> dict[int | None, TokenReader]:
    """The text of each expert; in a run without, and where all have all of it, the whole for everybody."""
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
            limit_memory(self._device, plan.max_gpu_memory_bytes)  # before anything is put there
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
        """Time doubling micro-batches and keep the fastest per token, but none that is faster than a smaller one by less than WORTH;
        what does not fit in memory ends the search. Under a limit of memory it begins with one sequence, and ends before a size that
        would pass it.
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
        self.give_back_memory()  # what the sizes took that were not kept
        return best

    def give_back_memory(self) -> None:
        """To others on the card, what is held there for steps that do not come now."""
        give_back_memory(self._device)

    def _memory_before_search(self) -> MemoryUse:
        """After a first pass: what libraries take once is not taken again by larger sizes."""
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
        """Accelerators take orders and go on: a clock read before they are done measures nothing."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        elif self._device.type == "mps":
            torch.mps.synchronize()

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        """One local step: `batch_tokens` tokens, gradient clipped. `goes_on` is asked between micro-batches; where it says no
        the step is given up and has changed nothing.

        A step whose gradient is not finite changes nothing but the data position, and its tokens do not count: applied, it would
        leave parameters that no later shift could mend.
        """
        plan, counters = self.plan, self.counters
        window = plan.model.context_tokens + 1
        expert = expert_of_step(plan.experts, counters.step)
        reader = self._train[expert]
        starts = window_starts(plan.seed, plan.peer, counters.step, self.sequences_per_step, reader.num_tokens, window)
        losses: list[torch.Tensor] = []
        for begin in range(0, len(starts), self.micro_batch):
            if begin:
                losses[-1].item()  # an accelerator would else have all of the step still to do when a pause comes
                if not goes_on():
                    self._optimizer.zero_grad()
                    return counters
            part = starts[begin : begin + self.micro_batch]
            tokens_BT = self._batch(reader, part, window)
            loss = self._loss(tokens_BT, expert) * (len(part) / len(starts))
            torch.autograd.backward(loss)
            losses.append(loss.detach())
        norm_tensor = torch.nn.utils.clip_grad_norm_(self._parameters, plan.inner.clip_norm)
        *parts, norm = torch.stack([*losses, norm_tensor]).tolist()  # one wait for all of them
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
        logits_BTV = self._logits(tokens_BT, expert)
        return functional.cross_entropy(logits_BTV.float().flatten(0, 1), tokens_BT[:, 1:].flatten())

    def _logits(self, tokens_BT: torch.Tensor, expert: int | None) -> torch.Tensor:
        enabled, model, inputs_BT = self._dtype is not None, self._model, tokens_BT[:, :-1]
        with torch.autocast(self._device.type, dtype=self._dtype, enabled=enabled):
            logits_BTV: torch.Tensor = (
                model(inputs_BT, expert) if isinstance(model, MixtureDecoder) else model(inputs_BT)
            )
        return logits_BTV

    # --- between steps ---

    def load(self, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """Theta <- A in all units; tokens ready <- 0. The optimizer's moments stay (DiLoCo keeps them local)."""
        for place, (begin, stop) in enumerate(self.units.spans):
            self.load_unit(place, anchor_N[begin:stop], schedule_tokens)

    def load_unit(self, place: int, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """The same for one unit of N values."""
        with torch.no_grad():
            for parameter, part in self._of_unit(place, anchor_N):
                parameter.copy_(part)
        self._count(place, 0, schedule_tokens)

    def theta(self, place: int = 0) -> torch.Tensor:
        """(N,) float32, a copy, of one unit."""
        theta_N = torch.empty(self.units.schemas[place].num_elements, dtype=torch.float32)
        self.theta_into(theta_N, place)
        return theta_N

    def theta_into(self, room_N: torch.Tensor, place: int = 0) -> None:
        """Write a unit's theta into a (N,) float32 vector on the CPU."""
        for parameter, room in self._of_unit(place, room_N):
            room.copy_(parameter.detach())

    def shift(self, shift_N: torch.Tensor, credited_tokens: int, schedule_tokens: int, place: int = 0) -> None:
        """Theta <- theta + shift in one unit; its tokens ready -= credited."""
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
        """Local steps behind a unit's tokens."""
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
        """Held-out loss of other parameters in nats per byte on the fixed windows; theta stays as it is. With experts, of one on its
        own text; without `expert` the mean over those that are held here, or where all have all of the text, the loss of the first.
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
        """Other parameters for theta, which steps aside: on the CPU they are computed with where they lie, and nothing is copied."""
        theta = [parameter.data for parameter in self._parameters]
        try:
            for parameter, anchor in zip(self._parameters, parts_of(anchor_N, self.schema), strict=True):
                parameter.data = anchor.to(self._device)
            yield
        finally:
            for parameter, own in zip(self._parameters, theta, strict=True):
                parameter.data = own
