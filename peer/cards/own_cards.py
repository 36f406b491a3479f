"""The cards that this peer takes of its machine, for as long as it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import structlog
import torch

from averaging.system.machine_limits import read_memory
from peer.cards.all_cards import MachineCards, cpu_cards, only_card_uuid, read_all_cards
from peer.cards.card_locks import CardLocks, lock_folder
from peer.settings.config import PeerConfig
from peer.training.plan.gpus_core import ALL, AUTO, check_device, parse_gpus
from peer.training.plan.layout_core import Links
from peer.training.plan.owned_cards_core import LeftOut, OwnedCard, Taken, take
from protocol.errors import MachineError

log = structlog.get_logger()

_SHARED: Final = "another peer of this user trains on the only card too, so that each is slower"


@dataclass(frozen=True, slots=True)
class OwnCards:
    """The cards to train on.

    Attributes:
        cards: none where the training process finds its only device by itself, or where all are left out.
        left_out: cards that do not train, and why.
        links: of all cards of the machine.
        note: that others train on the only card; empty if none do.
        again: reads the cards anew and takes those that can be had by then. Blocks for seconds. Raises MachineError. None where
            there is nothing to read.
    """

    cards: tuple[OwnedCard, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    links: Links = field(default_factory=Links)
    note: str = ""
    again: Callable[[], OwnCards] | None = field(default=None, compare=False)

    @property
    def are_all_left_out(self) -> bool:
        """Whether the machine has cards, and none of them trains."""
        return bool(self.left_out) and not self.cards


@contextmanager
def own_cards(
    config: PeerConfig,
    device: torch.device,
    read: Callable[[], MachineCards] = read_all_cards,
    num_seen: Callable[[], int] = torch.cuda.device_count,
    only_card: Callable[[], str] = only_card_uuid,
) -> Iterator[OwnCards]:
    """Take the cards that the owner wishes. In the block no other peer of this user takes them.

    A machine with one card, or none, is not asked: its training process finds its device by itself. Several peers may train on an
    only card, each more slowly; peers that see others leave it to them.

    Args:
        device: that the setting `device` means here.
        read: reads all cards. Blocks for seconds.
        num_seen: how many cards torch sees.
        only_card: the UUID of the one card that torch sees, empty if that is not known.

    Raises:
        ConfigError: cards are named that cannot be meant. MachineError: a named card is not there or cannot train.
    """
    names = parse_gpus(config.gpus)
    check_device(names, "cpu" if config.device == "cpu" else "mps" if device.type == "mps" else "cuda")
    is_named, is_auto = names not in ((AUTO,), (ALL,)), names == (AUTO,)
    if config.device == "cpu" and is_named:
        yield OwnCards(cpu_cards([int(name) for name in names], read_memory().total_bytes))
    elif device.type != "cuda" and is_named:
        take((), names)
    elif config.reduce_only or device.type != "cuda":
        yield OwnCards()
    else:
        locks = CardLocks(lock_folder())
        try:
            if is_auto and num_seen() < 2:
                yield OwnCards(note=_shared_words(only_card(), locks))
            else:
                yield _taken(read, names, locks, must_be_card=config.device == "cuda")
        finally:
            locks.close()


def _shared_words(uuid: str, locks: CardLocks) -> str:
    """Take the only card if nobody holds it. Returns what to tell its owner; empty if it was free."""
    try:
        return _SHARED if locks.take([uuid]) else ""
    except MachineError as error:
        log.warning("card_not_locked", reason=error.one_line())
        return ""


def _taken(
    read: Callable[[], MachineCards],
    names: tuple[str, ...],
    locks: CardLocks,
    *,
    must_be_card: bool,
    held: frozenset[str] = frozenset(),
) -> OwnCards:
    """Take what can be had. Of cards that this peer has already (`held`, by UUID or number), what is in their memory is its own."""
    found = read()
    cards = [replace(card, free_bytes=None) if _name(card) in held else card for card in found.cards]
    wanted = take(cards, names)
    in_use = locks.take(card.uuid for card in wanted.cards)
    taken = take(cards, names, in_use)
    for out in taken.left_out:
        log.info("card_left_out", card=out.card.number, name=out.card.card.name, reason=out.reason)
    if not taken.cards and must_be_card:
        raise MachineError(
            f"no card can train: {_reasons(taken)}", "a free card", "see potluck doctor, or train with --device auto"
        )
    again = partial(
        _taken, read, names, locks, must_be_card=must_be_card, held=frozenset(_name(card) for card in taken.cards)
    )
    return OwnCards(taken.cards, taken.left_out, found.links, again=again)


def _name(card: OwnedCard) -> str:
    return card.uuid or str(card.number)


def _reasons(taken: Taken) -> str:
    return "; ".join(f"{out.card.words}: {out.reason}" for out in taken.left_out) or "torch sees none"
