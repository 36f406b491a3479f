"""Chooses the cards of one machine that hold a stage of a pipeline run together, and why. Pure.

Each card holds the whole stage and computes as many sequences of every micro-batch as the others. So the cards are of one kind, and
their number divides the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence

from peer.training.plan.layout import Layout, Mesh, WishedSplit, World
from peer.training.plan.layout_core import LayoutChoice, kind_of, why_too_hot
from peer.training.plan.layout_words import cards_words
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard
from protocol.errors import ConfigError


def stage_layout(
    cards: Sequence[OwnedCard], sequences: int, split: WishedSplit = "auto", max_celsius: float = 0.0
) -> LayoutChoice:
    """The layout for these cards, at least one: those that are alike to the one with most memory.

    Args:
        sequences: of a micro-batch, which the run fixes.
        max_celsius: the owner's ceiling, 0 for none.

    Raises:
        ConfigError: the wished split divides the stage itself.
    """
    if len(cards) > 1 and split not in ("auto", "islands"):
        raise ConfigError(f"--split {split} in a run of stages", "the whole stage on each card", "leave --split away")
    largest = max(cards, key=lambda card: card.card.memory_bytes)
    alike = [card for card in cards if kind_of(card) == kind_of(largest)]
    cool = [card for card in alike if not why_too_hot(card, max_celsius)] or [largest]
    used = cool[: len(stage_devices([card.device for card in cool], sequences))]
    left_out = tuple(
        LeftOut(card, _why_left(card, largest, max_celsius, len(cool), sequences)) for card in cards if card not in used
    )
    return LayoutChoice(Layout(worlds=(_world(used),), reason=_reason(used)), (tuple(used),), left_out)


def stage_devices(devices: Sequence[str], sequences: int) -> tuple[str, ...]:
    """As many of these devices as can share micro-batches of so many sequences evenly, from the first on."""
    number = next(size for size in range(min(len(devices), sequences), 0, -1) if sequences % size == 0)
    return tuple(devices[:number])


def _world(cards: Sequence[OwnedCard]) -> World:
    return World(devices=tuple(card.device for card in cards), mesh=Mesh(shard=len(cards)))


def _reason(cards: Sequence[OwnedCard]) -> str:
    return f"{cards_words(cards)}: each holds the stage and a part of every micro-batch" if len(cards) > 1 else ""


def _why_left(card: OwnedCard, largest: OwnedCard, max_celsius: float, num_cool: int, sequences: int) -> str:
    if kind_of(card) != kind_of(largest):
        return "a stage takes cards of one kind"
    return why_too_hot(card, max_celsius) or (
        f"{num_cool} cards cannot share micro-batches of {sequences} sequences evenly"
    )
