"""How this machine would train a run's model, before anything is started: for `potluck doctor` and `join --dry-run`. Without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from averaging.system.machine_limits import read_memory
from peer.checks import machine_core
from peer.checks.machine_core import Finding, Level, NoCard, Torch, Unread
from peer.forecast.card_speed_core import USUAL_MFU, planned_speed
from peer.machine.torch_extras import has_torchao
from peer.settings.config import PeerConfig, whole_bytes
from peer.training.plan.card_memory_core import CardLoad, run_load, stage_load
from peer.training.plan.cards_core import Card
from peer.training.plan.plan_core import Choice, Limits, allows_int8, choose
from protocol.run.manifest import RunConfig
from protocol.tables import whole

Device = Literal["auto", "cpu", "cuda", "mps"]


def card_of(
    graphics: machine_core.Card | NoCard | Unread, memory_bytes: int, device: Device, torch: Torch | None = None
) -> Card | None:
    """The card that would train, by the readings; None where they do not tell.

    Args:
        memory_bytes: of the machine.
        torch: what torch says of itself, None if it was not asked.
    """
    if device != "cpu" and isinstance(graphics, machine_core.Card):
        return Card("cuda", graphics.name, graphics.memory_total_bytes, graphics.capability)
    if device == "cpu":
        return Card("cpu", "", memory_bytes)
    if torch is None or torch.can_use_cuda or torch.can_use_mps or device != "auto":
        return None  # a card of another maker, whose kind only the training process reads
    return Card("cpu", "", memory_bytes)


def expected_plan(card: Card, run: RunConfig, own: PeerConfig, *, has_compiler: bool) -> Choice:
    """The plan that training would begin with, and in its reason the speed to expect. Of a run of stages, that of its largest."""
    may_be_int8 = allows_int8(run.inner) and has_compiler and has_torchao()
    limits = Limits(whole_bytes(own.max_gpu_memory_gb), has_compiler, may_be_int8, read_memory().total_bytes)
    loads, micro_batch = _loads(run)
    choices = [(choose(card, load, run.inner, own.wishes, limits, micro_batch), load) for load in loads]
    choice, load = max(choices, key=lambda pair: pair[0].expected_bytes)
    speed = None if choice.missing_bytes else planned_speed(card, choice.plan, load, USUAL_MFU)
    if speed is None:
        return choice
    tokens_per_s, mfu = speed
    return replace(choice, reason=f"{choice.reason}; about {whole(tokens_per_s)} tokens/s at {mfu:.0%} of its peak")


def plan_finding(choice: Choice) -> Finding:
    """A line of the doctor's report."""
    if not choice.missing_bytes:
        return Finding("plan", Level.OK, choice.reason)
    return Finding("plan", Level.WARN, choice.reason, "join a run of a smaller model, or train with --device cpu")


def _loads(run: RunConfig) -> tuple[list[CardLoad], int]:
    """The parts of the model that a card of this run may hold, and the micro-batch where the run fixes it."""
    if run.pipeline is not None and run.stages is not None:
        pipeline, stages = run.pipeline, run.stages
        size = run.inner.batch_tokens // run.model.context_tokens // pipeline.micro_batches
        numbers = range(stages.num_stages)
        return [stage_load(stages, stage, pipeline.most_kept(stages, stage)) for stage in numbers], size
    return [run_load(run)], 0
