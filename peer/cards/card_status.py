"""Each card of a peer as its owner sees it: a line a card. Nothing for a peer with one device, whose status tells it all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from peer.machine.machine import MachineUse, WatchedCard
from peer.training.plan.card_state import CardState
from peer.training.plan.layout_core import LayoutChoice
from peer.training.plan.owned_cards_core import OwnedCard
from peer.training.plan.plan_core import card_words
from protocol.tables import in_bytes, whole


class CardStatus(BaseModel):
    """One card.

    Attributes:
        number: torch's, as in the setting `gpus`.
        name: its name and memory.
        replica: index of the replica that it trains.
        tokens_per_s: its part of its replica's speed; `share` is its part of all tokens that were trained, 0 to 1.
        expected_bytes: of its memory with its plan, None before that is known. `used_bytes`: the most that training took, None where
            it is not measured.
        celsius: its temperature, None if it is not known.
        mfu: model FLOPs utilisation, 0 to 1; None where the peak is not known.
        plan: how it trains.
        left_out: why it does not train; empty if it does.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    name: str
    replica: int = 0
    tokens_per_s: float = 0.0
    share: float = 0.0
    expected_bytes: int | None = None
    used_bytes: int | None = None
    celsius: int | None = None
    mfu: float | None = None
    plan: str = ""
    left_out: str = ""

    @property
    def line(self) -> str:
        """The card in one line."""
        if self.left_out:
            return f"{self.name}: left out, {self.left_out}"
        used = in_bytes(self.used_bytes) if self.used_bytes is not None else "memory not measured"
        expected = f" of {in_bytes(self.expected_bytes)} expected" if self.expected_bytes else ""
        parts = [
            f"{whole(self.tokens_per_s)} tokens/s",
            f"{self.share:.0%} of the tokens",
            f"{used}{expected}",
            f"{self.celsius} C" if self.celsius is not None else "",
            f"{self.mfu:.0%} of its peak" if self.mfu is not None else "",
        ]
        return f"{self.name}: {', '.join(filter(None, parts))}"


def watched_cards(choice: LayoutChoice | None) -> tuple[WatchedCard, ...]:
    """The cards whose heat is watched one by one; none for a peer with one card, which is found by its training process."""
    placed = _placed(choice)
    if len(placed) < 2:
        return ()
    return tuple(
        WatchedCard(card.uuid, f"card {card.number}", world) for (world, _), card in placed.items() if card.uuid
    )


def card_statuses(
    choice: LayoutChoice | None, states: Sequence[CardState], uses: Mapping[str, MachineUse]
) -> tuple[CardStatus, ...]:
    """All cards, by their numbers; none where there is one and none is left out.

    Args:
        states: as the trainer tells them.
        uses: readings of the driver, by UUID.
    """
    placed = _placed(choice)
    if choice is None or len(placed) + len(choice.left_out) < 2:
        return ()
    total = sum(state.tokens_trained for state in states)
    told = {(state.world, state.rank): state for state in states}
    at_work = [_of(card, place, told.get(place), total, uses.get(card.uuid)) for place, card in placed.items()]
    others = [
        CardStatus(number=out.card.number, name=card_words(out.card.card), left_out=out.reason)
        for out in choice.left_out
    ]
    return tuple(sorted([*at_work, *others], key=lambda status: status.number))


def _placed(choice: LayoutChoice | None) -> dict[tuple[int, int], OwnedCard]:
    """The cards by replica and rank."""
    worlds = () if choice is None else choice.cards
    return {(world, rank): card for world, cards in enumerate(worlds) for rank, card in enumerate(cards)}


def _of(
    card: OwnedCard, place: tuple[int, int], state: CardState | None, total: float, use: MachineUse | None
) -> CardStatus:
    report = state.report if state is not None else None
    speed = state.tokens_per_s if state is not None else 0.0
    return CardStatus(
        number=card.number,
        name=card_words(card.card),
        replica=place[0],
        tokens_per_s=speed,
        share=state.tokens_trained / total if state is not None and total else 0.0,
        expected_bytes=report.expected_bytes if report is not None else None,
        used_bytes=(report.used_bytes or None) if report is not None else None,
        celsius=use.gpu_celsius if use is not None else None,
        mfu=report.mfu(speed) if report is not None else None,
        plan=report.reason if report is not None else "",
        left_out=state.left_out if state is not None else "",
    )


def rows_of_cards(cards: Sequence[CardStatus]) -> Iterator[tuple[str, str]]:
    """A labelled row a card."""
    return ((f"card {card.number}", card.line) for card in cards)
