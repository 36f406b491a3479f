"""A reducer's side of one slice: take checked contributions chunk by chunk and sum them in fixed order.

A chunk is summed as soon as all members that are still expected have sent it, so that few are left when the slice closes. If a
member is left out in the end, the chunks summed with it are summed again from the bytes. The chunks are checked in
offered_contributions.py, except that they decode within the budget to finite values.

Rules: R10 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import fsum, inf
from typing import Final, TypeAlias

import torch
import trio

from averaging.arithmetic.batched_codec import decode_run, encode_run, run_chunks, span_bytes
from averaging.arithmetic.slot_buffer import SlotBuffer
from averaging.arithmetic.squared_norm import left_out, lost_ppm
from averaging.codecs import Codec
from averaging.rounds.exchange.chunk_means import ChunkMeans, Counted, LeftOut, UndecodableError
from averaging.rounds.exchange.offered_contributions import OfferedContribution, Offers
from averaging.rounds.traffic.batches import CHUNK_HEAD, Batch, consecutive
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.ids import HASH_BYTES, PeerId, Root
from protocol.merkle import leaf_hash, merkle_root
from protocol.received import shown
from protocol.rounds.lineage.stranger_weights import weights_of
from protocol.rounds.messages.lane_parts import brought_twice
from protocol.rounds.messages.messages import Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import Included, Omission, OmissionCode
from protocol.tensors.tensor_schema import ChunkGrid

NEARLY_SHARE: Final = 0.04
"""Share of each member's chunks of a slice. When less than this is still to come, the reducer starts to take others' results. A
request and its first frame take a while, in which the line would be idle.
"""


@dataclass(frozen=True)
class SliceResult:
    """A closed slice: its header's content, its encoded chunks, their leaf hashes, and the chunks joined."""

    header: ResultHeader
    chunks: tuple[memoryview, ...]
    hashes: tuple[bytes, ...]
    data: memoryview


_Names: TypeAlias = tuple[tuple[PeerId, Root], ...]
"""The contributions in a sum: each member with its contribution's root."""


@dataclass(frozen=True, eq=False)
class _Written:
    """Memory for a whole result, and the contributions in it. Sums of different contributions never share this memory."""

    of: _Names
    room: memoryview


@dataclass(frozen=True)
class _Sum:
    """One chunk of the result: its memory, its bytes, their leaf hash, the energy of its mean, the energy that the encoding lost, and
    who is left out of it.
    """

    written: _Written
    encoded: memoryview
    leaf: bytes
    lost: float = 0.0
    energy: float = 0.0
    left_out: LeftOut = ()


class _WholeOffers:
    """Remembers the offers of which all of a slice is here: to look at each chunk takes a while."""

    def __init__(self, part: SliceSpec) -> None:
        self._part = part
        self._whole: dict[PeerId, OfferedContribution] = {}

    def has(self, offer: OfferedContribution | None) -> bool:
        """Whether all of the slice is here."""
        if offer is None:
            return False
        peer = offer.member.peer
        if self._whole.get(peer) is not offer and offer.has(self._part):
            self._whole[peer] = offer
        return self._whole.get(peer) is offer


class Reduction:
    """One slice of one attempt at its reducer: waits for the members, closes, sums.

    Args:
        results: memory of the whole vector's result; the slice is written at its place in it.
    """

    def __init__(
        self,
        proposal: Proposal,
        part: SliceSpec,
        offers: Offers,
        means: ChunkMeans,
        results: SlotBuffer | None = None,
    ) -> None:
        self.part = part
        self._proposal = proposal
        self._offers = offers
        self._result_codec = means.result_codec
        self._grid = grid = means.grid
        self._means = means
        self.left_out: dict[PeerId, Omission] = {}
        """The members that nobody waits for, and why."""

        self._refused: dict[PeerId, Omission] = {}
        self.carried: dict[PeerId, Omission | None] = {}
        """The leavers whose carriers are bringing their chunks now, with the reason for which nobody would wait for them otherwise."""

        self._changed = trio.Event()
        self._waiting = trio.CancelScope(deadline=-inf)
        self._began_s = 0.0
        self._until_s = -inf
        self._enough_until_s = inf
        """When the slice closes because enough members are in; inf while they are not."""

        self._begun: set[int] = set()
        self._sums: dict[int, _Sum] = {}
        self._results = results or SlotBuffer(0)
        self._written: _Written | None = None
        """Memory of the latest sum; a sum of other contributions gets memory of its own."""

        self._lock = threading.Lock()
        self._whole_bytes = CHUNK_HEAD.size + len(span_bytes(offers.codec, grid, part.first_chunk, part.stop_chunk))
        self._room = SlotBuffer(_scattered_bytes(proposal, part, offers.codec, grid))
        """Memory for the members' chunks as they arrive."""

        self._num_left: dict[PeerId, tuple[OfferedContribution | None, int]] = {}
        """Number of chunks that are still to come of an offer, once some have arrived."""

        self._whole = _WholeOffers(part)
        """Of members that are not waited for."""

        self.nearly_in = trio.Event()
        """Set when little is still to come, and when the slice is closed."""

        self.closed = trio.Event()
        self.result: SliceResult | None = None
        self.signed_header = b""

    def place(self, num_bytes: int) -> memoryview:
        """The memory that a frame of a member's chunks is to be received into.

        Raises:
            RemoteProtocolError: the frame is longer than the whole slice; no memory was taken for it.
        """
        if num_bytes > self._whole_bytes:
            raise RemoteProtocolError(f"a frame of {num_bytes} bytes", f"at most {self._whole_bytes}, the whole slice")
        return self._room.take(num_bytes)

    def set_absent(self, peer: PeerId, reason: str, code: OmissionCode = OmissionCode.GONE) -> None:
        """Stop waiting for a member: it offers nothing, or is suspected. Not while its carrier brings its chunks."""
        absent = Omission(peer, reason, code)
        if peer in self.carried:
            self.carried[peer] = absent
        else:
            self.left_out.setdefault(peer, absent)
            self.wake()

    def set_refused(self, peer: PeerId, error: PotluckError) -> None:
        """Note why something that a member sent was refused. The member may still send correct data until the slice closes;
        otherwise this is the reason for leaving it out.
        """
        why = shown(f"what it sent was refused: {error.one_line()}")
        self._refused[peer] = Omission(peer, why, OmissionCode.REFUSED)

    def set_present(self, peer: PeerId) -> None:
        """A suspect answered again: wait for it as for any member."""
        self.left_out.pop(peer, None)

    def close(self) -> None:
        """Close the slice, with its result or given up without one."""
        self.nearly_in.set()
        self.closed.set()

    def wake(self) -> None:
        """Check again whether the slice may close."""
        event, self._changed = self._changed, trio.Event()
        event.set()

    def _is_settled(self, peer: PeerId) -> bool:
        offer = self._offers.get(peer)
        return peer in self.left_out or (offer is not None and offer.has(self.part))

    async def wait_ready(self, within_s: float) -> None:
        """Return when every member's chunks are here or the member is accounted for, a while after those of enough members are, or at
        the deadline with at least one member (R10).
        """
        self._began_s = trio.current_time()
        self._until_s = self._began_s + within_s
        self._set_deadline()
        with self._waiting:
            while not all(self._is_settled(member.peer) for member in self._proposal.members):
                await self._changed.wait()
                self._set_deadline()
            return
        while not _has_trusted(self._whole_offers()):
            await self._changed.wait()

    def give_time(self, within_s: float) -> None:
        """Extend the deadline to this long after the wait began, if that is later. Has no effect after the deadline."""
        self._until_s = max(self._until_s, self._began_s + within_s)
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Of the slice: its own, or an earlier one from the moment on when enough members are in."""
        here = [member.peer for member in self._proposal.members if member.peer not in self.left_out]
        num_in, passed_s = sum(map(self._is_settled, here)), trio.current_time() - self._began_s
        enough_s = self._means.rules.closes_after_s(self._proposal.index, num_in, len(here), passed_s)
        self._enough_until_s = min(self._enough_until_s, self._began_s + enough_s) if enough_s < inf else inf
        self._waiting.deadline = min(self._until_s, self._enough_until_s)

    def _whole_offers(self) -> list[tuple[PeerId, OfferedContribution]]:
        members = sorted(member.peer for member in self._proposal.members)
        offers = [(peer, self._offers.get(peer)) for peer in members]
        return [
            (peer, offer)
            for peer, offer in offers
            if offer is not None and offer.has(self.part) and offer.header.tokens > 0
        ]

    # --- the sum ---

    def take(self, offer: OfferedContribution, batch: Batch) -> Callable[[], None] | None:
        """Keep checked chunks of a member that are not here yet. Returns a function that sums those that all expected members
        have sent now, to be run in another thread; None if there are none.
        """
        batch = _new(offer, batch)
        offer.chunks.update(batch)
        self._count(offer, len(batch))
        members = sorted(member.peer for member in self._proposal.members)
        # nobody waits for a leaver, but what its carrier brought is summed
        expected = [peer for peer in members if peer not in self.left_out or self._whole.has(self._offers.get(peer))]
        counted: list[tuple[PeerId, OfferedContribution]] = []
        for peer in expected:
            theirs = self._offers.get(peer)
            if theirs is None:
                return None
            if theirs.header.tokens > 0:
                counted.append((peer, theirs))
        counted, _ = _each_lane_once(counted)
        complete = [
            chunk
            for chunk, _ in batch
            if chunk not in self._begun and all(chunk in theirs.chunks for _, theirs in counted)
        ]
        if not complete or not _has_trusted(counted):
            return None
        self._begun.update(complete)
        return partial(self._sum_early, complete, counted)

    def _count(self, offer: OfferedContribution, num_new: int) -> None:
        """Count how much is still to come."""
        if self.nearly_in.is_set():
            return
        sender, numbers = offer.header.member.peer, range(self.part.first_chunk, self.part.stop_chunk)
        known, num_left = self._num_left.get(sender, (None, 0))
        if known is not offer:  # its first chunks, or those of a later session
            known, num_left = offer, num_new + sum(chunk not in offer.chunks for chunk in numbers)
        self._num_left[sender] = known, num_left - num_new
        if all(self._has_nearly_all(member.peer, NEARLY_SHARE * len(numbers)) for member in self._proposal.members):
            self.nearly_in.set()

    def _has_nearly_all(self, peer: PeerId, few: float) -> bool:
        if peer in self.left_out:
            return True
        offer, num_left = self._num_left.get(peer, (None, inf))
        if offer is None and self._is_settled(peer):
            self._num_left[peer] = self._offers.get(peer), 0
            return True
        return num_left <= few

    def _sum_early(self, chunks: Sequence[int], counted: Counted) -> None:
        try:
            self._sums.update(self._summed(chunks, counted, self._written_of(_names(counted))))
        except UndecodableError:
            return  # the member is left out, with its reason, when the slice closes

    def reduce(self) -> SliceResult | None:
        """Sum the complete contributions in the order of peer ids, and encode the mean once; None if all are of strangers."""
        whole = self._whole_offers()
        while _has_trusted(whole):
            try:
                return self._closed(*_each_lane_once(whole))
            except UndecodableError as error:
                why = f"not decodable: {error}"
                self.left_out[error.peer] = Omission(error.peer, why, OmissionCode.REFUSED)
                whole = [(peer, offer) for peer, offer in whole if peer != error.peer]
        return None

    def without_contributions(self) -> ResultHeader:
        """The header that tells the leader that nothing was summed: the members waited for, and why each one is not counted."""
        return self._header((), 0, Root(bytes(HASH_BYTES)), self.left_out)

    def _closed(self, counted: Counted, twice: Mapping[PeerId, Omission]) -> SliceResult:
        written = self._written_of(_names(counted))
        # a copy in one step: another thread may be summing the last chunks now
        early = {chunk: each for chunk, each in dict(self._sums).items() if each.written is written}
        numbers = range(self.part.first_chunk, self.part.stop_chunk)
        early.update(self._summed([chunk for chunk in numbers if chunk not in early], counted, written))
        sums = [early[chunk] for chunk in numbers]
        chunks, hashes = tuple(each.encoded for each in sums), tuple(each.leaf for each in sums)
        absent = {**self.left_out, **twice}
        header = replace(
            self._header(_included(counted, sums), sum(self._weights(counted)), merkle_root(hashes), absent),
            lost_ppm=lost_ppm(fsum(each.lost for each in sums), fsum(each.energy for each in sums)),
        )
        return SliceResult(header, chunks, hashes, written.room.toreadonly())

    def _place(self, first_chunk: int, stop_chunk: int) -> range:
        """The byte range of these chunks in the result of the whole vector."""
        return span_bytes(self._result_codec, self._grid, first_chunk, stop_chunk)

    def _written_of(self, of: _Names) -> _Written:
        """The memory for a sum of these contributions. The first set gets the slice's place among the results, because it is
        mostly the final one.
        """
        with self._lock:
            if self._written is None or self._written.of != of:
                place = self._place(self.part.first_chunk, self.part.stop_chunk)
                self._written = _Written(of, self._results.take_at(place.start, place.stop))
            return self._written

    def _weights(self, counted: Counted) -> list[int]:
        tokens, are_strangers = [o.header.tokens for _, o in counted], [o.is_stranger for _, o in counted]
        return weights_of(tokens, are_strangers, self._proposal.weight_cap_tokens)

    def _summed(self, chunks: Sequence[int], counted: Counted, written: _Written) -> dict[int, _Sum]:
        """The means of these chunks over these members, encoded into `written`. Raises UndecodableError."""
        found: dict[int, _Sum] = {}
        begin = self._place(self.part.first_chunk, self.part.stop_chunk).start
        for run in consecutive(chunks, run_chunks(self._grid.chunk_elements)):
            place = self._place(run.start, run.stop)
            mean_n, left_out = self._means.of(run, self._offers.codec, counted, self._weights(counted))
            room = written.room[place.start - begin : place.stop - begin]
            encoded = encode_run(self._result_codec, mean_n, self._grid.chunk_elements, room)
            losses = self._losses(mean_n, encoded)
            found.update(
                {
                    chunk: _Sum(written, data, leaf_hash(data), *loss, left_out=gone)
                    for chunk, data, loss, gone in zip(run, encoded, losses, left_out, strict=True)
                }
            )
        return found

    def _losses(self, mean_n: torch.Tensor, encoded: Sequence[memoryview]) -> list[tuple[float, float]]:
        """Lost energy and energy of each chunk, as of `left_out`; zeros if the codec writes every value."""
        if not self._result_codec.leaves_out:
            return [(0.0, 0.0)] * len(encoded)
        size = self._grid.chunk_elements
        written_n = decode_run(self._result_codec, encoded, size, mean_n.numel())
        return [left_out(*pair) for pair in zip(torch.split(mean_n, size), torch.split(written_n, size), strict=True)]

    def _header(
        self, included: tuple[Included, ...], weight_sum: int, result_hash: Root, reasons: Mapping[PeerId, Omission]
    ) -> ResultHeader:
        proposal = self._proposal
        counted = {entry.peer for entry in included}
        omitted = tuple(
            reasons.get(member.peer)
            or self._refused.get(member.peer)
            or Omission(member.peer, "late", OmissionCode.LATE)
            for member in sorted(proposal.members, key=lambda member: member.peer)
            if member.peer not in counted
        )
        return ResultHeader(
            unit=proposal.unit,
            base=proposal.base,
            ballot=proposal.ballot,
            first_chunk=self.part.first_chunk,
            stop_chunk=self.part.stop_chunk,
            reducer=self.part.reducer,
            included=included,
            omitted=omitted,
            weight_sum=weight_sum,
            result_hash=result_hash,
        )


@contextmanager
def bringing(reduction: Reduction, peer: PeerId, *, is_carried: bool) -> Iterator[None]:
    """A block in which a member's chunks come. A leaver that nobody waits for is waited for while its carrier brings them. A member
    that is waited for anyway still is after it: anybody may claim to carry what another has signed.
    """
    if not is_carried:
        yield
        return
    reduction.carried.setdefault(peer, reduction.left_out.get(peer))
    try:
        yield
    finally:
        absent = reduction.carried.pop(peer, None)
        if absent is not None:
            reduction.set_absent(absent.peer, absent.reason, OmissionCode(absent.code))


def _new(offer: OfferedContribution, batch: Batch) -> Batch:
    """The chunks of a frame that are not here yet; an earlier stream may have brought some.

    If only a part is new, it is copied. Each kept chunk keeps its whole frame in memory, so a peer with one new chunk in each
    frame could fill our memory.
    """
    new = [(chunk, data) for chunk, data in batch if chunk not in offer.chunks]
    return new if len(new) == len(batch) else [(chunk, memoryview(bytes(data))) for chunk, data in new]


def _each_lane_once(whole: Counted) -> tuple[list[tuple[PeerId, OfferedContribution]], dict[PeerId, Omission]]:
    """The members that are counted, and each one that is not because another member brings one of its lanes."""
    twice = brought_twice({peer: offer.header.lanes for peer, offer in whole})
    omitted = {peer: Omission(peer, why, OmissionCode.LANE_TWICE) for peer, why in twice.items()}
    return [(peer, offer) for peer, offer in whole if peer not in twice], omitted


def _scattered_bytes(proposal: Proposal, part: SliceSpec, codec: Codec, grid: ChunkGrid) -> int:
    """Bytes that all other members send for a slice, with a head at each chunk."""
    one_bytes = len(span_bytes(codec, grid, part.first_chunk, part.stop_chunk))
    return (len(proposal.members) - 1) * (one_bytes + CHUNK_HEAD.size * (part.stop_chunk - part.first_chunk))


def _has_trusted(counted: Counted) -> bool:
    """Whether a keeper or a member is among these: strangers alone have no mean."""
    return not all(offer.is_stranger for _, offer in counted)


def _names(counted: Counted) -> _Names:
    return tuple((peer, offer.header.root) for peer, offer in counted)


def _included(counted: Counted, sums: Sequence[_Sum]) -> tuple[Included, ...]:
    """The contributions that these chunks sum, and of which of them how many chunks are left out."""
    shares: dict[PeerId, list[float]] = {}
    for each in sums:
        for peer, share in each.left_out:
            shares.setdefault(peer, []).append(share)
    return tuple(_entry(peer, offer, shares.get(peer, [])) for peer, offer in counted)


def _entry(peer: PeerId, offer: OfferedContribution, shares: Sequence[float]) -> Included:
    header = offer.header
    return Included(
        peer,
        header.member.incarnation,
        header.root,
        header.tokens,
        header.attested,
        header.attested_root,
        header.lanes,
        header.member.session,
        offer.seal,
        offer.credential,
        len(shares),
        round(100.0 * fsum(shares) / len(shares)) if shares else 0,
        header.is_stranger,
    )
