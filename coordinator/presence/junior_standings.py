"""The standing of each peer that came by the open door. The door keeps it up to date; the tracker asks it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId


class JuniorStandings:
    """Standings of juniors: peers that came by the open door. All other peers are keepers, as everybody is in a run by invite."""

    def __init__(self) -> None:
        self._juniors: Mapping[PeerId, PeerStanding] = MappingProxyType({})

    @property
    def juniors(self) -> Mapping[PeerId, PeerStanding]:
        """The standing of each junior. Another mapping replaces it at each change."""
        return self._juniors

    def take(self, juniors: Mapping[PeerId, PeerStanding]) -> None:
        """Replace all standings."""
        self._juniors = MappingProxyType(dict(juniors))

    def has_vote(self, peer: PeerId) -> bool:
        """Whether a peer may be a founder and may say how good the model is: a keeper."""
        return self._juniors.get(peer, PeerStanding.KEEPER).may_vote
