"""The standing of a peer: how far the run trusts it. The host signs it with the peer's credential.

A credential names its standing in one more URI, and a keeper's names none. So credentials of a run by invite are as ever, and a
record that shows a credential proves the standing of that round, years later and without the host. A new standing comes with a new
credential, which spreads as all credentials do: in the directory, and to each peer that asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from protocol.ids import PeerId

STANDING_SCHEME: Final = "potluck:standing:"


class PeerStanding(IntEnum):
    """The rights of a peer in rounds, the least first. Everybody may contribute.

    A stranger came by the open door. A member was a stranger whose work was counted for some days. A keeper came with a secret invite.
    """

    STRANGER = 1
    MEMBER = 2
    KEEPER = 3

    @property
    def may_reduce(self) -> bool:
        """Whether the peer may sum slices of the model for others."""
        return self >= PeerStanding.MEMBER

    @property
    def may_vote(self) -> bool:
        """Whether the peer may vote, be among the next voters, and lead rounds."""
        return self >= PeerStanding.KEEPER

    @property
    def word(self) -> str:
        """As screens and credentials have it."""
        return self.name.lower()


def standing_uris(standing: PeerStanding) -> tuple[str, ...]:
    """The URIs of a credential for this standing; none for a keeper."""
    return () if standing is PeerStanding.KEEPER else (f"{STANDING_SCHEME}{standing.word}",)


def standing_in(uris: Iterable[str]) -> PeerStanding:
    """The standing that a credential's URIs name: of several the least, and a stranger's for a word that is not known here."""
    words = [uri.removeprefix(STANDING_SCHEME) for uri in uris if uri.startswith(STANDING_SCHEME)]
    known = {standing.word: standing for standing in PeerStanding}
    return min((known.get(word, PeerStanding.STRANGER) for word in words), default=PeerStanding.KEEPER)


ALL_KEEPERS: Final[Mapping[PeerId, PeerStanding]] = MappingProxyType({})
"""The standings of peers that are no keepers, in a run where everybody is one."""


def all_keepers() -> Mapping[PeerId, PeerStanding]:
    """The standings of a run by invite."""
    return ALL_KEEPERS
