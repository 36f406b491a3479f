"""Why no peer trains in a run under way, in one sentence for every screen and page. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

NOBODY_HERE: Final = "no peer is here; the run goes on when one comes back"
ALL_PAUSED: Final = "each peer that is here is paused"


def is_here(row: Mapping[str, object]) -> bool:
    """Whether a peer takes part in the run now. `row`: as /api/status has it."""
    return row.get("state") not in ("left", "silent") and row.get("is_banned") is not True


def why_waiting(rows: Iterable[Mapping[str, object]], num_away: int) -> str:
    """Why no peer trains: none of those that ever came is here, or all are paused; empty while one may train.

    Args:
        rows: the peers that this process of the host heard, as /api/status has them.
        num_away: contributors that it did not hear.
    """
    peers = list(rows)
    here = [row for row in peers if is_here(row)]
    if not here:
        return NOBODY_HERE if peers or num_away else ""
    return ALL_PAUSED if all(row.get("state") == "paused" for row in here) else ""
