"""Peers with a valid credential of this run, learned from directory records or asked for at the first message.

Rules: R25 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog
import trio

from averaging.network.seams.bulk_address import BulkAddress
from averaging.network.seams.directory import PeerRecord, decode_peer_record, open_record, seal_record
from averaging.network.seams.interfaces import Clock, DirectoryEntry, Network
from peer.membership.saved_membership import lasting
from protocol.errors import PotluckError, RefusedError, RemoteProtocolError, TransportError
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.identity.credential import check_credential, issued_standing
from protocol.identity.identity import Signer, Verifier
from protocol.identity.names import peer_name
from protocol.identity.standing import ALL_KEEPERS, PeerStanding
from protocol.ids import PeerId, RunId, short
from protocol.rounds.lineage.chain_link import ChainLink

log = structlog.get_logger()

CREDENTIAL_CHANNEL: Final = "credential"
ASK_WITHIN_S: Final = 3.0
MAX_MEMBERS: Final = 4096
HOST_AWAY_S: Final = 600.0
"""The host counts as away after this silence, when nobody can renew a credential. Peers report every few seconds, and a restart of
the host is shorter than this.
"""


VOTED_WITHIN_COMMITS: Final = 64
"""Voters of this many newest commits are relied on while the host is away. A restarted peer misses the roster for a round or two.
Treated as a stranger then, it would be shut out until the host is back; in time this could happen to every peer.
"""


def recent_voters(lineage: Sequence[ChainLink]) -> frozenset[PeerId]:
    """All peers in a roster of the newest commits. `lineage` is ordered oldest first."""
    return frozenset().union(*(link.roster for link in lineage[-VOTED_WITHIN_COMMITS:]))


def known_standings(cache: CredentialCache, me: PeerId, ca_certificate_der: bytes) -> Mapping[PeerId, PeerStanding]:
    """The standings of the peers that are no keepers, as far as the cache knows, and our own if we are none.

    Raises:
        RefusedError: our own credential is not one of this authority.
    """
    own = issued_standing(cache.own_credential, ca_certificate_der)
    return cache.standings if own is PeerStanding.KEEPER else {**cache.standings, me: own}


class CredentialCache:
    """Credentials checked by this peer. The coordinator is trusted as the run's own host.

    `host_heard_s` is when an earlier process last heard the host, unix time; None for just now.
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
        self.standings: Mapping[PeerId, PeerStanding] = ALL_KEEPERS
        """Of the known peers that are no keepers. Another mapping replaces it at each change."""

        self._values: dict[PeerId, bytes] = {}
        self._addresses: dict[PeerId, tuple[str, ...]] = {}
        self._experts: dict[PeerId, tuple[int, ...]] = {}
        self._bulk: dict[PeerId, tuple[BulkAddress, ...]] = {}
        self.own_experts: tuple[int, ...] = ()
        """The experts that our record lists. Changed by `hold`."""

        self.chosen: dict[PeerId, ChosenName] = {}
        """The name and the team that each listed peer chose, for display only."""

        self.own_chosen = NONE_CHOSEN
        """The name in our record. Set before the first one is made."""

        self.own_changed = trio.Event()
        """Set when our record changes; a new event replaces it."""

        self.relisted = trio.Event()
        """Set when the directory is next read; a new event replaces it."""

        self._network: Network | None = None
        self._voters: Callable[[], Collection[PeerId]] = tuple
        now_s = clock.unix_s()
        # The clock may have been set back: the time of the last answer must not lie in the future.
        self._host_heard_s = now_s if host_heard_s is None else min(host_heard_s, now_s)
        self._host_heard = trio.Event()
        self._banned: frozenset[PeerId] = frozenset()
        self._convicted: frozenset[PeerId] = frozenset()

    def rely_on(self, voters: Callable[[], Collection[PeerId]]) -> None:
        """Set the source of voters (`recent_voters`). While the host is away, their credentials are judged as of its last answer
        (R25). Otherwise a run would end when the last credential expires, because an absent host cannot renew it.
        """
        self._voters = voters

    def host_was_heard(self) -> None:
        """The host answered: judge credentials by the present time again."""
        self._host_heard_s = self._clock.unix_s()
        heard, self._host_heard = self._host_heard, trio.Event()
        heard.set()

    @property
    def host_heard_s(self) -> float:
        """When the host was heard last, unix time."""
        return self._host_heard_s

    async def wait_host_heard(self) -> None:
        """Wait for the host's next answer."""
        await self._host_heard.wait()

    def is_host_away(self, now_unix_s: float) -> bool:
        """Whether voters are judged as of the host's last answer."""
        return now_unix_s - self._host_heard_s > HOST_AWAY_S

    def judged_as_of_s(self, peer: PeerId, now_unix_s: float) -> float:
        """The time as of which a peer's credential is judged: now, or the host's last answer for a voter while the host is away.
        Thread-safe.
        """
        is_judged_then = self.is_host_away(now_unix_s) and peer in self._voters()
        return self._host_heard_s if is_judged_then else now_unix_s

    def ban(self, peers: Collection[PeerId], *, by_host: bool = True) -> None:
        """Mark peers that the host revoked. They are not members from now on, whatever credential they present. Peers that their own
        acks convict are banned without the host, which may be away, while this process lives.
        """
        if by_host:
            self._banned |= frozenset(peers)
        else:
            self._convicted |= frozenset(peers)
        for peer in peers:
            self._valid_until_s.pop(peer, None)
            self._values.pop(peer, None)
            self._addresses.pop(peer, None)
            self._experts.pop(peer, None)
            self._bulk.pop(peer, None)

    def is_banned(self, peer: PeerId) -> bool:
        """Whether the host revoked the peer's credential, or its own acks convict it. Thread-safe."""
        return peer in self._banned or peer in self._convicted

    @property
    def num_banned(self) -> int:
        """Number of known bans by the host."""
        return len(self._banned)

    def listed(self) -> tuple[PeerId, ...]:
        """The members that the directory lists now, those listed longest first."""
        return tuple(peer for peer in self._values if self._is_known(peer))

    def listed_experts(self) -> dict[PeerId, tuple[int, ...]]:
        """The experts that each listed member says it holds; empty for a member that has not decided."""
        return {peer: self._experts.get(peer, ()) for peer in self.listed() if peer != self._coordinator}

    def bulk_addresses(self, peer: PeerId) -> tuple[BulkAddress, ...]:
        """The addresses where a member takes direct bulk streams, according to the directory; empty if unknown."""
        return self._bulk.get(peer, ())

    def taking_connections(self) -> frozenset[PeerId]:
        """The listed members that announce an address of their own."""
        return frozenset(peer for peer, addresses in self._addresses.items() if addresses)

    def serve(self, network: Network) -> None:
        """Serve our credential to any peer that asks."""
        self._network = network
        network.serve_calls(CREDENTIAL_CHANNEL, self._show)

    async def _show(self, _peer: PeerId, _request: bytes) -> bytes:
        return self._own

    @property
    def own_credential(self) -> bytes:
        """Our own credential (DER)."""
        return self._own

    @property
    def own_tls_key_pem(self) -> bytes:
        """The private key (PEM) of our credential."""
        return self._own_tls_key_pem

    def show(self, credential: bytes, tls_key_pem: bytes = b"") -> None:
        """Replace our credential and its key. Our next directory record carries the new one."""
        self._own, self._own_tls_key_pem = credential, tls_key_pem

    def hold(self, experts: tuple[int, ...]) -> None:
        """Change the experts that our record lists, and wake its publisher."""
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
        """Our signed directory record: credential, addresses, held experts and the name that our owner chose."""
        payload = PeerRecord(self._own, tuple(addresses), self.own_experts, tuple(bulk), self.own_chosen).encode()
        return seal_record(signer, self._run_id, sequence, expires_unix_s, payload)

    def take_records(self, entries: Sequence[DirectoryEntry]) -> tuple[PeerId, ...]:
        """Check the directory's entries. Returns the members among them."""
        for entry in entries:
            peer = PeerId(entry.subkey)
            if self._is_known(peer) and self._values.get(peer) == entry.value:
                continue
            try:
                self._take(peer, entry.value)
            except PotluckError as error:
                log.debug("record_refused", peer=peer_name(peer), reason=error.one_line())
        listed = {PeerId(e.subkey) for e in entries}
        self._values = {peer: value for peer, value in self._values.items() if peer in listed}
        self._addresses = {peer: addresses for peer, addresses in self._addresses.items() if peer in listed}
        self._experts = {peer: experts for peer, experts in self._experts.items() if peer in listed}
        self._bulk = {peer: bulk for peer, bulk in self._bulk.items() if peer in listed}
        self.chosen = {peer: chosen for peer, chosen in self.chosen.items() if peer in listed}
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
        self.chosen[peer] = record.chosen

    def lasting_addresses(self) -> tuple[str, ...]:
        """Addresses of the members that have been listed longest. They are a way to reconnect while the host is away."""
        return lasting(address for addresses in self._addresses.values() for address in addresses)

    async def is_member(self, peer: PeerId) -> bool:
        """Whether the peer may take part. A peer that is not listed yet is asked for its credential."""
        return await self.admits(peer) is True

    async def admits(self, peer: PeerId) -> bool | None:
        """As `is_member`; None if the peer cannot be asked (yet), which says nothing about it."""
        if peer == self._coordinator or self._is_known(peer):
            return True
        if self.is_banned(peer):
            return False
        if self._network is None:
            return None
        try:
            self._admit(peer, await self._network.call(peer, CREDENTIAL_CHANNEL, b"", timeout_s=ASK_WITHIN_S))
        except TransportError as error:
            log.debug("credential_not_asked", peer=peer_name(peer), reason=error.one_line())
            return None
        except PotluckError as error:
            log.debug("credential_refused", peer=peer_name(peer), reason=error.one_line())
            return False
        return True

    async def check_member(self, peer: PeerId) -> None:
        """Raises RemoteProtocolError if the peer may not take part. The message is written for that peer."""
        if not await self.is_member(peer):
            raise RemoteProtocolError(
                f"{short(peer)} has shown no credential of this run", "a member", "join the run first"
            )

    def _is_known(self, peer: PeerId) -> bool:
        return self._valid_until_s.get(peer, 0.0) > self.judged_as_of_s(peer, self._clock.unix_s())

    def _admit(self, peer: PeerId, credential: bytes) -> None:
        if self.is_banned(peer):
            raise RefusedError(f"{short(peer)} is banned from this run", "a peer in good standing")
        now_s = self.judged_as_of_s(peer, self._clock.unix_s())
        checked = check_credential(credential, self._ca, peer_id=peer, run_id=self._run_id, now_unix_s=now_s)
        if len(self._valid_until_s) >= MAX_MEMBERS:
            self._valid_until_s = {p: end for p, end in self._valid_until_s.items() if end > now_s}
            self.standings = {p: standing for p, standing in self.standings.items() if p in self._valid_until_s}
        self._valid_until_s[peer] = checked.not_after_unix_s
        if checked.standing is not self.standings.get(peer, PeerStanding.KEEPER):
            self.standings = {**self.standings, peer: checked.standing}
