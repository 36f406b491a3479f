"""Extra duties after a commit: one member measures its held-out loss, two upload it to the host."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Final

from protocol.ids import PeerId
from protocol.rounds.lineage.chain import ChainLink

NUM_BRINGERS: Final = 2
"""Two, because one may be gone or slow just after the commit."""


def evaluator_of(link: ChainLink) -> PeerId:
    """The member of the commit's roster, chosen by hash, that measures the commit's held-out loss."""
    return min(link.roster, key=partial(place_to_evaluate, link))


def place_to_evaluate(link: ChainLink, peer: PeerId) -> bytes:
    """Sort key by hash; the lowest comes first."""
    return sha256(b"evaluate" + link.commit + peer.encode()).digest()


def is_bringer(link: ChainLink, me: PeerId) -> bool:
    """Whether we are one of the two members, chosen by hash, that upload a commit to the host at once. Certificates are large and
    the host needs only one copy. It asks the other members for a commit that nobody uploaded.
    """
    return me in sorted(link.roster, key=partial(place_to_evaluate, link))[:NUM_BRINGERS]
