"""The contributors of a run as a bounded number of series: the members that are here, and the sum of all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from coordinator.ledger.run_memory import RunPast
from coordinator.presence.presence import PeerEntry
from coordinator.progress.run_view import RunPicture, counted_in, left_out_in
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.identity.names import peer_name
from protocol.ids import PeerId, short
from protocol.rounds.lineage.round_row import Counted

MAX_SERIES: Final = 100
"""Most members with series of their own, those with the most tokens that count."""

OTHERS: Final = "others"
"""The name in the row of all others."""


@dataclass(frozen=True, slots=True)
class PeerSeries:
    """The values of one member, or of all others together (OTHERS, without a peer and without a time).

    Attributes:
        peer: the end of its id.
        silent_s: since its newest report.
        chosen: what it calls itself.
        left_out: share of its newest work that disagreed, 0 to 1; None of all others.
    """

    name: str
    peer: str
    counted: Counted
    silent_s: float | None
    chosen: ChosenName = NONE_CHOSEN
    left_out: float | None = None


def peer_series(picture: RunPicture, past: RunPast, now_s: float) -> Sequence[PeerSeries]:
    """The members that have reported within the last hour and did not leave, then the others, if they contributed at all."""
    counted = dict(counted_in(picture, past))
    here = [peer for peer, entry in picture.peers.items() if entry.report.state != "left"]
    shown = sorted(here, key=lambda peer: (-counted.get(peer, Counted()).tokens, peer))[:MAX_SERIES]
    left_out = left_out_in(picture)
    rows = [
        _row(peer, counted.pop(peer, Counted()), picture.peers[peer], left_out.get(peer, 0.0), now_s)
        for peer in sorted(shown)
    ]
    others = reduce(lambda a, b: Counted(a.tokens + b.tokens, a.rounds + b.rounds), counted.values(), Counted())
    return [*rows, PeerSeries(OTHERS, "", others, None)] if counted else rows


def _row(peer: PeerId, counted: Counted, entry: PeerEntry, left_out: float, now_s: float) -> PeerSeries:
    silent_s, chosen = round(now_s - entry.seen_s, 3), entry.report.chosen
    return PeerSeries(peer_name(peer), short(peer), counted, silent_s, chosen, left_out)
