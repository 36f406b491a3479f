"""Which peers have shown a good credential of this run: from directory records, or asked for at the first message.

Rules: R25 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog
import trio

from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import PeerRecord, decode_peer_record, open_record, seal_record
from averaging.network.seams.interfaces import Clock, DirectoryEntry, Network
from peer.membership.saved_membership import lasting
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, TransportError
from protocol.identity.credential import check_credential
from protocol.identity.identity import Signer, Verifier
from protocol.ids import PeerId, RunId, short
from protocol.rounds.lineage.chain import ChainLink

log = structlog.get_logger()

CREDENTIAL_CHANNEL: Final = "credential"
ASK_WITHIN_S: Final = 3.0
MAX_MEMBERS: Final = 4096
HOST_AWAY_S: Final = 600.0
"""Host not heard for so long: nobody can renew a credential. Peers report every few seconds, and a restart of it takes a minute."""


VOTED_WITHIN_COMMITS: Final = 64
"""Who voted on one of so many newest commits is relied on while the host is away. A peer that is restarted falls out of the roster
for a round or two; taken for a stranger then, it would be shut out until the host is back, and so one after the other.
"""


def recent_voters(lineage: Sequence[ChainLink]) -> frozenset[PeerId]:
    """Everybody in a roster of the newest commits of a lineage, oldest first."""
    return frozenset().union(*(link.roster for link in lineage[-VOTED_WITHIN_COMMITS:]))


class CredentialCache:
    """Credentials checked by this peer. The coordinator is trusted as the run's own host.

    `host_heard_s` is when it was heard last before this process, unix time; None for just now.
    """

    def __init__(
        self,
        run_id: RunId,
        ca_certificate_der: bytes,
        coordinator: PeerId,
        own_credential: bytes,
        verifier: Verifier,
        clock: Clock,
        host_heard_s: float | None = None,
        own_tls_key_pem: bytes = b"",
    ) -> None:
        self._run_id = run_id
        self._ca = ca_certificate_der
        self._coordinator = coordinator
        self._own = own_credential
        self._own_tls_key_pem = own_tls_key_pem
        self._verifier = verifier
        self._clock = clock
        self._valid_until_s: dict[PeerId, float] = {}
        self._values: dict[PeerId, bytes] = {}
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._experts: dict[PeerId, tuple[int, ...]] = {}
        self._bulk: dict[PeerId, tuple[BulkAddress, ...]] = {}
        self.own_experts: tuple[int, ...] = ()
        """What our record says that we hold; `hold` changes it."""

        self.own_changed = trio.Event()
        """Set when our record says something else; then there is another."""

        self.relisted = trio.Event()
        """Set when the directory is next looked at; then there is another."""

        self._network: Network | None = None
        self._voters: Callable[[], Collection[PeerId]] = tuple
        now_s = clock.unix_s()
        # A clock that was set back meanwhile must not make the future the time of its last word.
        self._host_heard_s = now_s if host_heard_s is None else min(host_heard_s, now_s)
        self._host_heard = trio.Event()
        self._banned: frozenset[PeerId] = frozenset()

    def rely_on(self, voters: Callable[[], Collection[PeerId]]) -> None:
        """These vote, or did lately (`recent_voters`): while the host is away, they are judged as of when it was heard last (R25).
        Else a run would end with the last credential that an absent host cannot renew.
        """
        self._voters = voters

    def host_was_heard(self) -> None:
        """The host answered: credentials are judged as of now again."""
        self._host_heard_s = self._clock.unix_s()
        heard, self._host_heard = self._host_heard, trio.Event()
        heard.set()

    @property
    def host_heard_s(self) -> float:
        """When the host was heard last, unix time."""
        return self._host_heard_s

    async def wait_host_heard(self) -> None:
        """Until the host answers the next time."""
        await self._host_heard.wait()

    def is_host_away(self, now_unix_s: float) -> bool:
        """Whether voters are judged as of the host's last word."""
        return now_unix_s - self._host_heard_s > HOST_AWAY_S

    def judged_as_of_s(self, peer: PeerId, now_unix_s: float) -> float:
        """As of when a peer's credential is judged: now, or the host's last word for a voter while it is away. Any thread may ask."""
        is_judged_then = self.is_host_away(now_unix_s) and peer in self._voters()
        return self._host_heard_s if is_judged_then else now_unix_s

    def ban(self, peers: Collection[PeerId]) -> None:
        """The host revoked these: they are no members from now on, whatever they show."""
        self._banned |= frozenset(peers)
        for peer in peers:
            self._valid_until_s.pop(peer, None)
            self._values.pop(peer, None)
            self._addresses.pop(peer, None)
            self._experts.pop(peer, None)
            self._bulk.pop(peer, None)

    def is_banned(self, peer: PeerId) -> bool:
        """Whether the host revoked the peer's credential. Any thread may ask."""
        return peer in self._banned

    @property
    def num_banned(self) -> int:
        """How many bans are known."""
        return len(self._banned)

    def listed(self) -> tuple[PeerId, ...]:
        """The members that the directory names now, the longest listed first."""
        return tuple(peer for peer in self._values if self._is_known(peer))

    def listed_experts(self) -> dict[PeerId, tuple[int, ...]]:
        """What the members that the directory names say that they hold of a run's experts, nothing where they have not decided."""
        return {peer: self._experts.get(peer, ()) for peer in self.listed() if peer != self._coordinator}

    def bulk_addresses(self, peer: PeerId) -> tuple[BulkAddress, ...]:
        """Where the directory says that a member takes direct bulk streams; nothing where it does not say."""
        return self._bulk.get(peer, ())

    def taking_connections(self) -> frozenset[PeerId]:
        """The members that the directory names with an address of theirs."""
        return frozenset(peer for peer, addresses in self._addresses.items() if addresses)

    def serve(self, network: Network) -> None:
        """Show our credential to whoever asks."""
        self._network = network
        network.serve_calls(CREDENTIAL_CHANNEL, self._show)

    async def _show(self, _peer: PeerId, _request: bytes) -> bytes:
        return self._own

    @property
    def own_credential(self) -> bytes:
        """What we show."""
        return self._own

    @property
    def own_tls_key_pem(self) -> bytes:
        """The private key of what we show."""
        return self._own_tls_key_pem

    def show(self, credential: bytes, tls_key_pem: bytes = b"") -> None:
        """Show this one from now on, with its key; our next record carries it."""
        self._own, self._own_tls_key_pem = credential, tls_key_pem

    def hold(self, experts: tuple[int, ...]) -> None:
        """Our record says from now on that we hold these, and whoever publishes it is woken."""
        self.own_experts = experts
        changed, self.own_changed = self.own_changed, trio.Event()
        changed.set()

    def record(
        self,
        signer: Signer,
        sequence: int,
        expires_unix_s: float,
        addresses: Sequence[str] = (),
        bulk: Sequence[BulkAddress] = (),
    ) -> bytes:
        """Our directory record: the credential, where we listen and which experts we hold, signed."""
        payload = PeerRecord(self._own, tuple(addresses), self.own_experts, tuple(bulk)).encode()
        return seal_record(signer, self._run_id, sequence, expires_unix_s, payload)

    def take_records(self, entries: Sequence[DirectoryEntry]) -> tuple[PeerId, ...]:
        """Check what the directory holds; returns the members among it."""
        for entry in entries:
            peer = PeerId(entry.subkey)
            if self._is_known(peer) and self._values.get(peer) == entry.value:
                continue
            try:
                self._take(peer, entry.value)
            except PotluckError as error:
                log.debug("record_refused", peer=short(peer), reason=error.one_line())
        listed = {PeerId(e.subkey) for e in entries}
        self._values = {peer: value for peer, value in self._values.items() if peer in listed}
        self._addresses = {peer: addresses for peer, addresses in self._addresses.items() if peer in listed}
        self._experts = {peer: experts for peer, experts in self._experts.items() if peer in listed}
        self._bulk = {peer: bulk for peer, bulk in self._bulk.items() if peer in listed}
        relisted, self.relisted = self.relisted, trio.Event()
        relisted.set()
        return tuple(PeerId(e.subkey) for e in entries if self._is_known(PeerId(e.subkey)))

    def _take(self, peer: PeerId, value: bytes) -> None:
        envelope = open_record(value, verifier=self._verifier, run_id=self._run_id)
        if envelope.sender != peer:
            raise RemoteProtocolError(f"a record of {short(envelope.sender)} under {short(peer)}", "its own")
        record = decode_peer_record(envelope.payload, peer)
        self._admit(peer, record.credential)
        self._values[peer] = value
        self._addresses[peer] = record.addresses
        self._experts[peer] = record.experts
        self._bulk[peer] = record.bulk

    def lasting_addresses(self) -> tuple[str, ...]:
        """Where those members listen that have been listed for the longest time: a way back in when the host is away."""
        return lasting(address for addresses in self._addresses.values() for address in addresses)

    async def is_member(self, peer: PeerId) -> bool:
        """Whether the peer may take part; one that nobody has announced yet is asked for its credential."""
        return await self.admits(peer) is True

    async def admits(self, peer: PeerId) -> bool | None:
        """As `is_member`; None where the peer cannot be asked, or not yet: that says nothing about it."""
        if peer == self._coordinator or self._is_known(peer):
            return True
        if peer in self._banned:
            return False
        if self._network is None:
            return None
        try:
            self._admit(peer, await self._network.call(peer, CREDENTIAL_CHANNEL, b"", timeout_s=ASK_WITHIN_S))
        except TransportError as error:
            log.debug("credential_not_asked", peer=short(peer), reason=error.one_line())
            return None
        except PotluckError as error:
            log.debug("credential_refused", peer=short(peer), reason=error.one_line())
            return False
        return True

    async def check_member(self, peer: PeerId) -> None:
        """Raises RemoteProtocolError for one that may not take part, in words for whoever it is."""
        if not await self.is_member(peer):
            raise RemoteProtocolError(
                f"{short(peer)} has shown no credential of this run", "a member", "join the run first"
            )

    def _is_known(self, peer: PeerId) -> bool:
        return self._valid_until_s.get(peer, 0.0) > self.judged_as_of_s(peer, self._clock.unix_s())

    def _admit(self, peer: PeerId, credential: bytes) -> None:
        if peer in self._banned:
            raise RefusedError(f"{short(peer)} is banned from this run", "a peer in good standing")
        now_s = self.judged_as_of_s(peer, self._clock.unix_s())
        checked = check_credential(credential, self._ca, peer_id=peer, run_id=self._run_id, now_unix_s=now_s)
        if len(self._valid_until_s) >= MAX_MEMBERS:
            self._valid_until_s = {p: end for p, end in self._valid_until_s.items() if end > now_s}
        self._valid_until_s[peer] = checked.not_after_unix_s
