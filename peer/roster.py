"""Which peers have shown a good credential of this run: from directory records, or asked for at the first message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from averaging.network.directory import open_record, seal_record
from averaging.network.seams import Clock, DirectoryEntry, Network
from protocol.credential import check_credential
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity import Signer, Verifier
from protocol.ids import PeerId, RunId, short

log = structlog.get_logger()

CREDENTIAL_CHANNEL: Final = "credential"
ASK_WITHIN_S: Final = 3.0
MAX_MEMBERS: Final = 4096


class Roster:
    """Credentials checked by this peer. The coordinator is trusted as the run's own host."""

    def __init__(
        self,
        run_id: RunId,
        ca_certificate_der: bytes,
        coordinator: PeerId,
        own_credential: bytes,
        verifier: Verifier,
        clock: Clock,
    ) -> None:
        self._run_id = run_id
        self._ca = ca_certificate_der
        self._coordinator = coordinator
        self._own = own_credential
        self._verifier = verifier
        self._clock = clock
        self._valid_until_s: dict[PeerId, float] = {}
        self._network: Network | None = None

    def serve(self, network: Network) -> None:
        """Show our credential to whoever asks."""
        self._network = network
        network.serve_calls(CREDENTIAL_CHANNEL, self._show)

    async def _show(self, _peer: PeerId, _request: bytes) -> bytes:
        return self._own

    def record(self, signer: Signer, sequence: int, expires_unix_s: float) -> bytes:
        """Our directory record: the credential, signed."""
        return seal_record(signer, self._run_id, sequence, expires_unix_s, self._own)

    def take_records(self, entries: Sequence[DirectoryEntry]) -> tuple[PeerId, ...]:
        """Check what the directory holds; returns the members among it."""
        for entry in entries:
            peer = PeerId(entry.subkey)
            if self._is_known(peer):
                continue
            try:
                envelope = open_record(entry.value, verifier=self._verifier, run_id=self._run_id)
                if envelope.sender != peer:
                    raise RemoteProtocolError(f"a record of {short(envelope.sender)} under {short(peer)}", "its own")
                self._admit(peer, envelope.payload)
            except PotluckError as error:
                log.debug("record_refused", peer=short(peer), reason=error.one_line())
        return tuple(PeerId(e.subkey) for e in entries if self._is_known(PeerId(e.subkey)))

    async def is_member(self, peer: PeerId) -> bool:
        """Whether the peer may take part; one that nobody has announced yet is asked for its credential."""
        if peer == self._coordinator or self._is_known(peer):
            return True
        if self._network is None:
            return False
        try:
            self._admit(peer, await self._network.call(peer, CREDENTIAL_CHANNEL, b"", timeout_s=ASK_WITHIN_S))
        except PotluckError as error:
            log.debug("credential_refused", peer=short(peer), reason=error.one_line())
            return False
        return True

    def _is_known(self, peer: PeerId) -> bool:
        return self._valid_until_s.get(peer, 0.0) > self._clock.unix_s()

    def _admit(self, peer: PeerId, credential: bytes) -> None:
        now_s = self._clock.unix_s()
        checked = check_credential(credential, self._ca, peer_id=peer, run_id=self._run_id, now_unix_s=now_s)
        if len(self._valid_until_s) >= MAX_MEMBERS:
            self._valid_until_s = {p: end for p, end in self._valid_until_s.items() if end > now_s}
        self._valid_until_s[peer] = checked.not_after_unix_s
