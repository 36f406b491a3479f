"""What a commit gives its members to do besides: one of them measures its held-out loss, two bring it to the host."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.lineage.chain import ChainLink

NUM_BRINGERS: Final = 2
"""One may be gone, or slow, a moment after the commit."""


def evaluator_of(link: ChainLink) -> PeerId:
    """Who measures the held-out loss of a commit: one member of its roster, by hash."""
    return min(link.roster, key=partial(place_to_evaluate, link))


def place_to_evaluate(link: ChainLink, peer: PeerId) -> bytes:
    """The lowest comes first."""
    return sha256(b"evaluate" + link.commit + peer.encode()).digest()


def is_bringer(link: ChainLink, me: PeerId) -> bool:
    """Whether we are one of the two, by hash, who bring a commit to the host at once. A certificate is 7 kB with 16 members, and twice
    that with 32: the host needs it of one, and asks the others where it has come from none.
    """
    return me in sorted(link.roster, key=partial(place_to_evaluate, link))[:NUM_BRINGERS]
