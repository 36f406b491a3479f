"""One card of a peer as its owner sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from peer.training.plan.card_report import CardReport


@dataclass(frozen=True, slots=True)
class CardState:
    """A card that trains, or one that is left out.

    Attributes:
        device: torch's name, as "cuda:1".
        uuid: of an NVIDIA card; empty for another device, None before its process has named it.
        world: index of the replica that it trains; `rank` is its place there.
        tokens_per_s: of its replica, divided by the replica's cards.
        tokens_trained: likewise, since the start.
        report: how it trains; None before its process has told it.
        left_out: why it does not train, in a few words; empty if it does.
    """

    device: str
    uuid: str | None = None
    world: int = 0
    rank: int = 0
    tokens_per_s: float = 0.0
    tokens_trained: float = 0.0
    report: CardReport | None = None
    left_out: str = ""
