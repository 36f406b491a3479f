"""The collective of one attempt: scatter our chunks to the reducers, reduce our own slices, take the results (R9 and R10).

A member opens one stream to each reducer, sends the chunks that the reducer lacks, and gets the slice's result on the same stream.
So a peer without inbound connections takes part fully. There are two quantisations in all: the member's and the reducer's.

    member  -> reducer   ExchangeHello, with the hashes of the slice's chunks
    reducer -> member    bitmap of the chunks of this slice that it has
    member  -> reducer   "C" chunk number, the bytes of that chunk and of some that follow it ... then "E"
                         (while the contribution is still being encoded the hello says so, the answer is "S"; after some chunks
                         "O" and a hello with the hashes follow; hashes that do not fit into a hello follow in frames)
    reducer -> member    signed ResultHeader to the attempt's leader, ResultRef to others
    member  -> reducer   "N" to get the chunks, with the number of the first ones that it has; "H" when it has all of them
    reducer -> member    the chunks in order, some in each frame

Hashing, decoding and summing run in other threads, for the chunks of a frame together.

Rules: R9, R10, R12 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog
import trio

from averaging.arithmetic.batched_codec import run_chunks, span_bytes
from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.network.seams.interfaces import Stream
from averaging.rounds.exchange.carrier import Carrier
from averaging.rounds.exchange.contribution_receiver import Receiving
from averaging.rounds.exchange.contribution_sender import Scattering
from averaging.rounds.exchange.exchange_context import ExchangeContext
from averaging.rounds.exchange.offered_contributions import Offers
from averaging.rounds.exchange.reduction import Reduction, SliceResult, bringing
from averaging.rounds.exchange.result_receiver import RefusedResult, take_result
from averaging.rounds.exchange.streamed_contribution import GrowingContribution
from averaging.rounds.lineage.next_state import SliceBytes
from averaging.rounds.lineage.round_context import Seal
from averaging.rounds.traffic.arrivals import Arrivals
from averaging.rounds.traffic.contribution import EncodedContribution
from averaging.rounds.traffic.fair_sending import FairSending, send_evenly
from averaging.rounds.traffic.partial_results import HalfResults, PartialResult
from averaging.rounds.traffic.result_ref import NamedResult, need_from, read_need, read_ref, ref_of
from averaging.rounds.traffic.spans import Moving
from protocol.errors import PotluckError, RemoteProtocolError, TransportError, VersionError
from protocol.identity.envelope import open_envelope, seal_of
from protocol.identity.names import peer_name
from protocol.ids import PeerId, Root, short
from protocol.rounds.events import ResultRefused
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, sum_in
from protocol.rounds.messages.claim import encode_sum
from protocol.rounds.messages.messages import Proposal, ResultHeader, ResultReady, SliceSpec
from protocol.rounds.messages.record import OmissionCode
from protocol.rounds.messages.requests import NO_PART, NOTHING_TO_OFFER, ExchangeHello
from protocol.rounds.messages.wire import decode_body, encode_body

log = structlog.get_logger()

EXCHANGE_CHANNEL: Final = "exchange"
_HAVE: Final = b"H"
OPEN_WITHIN_S: Final = 10.0
"""Limit for opening a stream: a machine with many members opens its last connection late. Pings find dead peers much earlier."""
OPEN_EARLY_S: Final = 10.0
"""How long a stream is kept open before there is something to send; a reducer waits 20 s for the first frame."""

RETRY_AFTER_S: Final = 0.5
ANSWER_WITHIN_S: Final = 20.0
"""How long a reducer waits for a member to say whether it needs a result's bytes."""

CONTRIBUTIONS_FIRST_S: Final = 10.0
"""How long a member may put off a result: half of the time that its reducer waits for the answer."""

KEEP_OWN_SHARE: Final = 0.03
KEEP_OWN_AFTER_S: Final = 0.05
"""Delay before a reducer writes its own result after the slice has closed: this share of an upload's time, at most this long. The
others wait for the first frames, which writing at once would hold up; our own copy is needed only when their last frame is here.
"""

REDUCE_COST_S: Final = 0.002
"""Virtual time that summing a slice takes."""


class Exchange:
    """One attempt's traffic at one peer. `run` performs it; `offer`, `mend`, `drop` and the served streams feed it.

    Reducing and receiving begin at once; our own chunks follow when `offer` delivers them. The exchange lasts until it is
    cancelled, because slices may return to it. `last_upload_s` is the duration of the previous attempt's upload, 0 before the
    first. `halves` are results that this attempt and the previous one received only in part.
    """

    def __init__(
        self,
        proposal: Proposal,
        tools: ExchangeContext,
        offers: Offers,
        last_upload_s: float = 0.0,
        halves: HalfResults | None = None,
    ) -> None:
        self.proposal = proposal
        self._tools = tools
        self._offers = offers
        self._partial_results = HalfResults() if halves is None else halves
        self._reductions: dict[int, Reduction] = {}
        self._scopes: dict[SliceSpec, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None
        self._left_out: dict[PeerId, tuple[str, OmissionCode]] = {}
        self._sending = Scattering(tools, last_upload_s)
        self.arrivals = Arrivals()
        self._receiving = Receiving(tools, offers, self.arrivals.came)
        self._carrier = Carrier(tools, EXCHANGE_CHANNEL, ())
        self._fair_results = FairSending()
        results = tools.result_codec, tools.grid
        self._results = SlotBuffer(len(span_bytes(*results, 0, tools.grid.num_chunks)))
        """All slices' results, each at its place."""

        self._began_s = 0.0
        self._reduce_within_s = proposal.reduce_within_s
        self._num_running = 0
        self._has_ended = False
        self._taking = set[trio.CancelScope]()
        self._takes_part = proposal.member(tools.me.peer) is not None
        """Whether we are a member. Else we only reduce, and need nobody's result."""

        self.begun = trio.Event()
        """Set when its slices are running."""

    @property
    def is_over(self) -> bool:
        """Whether every slice's result is here or was given up."""
        return self._has_ended or (self._nursery is not None and self._num_running == 0)

    async def run(self) -> None:
        """Run until cancelled."""
        self._began_s = trio.current_time()
        self._sending.upload.begin(self._began_s)
        self._carrier = Carrier(self._tools, EXCHANGE_CHANNEL, self._offers.carried_in(self.proposal))
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._start_slices()
                self.begun.set()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            self._has_ended = True
            for scope in self._taking:
                scope.cancel()  # else a stalled member would keep all contributions in memory
            for reduction in self._reductions.values():
                reduction.close()  # releases members that wait for a slice of this attempt

    def grow(self, growing: GrowingContribution) -> None:
        """Our own contribution is still being encoded: send each chunk once it is ready. `offer` follows with the result."""
        self._sending.grow(growing)
        for part in self._scopes:
            self._sending.want(part)

    def offer(self, contribution: EncodedContribution | None, *, no_part: bool = False) -> None:
        """Our own contribution is ready, or there is none; with `no_part` because we were not asked for one."""
        if self._sending.is_known.is_set():
            return
        me = self._tools.me.peer
        if contribution is None:
            told = (NO_PART, OmissionCode.NO_PART) if no_part else (NOTHING_TO_OFFER, OmissionCode.NOTHING)
            self.drop(me, *told)
        else:
            offer = self._offers.admit_own(me, self.proposal, contribution)
            offer.chunks.update(enumerate(contribution.chunks))
            for reduction in self._reductions.values():
                reduction.wake()
        self._sending.offer(contribution, no_part=no_part)
        for part in self._scopes:
            self._sending.want(part)

    def mend(self, proposal: Proposal) -> None:
        """Slices have new reducers: stop those that are not wanted, begin the new ones, continue the rest (R12)."""
        self.proposal = proposal
        wanted = set(proposal.slices)
        for part, scope in list(self._scopes.items()):
            if part not in wanted:
                scope.cancel()
                del self._scopes[part]
                self._sending.spare(part)
                gone = self._reductions.pop(part.first_chunk, None)
                if gone is not None:
                    gone.close()
        self._start_slices()

    def drop(self, peer: PeerId, reason: str, code: OmissionCode = OmissionCode.GONE) -> None:
        """Stop waiting for a member in our own slices."""
        self._left_out.setdefault(peer, (reason, code))
        for reduction in self._reductions.values():
            reduction.set_absent(peer, reason, code)

    def give_time(self, reduce_within_s: float) -> None:
        """Let our slices wait this long from their beginning, if that is longer than now."""
        self._reduce_within_s = max(self._reduce_within_s, reduce_within_s)
        for reduction in self._reductions.values():
            reduction.give_time(self._reduce_within_s)

    def upload_s(self, now_s: float) -> float | None:
        """How long our upload took, or will take at its rate so far; None if there was nothing to send."""
        return self._sending.upload.seconds(now_s)

    def late_upload_s(self, now_s: float) -> float:
        """How long our upload will take at its rate so far, once that is longer than the last one took; else 0."""
        return self._sending.upload.late_s(now_s)

    def upload_bytes_per_s(self, now_s: float) -> int:
        """The rate of our upload so far, 0 if nothing was sent."""
        return self._sending.upload.bytes_per_s(now_s)

    def _start_slices(self) -> None:
        """Begin every slice of the proposal that is not running."""
        if self._nursery is None:
            return
        for part in self.proposal.slices:
            is_ours = part.reducer == self._tools.me.peer
            if part in self._scopes or not (is_ours or self._takes_part):
                continue
            scope = self._scopes[part] = trio.CancelScope()
            if is_ours:
                tools = self._tools
                reduction = Reduction(self.proposal, part, self._offers, tools.means, self._results)
                for peer, (reason, code) in self._left_out.items():
                    reduction.set_absent(peer, reason, code)
                self._reductions[part.first_chunk] = reduction
                self._nursery.start_soon(self._in_scope, scope, part, self._reduce, reduction)
            else:
                self._sending.want(part)
                self._nursery.start_soon(self._in_scope, scope, part, self._trade, part)
            self._num_running += 1

    async def _in_scope(
        self, scope: trio.CancelScope, part: SliceSpec, work: Callable[..., Awaitable[None]], argument: object
    ) -> None:
        try:
            await self._guarded(scope, part, work, argument)
        finally:
            self._num_running -= 1

    async def _guarded(
        self, scope: trio.CancelScope, part: SliceSpec, work: Callable[..., Awaitable[None]], argument: object
    ) -> None:
        with scope:
            try:
                await work(argument)
            except PotluckError as error:  # the leader gives a slice that fails here to another reducer
                log.warning("slice_failed", first_chunk=part.first_chunk, reason=error.one_line())
                reduction = self._reductions.get(part.first_chunk)
                if reduction is not None:
                    reduction.close()

    # --- the reducer's side ---

    async def _reduce(self, reduction: Reduction) -> None:
        await reduction.wait_ready(self._reduce_within_s)
        with self._tools.spanned(self.proposal, "reduce"):
            result = await self._tools.offload.run(reduction.reduce, cost_s=REDUCE_COST_S)
        if result is None:
            log.warning("slice_without_contributions", first_chunk=reduction.part.first_chunk)
            await self._announce(await self._tools.seal(encode_body(reduction.without_contributions())))
            return
        header = replace(result.header, credential=self._tools.credential())
        result = replace(result, header=await _with_sum(header, self.proposal, self._tools.seal))
        reduction.signed_header = await self._tools.seal(encode_body(result.header))
        reduction.result = result
        reduction.close()  # members take it while we write it; each acks only what is on its own disk
        await trio.sleep(min(KEEP_OWN_AFTER_S, KEEP_OWN_SHARE * (self.upload_s(trio.current_time()) or 0.0)))
        was_examined = await self._tools.keep_result(result.header, SliceBytes(result.data, result.hashes), None)
        await self._announce(reduction.signed_header)
        await self._examine_own(result)
        was_examined()

    async def _announce(self, signed_header: bytes) -> None:
        proposal = self.proposal
        await self._tools.announce(ResultReady(proposal.unit, proposal.base, proposal.ballot, signed_header))

    async def _examine_own(self, result: SliceResult) -> None:
        """Examine our own result, as others' results are examined when they arrive, while it is being sent."""
        first, step = result.header.first_chunk, run_chunks(self._tools.grid.chunk_elements)
        try:
            for begin in range(0, len(result.chunks), step):
                await self._tools.examine(first + begin, result.chunks[begin : begin + step])
        except RemoteProtocolError as error:
            await self._refuse(self._tools.me.peer, error, result.header.result_hash)
            raise

    async def serve(self, sender: PeerId, hello: ExchangeHello, stream: Stream) -> None:
        """Take a member's chunks for one of our slices, and send it the result.

        Raises:
            RemoteProtocolError: it is no member, or its data does not fit; the stream is reset.
            TransportError: the attempt ended before the slice closed.
        """
        stream.count_as(self.proposal.unit, self._offers.codec.name)
        reduction, owner = self._reductions.get(hello.first_chunk), self._offers.owner(sender, hello)
        if reduction is None or not all(map(self.proposal.member, (sender, owner))):
            raise RemoteProtocolError(
                f"{short(sender)} asks for slice {hello.first_chunk}", "a member and a slice of ours"
            )
        with trio.CancelScope() as scope, bringing(reduction, owner, is_carried=hello.carried):
            self._taking.add(scope)
            try:
                await self._receiving.take(self.proposal, owner, hello, reduction, stream)
            except (RemoteProtocolError, VersionError) as error:
                reduction.set_refused(owner, error)
                raise
            finally:
                self._taking.discard(scope)
        reduction.wake()
        if hello.carried:
            return  # its carrier takes the result on a stream of its own
        await reduction.closed.wait()
        if reduction.result is None or scope.cancelled_caught:
            raise TransportError("an attempt that ended before its slice closed", "a result", "a later attempt has it")
        stream.count_as(self.proposal.unit, self._tools.result_codec.name)
        header, is_leader = reduction.result.header, sender == self.proposal.ballot.peer
        await stream.send_frame(reduction.signed_header if is_leader else ref_of(header).encode())
        answer: bytes | None = None
        with trio.move_on_after(ANSWER_WITHIN_S):
            answer = await stream.receive_frame()
        place = None if answer is None else read_need(answer, len(reduction.result.chunks))
        if place is not None:
            await self._send_result(reduction.result, place, sender, stream)

    async def _send_result(self, result: SliceResult, place: int, sender: PeerId, stream: Stream) -> None:
        """Send the result's chunks from `place` on, as long as the member listens. A member that leaves the attempt stops
        listening; the rest would waste the line that the next attempt needs.
        """
        with self._tools.spanned(self.proposal, "send", f"a result to {short(sender)}") as moving:
            numbers = range(place, len(result.chunks))
            moving.num_bytes = sum(len(result.chunks[number]) for number in numbers)
            broke: PotluckError | None = None  # out of the nursery as it is, not in a group
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_until_it_leaves, stream, nursery.cancel_scope)
                try:
                    await send_evenly(stream, numbers, result.data, result.chunks, self._fair_results)
                except PotluckError as error:
                    broke = error
                nursery.cancel_scope.cancel()
            if broke is not None:
                raise broke

    # --- the member's side ---

    async def _trade(self, part: SliceSpec) -> None:
        """Send our chunks to a reducer and take its result. Try again while the attempt lasts, after a refused result once."""
        num_refused = 0
        async with self._carrier.bringing(self.proposal, part):
            while True:
                try:
                    if await self._trade_once(part):
                        return
                    await self._sending.has_begun.wait()
                    continue
                except TransportError as error:
                    log.debug("exchange_stream_broke", reducer=peer_name(part.reducer), reason=error.one_line())
                    self._tools.probe(part.reducer)
                except PotluckError as error:
                    log.warning("exchange_refused", reducer=peer_name(part.reducer), reason=error.one_line())
                    num_refused += isinstance(error, RefusedResult)
                    if num_refused > 1 or (isinstance(error, RefusedResult) and error.is_useless):
                        return  # ends the wait for this stream: the bytes are asked for elsewhere
                await trio.sleep(RETRY_AFTER_S)

    async def _trade_once(self, part: SliceSpec) -> bool:
        """Whether the slice is done. The stream is opened while our delta is still being made, and closed again if that takes
        very long.
        """
        stream = await self._tools.network.open_stream(part.reducer, EXCHANGE_CHANNEL, timeout_s=OPEN_WITHIN_S)
        try:
            with trio.move_on_after(OPEN_EARLY_S):
                await self._sending.has_begun.wait()
            if not self._sending.has_begun.is_set():
                return False
            stream.count_as(self.proposal.unit, self._offers.codec.name)
            if not await self._sending.bring(self.proposal, part, stream):
                return False
            await self._take_result(part, stream)
            return True
        finally:
            with trio.move_on_after(1.0, shield=True):
                await stream.aclose()

    async def _take_result(self, part: SliceSpec, stream: Stream) -> None:
        tools = self._tools
        signed = await stream.receive_frame()
        if signed is None:
            raise RemoteProtocolError("a reducer that hung up", "its result")
        stream.count_as(self.proposal.unit, tools.result_codec.name)
        proposal = self.proposal
        is_leader = proposal.ballot.peer == tools.me.peer
        named = self._opened(part, signed) if is_leader else read_ref(signed, proposal.base)
        if (named.first_chunk, named.stop_chunk) != (part.first_chunk, part.stop_chunk):
            raise RemoteProtocolError("a result of another slice", "the one that was asked for")
        if await tools.holds_result(named):  # the same sum of the same members, from an earlier attempt
            await stream.send_frame(_HAVE)
        else:
            await self._contributions_first()
            place = span_bytes(tools.result_codec, tools.grid, part.first_chunk, part.stop_chunk)
            half = self._partial_results.take(part, named) or PartialResult(
                self._results.take_at(place.start, place.stop)
            )
            await stream.send_frame(need_from(len(half.hashes)))
            with self._tools.spanned(self.proposal, "receive", f"a result of {short(part.reducer)}") as moving:
                await self._take_result_chunks(part, named, half, stream, moving)
        if is_leader:
            await tools.learn(ResultReady(proposal.unit, proposal.base, proposal.ballot, signed))

    async def _contributions_first(self) -> None:
        """Put off a result until nearly all contributions to our own slices are here, at most for as long as this exchange has
        lasted. Everybody waits for the last slice that closes, and earlier results only take its line.
        """
        most_s = min(CONTRIBUTIONS_FIRST_S, trio.current_time() - self._began_s)
        with trio.move_on_after(most_s):
            for reduction in list(self._reductions.values()):
                await reduction.nearly_in.wait()

    def _opened(self, part: SliceSpec, signed: bytes) -> ResultHeader:
        """Verify the header that a reducer signed for the leader of the attempt."""
        tools, proposal = self._tools, self.proposal
        envelope = open_envelope(
            signed, verifier=tools.verifier, domain=ROUND_DOMAIN, run_id=tools.run_id, now_unix_ms=None
        )
        header = decode_body(ResultHeader, envelope.payload)
        if (envelope.sender, header.base, header.ballot) != (part.reducer, proposal.base, proposal.ballot):
            raise RemoteProtocolError("a result of another reducer or attempt", "the one that was asked for")
        return header

    async def _take_result_chunks(
        self, part: SliceSpec, named: NamedResult, half: PartialResult, stream: Stream, moving: Moving
    ) -> None:
        tools, room, hashes = self._tools, half.room(), list(half.hashes)

        def came(frame: memoryview) -> None:
            self.arrivals.came(part.reducer, frame)
            coming.came(len(frame))
            moving.num_bytes += len(frame)

        begun = tools.begin_result(named)
        try:
            with self.arrivals.coming(named.result_hash) as coming:
                result = await take_result(part, named, stream, room, hashes, tools, came, begun)
                (await tools.keep_result(named, result, begun))()  # it was examined as it came
        except RefusedResult as error:
            await self._refuse(part.reducer, error, named.result_hash if error.is_useless else None)
            raise
        except (TransportError, trio.Cancelled):
            # the reducer or the attempt is gone: a later attempt may deliver the rest
            self._keep_partial(part, named, half.memory, hashes)
            raise
        finally:
            begun.drop()

    def _keep_partial(self, part: SliceSpec, named: NamedResult, memory: memoryview, hashes: list[bytes]) -> None:
        came = span_bytes(self._tools.result_codec, self._tools.grid, part.first_chunk, part.first_chunk + len(hashes))
        half = PartialResult(memory, len(came), tuple(hashes))
        self._partial_results.keep(self.proposal.ballot, part.reducer, named, half)

    async def _refuse(self, reducer: PeerId, error: RemoteProtocolError, result_hash: Root | None) -> None:
        proposal = self.proposal
        await self._tools.refused(ResultRefused(proposal.base, proposal.ballot, reducer, error.found, result_hash))


async def _until_it_leaves(stream: Stream, sending: trio.CancelScope) -> None:
    """Stop sending when the other side ends the stream; it sends nothing more on it."""
    with suppress(PotluckError):
        await stream.receive_frame()
    sending.cancel()


async def _with_sum(header: ResultHeader, proposal: Proposal, seal: Seal) -> ResultHeader:
    """The header with the seal of its sum, which goes into the record."""
    return replace(header, sum_seal=seal_of(await seal(encode_sum(sum_in(header, proposal)))))
