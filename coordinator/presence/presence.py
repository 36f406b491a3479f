"""One peer's newest report, and questions about all of them. No clock in here: `now_s` is monotonic seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from protocol.host.report_pace import IDLE_EVERY_S, MISSED_REPORTS
from protocol.host.reports import HELPING, PeerReport
from protocol.ids import PeerId

LIVE_S: Final = MISSED_REPORTS * IDLE_EVERY_S
"""A peer of a small run counts as live for this long after its last report."""

FORGET_S: Final = 3600.0
"""Seconds after its last report at which a peer is forgotten."""


@dataclass(frozen=True, slots=True)
class PeerEntry:
    """A peer's newest report, when it came, and since when reports have come without a break (monotonic seconds). Only this process
    of the host counts.

    Attributes:
        patience_s: how long the peer counts as live without another report.
        like: the digest of the report (protocol/host/report_delta.py), empty if it was not taken.
    """

    report: PeerReport
    seen_s: float
    since_s: float | None = None
    patience_s: float = LIVE_S
    like: bytes = b""

    def is_live(self, now_s: float) -> bool:
        """Whether the peer reported recently and has not said goodbye."""
        return now_s - self.seen_s <= self.patience_s and self.report.state != "left"


def live_peers(peers: Mapping[PeerId, PeerEntry], now_s: float) -> Sequence[PeerId]:
    """Peers that reported recently and have not said goodbye, sorted."""
    return sorted(peer for peer, entry in peers.items() if entry.is_live(now_s))


def is_member(report: PeerReport, *, is_known: bool) -> bool:
    """Whether a peer that reports this takes part in the run. A helper does not, and its goodbye is that of an unknown peer."""
    return report.state != HELPING and (is_known or report.state not in ("leaving", "left"))


def heard(
    before: PeerEntry | None, report: PeerReport, now_s: float, patience_s: float = LIVE_S, like: bytes = b""
) -> PeerEntry:
    """The entry of a peer that has just reported. After a long silence or a goodbye it starts again."""
    is_back = before is None or not before.is_live(now_s)
    since_s = now_s if before is None or is_back else before.since_s
    return PeerEntry(report, now_s, since_s, patience_s, like)


def helping(
    before: Mapping[PeerId, float], peer: PeerId, report: PeerReport, now_s: float, patience_s: float = LIVE_S
) -> dict[PeerId, float]:
    """The helpers that peers can connect to, with the time until which each counts as live, after a report of a peer that is no
    member. `patience_s`: how long it may take until its next report.
    """
    kept = {helper: until_s for helper, until_s in before.items() if helper != peer and now_s <= until_s}
    return {**kept, peer: now_s + patience_s} if report.state == HELPING and not report.is_outbound_only else kept


def num_live(helpers_until_s: Mapping[PeerId, float], now_s: float) -> int:
    """How many of these count as live still."""
    return sum(now_s <= until_s for until_s in helpers_until_s.values())


def mean_train_loss(peers: Mapping[PeerId, PeerEntry], now_s: float) -> float | None:
    """Training loss over live peers in nats, weighted by their speed; None before the first step of any peer."""
    total = weight = 0.0
    for entry in peers.values():
        report = entry.report
        if report.loss_nats is not None and report.tokens_per_s > 0 and entry.is_live(now_s):
            total += report.loss_nats * report.tokens_per_s
            weight += report.tokens_per_s
    return total / weight if weight else None
