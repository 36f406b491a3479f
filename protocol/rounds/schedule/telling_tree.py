"""The tree in which news of a commit goes through many peers: nobody sends it to more than a few. Pure.

Each commit puts all peers at places of its own, by hash. The first digit of a place names one of FAN_OUT arcs, the next digit a part
of that arc, and so on. The first teller tells one peer in each other arc, one in each other part of its own arc, and so on to the
part in which it stands alone. A peer that was told does the same inside the part that it shares with no earlier teller. So peers need
not agree on who is here: a peer that others take for dead is missed, and those near it with it. They hear of the commit by heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Final

from protocol.ids import CommitId, PeerId

FAN_OUT: Final = 8
"""Parts of each arc. Among N peers one sends about (FAN_OUT - 1) * log(N) / log(FAN_OUT) messages at most."""

TREE_FROM: Final = 16
"""Others, from more of which on a commit goes down a tree. The certificate reaches fewer in one step from its leader."""

_DIGIT_BITS: Final = FAN_OUT.bit_length() - 1
_PLACE_BITS: Final = 256 - 256 % _DIGIT_BITS


def told_by(
    me: PeerId,
    others: Collection[PeerId],
    commit: CommitId,
    *,
    teller: PeerId | None = None,
    silent: Collection[PeerId] = (),
) -> tuple[PeerId, ...]:
    """The peers that we tell of a commit, in the order of ids.

    Args:
        others: everybody who has to hear of it, as far as we know; at most some thousands.
        teller: the peer that told us; None if the news is ours.
        silent: those of `others` that tell nobody. Each is told by a peer near it.
    """
    places = {peer: _place(commit, peer) for peer in others if peer != me}
    if len(places) <= TREE_FROM:
        return tuple(sorted(places)) if teller is None else ()
    mine = _place(commit, me)
    depth = 0 if teller is None else _num_shared(mine, _place(commit, teller)) + 1
    parts: dict[tuple[int, int], list[PeerId]] = {}
    for peer, place in places.items():
        shared = _num_shared(mine, place)
        if shared >= depth:
            parts.setdefault((shared, _digit(place, shared)), []).append(peer)
    told: list[PeerId] = []
    for peers in parts.values():
        tellers = [peer for peer in peers if peer not in silent]
        told += [min(tellers, key=lambda peer: (places[peer], peer))] if tellers else peers
    return tuple(sorted(told))


def draw(commit: CommitId, peer: PeerId) -> bytes:
    """The number by which this commit orders this peer, 32 bytes."""
    return sha256(b"tree" + commit + peer.encode()).digest()


def _place(commit: CommitId, peer: PeerId) -> int:
    return int.from_bytes(draw(commit, peer)) >> (256 - _PLACE_BITS)


def _num_shared(one: int, other: int) -> int:
    """Leading digits that two places have in common."""
    return (_PLACE_BITS - (one ^ other).bit_length()) // _DIGIT_BITS


def _digit(place: int, number: int) -> int:
    return place >> max(0, _PLACE_BITS - _DIGIT_BITS * (number + 1)) & (FAN_OUT - 1)
