"""Chooses how a card trains a model, and why: a ladder from fast and large to slow and small."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peer.training.plan.card_plan import CardPlan, Precision
from peer.training.plan.cards_core import Card, native_precision
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import ModelConfig

Fit = Literal["auto", "fast", "small", "smallest"]
"""How much memory to spare: as the card needs, none, or more than it needs."""

Switch = Literal["auto", "on", "off"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """The volunteer's own choices. The card decides everything else.

    Attributes:
        most_bytes: of the card's memory, 0 for all of it.
    """

    fit: Fit = "auto"
    precision: Precision | Literal["auto"] = "auto"
    compiles: Switch = "auto"
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """A plan, its reason in one sentence, and the bytes of the card that it is expected to take with one sequence at a time."""

    plan: CardPlan
    reason: str
    expected_bytes: int


def choose(card: Card, model: ModelConfig, inner: InnerSection, wishes: Wishes) -> Choice:
    """The fastest plan that fits the card."""
    precision = native_precision(card) if wishes.precision == "auto" else wishes.precision
    return Choice(CardPlan(precision=precision), f"{card.name}: {precision}", 0)
