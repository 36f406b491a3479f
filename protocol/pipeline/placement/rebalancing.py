"""Whether a peer moves to another stage now. Each peer decides for itself from the shared view
(protocol/pipeline/placement/placement.py).

Nobody orders a move. All peers see the stages of all peers, with little delay, and compute the same order of the peers for which
a move pays off. When nothing has changed for a while, the first one moves at the end of its round. A later one gets its turn only
if nothing has changed even then: the first one has no memory for that stage, or chooses to stay. So no two peers move for the
same reason. Peers that serve wait until all free peers have had their turn.

Other peers do not see the measured costs of a peer's own line and start. So those decide whether this peer moves, but not the
turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId
from protocol.pipeline.placement.placement import Placement, StageMove, next_move

SETTLED_S: Final = 60.0
"""How long placements must be unchanged. A directory record arrives, and a restarted peer is back, within this time."""

TURN_S: Final = 30.0


@dataclass(frozen=True)
class PlacementHistory:
    """A peer's memory of placements.

    Attributes:
        places: the stage of each peer at the last look.
        since_s: time since which no peer has joined, left or moved, monotonic.
    """

    places: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MoveDecision:
    """The new history, our move if it is our turn, and why or why not.

    Attributes:
        num_before: how many other peers come before us. A serving peer moves at the end of a round. It lets this many round ends
            pass, or all peers whose turn fell in that round would move together.
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
    """Decide now. Call it more often than turns change.

    Args:
        placement: the shared view, including this peer. It defines the turns.
        as_measured: the view with our own measured costs, which others do not know. It decides whether we move.
        is_needed: this peer serves a lane or keeps the run's lanes, while others may be free to move.
    """
    places = {server.peer: server.stage for server in placement.servers}
    if places != watch.places:
        return MoveDecision(
            PlacementHistory(MappingProxyType(places), now_s), None, "the peers' stages have just changed"
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
    """(number of peers that move before us, number of other peers that move at all, our move); None if no move of ours pays off. A
    peer for which a move pays off only by its own measurements has its turn last.
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
    """The same placement with these peers fixed."""
    stay = frozenset(staying)
    return replace(
        placement, servers=tuple(replace(s, is_moving=s.is_moving or s.peer in stay) for s in placement.servers)
    )
