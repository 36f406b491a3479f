"""Whether a peer moves to another stage now, as it decides by itself from what everybody sees (protocol/pipeline/placement.py).

Nobody orders a move. Peers see who is at which stage, with little delay and alike, and each works out in which order those would go
for whom it is worth it. When nothing has changed for a while the first one goes, at the end of its round; who comes after it has its
turn only if nothing has changed even then: the first one has no room for that stage, or will not. So no two go for one reason.
Those who serve where others are free wait until all others have had their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId
from protocol.pipeline.placement import Move, Placement, next_move

SETTLED_S: Final = 60.0
"""So long everybody must be where they are: a record of the directory needs less to come, and a peer that starts again to be back."""

TURN_S: Final = 30.0


@dataclass(frozen=True)
class Watch:
    """What a peer remembers.

    Attributes:
        places: the stage of each peer when it looked last.
        since_s: since when nobody has come, gone or moved, monotonic.
    """

    places: Mapping[PeerId, int] = field(default_factory=lambda: MappingProxyType({}))
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What is remembered, our move when it is our turn, and why or why not.

    Attributes:
        num_before: for how many others it may be worth it, who go before us. A peer that serves goes at the end of a round; who comes
            after it lets so many ends pass, or all whose turn was in that round would go together.
    """

    watch: Watch
    move: Move | None
    reason: str
    num_before: int = 0


def look(watch: Watch, placement: Placement, me: PeerId, now_s: float, *, is_needed: bool) -> Looked:
    """Look once; more often than every turn.

    Args:
        placement: as it is seen here, ourselves in it.
        is_needed: others may be free to go, and we are not: we serve a lane, or keep the run's lanes.
    """
    places = {server.peer: server.stage for server in placement.servers}
    if places != watch.places:
        return Looked(Watch(MappingProxyType(places), now_s), None, "who is at which stage has just changed")
    found = _own_place(placement, me)
    if found is None:
        return Looked(watch, None, "no move of ours is worth it")
    place, num_others, move = found
    turn = place + (len(places) if is_needed else 0)
    left_s = watch.since_s + SETTLED_S + turn * TURN_S - now_s
    if left_s > 0:
        return Looked(watch, None, f"to stage {move.stage} in {left_s:.0f} s, if nobody else moves: {move.reason}")
    return Looked(watch, move, move.reason, num_others if is_needed else place)


def _own_place(placement: Placement, me: PeerId) -> tuple[int, int, Move] | None:
    """How many would go before us, how many others would at all, and our move; None where none of ours is worth it."""
    own: tuple[int, Move] | None = None
    staying = frozenset[PeerId]()
    while (move := next_move(_without_moves(placement, staying))) is not None:
        own = (len(staying), move) if move.peer == me else own
        staying |= {move.peer}
    return None if own is None else (own[0], len(staying) - 1, own[1])


def _without_moves(placement: Placement, staying: Iterable[PeerId]) -> Placement:
    """The same, but these stay where they are."""
    stay = frozenset(staying)
    return replace(
        placement, servers=tuple(replace(s, is_moving=s.is_moving or s.peer in stay) for s in placement.servers)
    )
