"""Chooses the cards of a machine that train, by their owner's wish and by their state. Pure. Cards are numbered as in the setting
`gpus` (peer.training.plan.gpus_core.py).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Final

from peer.training.plan.cards_core import Card
from peer.training.plan.gpus_core import ALL, AUTO, LOOK
from peer.training.plan.plan_core import card_words
from protocol.errors import ConfigError, MachineError

NOT_NAMED: Final = "not among --gpus"
"""Why a card is left out whose owner named others."""

TAKEN_SHARE: Final = 0.5
"""A card is left to other programs if they hold more of its memory than this."""


@dataclass(frozen=True, slots=True)
class OwnedCard:
    """A card of the machine, or the CPU as one.

    Attributes:
        number: torch's number; of a process on the CPU the number that its owner gave it.
        uuid: of an NVIDIA card, with its prefix; empty for another device.
        free_bytes: of its memory; None if that is not known.
        celsius: its temperature; None if it is not known.
        problem: why it cannot train, in a few words; empty if it can.
    """

    number: int
    card: Card
    uuid: str = ""
    free_bytes: int | None = None
    celsius: float | None = None
    problem: str = ""

    @property
    def device(self) -> str:
        """Torch's name of it."""
        return f"cuda:{self.number}" if self.card.kind in ("cuda", "rocm") else self.card.kind

    @property
    def words(self) -> str:
        """As "card 1 (RTX 3060, 12 GB)"."""
        return f"card {self.number} ({card_words(self.card)})"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A card that does not train, and why in a few words."""

    card: OwnedCard
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The cards that may train, by their numbers, and those that are left out."""

    cards: tuple[OwnedCard, ...]
    left_out: tuple[LeftOut, ...] = ()


def take(cards: Sequence[OwnedCard], names: Sequence[str], in_use: Container[str] = ()) -> Taken:
    """The cards to train on. A card that its owner named must be usable. Of the others, unusable ones are left out.

    Args:
        cards: all of the machine, by their numbers.
        names: of `parse_gpus`.
        in_use: UUIDs of cards on which other peers of this user train.

    Raises:
        MachineError: a named card is not there, or cannot train.
        ConfigError: two names mean one card.
    """
    if tuple(names) == (AUTO,):
        found = [(card, why_left_out(card, in_use)) for card in cards]
        return Taken(
            tuple(card for card, why in found if not why), tuple(LeftOut(card, why) for card, why in found if why)
        )
    named = list(cards) if tuple(names) == (ALL,) else [_named(cards, name) for name in names]
    for card in named:
        if named.count(card) > 1:
            raise ConfigError(f"--gpus names card {card.number} twice", "each card once", "remove one of its names")
        if why := _why_unusable(card, in_use):
            raise MachineError(
                f"{card.words} cannot train: {why}", "a card that is free", f"{LOOK}, or leave --gpus away"
            )
    others = [card for card in cards if card not in named]
    return Taken(tuple(named), tuple(LeftOut(card, NOT_NAMED) for card in others))


def why_left_out(card: OwnedCard, in_use: Container[str] = ()) -> str:
    """Why a card does not train by itself, in a few words; empty if it does."""
    if why := _why_unusable(card, in_use):
        return why
    held = card.card.memory_bytes - card.free_bytes if card.free_bytes is not None else 0
    if card.card.kind in ("cuda", "rocm") and held > TAKEN_SHARE * card.card.memory_bytes:
        return f"other programs hold {held / 1e9:.1f} GB of its memory"
    return ""


def _why_unusable(card: OwnedCard, in_use: Container[str]) -> str:
    return card.problem or ("another peer trains on it" if card.uuid and card.uuid in in_use else "")


def _named(cards: Sequence[OwnedCard], name: str) -> OwnedCard:
    if name.isdigit():
        found = [card for card in cards if card.number == int(name)]
    else:
        found = [card for card in cards if card.uuid.startswith(name)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(str(card.number) for card in cards) or "none"
    what = f"card {name} is not there" if not found else f"card {name} may be one of {len(found)}"
    raise MachineError(what, f"one of: {there}", f"{LOOK}, or leave --gpus away")
