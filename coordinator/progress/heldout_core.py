"""Points of the held-out curves out of what a peer measured; of a run of experts a curve of each, and one of the whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from coordinator.ledger.ledger import LossPoint
from protocol.host.reports import HeldoutResult
from protocol.ids import PeerId
from protocol.rounds.lineage.chain import ChainLink
from protocol.tensors.expert_schema import expert_unit

WHOLE: Final = "heldout"
"""The kind of the points of the whole model: each document by its expert."""

PROSE: Final = "prose"


def expert_kind(expert: int) -> str:
    """The kind of the points of one expert: of its documents, by it."""
    return f"{WHOLE} {expert_unit(expert)}"


def heldout_points(
    peer: PeerId,
    result: HeldoutResult,
    link: ChainLink,
    known: Sequence[LossPoint],
    shares: Sequence[float],
) -> list[LossPoint]:
    """What a result adds to the curves.

    Args:
        peer: who measured.
        result: as it says. Index and tokens are not taken from it, but from `link`.
        link: the verified commit that it is about.
        known: the points that there are.
        shares: of each expert in the bytes of held-out text, summing to 1; none in a run without experts.

    Returns:
        In a run of experts a point for each that nobody has measured at this commit, and as soon as there is one of all, the whole's:
        their mean, weighted by their shares. Else a point of the whole, one for each peer. Of prose one, where it was measured.
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
