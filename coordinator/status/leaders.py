"""The leaderboard of an open run: whose work counted most, how much of it was kept, and on how many days. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from coordinator.policy.standing_core import WorkDay, kept_percent
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.identity.names import peer_name
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId

MOST_LEADERS: Final = 50

Leader = Mapping[str, object]
"""One row: name, nickname, team, tokens, kept_percent, num_days, standing."""


def leaders_of(
    days: Mapping[PeerId, Sequence[WorkDay]],
    chosen: Mapping[PeerId, ChosenName],
    standings: Mapping[PeerId, PeerStanding],
) -> list[Leader]:
    """The peers with most credited tokens first. Nicknames and teams are strangers' words: a page has to write them as text.

    Args:
        days: the days of work of each peer.
        standings: of those that are no keepers.
    """
    sums = {peer: sum(day.credited_tokens for day in work) for peer, work in days.items()}
    order = sorted(sums, key=lambda peer: (-sums[peer], peer))[:MOST_LEADERS]
    return [_row(peer, sums[peer], days[peer], chosen.get(peer, NONE_CHOSEN), standings) for peer in order]


def _row(
    peer: PeerId,
    tokens: int,
    work: Sequence[WorkDay],
    chosen: ChosenName,
    standings: Mapping[PeerId, PeerStanding],
) -> Leader:
    return {
        "name": peer_name(peer),
        "nickname": chosen.nickname,
        "team": chosen.team,
        "tokens": tokens,
        "kept_percent": round(kept_percent(work), 1),
        "num_days": sum(1 for day in work if day.credited_tokens),
        "standing": standings.get(peer, PeerStanding.KEEPER).word,
    }
