"""The layout of this peer's cards for one run, before its trainer is opened."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from averaging.system.machine_limits import read_memory
from peer.cards.own_cards import OwnCards
from peer.machine.torch_extras import has_torchao, why_no_compiler
from peer.settings.config import PeerConfig, whole_bytes
from peer.training.plan.card_memory_core import run_load
from peer.training.plan.layout import Layout, Mesh, World
from peer.training.plan.layout_core import LayoutChoice, SplitRules, Task, choose_layout, one_world
from peer.training.plan.owned_cards_core import LeftOut
from peer.training.plan.plan_core import Limits, allows_int8
from peer.training.plan.split_core import why_no_context, why_no_tensor
from peer.training.plan.stage_layout_core import stage_devices, stage_layout
from protocol.run.manifest import RunConfig


def layout_of(own: OwnCards, config: PeerConfig, run: RunConfig, experts: Sequence[int] = ()) -> LayoutChoice:
    """How the cards train this run.

    Args:
        experts: those held here.

    Raises:
        ConfigError: the wished split does not suit the model or the cards.
    """
    if not own.cards:
        return _without_cards(own)
    if run.pipeline is not None:
        found = stage_layout(own.cards, _stage_sequences(run), config.split, config.max_gpu_celsius)
        return _with_left_out(found, own.left_out)
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


def task_of(config: PeerConfig, run: RunConfig, experts: Sequence[int], kind: str) -> Task:
    """The run's model within this machine's limits, on cards of this kind."""
    has_compiler = not why_no_compiler("cpu" if kind == "cpu" else "cuda")
    may_be_int8 = allows_int8(run.inner) and has_compiler and has_torchao()
    return Task(
        run_load(run, experts),
        run.inner,
        config.wishes,
        Limits(whole_bytes(config.max_gpu_memory_gb), has_compiler, may_be_int8, read_memory().total_bytes),
        SplitRules(partial(why_no_context, isolates=run.data.isolate), partial(why_no_tensor, mixture=run.mixture)),
        config.max_gpu_celsius,
    )


def _without_cards(own: OwnCards) -> LayoutChoice:
    """One device, found by the training process; the CPU where the machine's cards are all left out."""
    if not own.are_all_left_out:
        return LayoutChoice(Layout(reason=own.note), ())
    layout = Layout(worlds=(World(devices=("cpu",)),), reason="on the CPU: every card of this machine is left out")
    return LayoutChoice(layout, (), own.left_out)


def stage_world_without(run: RunConfig, left: Sequence[str]) -> World | None:
    """The cards to go on with on these devices, when another one of a stage's is lost. None if training has to wait for the card."""
    devices = stage_devices(left, _stage_sequences(run)) if left else ()
    return World(devices=devices, mesh=Mesh(shard=len(devices))) if devices else None


def _stage_sequences(run: RunConfig) -> int:
    """Sequences of a micro-batch between stages."""
    num_micro_batches = run.pipeline.micro_batches if run.pipeline is not None else 1
    return run.inner.batch_tokens // run.model.context_tokens // num_micro_batches


def _with_left_out(found: LayoutChoice, before: tuple[LeftOut, ...]) -> LayoutChoice:
    """The choice, and its rival, with the cards that were left out before it."""
    rival = None if found.rival is None else _with_left_out(found.rival, before)
    return LayoutChoice(found.layout, found.cards, (*before, *found.left_out), rival, found.plans)
