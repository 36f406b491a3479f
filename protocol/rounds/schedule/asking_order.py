"""The order in which a peer asks others for what several of them have. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from protocol.ids import PeerId
from protocol.rounds.lineage.quorum import by_hash


def asking_order(me: PeerId, peers: Iterable[PeerId], salt: bytes = b"") -> tuple[PeerId, ...]:
    """These peers, each once, by a hash of both sides. So no peer is the first that all others ask.

    Args:
        salt: names the thing that is asked for, if one peer asks for many: each of them is then asked for in another order.
    """
    prefix = b"ask " + me.encode() + b" " + salt + b" "
    return by_hash(prefix, frozenset(peers))
