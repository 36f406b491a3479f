"""Bans known to this peer. Each is checked, saved, enforced, and passed on to peers that ask.

The host sends bans with its answers to our reports. Peers also ask each other, so a ban spreads quickly and outlives the host. A
request carries the fingerprints of our entries; the answer contains the other entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network, Offload
from peer.membership.credential_cache import CredentialCache
from peer.membership.own_ban import FILE_NAME, banned
from peer.membership.saved_membership import write_durably
from protocol.errors import PotluckError
from protocol.identity.identity import Verifier
from protocol.identity.names import peer_name
from protocol.identity.revocation import RevocationBook, join_entries, split_entries
from protocol.ids import PeerId, RunId
from protocol.rounds.schedule.asking_order import asking_order

log = structlog.get_logger()

REVOCATION_CHANNEL: Final = "revocations"
ASK_EVERY_S: Final = 60.0
ASK_WITHIN_S: Final = 5.0
NUM_ASKED: Final = 3
NOBODY_LISTED_S: Final = 1.0
_VERIFY_COST_S: Final = 0.0002


class Revocations:
    """The bans of one run, at the peer `me`. Call `restore` before anything else."""

    def __init__(
        self,
        folder: Path,
        run_id: RunId,
        host_public_key: bytes,
        verifier: Verifier,
        roster: CredentialCache,
        me: PeerId,
        offload: Offload,
    ) -> None:
        self._path = folder / FILE_NAME
        self._run_id = run_id
        self._host_public_key = host_public_key
        self._verifier = verifier
        self._roster = roster
        self._me = me
        self._offload = offload
        self._book = RevocationBook()
        self._turn = trio.Lock()
        """Held from the change in memory until the new file is on disk."""

        self._is_ours = trio.Event()

    @property
    def known(self) -> bytes:
        """Fingerprints of our entries."""
        return self._book.fingerprints

    def missing_at(self, known: bytes) -> tuple[bytes, ...]:
        """The entries missing from these fingerprints. Raises RemoteProtocolError if they are malformed."""
        return self._book.missing_at(known)

    async def restore(self) -> None:
        """Load the saved bans. A damaged file does little harm: other peers send the bans again."""
        try:
            async with self._turn:
                await self._add(split_entries(await self._offload.run(self._read)), are_told=True)
        except (PotluckError, OSError) as error:
            log.warning("revocations_not_read", path=str(self._path), reason=str(error))

    def _read(self) -> bytes:
        return self._path.read_bytes() if self._path.exists() else b""

    async def take(self, offered: Sequence[bytes]) -> None:
        """Check received entries, save them, and refuse the banned peers from now on.

        Raises:
            RemoteProtocolError, VersionError: one of them is not the host's; nothing of it was taken.
        """
        if not offered:
            return
        async with (
            self._turn
        ):  # hold the lock while writing: two writers would tear the file or restore an older version
            if await self._add(offered):
                await self._keep()

    async def _keep(self) -> None:
        try:
            await self._offload.run(partial(write_durably, self._path, join_entries(self._book.entries.values())))
        except OSError as error:
            log.warning("revocations_not_kept", path=str(self._path), reason=str(error))

    async def _add(self, offered: Sequence[bytes], *, are_told: bool = False) -> bool:
        """Add entries; whether any was new. The caller holds `_turn`. `are_told`: an earlier process has told its owner of them. A ban
        of ourselves is told by the error that ends the peer.
        """
        before = self._book
        self._book = await self._offload.run(
            lambda: before.with_entries(
                offered,
                verifier=self._verifier,
                run_id=self._run_id,
                host_public_key=self._host_public_key,
            ),
            cost_s=_VERIFY_COST_S * len(offered),
        )
        self._roster.ban(self._book.by_peer.keys())
        for peer in set() if are_told else self._book.by_peer.keys() - before.by_peer.keys() - {self._me}:
            log.warning("peer_banned", peer=peer_name(peer), reason=self._book.by_peer[peer].reason)
        if self._me in self._book.by_peer:
            self._is_ours.set()
        return self._book is not before

    async def end_when_banned(self) -> None:
        """Wait until the host bans ourselves.

        Raises:
            RefusedError: it did, and why.
        """
        await self._is_ours.wait()
        raise banned(self._book.by_peer[self._me].reason)

    # --- between peers --------------------------------------------------------------------------------------------------------

    def serve(self, network: Network) -> None:
        """Answer members' requests for missing entries."""
        network.serve_calls(REVOCATION_CHANNEL, self._answer)

    async def _answer(self, peer: PeerId, request: bytes) -> bytes:
        await self._roster.check_member(peer)
        return join_entries(self.missing_at(request))

    async def gossip(self, network: Network) -> None:
        """Ask a few members in turn, at once and then every minute, until cancelled."""
        turn = 0
        while True:
            members = asking_order(network.peer_id, self._roster.listed())
            for place in range(min(NUM_ASKED, len(members))):
                await self._ask(network, members[(turn + place) % len(members)])
            turn += NUM_ASKED
            await trio.sleep(ASK_EVERY_S if members else NOBODY_LISTED_S)

    async def _ask(self, network: Network, peer: PeerId) -> None:
        try:
            answer = await network.call(peer, REVOCATION_CHANNEL, self.known, timeout_s=ASK_WITHIN_S)
            await self.take(split_entries(answer))
        except PotluckError as error:
            log.debug("no_revocations_from", peer=peer_name(peer), reason=error.one_line())
