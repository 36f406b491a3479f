"""Whether a peer moves to another stage now, as it decides by itself from what everybody sees
(protocol/pipeline/placement/placement.py).

Nobody orders a move. Peers see who is at which stage, with little delay and alike, and each works out in which order those would go
for whom it is worth it. When nothing has changed for a while the first one goes, at the end of its round; who comes after it has its
turn only if nothing has changed even then: the first one has no room for that stage, or will not. So no two go for one reason.
Those who serve where others are free wait until all others have had their turn.

What a peer's own line and start were measured to be others do not see. So that decides whether a peer goes, and when nobody's turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, StageMove, next_move

SETTLED_S: Final = 60.0
"""So long everybody must be where they are: a record of the directory needs less to come, and a peer that starts again to be back."""

TURN_S: Final = 30.0


@dataclass(frozen=True)
class PlacementHistory:
    """What a peer remembers.

    Attributes:
        places: the stage of each peer when it looked last.
        since_s: since when nobody has come, gone or moved, monotonic.
    """

    places: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """What is remembered, our move when it is our turn, and why or why not.

    Attributes:
        num_before: for how many others it may be worth it, who go before us. A peer that serves goes at the end of a round; who comes
            after it lets so many ends pass, or all whose turn was in that round would go together.
    """

    watch: PlacementHistory
    move: StageMove | None
    reason: str
    num_before: int = 0


def decide(
    watch: PlacementHistory,
    placement: Placement,
    me: PeerId,
    now_s: float,
    *,
    is_needed: bool,
    as_measured: Placement | None = None,
) -> MoveDecision:
    """Look once; more often than every turn.

    Args:
        placement: as everybody sees it, ourselves in it: by it peers have their turns.
        as_measured: with what a move of ours was measured to take, which others do not know: by it we go or stay.
        is_needed: others may be free to go, and we are not: we serve a lane, or keep the run's lanes.
    """
    places = {server.peer: server.stage for server in placement.servers}
    if places != watch.places:
        return MoveDecision(
            PlacementHistory(MappingProxyType(places), now_s), None, "who is at which stage has just changed"
        )
    found = _own_place(placement, me, placement if as_measured is None else as_measured)
    if found is None:
        return MoveDecision(watch, None, "no move of ours is worth it")
    place, num_others, move = found
    turn = place + (len(places) if is_needed else 0)
    left_s = watch.since_s + SETTLED_S + turn * TURN_S - now_s
    if left_s > 0:
        return MoveDecision(
            watch, None, f"to stage {move.stage} in {left_s:.0f} s, if nobody else moves: {move.reason}"
        )
    return MoveDecision(watch, move, move.reason, num_others if is_needed else place)


def _own_place(placement: Placement, me: PeerId, as_measured: Placement) -> tuple[int, int, StageMove] | None:
    """How many would go before us, how many others would at all, and our move; None where none of ours is worth it. For whom it is by
    its own measure alone, which others do not see, has its turn after all others for whom it may be.
    """
    others = [server.peer for server in placement.servers if server.peer != me]
    own = next_move(_without_moves(as_measured, others))
    if own is None:
        return None
    place: int | None = None
    staying = frozenset[PeerId]()
    while (move := next_move(_without_moves(placement, staying))) is not None:
        place = len(staying) if move.peer == me else place
        staying |= {move.peer}
    num_others = len(staying - {me})
    if place is None:
        place = num_others + sum(peer < me for peer in others if peer not in staying)
    return place, num_others, own


def _without_moves(placement: Placement, staying: Iterable[PeerId]) -> Placement:
    """The same, but these stay where they are."""
    stay = frozenset(staying)
    return replace(
        placement, servers=tuple(replace(s, is_moving=s.is_moving or s.peer in stay) for s in placement.servers)
    )
