"""Extra duties after a commit: one member measures its held-out loss, or a few, and two upload it to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

from protocol.ids import PeerId, RunId, UnitName
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.evaluators import evaluator_order, is_turn_of

NUM_BRINGERS: Final = 2
"""Two, because one may be gone or slow just after the commit."""


@dataclass(frozen=True, slots=True)
class EvaluationTurns:
    """Whether it is this peer's turn to measure. `is_here`: whether a peer is heard now; those that are not are stood in for. `seats`:
    the number of peers that measure each whole commit.
    """

    run_id: RunId
    me: PeerId
    is_here: Callable[[PeerId], bool]
    seats: int = 1

    def is_ours(self, unit: UnitName, index: int, peers: Iterable[PeerId], seats: int = 1) -> bool:
        """Whether we measure the unit's loss at commit `index`, of the peers that can."""
        return is_turn_of(self.me, evaluator_order(self.run_id, unit, index, peers), self.is_here, seats)

    def is_commit_ours(self, link: ChainLink) -> bool:
        """Whether we measure the loss of a whole commit, and the prose beside it."""
        return self.is_ours(link.unit, link.index, link.roster, self.seats)


def place_to_bring(link: ChainLink, peer: PeerId) -> bytes:
    """Sort key by hash; the lowest comes first."""
    return sha256(b"bring" + link.commit + peer.encode()).digest()


def is_bringer(link: ChainLink, me: PeerId) -> bool:
    """Whether we are one of the two members, chosen by hash, that upload a commit to the host at once. Certificates are large and
    the host needs only one copy. It asks the other members for a commit that nobody uploaded.
    """
    return me in sorted(link.roster, key=partial(place_to_bring, link))[:NUM_BRINGERS]
