"""The host's signed start record: loaded from disk, fetched from the coordinator or a member, and then served to members.

The host may die right after the start. A peer that was admitted earlier and missed the start then learns of it from other members.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import DirectoryEntry, Offload
from averaging.rounds.traffic.discovery import DirectoryPoller, list_peers
from peer.membership.coordinator_client import CoordinatorClient
from peer.membership.credential_cache import CredentialCache
from peer.membership.joining import Membership, open_start_record
from peer.membership.saved_membership import remember_start
from peer.status.reporting import Reporter
from peer.status.status_board import StatusBoard
from protocol.errors import PotluckError
from protocol.host.reports import NO_START_NEWS, StartNews
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.schedule.asking_order import asking_order

log = structlog.get_logger()

START_CHANNEL: Final = "start"
ASK_WITHIN_S: Final = 5.0
NUM_ASKED: Final = 3
"""Number of members asked after each read of the directory, in turn. Before the start none of them has the record."""

NEWS_RETRY_S: Final = 1.0


class StartSearch:
    """Finds the start record of `membership`'s run. `folder` is the folder of the membership."""

    def __init__(
        self,
        folder: Path,
        membership: Membership,
        poller: DirectoryPoller,
        roster: CredentialCache,
        offload: Offload,
        board: StatusBoard,
    ) -> None:
        self._folder = folder
        self._membership = membership
        self._poller = poller
        self._network = poller.network
        self._roster = roster
        self._offload = offload
        self._board = board
        self._sealed = b""
        self._found = trio.Event()
        self._turn = 0

    async def find(self, client: CoordinatorClient, reporter: Reporter) -> bytes:
        """The start record in the host's envelope, checked and saved. Waits until the run starts."""
        self._sealed = self._membership.saved.start_record
        if not self._sealed:
            reporter.is_ready_to_start = True
            self._board.say("waiting", "for the run to start")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_coordinator, client, reporter)
                nursery.start_soon(list_peers, self._poller, self._ask_members)
                await self._found.wait()
                nursery.cancel_scope.cancel()
        self._network.serve_calls(START_CHANNEL, self._answer)
        return self._sealed

    async def _take(self, sealed: bytes) -> None:
        """Check the record and save it. Raises RemoteProtocolError if the host did not sign it, StorageError if it cannot be
        saved.
        """
        open_start_record(sealed, self._membership.manifest)
        await self._offload.run(partial(remember_start, self._folder, sealed))
        self._sealed = sealed
        self._found.set()

    async def _ask_coordinator(self, client: CoordinatorClient, reporter: Reporter) -> None:
        """Report that we are ready until an answer brings the start. An older host tells it to those alone that watch the run."""
        while not self._found.is_set():
            try:
                await reporter.report_once()
                reply = reporter.last_reply
                if reply is None:
                    self._board.say("waiting", "for the host, or a peer that knows of the start")
                elif reply.start == NO_START_NEWS and not reply.again_in_s:
                    await self._watch(client)
                else:
                    await self._hear(reply.start)
                await trio.sleep(reporter.again_s)
            except PotluckError as error:
                self._board.say("waiting", f"for the host, or a peer that knows of the start: {error.found}")
                await trio.sleep(NEWS_RETRY_S)

    async def _watch(self, client: CoordinatorClient) -> None:
        async with client.watch() as watch:
            while not self._found.is_set():
                news = await watch.next()
                await self._hear(StartNews(news.reason, news.start_record))

    async def _hear(self, news: StartNews) -> None:
        if news.start_record:
            await self._take(news.start_record)
        else:
            self._board.say("waiting", _for_what(news.reason))

    async def _ask_members(self, entries: Sequence[DirectoryEntry]) -> None:
        """Ask some of the listed members, different ones each time."""
        listed = (peer for peer in self._roster.take_records(entries) if peer != self._membership.coordinator)
        members = asking_order(self._network.peer_id, listed)
        for place in range(min(NUM_ASKED, len(members))):
            await self._ask(members[(self._turn + place) % len(members)])
        self._turn += NUM_ASKED

    async def _ask(self, peer: PeerId) -> None:
        try:
            await self._take(await self._network.call(peer, START_CHANNEL, b"", timeout_s=ASK_WITHIN_S))
        except PotluckError as error:
            log.debug("no_start_record_from", peer=peer_name(peer), reason=error.one_line())
        else:
            log.info("start_record_from_peer", peer=peer_name(peer))

    async def _answer(self, peer: PeerId, _request: bytes) -> bytes:
        await self._roster.check_member(peer)
        return self._sealed


def _for_what(host_reason: str) -> str:
    """The thing that a peer waits for, by the host's reason not to have started the run."""
    told = host_reason.removeprefix("waiting ")
    return told if told.startswith("for ") else f"for the run to start: {host_reason}"
