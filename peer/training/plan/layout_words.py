"""Layouts in words, for people. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from peer.training.plan.layout import Mesh
from peer.training.plan.owned_cards_core import OwnedCard
from peer.training.plan.plan_core import Choice, card_words
from protocol.tables import several


def cards_words(cards: Sequence[OwnedCard]) -> str:
    """As "2x RTX 3090, 24 GB", or with a plus between kinds."""
    names = [card_words(card.card) for card in cards]
    counted = [(name, names.count(name)) for name in dict.fromkeys(names)]
    return " + ".join(f"{count}x {name}" if count > 1 else name for name, count in counted)


def island_words(worlds: Sequence[Sequence[OwnedCard]], meshes: Sequence[Mesh], *, are_fast: bool) -> str:
    """Why each card, or each group of cards, trains on text of its own."""
    cards = [card for world in worlds for card in world]
    if len(worlds) == 1:
        return f"{cards[0].words} alone: the model fits no other card"
    number = several(len(worlds), "island")
    if any(mesh.num_ranks > 1 for mesh in meshes):
        return f"{cards_words(cards)}: {number}; cards that do not hold the model alone share one"
    joined = "" if are_fast or cards[0].card.kind == "cpu" else ", and no fast link joins them"
    return f"{cards_words(cards)}: {number}; the model fits each card{joined}"


def replica_words(cards: Sequence[OwnedCard], mesh: Mesh, plan: Choice, *, is_fast: bool, is_apart: bool) -> str:
    """Why and how these cards share a replica, and what each gives."""
    gigabytes = f"{plan.expected_bytes / 1e9:.1f} of {plan.usable_bytes / 1e9:.1f} GB a card"
    if plan.missing_bytes:
        gigabytes = f"the model is not expected to fit; {plan.missing_bytes / 1e9:.1f} GB are missing on each card"
    kinds = {card.card.name for card in cards}
    notes = [
        "joined by fast links" if is_fast else "",
        "values between cards go through the machine's memory, which is slow" if is_apart else "",
        "each step waits for the slowest card" if len(kinds) > 1 else "",
    ]
    told = ", ".join(filter(None, (gigabytes, *notes)))
    return f"{cards_words(cards)}: one replica{_mesh_words(mesh)}; {told}"


def _mesh_words(mesh: Mesh) -> str:
    """How the ranks of a mesh share the replica, as the end of a sentence."""
    parts = [
        f", the products of each layer over {mesh.tensor} cards" if mesh.tensor > 1 else "",
        f", parameters over {mesh.shard}" if mesh.shard > 1 else "",
        f", each sequence over {mesh.context}" if mesh.context > 1 else "",
    ]
    return "".join(parts)
