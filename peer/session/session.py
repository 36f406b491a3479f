"""The resources of one process life of the peer daemon, and those added after admission."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.network.pacing.byte_quota import ByteQuota
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.interfaces import Network
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.traffic.discovery import DirectoryPoller
from peer.holdings.held_parts import OwnParts
from peer.membership.coordinator_client import CoordinatorClient
from peer.membership.credential_cache import CredentialCache
from peer.membership.joining import Membership
from peer.membership.membership_upkeep import MembershipUpkeep
from peer.owner.controls import Controls
from peer.session.leaving import Departure
from peer.settings.config import PeerConfig
from peer.status.reporting import Reporter
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources
from peer.training.worker_process import EarlyWorker
from protocol.identity.envelope import first_sequence, seal
from protocol.identity.identity import Identity
from protocol.identity.identity_file import HeldIdentity
from protocol.identity.invite import Invite
from protocol.identity.standing import PeerStanding
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN
from protocol.rounds.messages.messages import Member

MESSAGE_LIFE_S: Final = 120.0
DATA_SETS_A_DAY: Final = 2
"""A stranger that lost its disk may fetch its text again."""

DAY_S: Final = 86_400.0


class SequenceNumbers:
    """Sequence numbers of this process life. The session number was saved on disk, so none repeats."""

    def __init__(self, session: int) -> None:
        self._next = first_sequence(session)

    def take(self) -> int:
        """The next number."""
        self._next += 1
        return self._next

    async def take_soon(self) -> int:
        """The next number, for async callers."""
        return self.take()


@dataclass(frozen=True)
class PeerSession:
    """The resources of one process life of the daemon."""

    config: PeerConfig
    invite: Invite
    held: HeldIdentity
    folder: Path
    incarnation: int
    session: int
    sequence: SequenceNumbers
    clock: SystemClock
    sources: Sources
    worker: EarlyWorker | None
    controls: Controls
    departure: Departure = field(default_factory=Departure)

    @property
    def board(self) -> StatusBoard:
        """The board that the services write to."""
        return self.sources.board

    @property
    def identity(self) -> Identity:
        """This peer's identity."""
        return self.held.identity

    @property
    def member(self) -> Member:
        """This peer as a member of the run."""
        return Member(self.identity.peer_id, self.incarnation, self.session)

    async def sealed(self, payload: bytes) -> bytes:
        """A payload signed for the round channel."""
        expires_ms = int((self.clock.unix_s() + MESSAGE_LIFE_S) * 1000)
        return seal(self.identity, ROUND_DOMAIN, self.invite.run_id, self.sequence.take(), expires_ms, payload)


@dataclass(frozen=True)
class JoinedSession:
    """The resources added once the run has admitted us and the network is up."""

    life: PeerSession
    membership: Membership
    client: CoordinatorClient
    network: Network
    roster: CredentialCache
    reporter: Reporter
    is_outbound_only: bool
    experts: OwnParts
    poller: DirectoryPoller

    @property
    def verifier(self) -> Ed25519Verifier:
        """Checks signatures, and who was admitted by the run's authority."""
        return Ed25519Verifier(self.life.invite.ca_certificate_der)


def data_quota(joined: JoinedSession) -> ByteQuota:
    """How much of the data set strangers may fetch from this peer in a day."""

    def is_stranger(peer: PeerId) -> bool:
        return joined.roster.standings.get(peer) is PeerStanding.STRANGER

    num_bytes = sum(entry.num_bytes for entry in joined.membership.dataset.files)
    return ByteQuota(DATA_SETS_A_DAY * num_bytes, DAY_S, is_stranger, joined.life.clock.monotonic_s)


def upkeep_of(joined: JoinedSession) -> MembershipUpkeep:
    """The upkeep of a joined peer's credential and of what it saves."""
    life, membership = joined.life, joined.membership
    return MembershipUpkeep(
        folder=life.folder,
        roster=joined.roster,
        identity=life.identity,
        run_id=membership.run_id,
        ca_certificate_der=life.invite.ca_certificate_der,
        clock=life.clock,
        offload=ThreadOffload(),
    )
