"""Chooses the cards of one machine that hold a stage of a pipeline run together, and why. Pure.

If the stage fits a card, each card holds all of it. Else the cards share its parameters by rows. Either way, each computes as many
sequences of every micro-batch as the others. So the cards are of one kind, and their number divides the sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peer.training.plan.card_memory_core import CardLoad
from peer.training.plan.card_plan import Wishes
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Layout, Mesh, WishedSplit, World
from peer.training.plan.layout_core import LayoutChoice, Links, kind_of, why_too_hot
from peer.training.plan.layout_words import cards_words, replica_words
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard
from peer.training.plan.plan_core import Choice, Limits, choose, is_less_away
from peer.training.plan.rank_memory_core import ALONE
from protocol.errors import ConfigError
from protocol.run.training_sections import InnerSection


@dataclass(frozen=True, slots=True)
class StageTask:
    """The stage to hold, and the limits.

    Attributes:
        sequences: of a micro-batch, which the run fixes.
        max_celsius: the owner's ceiling, 0 for none.
    """

    load: CardLoad
    inner: InnerSection
    wishes: Wishes
    limits: Limits
    sequences: int
    max_celsius: float = 0.0

    def plan_of(self, card: Card, mesh: Mesh) -> Choice:
        """How each card of the mesh would train."""
        each = replace(self.limits, machine_bytes=self.limits.machine_bytes // mesh.num_ranks)
        own, parts = self.sequences // mesh.num_ranks, ALONE if mesh.shard == 1 else mesh
        return choose(card, self.load, self.inner, self.wishes, each, own, parts)


def stage_layout(cards: Sequence[OwnedCard], task: StageTask, split: WishedSplit, links: Links) -> LayoutChoice:
    """The layout for these cards, at least one: those that are alike to the one with most memory.

    Raises:
        ConfigError: the wished split divides sequences or layers.
    """
    if len(cards) > 1 and split in ("context", "tensor"):
        raise ConfigError(
            f"--split {split} in a run of stages",
            "islands, which hold the whole stage each, or shard, by the rows of its parameters",
            "name one of these, or leave --split away",
        )
    largest = max(cards, key=lambda card: card.card.memory_bytes)
    alike = [card for card in cards if kind_of(card) == kind_of(largest)]
    cool = [card for card in alike if not why_too_hot(card, task.max_celsius)] or [largest]
    number = next(size for size in range(min(len(cool), task.sequences), 0, -1) if task.sequences % size == 0)
    used = cool[:number]
    left_out = tuple(LeftOut(card, _why_left(card, largest, task, len(cool))) for card in cards if card not in used)
    mesh, plan, reason = _shared(used, task, split, links)
    world = World(devices=tuple(card.device for card in used), mesh=mesh)
    return LayoutChoice(Layout(worlds=(world,), reason=reason), (tuple(used),), left_out, None, (plan,))


def _shared(cards: Sequence[OwnedCard], task: StageTask, split: WishedSplit, links: Links) -> tuple[Mesh, Choice, str]:
    """How these cards hold the stage, how each trains, and why."""
    card, number = cards[0].card, len(cards)
    if number == 1:
        return ALONE, task.plan_of(card, ALONE), ""
    copies, rows = Mesh(copies=number), Mesh(shard=number)
    of_copies, of_rows = task.plan_of(card, copies), task.plan_of(card, rows)
    if split == "islands" or (split == "auto" and not _are_rows_better(of_copies, of_rows)):
        return copies, of_copies, f"{cards_words(cards)}: each holds the stage and a part of every micro-batch"
    words = replica_words(cards, rows, of_rows, is_fast=links.are_fast(cards), is_apart=links.are_apart(cards))
    return rows, of_rows, f"{words}{_why_rows(of_copies, split)}"


def _are_rows_better(copies: Choice, rows: Choice) -> bool:
    """Whether the cards fit the stage only so, or keep less of it in the machine's memory."""
    if copies.missing_bytes or rows.missing_bytes:
        return rows.missing_bytes < copies.missing_bytes
    return is_less_away(rows.plan, copies.plan)


def _why_rows(copies: Choice, split: WishedSplit) -> str:
    if split != "auto":
        return f", as --split {split} asks"
    if copies.missing_bytes:
        return "; no card holds the stage alone"
    return "; a card that holds it alone keeps more in the machine's memory"


def _why_left(card: OwnedCard, largest: OwnedCard, task: StageTask, num_cool: int) -> str:
    if kind_of(card) != kind_of(largest):
        return "a stage takes cards of one kind"
    return why_too_hot(card, task.max_celsius) or (
        f"{num_cool} cards cannot share micro-batches of {task.sequences} sequences evenly"
    )
