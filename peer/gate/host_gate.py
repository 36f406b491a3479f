"""Words of the host's loss gate at a peer: the newest hold on its disk, passed on, and rewinds for the rounds.

The host sends both with its answers to our reports. A new hold, or its end, is also called out to a few members, who call it out in
turn: an opener that does not hear the host learns of it, too. A rewind is a commit, so it spreads as commits do.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
import trio

from averaging.network.seams.interfaces import Clock, Network, Offload
from averaging.network.seams.offload import ThreadOffload
from peer.membership.saved_membership import write_durably
from protocol.errors import PotluckError, RemoteProtocolError, VersionError
from protocol.host.host_statements import GateNews
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId
from protocol.rounds.events import CommitsFetched
from protocol.rounds.lineage.hold import MAX_HOLD_S, Hold, newer, open_hold
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.messages import Certificate
from protocol.rounds.messages.wire import decode_certificate, genesis_id
from protocol.rounds.schedule.asking_order import asking_order

if TYPE_CHECKING:
    from averaging.rounds.unit_service import RoundService
    from peer.membership.joining import Membership
    from protocol.identity.identity import Verifier

log = structlog.get_logger()

FILE_NAME: Final = "hold"
HOLD_CHANNEL: Final = "hold"
CALL_WITHIN_S: Final = 5.0
NUM_NEXT: Final = 2
NUM_DRAWN: Final = 3
"""Members that a peer calls out a new hold to, each once: the next ones in the order of peer ids, so that everybody is somebody's, and
some that its own order draws, so that it spreads fast.
"""

_MOST_TOLD: Final = 100
"""Refusals that are told; further ones are not."""

TakeCommits = Callable[[tuple[Certificate, ...]], Awaitable[None]]
"""Gives commits to the rounds of the spine, which verify them."""

CheckMember = Callable[[PeerId], Awaitable[None]]
"""Raises RefusedError for a peer that is no member."""


class HostGate:
    """The words of one run's gate. Call `restore` before anything else. `genesis`: the commit id before the first commit."""

    def __init__(self, folder: Path, check: SignatureCheck, genesis: CommitId, clock: Clock, offload: Offload) -> None:
        self.take_commits: TakeCommits | None = None
        """Set once the rounds are there. Before that the host's next answers bring rewinds again."""

        self._path = folder / FILE_NAME
        self._check = check
        self._genesis = genesis
        self._clock = clock
        self._offload = offload
        self._hold: Hold | None = None
        self._sealed = b""
        self._told: set[str] = set()
        self._turn = trio.Lock()
        self._changed = trio.Event()

    @property
    def hold(self) -> Hold | None:
        """The newest hold while its time lasts."""
        hold = self._hold
        return hold if hold is not None and hold.is_on(self._clock.unix_s()) else None

    async def restore(self) -> None:
        """Load the file. A file that cannot be read does little harm: the host sends its newest hold again."""
        try:
            sealed = await self._offload.run(lambda: self._path.read_bytes() if self._path.exists() else b"")
        except OSError as error:
            log.warning("hold_not_read", path=str(self._path), reason=str(error))
            return
        self._add(sealed, "this disk")

    async def take(self, news: GateNews, source: str) -> None:
        """Check and keep these words. One that is forged, of another run or older than what is held is named in one line."""
        async with self._turn:
            if self._add(news.hold, source):
                await self._keep()
        commits = tuple(self._decoded(news.rewinds, source))
        if commits and self.take_commits is not None:
            await self.take_commits(commits)

    def _add(self, sealed: bytes, source: str) -> bool:
        """Whether it is a newer hold than ours."""
        if not sealed or sealed == self._sealed:
            return False
        try:
            hold = newer(self._hold, open_hold(sealed, check=self._check, genesis=self._genesis))
        except (RemoteProtocolError, VersionError) as error:
            self._refuse(source, error)
            return False
        if hold == self._hold:
            return False
        self._hold, self._sealed = hold, sealed
        if hold.is_on(self._clock.unix_s()):
            log.warning("run_held", reason=hold.words)
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        return True

    def _decoded(self, rewinds: Iterable[bytes], source: str) -> Iterable[Certificate]:
        for raw in rewinds:
            try:
                yield decode_certificate(raw)
            except RemoteProtocolError as error:
                self._refuse(source, error)

    def _refuse(self, source: str, error: PotluckError) -> None:
        """Once each: a host that says it says it in every answer."""
        reason = error.one_line()
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            log.warning("gate_word_refused", source=source, reason=reason)

    async def _keep(self) -> None:
        try:
            await self._offload.run(partial(write_durably, self._path, self._sealed))
        except OSError as error:
            log.warning("hold_not_kept", path=str(self._path), reason=str(error))

    # --- between peers --------------------------------------------------------------------------------------------------------

    async def pass_on(self, network: Network, members: Callable[[], Iterable[PeerId]], check: CheckMember) -> None:
        """Answer members, and call each new hold out to a few of them, until cancelled."""
        network.serve_calls(HOLD_CHANNEL, partial(self._answer, check))
        while True:
            changed = self._changed
            if self._may_matter():
                for peer in called_by(network.peer_id, members()):
                    await self._call(network, peer)
            await changed.wait()

    def _may_matter(self) -> bool:
        """Whether our newest word is one that others need: a hold that lasts, or one that lifts a hold that may last still."""
        hold = self._hold
        if hold is None or hold.lasts_s:
            return self.hold is not None
        return self._clock.unix_s() < hold.unix_s + MAX_HOLD_S

    async def _call(self, network: Network, peer: PeerId) -> None:
        try:
            answer = await network.call(peer, HOLD_CHANNEL, self._sealed, timeout_s=CALL_WITHIN_S)
            await self.take(GateNews(answer), peer_name(peer))
        except PotluckError as error:
            log.debug("hold_not_passed_on", peer=peer_name(peer), reason=error.one_line())

    async def _answer(self, check: CheckMember, peer: PeerId, request: bytes) -> bytes:
        await check(peer)
        await self.take(GateNews(request), peer_name(peer))
        return self._sealed


def called_by(me: PeerId, members: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """The members that a peer calls a new hold out to."""
    others = sorted(peer for peer in set(members) if peer != me)
    later = [peer for peer in others if peer > me]
    following = [*later, *others][:NUM_NEXT]
    return tuple(dict.fromkeys((*following, *asking_order(me, others)[:NUM_DRAWN])))


async def opened_gate(folder: Path, membership: Membership, start: bytes, verifier: Verifier, clock: Clock) -> HostGate:
    """The words of the host's loss gate in the run that began with this start record, loaded from the run's folder."""
    check = SignatureCheck(verifier, membership.run_id)
    gate = HostGate(folder, check, genesis_id(start), clock, ThreadOffload())
    await gate.restore()
    return gate


def take_host_commits(service: RoundService) -> TakeCommits:
    """Gives commits that the host made to these rounds."""

    async def take(certificates: tuple[Certificate, ...]) -> None:
        await service.tell(CommitsFetched(service.config.me.peer, certificates))

    return take
