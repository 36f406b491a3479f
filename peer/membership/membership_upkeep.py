"""Upkeep of a running peer's membership: remembers the addresses of other peers, and renews the credential."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, Offload
from peer.membership.credential_cache import CredentialCache
from peer.membership.saved_membership import host_heard_s, remember_credential, remember_host_heard, remember_peers
from protocol.errors import PotluckError, RefusedError, StorageError, TransportError, UnreachableError
from protocol.identity.credential import Credential, check_credential, key_pem, make_request, make_tls_key
from protocol.identity.identity import Identity
from protocol.ids import RunId

log = structlog.get_logger()

REMEMBER_AGAIN_S: Final = 10.0
"""Retry interval after a disk error."""

REMEMBER_HOST_EVERY_S: Final = 300.0
"""Interval at which the host's last answer is saved. After a restart its time is known to within this: half of HOST_AWAY_S."""

RECONNECT_EVERY_S: Final = 60.0
"""A restarted host knows nobody, and peers that their directory nodes forgot must find it again."""

RECONNECT_FIRST_S: Final = 5.0
"""First interval after the start; it doubles each time. When all peers return together, the first one finds nobody yet."""

RENEW_EVERY_S: Final = 3600.0
RENEWED_SHARE: Final = 1 / 3
"""Renew a credential when less than this share of its life is left."""

RENEW_TRIES: Final = 8
"""So often a credential is asked for at least before it ends: the host may be away, or has counted no work yet."""

AskForCredential = Callable[[bytes], Awaitable[bytes]]
"""Signed credential request -> credential (DER); raises PotluckError. The coordinator client's `renew`."""


@dataclass(frozen=True, slots=True)
class MembershipUpkeep:
    """Keeps one membership alive, in memory and on disk. A failure here never ends the peer."""

    folder: Path
    roster: CredentialCache
    identity: Identity
    run_id: RunId
    ca_certificate_der: bytes
    clock: Clock
    offload: Offload

    async def keep_peers(self) -> None:
        """Save the addresses of other peers after each change, until cancelled. Saves at once, so that a peer killed just after its
        first round can reconnect, too.
        """
        remembered: tuple[str, ...] = ()
        while True:
            relisted, again_s = self.roster.relisted, math.inf
            addresses = self.roster.lasting_addresses()
            if addresses and addresses != remembered:
                try:
                    await self.offload.run(partial(remember_peers, self.folder, addresses))
                    remembered = addresses
                except StorageError as error:
                    log.warning("peers_not_remembered", reason=error.one_line())
                    again_s = REMEMBER_AGAIN_S
            with trio.move_on_after(again_s):
                await relisted.wait()

    async def keep_host_heard(self) -> None:
        """Save the time of the host's last answer, every few minutes while it answers, until cancelled."""
        remembered_s = await self.offload.run(partial(host_heard_s, self.folder))
        while True:
            heard_s = self.roster.host_heard_s
            if abs(heard_s - remembered_s) >= REMEMBER_HOST_EVERY_S:
                try:
                    await self.offload.run(partial(remember_host_heard, self.folder, heard_s))
                    remembered_s = heard_s
                except StorageError as error:
                    log.warning("host_not_remembered", reason=error.one_line())
            with trio.move_on_after(REMEMBER_HOST_EVERY_S):
                await self.roster.wait_host_heard()

    async def keep_reached(self, network: Network, bootstrap: tuple[str, ...]) -> None:
        """Dial `bootstrap` (addresses of the host and of an earlier session's peers) and the members listed longest, repeatedly
        until cancelled. A peer that is already connected costs nothing.
        """
        wait_s = RECONNECT_FIRST_S
        while True:
            await trio.sleep(wait_s)
            wait_s = min(2 * wait_s, RECONNECT_EVERY_S)
            try:
                await network.add_addresses(tuple(dict.fromkeys((*bootstrap, *self.roster.lasting_addresses()))))
            except PotluckError as error:
                log.debug("not_reconnected", reason=error.one_line())

    async def keep_credential(self, ask: AskForCredential) -> None:
        """Renew the credential when it nears its end, at most once in RENEW_EVERY_S, until cancelled. A host that was away is asked
        as soon as it is heard again.
        """
        while True:
            is_host_away = False
            try:
                if self._is_renewal_due():
                    await self._renew(ask)
            except PotluckError as error:
                is_host_away = isinstance(error, UnreachableError | TransportError)
                log.warning("credential_not_renewed", reason=error.one_line(), retry_in_s=RENEW_EVERY_S)
            with trio.move_on_after(self._again_s()):
                await (self.roster.wait_host_heard() if is_host_away else trio.sleep_forever())

    def _is_renewal_due(self) -> bool:
        now_s = self.clock.unix_s()
        try:
            own = self._check(self.roster.own_credential)
        except RefusedError:  # it has expired
            return True
        life_s = own.not_after_unix_s - own.not_before_unix_s
        return own.not_after_unix_s - now_s < RENEWED_SHARE * life_s

    def _again_s(self) -> float:
        """Seconds until the credential is looked at again: several times in the share of its life in which it is renewed."""
        now_s = self.clock.unix_s()
        try:
            own = self._check(self.roster.own_credential)
        except RefusedError:
            return RENEW_EVERY_S
        life_s = own.not_after_unix_s - own.not_before_unix_s
        to_go_s = own.not_after_unix_s - RENEWED_SHARE * life_s - now_s
        return min(RENEW_EVERY_S, max(to_go_s, RENEWED_SHARE * life_s / RENEW_TRIES))

    async def _renew(self, ask: AskForCredential) -> None:
        tls_key = make_tls_key()
        credential = await ask(make_request(self.identity, self.run_id, tls_key, self.clock.unix_s()))
        checked = self._check(credential)
        # Save first: a credential that other peers have seen must survive a restart.
        await self.offload.run(partial(remember_credential, self.folder, credential, key_pem(tls_key)))
        self.roster.show(credential, key_pem(tls_key))
        days_left = round((checked.not_after_unix_s - self.clock.unix_s()) / 86400, 2)
        log.info("credential_renewed", days_left=days_left, standing=checked.standing.word)

    def _check(self, credential: bytes) -> Credential:
        now_s, peer_id = self.clock.unix_s(), self.identity.peer_id
        return check_credential(
            credential, self.ca_certificate_der, peer_id=peer_id, run_id=self.run_id, now_unix_s=now_s
        )
