"""Gets the bytes that a record names on our disk: from the running exchange, else from any peer that has them (R14).

Rules: R14 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Network
from averaging.rounds.lineage.round_context import Changes
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.arrivals import Arrivals
from averaging.rounds.traffic.transfer import LEAST_BYTES_PER_S, OPEN_WITHIN_S, fetch_result
from protocol.errors import PotluckError, StorageError
from protocol.ids import CommitId, PeerId, Root, short
from protocol.rounds.messages.record import CommitRecord, SliceRecord
from protocol.rounds.messages.requests import FetchResult
from protocol.rounds.schedule.asking_order import asking_order
from protocol.rounds.schedule.liveness_timing import STALLED_STREAM_S

log = structlog.get_logger()

GATHER_WITHIN_S: Final = 60.0
"""Limit for one record, plus a second for each LEAST_BYTES_PER_S that arrived: else a thin line would start large results again
for ever.
"""
GATHER_RETRY_S: Final = 0.3
FETCHES_AT_ONCE: Final = 4
MAX_FAILING: Final = 256
FIRST_OPEN_WITHIN_S: Final = 0.8
"""Limit for opening a connection on the first try, when others may have the bytes, too. A peer that was just cut off is not
suspected yet and takes no connection. On the second try, after all other peers, it gets the time that a line around the world may
need.
"""

EXCHANGE_PATIENCE_S: Final = 0.6
"""How long a running exchange may deliver nothing before its missing bytes are asked for elsewhere, which would move them twice.
Frames are a tenth of a second long on any line.
"""


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """The view that gathering has of an exchange that may still deliver the bytes. The defaults describe no exchange.

    Attributes:
        is_running: whether an exchange on this base may still deliver.
        changes: notified when something happens to it.
        arrivals: what its streams have delivered so far.
        patience_s: how long it may deliver nothing.
        is_silent: whether a peer is suspected now: it will deliver nothing, and is asked after all others.
    """

    is_running: Callable[[CommitId], bool] = lambda base: False
    changes: Changes = field(default_factory=Changes)
    arrivals: Callable[[], Arrivals] = Arrivals
    patience_s: Callable[[], float] = lambda: EXCHANGE_PATIENCE_S
    is_silent: Callable[[PeerId], bool] = lambda peer: False


class _GatherCall:
    """One call of `gather`: its deadline, and what went wrong on the way."""

    def __init__(self, record: CommitRecord, asked_s: float, moved_bytes: int) -> None:
        self.record = record
        self.asked_s = asked_s
        self.scope = trio.CancelScope(deadline=asked_s + GATHER_WITHIN_S)
        self.not_written: list[StorageError] = []
        self._moved_bytes = moved_bytes

    def came(self, num_bytes: int) -> None:
        """Extend the deadline for bytes that were fetched."""
        self.scope.deadline += num_bytes / LEAST_BYTES_PER_S

    def exchange_moved(self, moved_bytes: int) -> None:
        """Extend the deadline for bytes that the exchange received; `moved_bytes` is its total."""
        self.came(max(0, moved_bytes - self._moved_bytes))
        self._moved_bytes = moved_bytes


class Gatherer:
    """Fetches results for one unit."""

    def __init__(self, network: Network, chain: UnitChain, exchange: ExchangeView | None = None) -> None:
        self._network = network
        self._chain = chain
        self._exchange = exchange or ExchangeView()
        self._failing: set[PeerId] = set()
        """Peers whose last answer was no use. They are asked after all others, because one that stalls costs a whole deadline."""

        self._fetching: dict[Root, trio.Event] = {}

    async def gather(
        self, record: CommitRecord, holders: tuple[PeerId, ...], is_wanted: Callable[[], bool] | None = None
    ) -> bool:
        """Whether all results that the record names are on disk. False if nobody sent them in time, or they are not wanted any
        more: by default, when the head moved away from the record's parent.

        Raises:
            StorageError: our disk did not take the bytes. Nothing is asked for meanwhile; call again once it may.
        """
        wanted = is_wanted or (lambda: self._chain.head.commit == record.parent)
        call = _GatherCall(record, trio.current_time(), self._exchange.arrivals().moved_bytes)
        with call.scope:
            while wanted():
                for part in await self._missing(record):
                    await self._wait_for_exchange(part, call)
                async with trio.open_nursery() as nursery:
                    at_once = trio.Semaphore(FETCHES_AT_ONCE)
                    for part in await self._missing(record):
                        sources = _sources(self._network.peer_id, record, part, holders)
                        nursery.start_soon(self._fetch_one_of_many, at_once, call, part, sources)
                if call.not_written:
                    raise call.not_written[0]
                if not await self._missing(record):
                    return True  # at once: the ack, and so the commit, waits for it
                await trio.sleep(GATHER_RETRY_S)
        return False

    async def until_fetched(self, result_hash: Root) -> None:
        """Wait until nothing here fetches these bytes: a peer that is offered them may have them then."""
        while (over := self._fetching.get(result_hash)) is not None:
            await over.wait()

    async def _missing(self, record: CommitRecord) -> list[SliceRecord]:
        names = await self._chain.tools.log.list_results(record.parent)
        held = {name.rpartition("/")[2] for name in names}
        return [part for part in record.slices if part.result_hash.hex() not in held]

    async def _holds(self, base: CommitId, result_hash: Root) -> bool:
        return await self._chain.tools.log.holds_results(base, [result_hash])

    async def _wait_for_exchange(self, part: SliceRecord, call: _GatherCall, *, for_its_own: bool = False) -> None:
        """Wait until the slice is here, its reducer is silent, or the exchange stalls; with `for_its_own`, until the stream that
        has begun this slice stalls.
        """
        exchange, base = self._exchange, call.record.parent
        while exchange.is_running(base) and not exchange.is_silent(part.reducer):
            if await self._holds(base, part.result_hash):
                return
            arrivals = exchange.arrivals()
            call.exchange_moved(arrivals.moved_bytes)
            until_s = arrivals.coming_s(part.result_hash) + STALLED_STREAM_S
            if not for_its_own:
                until_s = max(until_s, max(call.asked_s, arrivals.moved_s) + exchange.patience_s())
            if (now_s := trio.current_time()) >= until_s:
                return
            # a reducer or a stream that is gone causes no change
            with trio.move_on_at(min(until_s, now_s + EXCHANGE_PATIENCE_S)):
                await exchange.changes.wait()

    async def _fetch_one_of_many(
        self, at_once: trio.Semaphore, call: _GatherCall, part: SliceRecord, sources: tuple[PeerId, ...]
    ) -> None:
        """One task of a nursery. The nursery would wrap an error of the disk, so it is stored in `not_written` instead."""
        async with at_once:
            await self.until_fetched(part.result_hash)  # by another errand
            over = self._fetching[part.result_hash] = trio.Event()
            try:
                await self._fetch(call, part, sources)
            except StorageError as error:
                call.not_written.append(error)
            finally:
                del self._fetching[part.result_hash]
                over.set()

    async def _fetch(self, call: _GatherCall, part: SliceRecord, sources: tuple[PeerId, ...]) -> None:
        tools, record = self._chain.tools, call.record
        request = FetchResult(tools.unit, record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        others = [peer for peer in sources if peer != self._network.peer_id]
        for peer in self._in_order(others):
            await self._wait_for_exchange(part, call, for_its_own=True)
            if await self._holds(record.parent, part.result_hash):
                return
            is_first = len(others) > 1 and peer not in self._failing
            within_s = FIRST_OPEN_WITHIN_S if is_first else OPEN_WITHIN_S
            try:
                data = await fetch_result(
                    self._network,
                    peer,
                    request,
                    tools.result_codec,
                    tools.grid,
                    open_within_s=within_s,
                    came=call.came,
                )
            except PotluckError as error:
                log.debug("result_not_fetched", source=short(peer), reason=error.one_line())
                self._note_failure(peer)
                continue
            except trio.Cancelled:
                self._note_failure(peer)  # it used up the time: next time another is asked first
                raise
            if data is not None:
                self._failing.discard(peer)
                await tools.log.write_result(record.parent, part.result_hash, data)
                self._exchange.changes.notify()  # the same bytes may be awaited for the ack and for the commit
                return

    def _in_order(self, sources: Sequence[PeerId]) -> Iterator[PeerId]:
        """The sources, with those that are silent or failed last time at the end. Each is checked only at its turn, because
        mostly the first one has the bytes.
        """
        put_off: list[PeerId] = []
        for peer in sources:
            if peer in self._failing or self._exchange.is_silent(peer):
                put_off.append(peer)
            else:
                yield peer
        yield from sorted(put_off, key=lambda peer: (self._exchange.is_silent(peer), peer in self._failing))

    def _note_failure(self, peer: PeerId) -> None:
        if len(self._failing) >= MAX_FAILING:
            self._failing.clear()
        self._failing.add(peer)


def _sources(me: PeerId, record: CommitRecord, part: SliceRecord, holders: Sequence[PeerId]) -> tuple[PeerId, ...]:
    """The peers to ask for a result. Its reducer has it first, and gives it to those that took part. All others begin with any peer
    that took part: they may be many more. They ask the leader last of these, since it sends the record and the certificate, too.
    """
    if record.contributor(me) is not None or any(each.reducer == me for each in record.slices):
        return tuple(dict.fromkeys((part.reducer, *holders)))
    took_part = (part.reducer, *(entry.peer for entry in record.contributors))
    in_order = sorted(asking_order(me, took_part, part.result_hash), key=lambda peer: peer == record.ballot.peer)
    return tuple(dict.fromkeys((*in_order, *holders)))
