"""Judges all cards of this machine for `potluck doctor`, where there are several: a finding a card. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peer.checks.machine_core import Finding, Level
from peer.training.plan.gpus_core import check_device, parse_gpus
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import NOT_NAMED, OwnedCard, take
from peer.training.plan.plan_core import card_words
from protocol.errors import PotluckError
from protocol.tables import in_bytes


def card_findings(cards: Sequence[OwnedCard], gpus: str, device: str) -> tuple[Finding, ...]:
    """A line a card, with the number that `--gpus` knows it by, and one for a wish that cannot be met; none for a single card.

    Args:
        gpus, device: the settings.
    """
    names, shown = parse_gpus(gpus), cards if len(cards) > 1 else ()
    try:
        check_device(names, device)
        left = [] if device == "cpu" else take(cards, names).left_out
    except PotluckError as error:
        return (*(_found(card, "") for card in shown), Finding("gpus", Level.FAIL, error.one_line()))
    reasons = {out.card.number: out.reason for out in left}
    return tuple(_found(card, reasons.get(card.number, "")) for card in shown)


def _found(card: OwnedCard, left_out: str) -> Finding:
    facts = [
        card_words(card.card),
        f"{in_bytes(card.free_bytes)} free" if card.free_bytes is not None else "",
        f"{card.celsius:.0f} C" if card.celsius is not None else "",
        card.uuid,
        f"left out: {left_out}" if left_out else "",
    ]
    is_trouble = bool(card.problem) or (bool(left_out) and left_out != NOT_NAMED)
    fix = "end what holds it, or name the cards with --gpus" if is_trouble else ""
    level = Level.WARN if is_trouble else Level.OK
    return Finding(f"card {card.number}", level, ", ".join(filter(None, facts)), fix)


def layout_lines(choice: LayoutChoice) -> Iterable[str]:
    """How several cards would train a run: the layout with its reason, each card with its GB, and those that are left out."""
    if choice.layout.reason:
        yield choice.layout.reason
    for world, plan in zip(choice.cards, choice.plans, strict=bool(choice.plans)):  # of a stage no plans are known yet
        for card in world:
            yield f"{card.words}: {plan.expected_bytes / 1e9:.1f} of {plan.usable_bytes / 1e9:.1f} GB"
    for out in choice.left_out:
        yield f"{out.card.words}: left out, {out.reason}"
    if choice.rival is not None:
        yield f"at the start both are timed; the other way: {choice.rival.layout.reason}"


def layout_finding(choice: LayoutChoice) -> Finding:
    """The layout as a line of the doctor's report."""
    missing = max((plan.missing_bytes for plan in choice.plans), default=0)
    level = Level.WARN if missing else Level.OK
    fix = "join a run of a smaller model, or train with --device cpu" if missing else ""
    return Finding("layout", level, "; ".join(layout_lines(choice)), fix)
