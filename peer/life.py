"""What one process life of the peer daemon has in hand, and what it has once the run let it in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.network.clocks import SystemClock
from averaging.network.seams import Network
from averaging.rounds.membership import Looks
from peer.board import Board
from peer.config import PeerConfig
from peer.controls import Controls
from peer.coordinator_client import CoordinatorClient
from peer.departure import Departure
from peer.joining import Membership
from peer.own_parts import OwnParts
from peer.reporting import Reporter
from peer.roster import Roster
from peer.worker_process import EarlyWorker
from protocol.envelope import first_sequence, seal
from protocol.identity import Ed25519Verifier, Identity
from protocol.identity_file import HeldIdentity
from protocol.invite import Invite
from protocol.rounds.chain import ROUND_DOMAIN
from protocol.rounds.messages import Member

MESSAGE_LIFE_S: Final = 120.0


class SequenceNumbers:
    """Sequence numbers of this process life: the session was counted on disk, so none ever repeats."""

    def __init__(self, session: int) -> None:
        self._next = first_sequence(session)

    def take(self) -> int:
        """The next number."""
        self._next += 1
        return self._next

    async def take_soon(self) -> int:
        """The next number, for callers that would wait for a disk."""
        return self.take()


@dataclass(frozen=True)
class Life:
    """What one process life of the daemon has in hand."""

    config: PeerConfig
    invite: Invite
    held: HeldIdentity
    folder: Path
    incarnation: int
    session: int
    sequence: SequenceNumbers
    clock: SystemClock
    board: Board
    worker: EarlyWorker | None
    controls: Controls
    departure: Departure = field(default_factory=Departure)

    @property
    def identity(self) -> Identity:
        """Who we are."""
        return self.held.identity

    @property
    def member(self) -> Member:
        """As whom we take part."""
        return Member(self.identity.peer_id, self.incarnation, self.session)

    async def sealed(self, payload: bytes) -> bytes:
        """A payload signed for the round channel."""
        expires_ms = int((self.clock.unix_s() + MESSAGE_LIFE_S) * 1000)
        return seal(self.identity, ROUND_DOMAIN, self.invite.run_id, self.sequence.take(), expires_ms, payload)


@dataclass(frozen=True)
class Joined:
    """What there is, too, once the run has let us in and the network is up."""

    life: Life
    membership: Membership
    client: CoordinatorClient
    network: Network
    roster: Roster
    reporter: Reporter
    is_outbound_only: bool
    experts: OwnParts
    looks: Looks
    verifier: Ed25519Verifier = field(default_factory=Ed25519Verifier)
