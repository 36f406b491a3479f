"""The cards of one replica, as its processes tell of them and its daemon keeps it."""

from __future__ import annotations

from collections.abc import Sequence

from peer.training.plan.card_report import CardReport
from peer.training.plan.card_state import CardState
from peer.training.supervision.ends_core import card_words


class CardsTold:
    """The cards of one replica, by rank.

    Args:
        devices: torch's names, one for each rank.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._uuids: list[str | None] = [None] * len(self.devices)
        self._reports: list[CardReport | None] = [None] * len(self.devices)

    def take(self, rank: int, uuid: str | None, report: CardReport | None) -> None:
        """A running process tells of its card; None for nothing new."""
        self._uuids[rank] = uuid if uuid is not None else self._uuids[rank]
        self._reports[rank] = report or self._reports[rank]

    def states(self, tokens_per_s: float, tokens_trained: int) -> tuple[CardState, ...]:
        """Each card, with its share of what the replica does."""
        num_cards = len(self.devices)
        return tuple(
            CardState(
                device=device,
                uuid=self._uuids[rank],
                rank=rank,
                tokens_per_s=tokens_per_s / num_cards,
                tokens_trained=tokens_trained / num_cards,
                report=self._reports[rank],
            )
            for rank, device in enumerate(self.devices)
        )

    def named(self, rank: int, reason: str) -> str:
        """The reason with the card that gave it, where there are several."""
        return f"{card_words(self.devices[rank], rank)}: {reason}" if len(self.devices) > 1 else reason
