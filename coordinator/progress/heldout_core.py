"""Points of the held-out curves, made from a peer's measurements. A run of experts has one curve each and one of the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.ledger.ledger import LossPoint
from protocol.host.reports import HeldoutResult
from protocol.ids import PeerId
from protocol.rounds.lineage.chain import ChainLink
from protocol.tensors.expert_schema import expert_unit

WHOLE: Final = "heldout"
"""Kind of the points of the whole model: each document is evaluated by its own expert."""

PROSE: Final = "prose"


def expert_kind(expert: int) -> str:
    """Kind of the points of one expert, evaluated on its own documents."""
    return f"{WHOLE} {expert_unit(expert)}"


def heldout_points(
    peer: PeerId,
    result: HeldoutResult,
    link: ChainLink,
    known: Sequence[LossPoint],
    shares: Sequence[float],
) -> list[LossPoint]:
    """The points that a result adds to the curves.

    Args:
        peer: the peer that measured.
        result: its report. Index and tokens are taken from `link`, not from the report.
        link: the verified commit that the result is about.
        known: the points recorded so far.
        shares: fraction of the held-out bytes of each expert, summing to 1; empty in a run without experts.

    Returns:
        With experts: one point for each expert that has none at this commit yet. Once all have one, also a point of the whole, the
        mean weighted by the shares. Without experts: one point of the whole for each peer. In both cases one point of prose, if the
        result has it.
    """
    tokens = link.total_tokens
    at_hand = {(point.kind, point.peer): point.nats for point in known if point.tokens == tokens}
    points: list[LossPoint] = []

    def add(kind: str, nats: float) -> None:
        points.append(LossPoint(kind, link.index, tokens, nats, peer))

    if shares and result.of_experts:
        losses = {kind: nats for (kind, _), nats in at_hand.items()}
        for expert, nats in result.of_experts:
            kind = expert_kind(expert)
            if expert < len(shares) and kind not in losses:
                losses[kind] = nats
                add(kind, nats)
        each = [losses.get(expert_kind(expert)) for expert in range(len(shares))]
        whole = [share * nats for share, nats in zip(shares, each, strict=True) if nats is not None]
        if points and len(whole) == len(shares) and WHOLE not in losses:
            add(WHOLE, sum(whole))
    elif (WHOLE, peer) not in at_hand:
        add(WHOLE, result.nats)
    if result.prose_nats is not None and points and (PROSE, peer) not in at_hand:
        add(PROSE, result.prose_nats)
    return points
