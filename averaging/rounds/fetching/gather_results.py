"""Bringing the bytes that a record names to our disk: from the running exchange, else from whoever holds them (R14).

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
from protocol.rounds.liveness_timing import STALLED_STREAM_S
from protocol.rounds.messages.messages import CommitRecord, SliceRecord
from protocol.rounds.messages.requests import FetchResult

log = structlog.get_logger()

GATHER_WITHIN_S: Final = 60.0
"""And a second more for each LEAST_BYTES_PER_S that came meanwhile: results that weigh more than a thin line carries in a minute would
else be begun anew for ever.
"""
GATHER_RETRY_S: Final = 0.3
FETCHES_AT_ONCE: Final = 4
MAX_FAILING: Final = 256
FIRST_OPEN_WITHIN_S: Final = 0.8
"""For a first try where others may have it, too: who was cut off a moment ago is suspected by nobody yet, and takes no connection. Who
is asked once more, after all others, gets the time that a line around the world may need.
"""

EXCHANGE_PATIENCE_S: Final = 0.6
"""How long a running exchange may bring nothing at least before what is missing is asked for elsewhere, which would move it twice.
Frames are a tenth of a second long, whatever the line.
"""


@dataclass(frozen=True, slots=True)
class ExchangeView:
    """What gathering knows of the exchange that may still bring what it looks for; by itself, that there is none.

    Attributes:
        is_running: whether an exchange on this base may still deliver.
        changes: told when something happened to it.
        arrivals: what streams brought to it so far.
        patience_s: for how long it may take nothing.
        is_silent: whether a peer is suspected now: it will bring nothing, and is asked after all others.
    """

    is_running: Callable[[CommitId], bool] = lambda base: False
    changes: Changes = field(default_factory=Changes)
    arrivals: Callable[[], Arrivals] = Arrivals
    patience_s: Callable[[], float] = lambda: EXCHANGE_PATIENCE_S
    is_silent: Callable[[PeerId], bool] = lambda peer: False


class _Errand:
    """One call of `gather`: until when, and what went wrong on the way."""

    def __init__(self, record: CommitRecord, asked_s: float, moved_bytes: int) -> None:
        self.record = record
        self.asked_s = asked_s
        self.scope = trio.CancelScope(deadline=asked_s + GATHER_WITHIN_S)
        self.not_written: list[StorageError] = []
        self._moved_bytes = moved_bytes

    def came(self, num_bytes: int) -> None:
        """So many bytes were fetched."""
        self.scope.deadline += num_bytes / LEAST_BYTES_PER_S

    def exchange_moved(self, moved_bytes: int) -> None:
        """The exchange has taken so many in all."""
        self.came(max(0, moved_bytes - self._moved_bytes))
        self._moved_bytes = moved_bytes


class Gatherer:
    """Fetches results for one unit."""

    def __init__(self, network: Network, chain: UnitChain, exchange: ExchangeView | None = None) -> None:
        self._network = network
        self._chain = chain
        self._exchange = exchange or ExchangeView()
        self._failing: set[PeerId] = set()
        """Who did not give what it was asked for last: asked after all others, for one that only stalls costs a whole deadline."""

        self._fetching: dict[Root, trio.Event] = {}

    async def gather(
        self, record: CommitRecord, holders: tuple[PeerId, ...], is_wanted: Callable[[], bool] | None = None
    ) -> bool:
        """True when all results that the record names are on disk; False when nobody gave them in time, or they are no longer wanted:
        by default, when the head moved away from the record's parent.

        Raises:
            StorageError: our disk did not take what came. Nothing is asked for again meanwhile; call again once it may.
        """
        wanted = is_wanted or (lambda: self._chain.head.commit == record.parent)
        errand = _Errand(record, trio.current_time(), self._exchange.arrivals().moved_bytes)
        with errand.scope:
            while wanted():
                for part in await self._missing(record):
                    await self._wait_for_exchange(part, errand)
                async with trio.open_nursery() as nursery:
                    at_once = trio.Semaphore(FETCHES_AT_ONCE)
                    for part in await self._missing(record):
                        sources = tuple(dict.fromkeys((part.reducer, *holders)))
                        nursery.start_soon(self._fetch_one_of_many, at_once, errand, part, sources)
                if errand.not_written:
                    raise errand.not_written[0]
                if not await self._missing(record):
                    return True  # at once: everybody's ack, and so the commit, waits for it
                await trio.sleep(GATHER_RETRY_S)
        return False

    async def until_fetched(self, result_hash: Root) -> None:
        """Until nothing here fetches these bytes: who is offered them may have them then."""
        while (over := self._fetching.get(result_hash)) is not None:
            await over.wait()

    async def _missing(self, record: CommitRecord) -> list[SliceRecord]:
        names = await self._chain.tools.log.list_results(record.parent)
        held = {name.rpartition("/")[2] for name in names}
        return [part for part in record.slices if part.result_hash.hex() not in held]

    async def _holds(self, base: CommitId, result_hash: Root) -> bool:
        return await self._chain.tools.log.holds_results(base, [result_hash])

    async def _wait_for_exchange(self, part: SliceRecord, errand: _Errand, *, for_its_own: bool = False) -> None:
        """Until the slice is here, or the exchange brings nothing more: who alone brings this slice is silent, or it stands still;
        `for_its_own`: the stream that has begun to bring it does.
        """
        exchange, base = self._exchange, errand.record.parent
        while exchange.is_running(base) and not exchange.is_silent(part.reducer):
            if await self._holds(base, part.result_hash):
                return
            arrivals = exchange.arrivals()
            errand.exchange_moved(arrivals.moved_bytes)
            until_s = arrivals.coming_s(part.result_hash) + STALLED_STREAM_S
            if not for_its_own:
                until_s = max(until_s, max(errand.asked_s, arrivals.moved_s) + exchange.patience_s())
            if (now_s := trio.current_time()) >= until_s:
                return
            # that its reducer is gone, or its stream, is told by no change
            with trio.move_on_at(min(until_s, now_s + EXCHANGE_PATIENCE_S)):
                await exchange.changes.wait()

    async def _fetch_one_of_many(
        self, at_once: trio.Semaphore, errand: _Errand, part: SliceRecord, sources: tuple[PeerId, ...]
    ) -> None:
        """One of the tasks of a nursery, which would wrap what it raises: an error of the disk is put into `not_written` instead."""
        async with at_once:
            await self.until_fetched(part.result_hash)  # by another errand
            over = self._fetching[part.result_hash] = trio.Event()
            try:
                await self._fetch(errand, part, sources)
            except StorageError as error:
                errand.not_written.append(error)
            finally:
                del self._fetching[part.result_hash]
                over.set()

    async def _fetch(self, errand: _Errand, part: SliceRecord, sources: tuple[PeerId, ...]) -> None:
        tools, record = self._chain.tools, errand.record
        request = FetchResult(tools.unit, record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        others = [peer for peer in sources if peer != self._network.peer_id]
        for peer in self._in_order(others):
            await self._wait_for_exchange(part, errand, for_its_own=True)
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
                    came=errand.came,
                )
            except PotluckError as error:
                log.debug("result_not_fetched", source=short(peer), reason=error.one_line())
                self._note_failure(peer)
                continue
            except trio.Cancelled:
                self._note_failure(peer)  # it took all the time that there was: another is asked first, next time
                raise
            if data is not None:
                self._failing.discard(peer)
                await tools.log.write_result(record.parent, part.result_hash, data)
                self._exchange.changes.notify()  # who waits for the same bytes, for the ack or for the commit, has them
                return

    def _in_order(self, sources: Sequence[PeerId]) -> Iterator[PeerId]:
        """Who is silent, or gave nothing last time, after all others. Each is looked at when its turn comes, for mostly the first one
        has what is asked for.
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
