"""How often peers report, so that the host hears as many reports a second at any number of peers. Pure."""

from __future__ import annotations

from typing import Final

REPORTS_PER_S: Final = 50.0
"""Most reports a second that the host asks for."""

IDLE_EVERY_S: Final = 10.0
"""Seconds between two reports of a peer in a small run, while only moving numbers change."""

WAITING_EVERY_S: Final = 2.0
"""Seconds between two reports of a peer that waits for the start or for the end: people wait for the next step then."""

MAX_AGAIN_S: Final = 3600.0
"""The longest time until the next report that a host may ask for: 100,000 peers take 2,000 s."""

MISSED_REPORTS: Final = 3.0
"""A peer is silent once so many of its reports did not come."""


def again_in_s(num_peers: int, *, is_under_way: bool) -> float:
    """Seconds until a peer reports again, in a run with so many live peers. `is_under_way`: the run trains."""
    least_s = IDLE_EVERY_S if is_under_way else WAITING_EVERY_S
    return max(least_s, num_peers / REPORTS_PER_S)


def turn_s(num_peers: int, again_s: float, *, is_under_way: bool) -> float:
    """Seconds between two reports of a peer that has something new, but nothing urgent. `again_s`: the host's last word; 0 from an
    older host.
    """
    return num_peers / REPORTS_PER_S if is_under_way else again_s


def patience_s(num_peers: int) -> float:
    """Seconds without a report after which a peer counts as silent, if it was told to report again as `again_in_s` says."""
    return MISSED_REPORTS * again_in_s(num_peers, is_under_way=True)
