"""Local training in plain torch: the optimizer's steps on the peer's own windows, and the operations between steps.

Rules: R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from averaging.data.assignment import SourceSpan, step_windows
from averaging.data.token_reader import TokenReader
from averaging.models.llama.config import require_llama
from peer.machine.device import choose_device, give_back_memory, limit_memory
from peer.models.adapted_decoder import adapted_decoder, base_of
from peer.models.decoder import Decoder
from peer.models.mixture import MixtureDecoder
from peer.training.card_at_work import CardAtWork
from peer.training.evaluation import Evaluation, values_of
from peer.training.micro_batch_search import MicroBatchSearch, fitting_size
from peer.training.optimizers.learning_rate import learning_rate_at
from peer.training.plan.card_plan import CardPlan
from peer.training.ranks.agreed_plan import agreed_plan
from peer.training.ranks.rank_files import moments_path
from peer.training.ranks.rank_group import RankGroup, alone
from peer.training.ranks.text_share import share_of
from peer.training.replica.away_replica import replica_on
from peer.training.replica.bridge import Bridge
from peer.training.replica.compiler import Compiler
from peer.training.replica.expert_turns import expert_of_step
from peer.training.replica.moments import KeptMoments
from peer.training.replica.replica import Replica
from peer.training.replica.run_ahead import RunAhead
from peer.training.replica.text_batches import Batches, TextBatch, unread_batch
from peer.training.scorer import Scorer
from peer.training.training_plan import TrainingPlan
from peer.training.worker_channel import Scored, ScoreOrder
from protocol.errors import LocalProtocolError


@dataclass(frozen=True, slots=True)
class Counters:
    """The trainer's counters. A unit's ready tokens are lost if and only if its theta is lost (R20).

    Attributes:
        skipped_steps: steps that were not taken because their gradient was not finite. Those by which a loss scale is found do
            not count.
        source_tokens: tokens of each source that were trained on; one source without a mixture.
    """

    step: int = 0
    ready: tuple[int, ...] = (0,)
    tokens_trained: int = 0
    loss_nats: float | None = None
    skipped_steps: int = 0
    source_tokens: tuple[int, ...] = (0,)

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
    plan: TrainingPlan,
    shards: Sequence[Path],
    of_experts: Sequence[Sequence[Path]],
    spans: Sequence[SourceSpan],
) -> dict[int | None, TokenReader]:
    """A text reader for each expert. Without experts, or if all of them train on all of the text, one reader under None."""
    if of_experts:
        pairs = zip(plan.experts, of_experts, strict=True)
        return {expert: plan.reader(own) for expert, own in pairs}
    whole = plan.reader(shards, spans)
    return dict.fromkeys(plan.experts or (None,), whole)


def _read_more(before: tuple[int, ...], sources: Sequence[int], tokens: int) -> tuple[int, ...]:
    """The tokens of each source after a step with windows of these sources."""
    return tuple(count + tokens * sources.count(source) for source, count in enumerate(before))


def card_at_work(plan: TrainingPlan, device: torch.device) -> CardAtWork:
    """The device's own plan for this training."""
    limit_bytes = plan.max_gpu_memory_bytes
    return CardAtWork(
        device,
        plan.load,
        plan.inner,
        plan.wishes,
        most_bytes=limit_bytes,
        given=plan.card_plan,
        mesh=plan.mesh,
        num_replicas=plan.stride,
    )


def _replica_of(plan: TrainingPlan, card_plan: CardPlan, device: torch.device, group: RankGroup) -> Replica:
    """The replica of this process, or its part of one.

    Raises:
        LocalProtocolError: several ranks for an adapter, or a base that is not the run's.
    """
    schema = plan.units.whole
    if plan.adapter is not None:
        if group.size > 1:
            raise LocalProtocolError(f"an adapter over {group.size} ranks", "one rank")
        model = adapted_decoder(plan.model, plan.adapter, base_of(plan.base_shards, plan.model), device)
        return Replica(model, schema, plan.inner, card_plan)
    if group.size == 1:
        return replica_on(_model_of(plan), schema, plan.inner, card_plan, device)
    from peer.training.ranks.ranked_replica import RankedReplica  # imports torch.distributed, which takes a second

    return RankedReplica(partial(_model_of, plan), schema, plan.inner, card_plan, device, group, plan.meeting)


class LocalTrainer:
    """Model, optimizer and data position of one training process.

    Args:
        group: the processes that share the replica, as `meet` gives it; None for this one alone. All of them make the same calls.

    Attributes:
        replica: the model with its optimizer. Only this trainer changes it, or an audit between two of its steps.
        parameters: of the replica, in the order of the schema.
        schedule_tokens: tokens of the run at the anchor, by which the learning rate goes.
    """

    def __init__(self, plan: TrainingPlan, group: RankGroup | None = None) -> None:
        if plan.num_threads:
            torch.set_num_threads(plan.num_threads)
        self.plan, self.group = plan, group or alone()
        self.units = plan.units
        self.schema = self.units.whole
        self.device = choose_device(plan.device)
        if plan.max_gpu_memory_bytes:
            limit_memory(self.device, plan.max_gpu_memory_bytes)  # before anything is allocated there
        self.card, self._compiler = (
            card_at_work(plan, self.device),
            Compiler(plan.compile_folder, process=f"{self.device}-{self.group.rank}"),
        )
        self.card.plan, note = self._compiler.prepared(self.card.plan, plan.model, self.device)
        self.compile_note = note or self.card.why_eager
        self.card.plan = agreed_plan(self.card.plan, self.group)
        self._share = share_of(self.group.mesh, self.group.rank)
        self.replica = _replica_of(plan, self.card.plan, self.device, self.group)
        self._model = cast("Decoder | MixtureDecoder", self.replica.model)
        self.parameters = self.replica.parameters
        self._window = plan.model.context_tokens + 1
        self.bridge = Bridge(self.parameters[0].device)
        self._batches, self._run_ahead = Batches(self.device, self._window), RunAhead()
        self._train = _readers(plan, plan.train_shards, plan.expert_shards, plan.train_spans)
        self._heldout = _readers(plan, plan.heldout_shards, plan.expert_heldout_shards, plan.heldout_spans)
        self._prose = plan.reader(plan.prose_shards)
        self._evaluation = Evaluation(self.replica, self._loss, self._batches.at, self._window, self._share, self.group)
        self._scorer = Scorer(self.replica, self._evaluation, self._share, plan.model.context_tokens)
        kept = plan.moments_file if plan.trains else None  # a holder would load moments that it never uses
        kept = None if kept is None else moments_path(kept, self.group)
        self.moments = KeptMoments(kept, self.replica, plan.inner, plan.moments_within_tokens)
        self.schedule_tokens = 0
        self.micro_batch = fitting_size(self._own_sequences, plan.micro_batch) if plan.micro_batch else 0
        no_tokens = (0,) * max(1, len(plan.train_spans))
        self.counters = Counters(step=plan.first_step, ready=(0,) * len(self.units.schemas), source_tokens=no_tokens)

    @property
    def sequences_per_step(self) -> int:
        """Windows of one local step."""
        return self.plan.inner.batch_tokens // self.plan.model.context_tokens

    @property
    def _own_sequences(self) -> int:
        return self._share.most(self.sequences_per_step)

    def find_micro_batch(self) -> int:
        """Measure how many sequences to compute at a time."""
        expert, form = expert_of_step(self.plan.experts, 0), self.plan.form
        search = MicroBatchSearch(
            self.replica,
            lambda tokens_BT: self._loss(unread_batch(tokens_BT, form), expert),
            sequences=self._own_sequences,
            window=self._window,
            most_bytes=self.plan.max_memory_bytes,
            num_processes=self.plan.stride * self.group.size,
            group=self.group,
        )
        try:
            self.micro_batch = search.run()
        except (MemoryError, RuntimeError):
            self.micro_batch = search.size  # the report of the end of this process names it
            raise
        self.card.begin()
        return self.micro_batch

    @property
    def moments_bytes(self) -> int:
        """Bytes of the optimizer's moments once they exist."""
        return self.replica.optimizer.moments_bytes

    def compile_layers(self) -> None:
        """Compile the layers for the micro-batch, if the plan says so. `compile_note` says why they run eagerly otherwise."""
        tokens_BT = torch.zeros((self.micro_batch, self._window), dtype=torch.long, device=self.device)
        passes = (
            partial(self._loss, unread_batch(tokens_BT, self.plan.form), expert)
            for expert in self.plan.experts or (None,)
        )
        self.compile_note = self.replica.compile(passes, self._compiler) or self.compile_note

    def give_back_memory(self) -> None:
        """Free cached memory of the card for other programs, if no steps come now."""
        give_back_memory(self.device)

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        """One local step: `batch_tokens` tokens, gradient clipped. `goes_on` is called between micro-batches; if it returns False,
        the step is given up and changes nothing.

        A step with a non-finite gradient only advances the data position, and its tokens do not count. If it were applied, no later
        shift could repair the parameters.
        """
        plan, counters, replica, window = self.plan, self.counters, self.replica, self._window
        expert = expert_of_step(plan.experts, counters.step, plan.stride)
        reader = self._train[expert]
        windows = step_windows(plan.seed, plan.peer, counters.step, self.sequences_per_step, reader.spans, window)
        starts = reader.aligned(windows.starts, window)
        num_counted = reader.num_counted(starts, window) if reader.is_marked else None
        if num_counted == 0:  # nothing to learn in these windows
            self.counters = replace(counters, step=counters.step + plan.stride)
            return self.counters
        losses: list[torch.Tensor] = []
        parts = self._share.parts(starts, self.micro_batch)
        batches = self._batches.of_step(reader, [part.starts for part in parts])
        for part, batch in zip(parts, batches, strict=True):
            if losses:
                self._run_ahead.wait()
                if not goes_on():
                    self._run_ahead.clear()
                    replica.discard()
                    return counters
            replica.begin_pass(is_last=len(losses) == len(parts) - 1)
            loss = self._loss(batch, expert, num_counted or 0) * part.factor(is_marked=reader.is_marked)
            replica.backward(loss)
            losses.append(loss.detach())
            self._run_ahead.note(losses[-1])
        self._run_ahead.clear()
        nats, norm = replica.finish(losses, plan.inner.clip_norm)
        total = nats / plan.train_bytes_per_token
        if not math.isfinite(norm) or not math.isfinite(total):
            replica.skip_step()
            skipped = counters.skipped_steps + (not replica.scale.is_searching)
            self.counters = replace(counters, step=counters.step + plan.stride, loss_nats=total, skipped_steps=skipped)
            return self.counters
        rate = learning_rate_at(plan.inner, plan.total_tokens, self.schedule_tokens + counters.tokens_ready)
        replica.step(rate)
        num_tokens, trained = plan.inner.batch_tokens, plan.places_of(expert)
        self.counters = Counters(
            counters.step + plan.stride,
            tuple(ready + num_tokens * (place in trained) for place, ready in enumerate(counters.ready)),
            counters.tokens_trained + num_tokens,
            total,
            counters.skipped_steps,
            _read_more(counters.source_tokens, windows.sources, plan.model.context_tokens),
        )
        return self.counters

    def _loss(self, batch: TextBatch, expert: int | None = None, num_counted: int = 0) -> torch.Tensor:
        """The mean loss of a micro-batch, or its part of that of a step in which `num_counted` tokens count."""
        model, marks = self._model, batch.marks_within(num_counted)
        inputs_BT, targets_BT = self.replica.cut(batch.tokens_BT)
        if batch.targets_BT is not None:
            targets_BT = self.replica.share_of(batch.targets_BT)
        with self.replica.computing():
            if isinstance(model, MixtureDecoder):
                return model.loss(inputs_BT, targets_BT, expert, marks)
            return model.loss(inputs_BT, targets_BT, marks)

    # --- between steps ---

    def load(self, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """Theta <- A in all units; ready tokens <- 0. The optimizer's moments stay (DiLoCo keeps them local)."""
        for place, (begin, stop) in enumerate(self.units.spans):
            self.load_unit(place, anchor_N[begin:stop], schedule_tokens)

    def load_unit(self, place: int, anchor_N: torch.Tensor, schedule_tokens: int) -> None:
        """The same for one unit of N values."""
        with torch.no_grad():
            for parameter, part in zip(self._in_unit(place), self._brought(place, anchor_N), strict=True):
                parameter.copy_(part)
        self._count(place, 0, schedule_tokens)
        self._note_commit(place)

    def theta(self, place: int = 0) -> torch.Tensor:
        """A copy of one unit's theta, (N,) float32."""
        theta_N = torch.empty(self.units.schemas[place].num_elements, dtype=torch.float32)
        self.theta_into(theta_N, place)
        return theta_N

    def theta_into(self, room_N: torch.Tensor, place: int = 0) -> None:
        """Write a unit's theta into a (N,) float32 vector on the CPU."""
        self.send_theta(room_N, place)
        self.bridge.wait_sent()

    def send_theta(self, room_N: torch.Tensor, place: int = 0) -> None:
        """The same beside training, where that is faster: `bridge.wait_sent` returns when it is written."""
        rooms = self.replica.parts(room_N, self.units.schemas[place])
        self.bridge.send(list(zip(self._in_unit(place), rooms, strict=True)))

    def bring(self, place: int, values_N: torch.Tensor) -> None:
        """Begin to bring the (N,) values of a load or shift that comes at the end of the step."""
        self.bridge.bring(self.replica.parts(values_N, self.units.schemas[place]))

    def _brought(self, place: int, values_N: torch.Tensor) -> list[torch.Tensor]:
        return self.bridge.brought(self.replica.parts(values_N, self.units.schemas[place]))

    def shift(self, shift_N: torch.Tensor, credited_tokens: int, schedule_tokens: int, place: int = 0) -> None:
        """Theta <- theta + shift in one unit; its ready tokens -= credited."""
        with torch.no_grad():
            for parameter, shift in zip(self._in_unit(place), self._brought(place, shift_N), strict=True):
                parameter.add_(shift)
        self._count(place, max(0, self.counters.ready[place] - credited_tokens), schedule_tokens)
        self._note_commit(place)

    def take_up_moments(self) -> None:
        """Continue from the moments of the last process, at the start after `load`."""
        self.moments.take_up(self.schedule_tokens, self.group.is_same)

    def finish(self) -> None:
        """Save what the next process continues from."""
        self.moments.finish(self.schedule_tokens)

    def _note_commit(self, place: int) -> None:
        if place == 0:  # the units of a run are committed about equally often
            self.moments.note_commit(self.schedule_tokens)

    def keep(self, place: int, parts: Sequence[tuple[int, int, float]]) -> None:
        """Theta <- share theta in the values [begin, stop) of each of these parts of a unit."""
        schema = self.units.schemas[place]
        with torch.no_grad():
            for begin, stop, share in parts:
                self.replica.shrink(begin, stop, share, schema, self._in_unit(place))

    def steps_ready(self, place: int = 0) -> int:
        """Local steps behind a unit's ready tokens."""
        return self.counters.ready[place] // self.plan.inner.batch_tokens

    def _count(self, place: int, ready: int, schedule_tokens: int) -> None:
        self.schedule_tokens = schedule_tokens
        before = self.counters.ready
        self.counters = replace(self.counters, ready=(*before[:place], ready, *before[place + 1 :]))

    def _in_unit(self, place: int) -> list[torch.nn.Parameter]:
        first = sum(len(schema.tensors) for schema in self.units.schemas[:place])
        return self.parameters[first : first + len(self.units.schemas[place].tensors)]

    def evaluate(self, anchors: torch.Tensor | Sequence[torch.Tensor], expert: int | None = None) -> float:
        """Held-out loss of other parameters in nats per byte on the fixed windows; theta does not change. With `expert`: the loss
        of that expert on its own text. Without it: the mean over the experts held here. If all experts share all of the text, the
        loss of the first.

        Args:
            anchors: of each unit, (N,) float32, or one vector with all of them one after another.
        """
        own = self.plan.experts if self.plan.expert_heldout_shards else self.plan.experts[:1]
        experts = (own or (None,)) if expert is None else (expert,)
        losses = [
            self._evaluation.nats(
                self._heldout[each], values_of(self.replica, anchors, self.units.schemas), each, self.micro_batch
            )
            / _heldout_bytes_per_token(self.plan, each)
            for each in experts
        ]
        return sum(losses) / len(losses)

    def scored(
        self, anchors: torch.Tensor | Sequence[torch.Tensor], order: ScoreOrder, most: int | None = None
    ) -> Scored:
        """Score an order's sequences by other parameters, at most `most` at a time, or as many as in training. Raises as
        `Scorer.scored`.

        Args:
            anchors: as of `evaluate`.
        """
        values = values_of(self.replica, anchors, self.units.schemas)
        return self._scorer.scored(values, order, self.micro_batch if most is None else most)

    def evaluate_prose(self, anchors: torch.Tensor | Sequence[torch.Tensor]) -> float:
        """The same over the run's prose.

        Raises:
            ConfigError: it has none.
        """
        expert = expert_of_step(self.plan.experts, 0)
        nats = self._evaluation.nats(
            self._prose, values_of(self.replica, anchors, self.units.schemas), expert, self.micro_batch
        )
        return nats / self.plan.prose_bytes_per_token


def _heldout_bytes_per_token(plan: TrainingPlan, expert: int | None) -> float:
    of_experts = plan.expert_heldout_bytes_per_token
    if expert is None or not of_experts:
        return plan.heldout_bytes_per_token
    return of_experts[plan.experts.index(expert)]
