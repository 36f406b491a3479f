"""What the host's hold and its rewinds allow in the next round. Pure and read-only.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from protocol.rounds.lineage.rewind import counted_only
from protocol.rounds.state import PeerView, RoundState


def held_because(state: RoundState) -> str:
    """Why no round is opened or joined: the host holds the run, and its rewind has not come yet. Empty if one may be. A round that
    has begun on this base goes on to its end.
    """
    hold, is_begun = state.barred.hold, state.open.proposal is not None or state.open.acked is not None
    if hold is None or is_begun or hold.unit != state.config.unit:
        return ""
    return "" if hold.is_followed(state.tree.behind(state.link.commit)) else hold.words


def not_set_back(state: RoundState, views: list[PeerView]) -> list[PeerView]:
    """Those of these peers that the newest rewind lets take part in the next round."""
    allowed = counted_only(state.tree.behind(state.link.commit))
    return views if allowed is None else [view for view in views if view.peer in allowed]
