"""A replica shared by ranks, and the same work by one process that holds all of it.

A case names a plan, and a function here that works with the plan's trainer and gives vectors of all parameters. `found_by_ranks` runs
cases on ranks, where each rank fills its part of the vectors, and puts the parts together; `found_alone` runs them in this process.
"""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from averaging.arithmetic.genesis import genesis_anchor
from averaging.models.llama.config import LlamaConfig
from peer.models.chunked_loss import chunked_cross_entropy
from peer.training import evaluation
from peer.training.evaluation import EvaluationDoesNotFit
from peer.training.local_training import LocalTrainer
from peer.training.plan.layout import Mesh
from peer.training.ranks.rank_files import moments_path
from peer.training.ranks.rank_group import RankGroup, meet
from peer.training.ranks.ranked_replica import RankedReplica
from peer.training.ranks.sharding import call_inside
from peer.training.replica import compiling
from peer.training.replica.compiler import Compiler
from peer.training.training_plan import TrainingPlan
from peer.training.worker_channel import Command, Op, ScoreOrder, SharedVectors, frame, mapping_bytes
from peer.worker import Worker
from protocol.run.training_sections import InnerSection
from tests.peer.training.ranks.rank_processes import run_ranks
from tests.peer.training_world import training_plan

MODEL = LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=50, context_tokens=16)
TEXT = "".join(chr(32 + (i * i * 7 + i * 3) % 90) for i in range(500))
CHUNK = 7

Found = dict[str, torch.Tensor]


def inner(sequences: int = 8, **changes: object) -> InnerSection:
    """The optimizer's part of a plan."""
    settings = {"learning_rate": 0.01, "clip_norm": 0.5, "batch_tokens": sequences * MODEL.context_tokens, **changes}
    return InnerSection.model_validate(settings)


class Cases:
    """Plans and works by name, over one text in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan = training_plan(folder, TEXT * 200, model=MODEL, inner=inner(), micro_batch=2)
        self._cases: dict[str, tuple[str, TrainingPlan]] = {}

    def add(self, name: str, work: Callable[..., Found], **changes: object) -> None:
        """A case: the work, and changes of the plan."""
        self._cases[name] = (work.__name__, self._plan.model_copy(update=changes))

    def found_alone(self) -> dict[str, Found]:
        """By one process."""
        found = {}
        for name, (work, plan) in self._cases.items():
            alone = {"device": "cpu", "mesh": Mesh()}
            found[name] = _done(work, _trainer(plan.model_copy(update=alone)))
        return found

    def found_by_ranks(self, mesh: Mesh) -> dict[str, Found]:
        """By ranks; numbers that all of them must agree about are checked to be equal."""
        told = {name: (work, plan.model_dump(mode="json")) for name, (work, plan) in self._cases.items()}
        (self._folder / "cases.json").write_text(json.dumps(told))
        by_rank = run_ranks(mesh, run_cases, self._folder)
        found: dict[str, Found] = {name: {} for name in self._cases}
        for key, first in by_rank[0].items():
            name, _, what = key.partition("/")
            parts = [each[key] for each in by_rank]
            if what.startswith("same"):
                assert all(torch.equal(first, part) for part in parts), key
                found[name][what] = first
            else:
                found[name][what] = torch.stack(parts).nan_to_num(0.0).sum(0)
        return found


def run_cases(mesh: Mesh, rank: int, folder: Path) -> Mapping[str, torch.Tensor]:
    """The work of one rank."""
    groups: dict[Mesh, RankGroup] = {}
    found: Found = {}
    for name, (work, told) in json.loads((folder / "cases.json").read_text()).items():
        plan = TrainingPlan.model_validate(told)
        own = mesh.model_copy(update={"keeps_parameters": plan.mesh.keeps_parameters})
        meeting = folder / "meeting" if not groups else folder / f"meeting-{len(groups)}"
        meeting.mkdir(exist_ok=True)
        if own not in groups:
            groups[own] = meet(own, rank, meeting)
        plan = plan.model_copy(update={"mesh": own, "rank": rank, "meeting": meeting})
        found |= {f"{name}/{what}": value for what, value in _done(work, _trainer(plan, groups[own])).items()}
    return found


def _done(work: str, trainer: LocalTrainer) -> Found:
    torch.set_num_threads(1)
    with mock.patch("peer.models.decoder.chunked_cross_entropy", partial(chunked_cross_entropy, num_tokens=CHUNK)):
        found: Found = globals()[work](trainer)
    return found


def _trainer(plan: TrainingPlan, group: RankGroup | None = None) -> LocalTrainer:
    """With layers to be compiled where the plan says so, and no trial of a compiler."""
    with mock.patch.object(Compiler, "prepared", lambda _self, card_plan, *_: (card_plan, "")):
        return LocalTrainer(plan, group)


def _flat(trainer: LocalTrainer, values: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """(N,), with this process' parts in their places, and 0 elsewhere; of ranks with the same part, the first has it."""
    replica, flat_N = trainer.replica, torch.zeros(trainer.schema.num_elements)
    for place, (room, value) in enumerate(zip(replica.parts(flat_N, trainer.schema), values, strict=True)):
        if value is not None and _is_first(trainer, place):
            room.copy_(value)
    return flat_N


def _is_first(trainer: LocalTrainer, place: int) -> bool:
    replica, group = trainer.replica, trainer.group
    is_copy = isinstance(replica, RankedReplica) and replica.counts_of(place) < 1.0
    return not is_copy or group.rank % group.mesh.tensor == 0


def _theta(trainer: LocalTrainer) -> torch.Tensor:
    """(N,) of all units, written as a snapshot is."""
    flat_N = torch.zeros(trainer.schema.num_elements)
    for place, (begin, stop) in enumerate(trainer.units.spans):
        trainer.theta_into(flat_N[begin:stop], place)
    return _flat(trainer, trainer.replica.parts(flat_N, trainer.schema))


def _loaded(trainer: LocalTrainer) -> torch.Tensor:
    anchor_N = genesis_anchor(trainer.schema, 1) * 3
    trainer.load(anchor_N, 0)
    return anchor_N


def _gradients(trainer: LocalTrainer) -> torch.Tensor:
    """Of the next step, which is not taken."""
    found: list[torch.Tensor | None] = []

    def take(_rate: float) -> None:
        found.extend(None if each.grad is None else each.grad.clone() for each in trainer.replica.parameters)
        trainer.replica.discard()

    with mock.patch.object(trainer.replica, "step", take):
        trainer.step()
    return _flat(trainer, found)


# --- works ---


def gradients(trainer: LocalTrainer) -> Found:
    """Of one step, and its loss; then those of a step after one that was given up in its midst."""
    _loaded(trainer)
    found = {"gradient": _gradients(trainer), "same loss": torch.tensor(trainer.counters.loss_nats)}
    if trainer.micro_batch < trainer.sequences_per_step // 4:
        before = trainer.counters
        assert trainer.step(lambda: False) == before
        found["gradient after a step given up"] = _gradients(trainer)
    return found


def updates(trainer: LocalTrainer) -> Found:
    """Of three clipped steps."""
    anchor_N = _loaded(trainer)
    for _ in range(3):
        trainer.step()
    return {"update": _flat_update(trainer, anchor_N), "same last loss": torch.tensor(trainer.counters.loss_nats)}


def _flat_update(trainer: LocalTrainer, anchor_N: torch.Tensor) -> torch.Tensor:
    parts = trainer.replica.parts(anchor_N, trainer.schema)
    own = [each.detach() - part for each, part in zip(trainer.replica.parameters, parts, strict=True)]
    return _flat(trainer, own)


def vectors(trainer: LocalTrainer) -> Found:
    """The anchor as it was loaded, then with a shift and with parts kept, and the losses of another vector."""
    anchor_N = _loaded(trainer)
    found = {"loaded": _theta(trainer)}
    for place, (begin, stop) in enumerate(trainer.units.spans):
        shift_N = 0.02 * torch.randn(stop - begin, generator=torch.Generator().manual_seed(place))
        trainer.bring(place, shift_N)
        trainer.keep(place, [(5, 1000, 0.5), (1003, (stop - begin) * 2 // 3, 0.25)])
        trainer.shift(shift_N, 0, 0, place)
    found["shifted"] = _theta(trainer)
    losses = [trainer.evaluate(anchor_N), trainer.evaluate(anchor_N * 0.5)]
    found["same held-out"] = torch.tensor(losses, dtype=torch.float64)
    if trainer.plan.mixture is None:
        found |= _scores(trainer, anchor_N)
    _evaluate_without_room(trainer, anchor_N)
    found["after the evaluation"] = _theta(trainer)
    found["gradient"] = _gradients(trainer)
    return found


def _evaluate_without_room(trainer: LocalTrainer, anchor_N: torch.Tensor) -> None:
    """If one rank has less memory left than a step takes, no rank begins a pass, and all are told."""
    if trainer.group.size == 1:
        return
    has_room = mock.patch.object(evaluation, "has_room_of_step", return_value=not trainer.group.is_first)
    with has_room, pytest.raises(EvaluationDoesNotFit):
        trainer.evaluate(anchor_N)


def _scores(trainer: LocalTrainer, anchor_N: torch.Tensor) -> Found:
    """Log-likelihoods and answers of sequences of several lengths, in more passes than one."""
    sequences = tuple(tuple(range(1, length)) for length in (3, trainer.plan.model.context_tokens + 2, 6, 5))
    scored = trainer.scored(anchor_N, ScoreOrder(sequences=sequences, num_scored=(1, 5, 5, 2)), 3)
    short = tuple(tokens[:7] for tokens in sequences)
    order = ScoreOrder(sequences=short, num_answer_tokens=4, vocab_size=trainer.plan.model.vocab_size, end=0)
    answers = [token for answer in trainer.scored(anchor_N, order, 3).answers for token in answer]
    values = torch.tensor([value or 0.0 for value in scored.log_likelihoods], dtype=torch.float64)
    return {"same log-likelihoods": values, "same answers": torch.tensor(answers, dtype=torch.float64)}


def skipped(trainer: LocalTrainer) -> Found:
    """A step whose gradient is not finite on one rank's text only."""
    _loaded(trainer)
    before = _theta(trainer)
    loss = trainer._loss
    is_bad = trainer._share.reader == 0
    with mock.patch.object(trainer, "_loss", lambda *given: loss(*given) * (float("inf") if is_bad else 1.0)):
        counters = trainer.step()
    assert counters.skipped_steps == 1
    assert torch.equal(_theta(trainer), before)
    found = {"same counters": torch.tensor([counters.step, counters.tokens_ready])}
    return {**found, "gradient after": _gradients(trainer)}


def continued(trainer: LocalTrainer) -> Found:
    """Two steps, and two more by a process that takes up the moments of the first."""
    anchor_N = _loaded(trainer)
    trainer.step()
    trainer.step()
    theta_N = _theta_of_all(trainer)
    trainer.finish()
    trainer.group.wait()
    again = LocalTrainer(trainer.plan.model_copy(update={"first_step": 2}), trainer.group)
    again.load(theta_N, 0)
    again.take_up_moments()
    assert again.moments.note == ""
    again.step()
    again.step()
    return {"update": _flat_update(again, anchor_N)}


def apart(trainer: LocalTrainer) -> Found:
    """Moments of the first rank that are of another time than the others', then none: no rank takes up any."""
    anchor_N = _loaded(trainer)
    trainer.step()
    trainer.finish()
    group, kept = trainer.group, trainer.plan.moments_file
    assert kept is not None
    for is_lost in (False, True):
        if group.is_first:
            trainer.moments.finish(500)
        if group.is_first and is_lost:
            moments_path(kept, group).unlink()
        group.wait()
        again = LocalTrainer(trainer.plan, group)
        again.load(anchor_N, 600)
        again.take_up_moments()
        is_taken = group.size == 1 and not is_lost
        assert again.replica.optimizer.has_moments == is_taken, again.moments.note
        assert bool(again.moments.note) != is_taken
        group.wait()
    return {}


def carried(trainer: LocalTrainer) -> Found:
    """As `continued`, with moments that pass through one process which holds the whole model and nothing of the ranks' files."""
    anchor_N = _loaded(trainer)
    trainer.step()
    trainer.step()
    theta_N = _theta_of_all(trainer)
    trainer.finish()
    trainer.group.wait()
    if trainer.group.is_first:
        whole = LocalTrainer(trainer.plan.model_copy(update={"mesh": Mesh(), "rank": 0, "meeting": None}))
        whole.load(theta_N, 0)
        whole.take_up_moments()
        assert whole.moments.note == ""
        whole.moments.finish(5)
    trainer.group.wait()
    again = LocalTrainer(trainer.plan.model_copy(update={"first_step": 2}), trainer.group)
    again.load(theta_N, 5)
    again.take_up_moments()
    assert again.moments.note == ""
    again.step()
    again.step()
    return {"update": _flat_update(again, anchor_N)}


def _theta_of_all(trainer: LocalTrainer) -> torch.Tensor:
    """(N,) of all ranks, which each of them has then."""
    theta_N = _theta(trainer)
    if trainer.group.size > 1:
        dist.all_reduce(theta_N)
    return theta_N


def compiled(trainer: LocalTrainer) -> Found:
    """With a pretended compiler, then with one that fails on one rank only."""
    anchor_N = _loaded(trainer)
    calls: list[nn.Module] = []

    def run(layer: nn.Module, *given: torch.Tensor) -> torch.Tensor:
        calls.append(layer)
        out: torch.Tensor = type(layer).forward(layer, *given)
        return out

    def fail(*_given: object) -> torch.Tensor:
        raise RuntimeError("no such operation")

    eager = trainer.replica._run_layers_by(call_inside)
    trainer.replica._run_layers_by(eager)
    with mock.patch.object(compiling, "_compiled", return_value=run):
        trainer.compile_layers()
        found = {"gradient": _gradients(trainer)}
    assert calls
    assert trainer.compile_note == ""
    trainer.replica._run_layers_by(eager)
    with mock.patch.object(compiling, "_compiled", return_value=run if trainer.group.rank else fail):
        trainer.compile_layers()
    assert "compiler failed" in trainer.compile_note
    trainer.load(anchor_N * 0.5, 0)  # as a process that starts loads the anchor after it compiled
    return {**found, "gradient without it": _gradients(trainer)}


def paused(trainer: LocalTrainer) -> Found:
    """The micro-batches that each rank begins after a pause that is ordered in the midst of a step."""
    _loaded(trainer)
    daemon, channel = socket.socketpair()
    backward, begun, at_order = trainer.replica.backward, [0], [0]

    def order(op: Op, number: int) -> None:
        if trainer.group.is_first:
            daemon.sendall(frame(Command(op=op, number=number)))

    def count(loss: torch.Tensor) -> None:
        begun[0] += 1
        if begun[0] == 2:
            order("pause", 1)
            at_order[0] = begun[0]
        backward(loss)

    with daemon, channel, _memory(trainer.schema.num_elements) as memory:
        worker = Worker(channel, trainer, SharedVectors(memory, trainer.schema.num_elements), trainer.group)
        counted = mock.patch.object(trainer.replica, "backward", count)
        # a pause that is obeyed gives memory back; then this rank is told to stop
        stopped = mock.patch.object(trainer, "give_back_memory", partial(order, "stop", 2))
        collected = mock.patch("peer.worker.collect_between_steps")  # else none would be in this process from then on
        with counted, stopped, collected:
            worker.run()
    assert trainer.counters.step == trainer.plan.first_step, "the step was given up"
    return {"same late": torch.tensor(begun[0] - at_order[0])}


@contextmanager
def _memory(num_elements: int) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.truncate(mapping_bytes(num_elements))
        yield file.fileno()


def searched(trainer: LocalTrainer) -> Found:
    """All ranks find the same micro-batch, and the next step is as if none had been tried."""
    _loaded(trainer)
    trainer.find_micro_batch()
    return {"same size": torch.tensor(trainer.micro_batch > 0), "gradient": _gradients(trainer)}
