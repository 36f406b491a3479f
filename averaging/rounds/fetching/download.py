"""Downloads a unit's state from several donors at once: striped, each chunk verified before use, resumed after a crash (R24).

striping.py decides what each donor is asked for. Any state that a later commit attests will do. The download takes the newest
state that most donors offer, or one that is partly here already if less of it is left to fetch. It begins no other state until
this one is here or no donor has it.

Peers that fetch the same state at the same time give it to each other (fellows.py). Donors are asked in an order that differs from
newcomer to newcomer, so that no donor serves all of them.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network, Offload
from averaging.rounds.fetching.fellows import Fellows, Others, nobody
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.lineage.round_context import Changes
from averaging.rounds.lineage.round_reports import DownloadProgress
from averaging.rounds.lineage.updates import UnitContext
from averaging.rounds.traffic import striping
from averaging.rounds.traffic.striping import Striping
from averaging.rounds.traffic.transfer import BusyDonor, Donor, Place, ask_generation, fetch_chunks, fetch_hashes
from averaging.state.partial_download import PartialDownload
from averaging.state.state import STATE_BYTES_PER_VALUE, StateParts, UnitState
from protocol.errors import PotluckError, RemoteProtocolError, UnreachableError
from protocol.identity.names import peer_name
from protocol.ids import CommitId, PeerId, Root, UnitName, short
from protocol.rounds.messages.requests import FetchState
from protocol.rounds.schedule.asking_order import asking_order
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

STRIPE_BYTES: Final = 512 << 10
"""A fifth of a second at 20 Mbit/s: long against a round trip, short against a download."""

REQUESTS_EACH: Final = 2
"""Requests in flight to one donor, so that the next one is there when the last one ends."""

MAX_DONORS: Final = 16
"""Donors asked at a time; the next ones follow only if none of these has a state."""

OFFERS_WITHIN_S: Final = 8.0
LOOK_AGAIN_S: Final = 0.25


OnProgress = Callable[[DownloadProgress], None]


@dataclass(frozen=True)
class DownloadContext:
    """Dependencies of a download. Without `incoming` it starts over after a crash. `update_bytes`: bytes needed to replay one
    commit. `others` lists the peers that are there now; some of them may fetch the same state.
    """

    network: Network
    offload: Offload
    unit: UnitName
    grid: ChunkGrid
    incoming: PartialDownload | None = None
    update_bytes: int = 0
    others: Others = nobody


def download_tools(network: Network, unit: UnitContext, others: Others = nobody) -> DownloadContext:
    """The context for a unit that is held here."""
    one_bytes = update_bytes(unit.result_codec, unit.grid)
    return DownloadContext(network, unit.offload, unit.unit, unit.grid, unit.generations.incoming, one_bytes, others)


async def download_state(
    tools: DownloadContext,
    donors: Sequence[PeerId],
    roots: Mapping[CommitId, Root],
    on_progress: OnProgress = lambda progress: None,
) -> UnitState:
    """A state at one of the commits of `roots`, checked against its root (attested by a later commit, or the genesis root).

    Raises:
        UnreachableError: no donor could send it, or all that could went away. Try again when other donors are there.
    """
    offers, reasons = await _first_offers(tools, asking_order(tools.network.peer_id, donors), roots)
    for offered in await _ranked(tools, offers):
        for donor in offered:
            try:
                hashes = await fetch_hashes(tools.network, donor, tools.unit, tools.grid.num_chunks)
            except PotluckError as error:
                log.warning("hashes_not_fetched", donor=peer_name(donor.peer), reason=error.one_line())
                reasons.append(f"{short(donor.peer)}: {error.one_line()}")
                continue
            # only now is a header proven: others may have offered the same commit and root with different numbers
            alike = [other for other in offered if other.header == donor.header]
            download = _Download(tools, alike, hashes, on_progress)
            state = await download.run()
            if state is not None:
                return state
            reasons += [f"{short(peer)}: {reason}" for peer, reason in download.plan.dropped.items()]
            break
    raise UnreachableError(
        f"no donor for the state ({'; '.join(reasons) or 'no peer to ask'})", "one peer that holds it"
    )


async def _ranked(tools: DownloadContext, offers: Mapping[CommitId, Sequence[Donor]]) -> Sequence[Sequence[Donor]]:
    """The states to try, in order: by preference, but a state that is partly here comes first if less is left of it. The cost is
    shared by its donors and includes the updates from there to the newest state.
    """
    ranked = sorted(offers.values(), key=lambda one: _preference(one, offers), reverse=True)
    bytes_here = await tools.incoming.held_bytes() if tools.incoming is not None else {}
    state_bytes = STATE_BYTES_PER_VALUE * tools.grid.num_elements
    newest = max((offered[0].header.index for offered in ranked), default=0)
    most = max(map(len, ranked), default=0)

    def left_bytes(offered: Sequence[Donor]) -> float:
        header = offered[0].header
        replay_bytes = (newest - header.index) * tools.update_bytes
        return (state_bytes - bytes_here.get(header.head, 0)) / len(offered) + replay_bytes / most

    begun = [offered for offered in ranked[1:] if offered[0].header.head in bytes_here]
    first = min([*ranked[:1], *begun], key=left_bytes, default=None)
    return sorted(ranked, key=lambda offered: offered is not first)


def _preference(offered: Sequence[Donor], offers: Mapping[CommitId, Sequence[Donor]]) -> tuple[bool, bool, int]:
    """Sort key: prefers a state that other newcomers fetch now, then the newest, among those that at least half as many donors have
    as the most common one.
    """
    most = max(len(donors) for donors in offers.values())
    is_common = 2 * len(offered) >= most
    return is_common and _is_shared(offered), is_common, offered[0].header.index


def _is_shared(offered: Sequence[Donor]) -> bool:
    """Whether most donors that also have something newer name this state before it."""
    places = [donor.place for donor in offered]
    return places.count(Place.FIRST_THOUGH_OLDER) > places.count(Place.AFTER_NEWER)


async def _first_offers(
    tools: DownloadContext, donors: Sequence[PeerId], roots: Mapping[CommitId, Root]
) -> tuple[dict[CommitId, list[Donor]], list[str]]:
    """Offers of the first MAX_DONORS donors; the next ones are asked only if none of these offers anything."""
    offers: dict[CommitId, list[Donor]] = {}
    reasons: list[str] = []
    for begin in range(0, len(donors), MAX_DONORS):
        offers, why = await _offers(tools, donors[begin : begin + MAX_DONORS], roots)
        reasons += why
        if offers:
            break
    return offers, reasons


async def _offers(
    tools: DownloadContext, donors: Sequence[PeerId], roots: Mapping[CommitId, Root]
) -> tuple[dict[CommitId, list[Donor]], list[str]]:
    """The donors of each wanted state; all are asked at once."""
    offers: dict[CommitId, list[Donor]] = {}
    reasons: list[str] = []

    async def ask_one(peer: PeerId) -> None:
        with trio.move_on_after(OFFERS_WITHIN_S) as scope:
            try:
                wanted: dict[CommitId, Donor] = {}
                for donor in await ask_generation(tools.network, peer, tools.unit):
                    if roots.get(donor.header.head) == donor.root:
                        wanted.setdefault(donor.header.head, donor)  # a peer that says it twice is still one donor
            except PotluckError as error:
                reasons.append(f"{short(peer)}: {error.one_line()}")
                return
            for commit, donor in wanted.items():
                offers.setdefault(commit, []).append(donor)
            if not wanted:
                reasons.append(f"{short(peer)} does not hold it")
        if scope.cancelled_caught:
            reasons.append(f"{short(peer)} did not answer")

    async with trio.open_nursery() as nursery:
        for peer in dict.fromkeys(donors):
            if peer != tools.network.peer_id:
                nursery.start_soon(ask_one, peer)
    for offered in offers.values():
        order = asking_order(tools.network.peer_id, (donor.peer for donor in offered))
        offered.sort(key=lambda donor: order.index(donor.peer))
    return offers, reasons


class _Download:
    """One state from several donors."""

    def __init__(
        self, tools: DownloadContext, donors: Sequence[Donor], hashes: Sequence[bytes], on_progress: OnProgress
    ) -> None:
        self._tools = tools
        self._donors = donors
        self._header = donors[0].header
        self._hashes = hashes
        self._report = on_progress
        grid, me = tools.grid, tools.network.peer_id
        chunk_bytes = STATE_BYTES_PER_VALUE * max(1, grid.bounds(0)[1])
        each, at_once = max(1, STRIPE_BYTES // chunk_bytes), REQUESTS_EACH * len(donors)
        self._layout = striping.lay_out(
            grid.num_chunks, each, at_once, lambda first: sha256(f"{me} {first}".encode()).digest()
        )
        self.plan = Striping(len(self._layout.stripes))
        self._parts = StateParts(self._header, grid)
        self._requests: dict[tuple[PeerId, int], trio.CancelScope] = {}
        self._changes = Changes()
        self._num_asking = 0

    async def run(self) -> UnitState | None:
        """The state; None if no donor is left that could send the missing chunks."""
        await self._restore()
        self._report_progress()
        tools, known = self._tools, [donor.peer for donor in self._donors]
        fellows = Fellows(tools.network, tools.unit, tools.grid.num_chunks, self._header.head)
        async with trio.open_nursery() as nursery:
            begin = partial(self._begin, nursery)
            nursery.start_soon(fellows.follow, self._layout, tools.others, known, self._learn, begin)
            for peer in known:
                begin(peer)
            while self._num_asking:
                await self._changes.wait()
            nursery.cancel_scope.cancel()
        if not self.plan.is_done:
            return None
        return await self._tools.offload.run(self._parts.whole, cost_s=0.001)

    def _begin(self, nursery: trio.Nursery, donor: PeerId) -> None:
        for _ in range(REQUESTS_EACH):
            self._num_asking += 1
            nursery.start_soon(self._ask, donor)

    def _learn(self, fellow: PeerId, held: int) -> None:
        """A fellow has these stripes."""
        if held != self.plan.holds.get(fellow):
            self.plan = striping.learned(self.plan, fellow, held)
            self._changes.notify()

    async def _restore(self) -> None:
        incoming = self._tools.incoming
        if incoming is None:
            return
        num_restored = await incoming.restore(self._header.head, self._hashes, self._parts.put)
        for stripe, chunks in enumerate(self._layout.stripes):
            if all(chunk in self._parts for chunk in chunks):
                self.plan = striping.found(self.plan, stripe)
        if self.plan.done:
            log.info("download_resumed", chunks=num_restored, of=self._tools.grid.num_chunks)

    def _report_progress(self) -> None:
        everybody = dict.fromkeys((*(donor.peer for donor in self._donors), *self.plan.holds))
        left = [peer for peer in everybody if peer not in self.plan.dropped]
        everything = STATE_BYTES_PER_VALUE * self._tools.grid.num_elements
        self._report(DownloadProgress(self._header.index, self._parts.num_bytes, everything, len(left)))

    async def _ask(self, donor: PeerId) -> None:
        try:
            await self._ask_on(donor)
        finally:
            self._num_asking -= 1
            self._changes.notify()

    async def _ask_on(self, donor: PeerId) -> None:
        """Fetch one stripe after another, as long as this donor is useful."""
        while not self.plan.is_done and donor not in self.plan.dropped:
            if donor in self.plan.holds and self._are_donors_gone():
                return  # newcomers alone may never have all of it
            stripe = striping.next_stripe(self.plan, donor, trio.current_time())
            if stripe is None:
                with trio.move_on_after(LOOK_AGAIN_S):
                    await self._changes.wait()
                continue
            self.plan = striping.ask(self.plan, donor, stripe, trio.current_time())
            with trio.CancelScope() as scope:
                self._requests[donor, stripe] = scope
                await self._fetch(donor, stripe)
            self._requests.pop((donor, stripe), None)
            self._changes.notify()

    def _are_donors_gone(self) -> bool:
        return all(donor.peer in self.plan.dropped for donor in self._donors)

    async def _fetch(self, donor: PeerId, stripe: int) -> None:
        tools, chunks = self._tools, self._layout.stripes[stripe]
        request = FetchState(tools.unit, chunks.start, chunks.stop, self._header.head, knows_busy=True)
        try:
            data = await fetch_chunks(tools.network, donor, request, self._hashes)
        except BusyDonor:
            self.plan = striping.refused(self.plan, donor, stripe, trio.current_time())
            return
        except PotluckError as error:
            is_lie = isinstance(error, RemoteProtocolError)
            tell = log.warning if is_lie else log.info
            tell("stripe_not_fetched", donor=peer_name(donor), reason=error.one_line())
            self.plan = striping.failed(self.plan, donor, stripe, error.one_line(), is_lie=is_lie)
            self._report_progress()
            return
        self.plan = striping.arrived(self.plan, donor, stripe, trio.current_time())
        for chunk, part in zip(chunks, data, strict=True):
            self._parts.put(chunk, part)
        for (other, wanted), scope in self._requests.items():
            if wanted == stripe and other != donor:
                scope.cancel()
        self._report_progress()
        if tools.incoming is not None:
            await tools.incoming.keep(self._header.head, chunks.start, data)
