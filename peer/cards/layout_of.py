"""The layout of this peer's cards for one run, before its trainer is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from averaging.system.machine_limits import read_memory
from peer.cards.own_cards import OwnCards
from peer.machine.torch_extras import has_torchao, why_no_compiler
from peer.settings.config import PeerConfig, whole_bytes
from peer.training.plan.card_memory_core import CardLoad, run_load, stage_load
from peer.training.plan.layout import Layout, World
from peer.training.plan.layout_core import LayoutChoice, SplitRules, Task, choose_layout, one_replica, one_world
from peer.training.plan.owned_cards_core import LeftOut
from peer.training.plan.plan_core import Limits, allows_int8
from peer.training.plan.split_core import why_no_context, why_no_tensor
from peer.training.plan.stage_layout_core import StageTask, stage_layout
from protocol.errors import LocalProtocolError
from protocol.run.manifest import RunConfig
from protocol.run.training_sections import InnerSection


def layout_of(
    own: OwnCards, config: PeerConfig, run: RunConfig, experts: Sequence[int] = (), stage: int | None = None
) -> LayoutChoice:
    """How the cards train this run.

    Args:
        experts: those held here.
        stage: the one held here in a run of stages; None for the largest.

    Raises:
        ConfigError: the wished split does not suit the model or the cards.
    """
    if not own.cards:
        return _without_cards(own)
    if run.pipeline is not None:
        stages = stage_task_of(config, run, stage, own.cards[0].card.kind)
        return _with_left_out(stage_layout(own.cards, stages, config.split, own.links), own.left_out)
    found = choose_layout(own.cards, task_of(config, run, experts, own.cards[0].card.kind), config.split, own.links)
    return _with_left_out(found, own.left_out)


def world_without(
    own: OwnCards, config: PeerConfig, run: RunConfig, experts: Sequence[int], left: Sequence[str]
) -> World | None:
    """The replica to go on with on these devices, when another one is lost: on the CPU if none is left and the owner chose no device.
    None if training has to wait for the card.
    """
    cards = [card for card in own.cards if card.device in left]
    if cards:
        return one_world(cards, task_of(config, run, experts, cards[0].card.kind), config.split, own.links)
    return World(devices=("cpu",)) if config.device == "auto" and own.cards else None


def one_replica_of(own: OwnCards, config: PeerConfig, run: RunConfig, experts: Sequence[int]) -> LayoutChoice:
    """One replica over as many of the cards, at least one, as can share it."""
    task = task_of(config, run, experts, own.cards[0].card.kind)
    return _with_left_out(one_replica(own.cards, task, config.split, own.links), own.left_out)


def task_of(config: PeerConfig, run: RunConfig, experts: Sequence[int], kind: str) -> Task:
    """The run's model within this machine's limits, on cards of this kind."""
    rules = SplitRules(partial(why_no_context, isolates=run.data.isolate), partial(why_no_tensor, mixture=run.mixture))
    limits = _limits(config, run.inner, kind)
    return Task(run_load(run, experts), run.inner, config.wishes, limits, rules, config.max_gpu_celsius)


def stage_task_of(config: PeerConfig, run: RunConfig, stage: int | None, kind: str) -> StageTask:
    """A stage of the run within this machine's limits, on cards of this kind. `stage`: None for the largest.

    Raises:
        LocalProtocolError: a run without stages.
    """
    load, sequences = _stage_load(run, stage)
    limits = _limits(config, run.inner, kind)
    return StageTask(load, run.inner, config.wishes, limits, sequences, config.max_gpu_celsius)


def _stage_load(run: RunConfig, stage: int | None) -> tuple[CardLoad, int]:
    """The load of a card, and the sequences of a micro-batch between stages."""
    pipeline, stages = run.pipeline, run.stages
    if pipeline is None or stages is None:
        raise LocalProtocolError(f"a stage in a run of {run.run.shards} shards", "a pipeline run")
    numbers = range(stages.num_stages) if stage is None else (stage,)
    loads = [stage_load(stages, number, pipeline.most_kept(stages, number)) for number in numbers]
    sequences = run.inner.batch_tokens // run.model.context_tokens // pipeline.micro_batches
    return max(loads, key=lambda load: load.num_values), sequences


def _limits(config: PeerConfig, inner: InnerSection, kind: str) -> Limits:
    has_compiler = not why_no_compiler("cpu" if kind == "cpu" else "cuda")
    may_be_int8 = allows_int8(inner) and has_compiler and has_torchao()
    return Limits(whole_bytes(config.max_gpu_memory_gb), has_compiler, may_be_int8, read_memory().total_bytes)


def _without_cards(own: OwnCards) -> LayoutChoice:
    """One device, found by the training process; the CPU where the machine's cards are all left out."""
    if not own.are_all_left_out:
        return LayoutChoice(Layout(reason=own.note), ())
    layout = Layout(worlds=(World(devices=("cpu",)),), reason="on the CPU: every card of this machine is left out")
    return LayoutChoice(layout, (), own.left_out)


def stage_world_without(
    own: OwnCards, config: PeerConfig, run: RunConfig, stage: int, left: Sequence[str]
) -> World | None:
    """The cards to go on with on these devices, when another one of a stage's is lost. None if training has to wait for the card."""
    cards = [card for card in own.cards if card.device in left][: len(left)]
    if not cards:
        return None
    found = stage_layout(cards, stage_task_of(config, run, stage, cards[0].card.kind), config.split, own.links)
    return found.layout.worlds[0]


def _with_left_out(found: LayoutChoice, before: tuple[LeftOut, ...]) -> LayoutChoice:
    """The choice, and its rival, with the cards that were left out before it."""
    rival = None if found.rival is None else _with_left_out(found.rival, before)
    return LayoutChoice(found.layout, found.cards, (*before, *found.left_out), rival, found.plans)
