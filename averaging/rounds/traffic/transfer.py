"""Asking others for what is already decided: results of a slice, certificates, generations of a state (R14, R19, R24).

Everything is named by its hash or checked against a certified one before use, so any peer may answer. There is one request per
stream on the channel "fetch"; the answer is frames until the clean end.

Rules: R14, R19, R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

import numpy as np
import structlog
import trio

from averaging.codecs import Codec
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Network, Stream
from averaging.rounds.traffic.contribution import check_result, split_chunks, split_hashes
from averaging.rounds.traffic.serving_turns import Turns
from averaging.state.generations import CHUNKS_AT_ONCE, GenerationRef
from averaging.state.state import StateHeader, header_from_bytes, leaf_of_chunk, root_of
from protocol.errors import CallTimeout, RemoteProtocolError, TransportError
from protocol.identity.names import peer_name
from protocol.ids import HASH_BYTES, CommitId, PeerId, Root, UnitName, short
from protocol.rounds.lineage.milestones import MAX_HELD, MAX_MILESTONE_BYTES
from protocol.rounds.messages.requests import (
    BUSY,
    FetchCommits,
    FetchHashes,
    FetchMilestones,
    FetchParts,
    FetchRequest,
    FetchResult,
    FetchState,
)
from protocol.rounds.messages.wire import decode_fetch, encode_fetch
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

FETCH_CHANNEL: Final = "fetch"
OPEN_WITHIN_S: Final = 5.0
FRAME_WITHIN_S: Final = 20.0
"""A donor that sends nothing for this long is replaced."""

LEAST_BYTES_PER_S: Final = 8_192
"""The least rate of an answer after its first seconds. A donor with a full line goes down to 16 kB/s, for two requests at a time.
An honest line is far above that; a donor that sends a byte now and then is far below.
"""

ANSWER_WITHIN_S: Final = 20.0
"""Time that a result, a stripe or certificates may take in addition to their bytes: a donor may read them from disk first, and
serve others first.
"""

HASHES_WITHIN_S: Final = 8.0
"""Time that a list of hashes may take in addition to its bytes. It is small, and no other donor is asked while it is awaited."""

SMALLEST_FRAME_BYTES: Final = 64
"""Honest answers have few frames smaller than this; each costs us more than its bytes."""

SPARE_FRAMES: Final = 16
"""Frames of any size that every answer may have: a small unit has small chunks, and the last piece of a result may be a few
bytes.
"""

PIECE_BYTES: Final = 256 << 10
MAX_CHAIN_BYTES: Final = 16 << 20
"""The most bytes of certificates in one answer: more than a thousand commits, at about 12 kB for 64 members. The rest is asked
for again.
"""


async def ask(
    network: Network,
    peer: PeerId,
    request: FetchRequest,
    take: Callable[[bytes], None],
    *,
    within_s: float = math.inf,
    open_within_s: float = OPEN_WITHIN_S,
) -> None:
    """Ask a peer; `take` gets the frames of its answer and may raise to stop. The answer may take `within_s` seconds, and one
    more for each LEAST_BYTES_PER_S bytes that arrived. Without `within_s` the caller must have a deadline of its own.

    Raises:
        TransportError: the peer is gone, silent or too slow.
        RemoteProtocolError: it sent an empty frame.
    """
    stream = await network.open_stream(peer, FETCH_CHANNEL, timeout_s=open_within_s)
    stream.count_as(request.unit, "")
    try:
        until_s = trio.current_time() + within_s
        num_bytes = 0
        with trio.move_on_after(min(within_s, FRAME_WITHIN_S)) as scope:
            await stream.send_frame(encode_fetch(request))
            while (frame := await stream.receive_frame()) is not None:
                if not frame:
                    raise RemoteProtocolError(f"{short(peer)} sent an empty frame", "a part of its answer")
                take(frame)
                num_bytes += len(frame)
                next_s = trio.current_time() + FRAME_WITHIN_S
                scope.deadline = min(until_s + num_bytes / LEAST_BYTES_PER_S, next_s)
        if scope.cancelled_caught:
            raise CallTimeout(
                f"{short(peer)} stopped sending or is too slow, after {num_bytes} bytes",
                f"a frame every {FRAME_WITHIN_S:.0f} s, and {LEAST_BYTES_PER_S / 1000:.0f} kB/s after the first seconds",
            )
    finally:
        with trio.move_on_after(1.0, shield=True):
            await stream.aclose()


async def ask_all(
    network: Network,
    peer: PeerId,
    request: FetchRequest,
    max_bytes: int,
    *,
    within_s: float = math.inf,
    open_within_s: float = OPEN_WITHIN_S,
    came: Callable[[int], None] = lambda num_bytes: None,
) -> list[bytes]:
    """All frames of a peer's answer, at most `max_bytes` together, within the time that `ask` allows. `came` is called with the
    length of each.

    Raises:
        TransportError: the peer is gone, silent or too slow.
        RemoteProtocolError: it sent more than was asked for, or too many frames.
    """
    frames: list[bytes] = []
    total_bytes = 0
    max_frames = SPARE_FRAMES + max_bytes // SMALLEST_FRAME_BYTES

    def take(frame: bytes) -> None:
        nonlocal total_bytes
        total_bytes += len(frame)
        if total_bytes > max_bytes:
            raise RemoteProtocolError(f"{short(peer)} sent more than {max_bytes} bytes", "what was asked for")
        if len(frames) >= max_frames:
            raise RemoteProtocolError(f"{short(peer)} sent more than {max_frames} frames", "larger frames")
        frames.append(frame)
        came(len(frame))

    await ask(network, peer, request, take, within_s=within_s, open_within_s=open_within_s)
    return frames


async def fetch_result(
    network: Network,
    peer: PeerId,
    request: FetchResult,
    codec: Codec,
    grid: ChunkGrid,
    *,
    open_within_s: float = OPEN_WITHIN_S,
    came: Callable[[int], None] = lambda num_bytes: None,
) -> bytes | None:
    """The bytes of a slice's result, checked against the hash that the record names; None if the peer has none. `came` is called
    with the number of bytes that arrive. Raises as `ask_all`, and if the bytes differ.
    """
    spans = map(grid.bounds, range(request.first_chunk, request.stop_chunk))
    max_bytes = sum(codec.encoded_bytes(stop - begin) for begin, stop in spans)
    frames = await ask_all(
        network, peer, request, max_bytes, within_s=ANSWER_WITHIN_S, open_within_s=open_within_s, came=came
    )
    data = b"".join(frames)
    if not data:
        return None
    chunks = split_chunks(data, codec, grid, request.first_chunk, request.stop_chunk)
    check_result(chunks, request.result_hash, request.first_chunk, codec, grid)
    return data


async def fetch_commits(network: Network, peer: PeerId, unit: UnitName, known: Sequence[CommitId]) -> list[bytes]:
    """Certificates after the newest of these commits that the peer has, oldest first; the caller verifies each on the one before.
    A long chain takes several answers: ask again from its end.

    Raises:
        TransportError: the peer is gone, silent or too slow. RemoteProtocolError: it sent more than certificates may take.
    """
    request = FetchCommits(unit, tuple(known))
    return await ask_all(network, peer, request, MAX_CHAIN_BYTES, within_s=ANSWER_WITHIN_S)


async def fetch_milestones(network: Network, peer: PeerId, unit: UnitName) -> list[bytes]:
    """The milestones of a unit that a peer has, unchecked.

    Raises:
        TransportError: the peer is gone, silent or too slow. RemoteProtocolError: it sent more than they may take.
    """
    most_bytes = MAX_HELD * MAX_MILESTONE_BYTES
    return await ask_all(network, peer, FetchMilestones(unit), most_bytes, within_s=ANSWER_WITHIN_S)


class Place(Enum):
    """The place at which a donor names one of its generations. One that newcomers fetch now is named first."""

    NEWEST = auto()
    FIRST_THOUGH_OLDER = auto()
    AFTER_NEWER = auto()


@dataclass(frozen=True, slots=True)
class Donor:
    """A peer and the generation that it offers."""

    peer: PeerId
    header: StateHeader
    root: Root
    place: Place = Place.NEWEST


async def ask_generation(network: Network, peer: PeerId, unit: UnitName) -> Sequence[Donor]:
    """The generations that a peer offers: the one that newcomers fetch now, then the newest first."""
    frames = await ask_all(network, peer, FetchState(unit, 0, 0, b""), PIECE_BYTES)
    headers = [header_from_bytes(frame[32:]) for frame in frames]
    newest = max((header.index for header in headers), default=0)
    return tuple(
        Donor(peer, header, Root(frame[:32]), _place(number, header.index, newest))
        for number, (frame, header) in enumerate(zip(frames, headers, strict=True))
    )


def _place(number: int, index: int, newest: int) -> Place:
    if index == newest:
        return Place.NEWEST
    return Place.AFTER_NEWER if number else Place.FIRST_THOUGH_OLDER


async def fetch_hashes(network: Network, donor: Donor, unit: UnitName, num_chunks: int) -> tuple[bytes, ...]:
    """The leaf hashes of a donor's generation, checked against the root that it named. The donor keeps the generation from now
    on.

    Raises:
        TransportError: the donor is gone, silent or too slow, or has dropped it. RemoteProtocolError: hashes of another root.
    """
    request = FetchHashes(unit, donor.header.head)
    frames = await ask_all(network, donor.peer, request, HASH_BYTES * num_chunks, within_s=HASHES_WITHIN_S)
    if not frames:
        raise TransportError(f"{short(donor.peer)} has dropped that state", "the generation that it offered")
    hashes = split_hashes(b"".join(frames), num_chunks)
    if root_of(donor.header, hashes) != donor.root:
        raise RemoteProtocolError(f"{short(donor.peer)} named hashes of another root", "the root that it offered")
    return hashes


async def fetch_parts(network: Network, peer: PeerId, request: FetchParts, num_chunks: int) -> bytes:
    """Which chunks of a state a peer has: for each group 1 if all of it is there, else 0; empty if there is none.

    Raises:
        TransportError: the peer is gone or silent, or its release does not know the question. RemoteProtocolError: it sent more bits
            than there are groups.
    """
    num_groups = -(-num_chunks // request.group)
    frames = await ask_all(network, peer, request, -(-num_groups // 8), within_s=HASHES_WITHIN_S)
    bits = np.unpackbits(np.frombuffer(b"".join(frames), dtype=np.uint8), bitorder="little")
    return bits[:num_groups].tobytes()


class BusyDonor(TransportError):
    """The donor has no time for one more now; it is not to be dropped for that."""


async def fetch_chunks(
    network: Network,
    donor: PeerId,
    request: FetchState,
    hashes: Sequence[bytes],
    on_chunk: Callable[[int], None] = lambda num_bytes: None,
) -> list[bytes]:
    """Chunks of a state, each checked on arrival against its hash; `on_chunk` is called with the length of each.

    Raises:
        TransportError: the donor is gone, silent or too slow, or has dropped that state. BusyDonor: it has no time now.
            RemoteProtocolError: it sent other bytes.
    """
    chunks: list[bytes] = []

    def take(chunk: bytes) -> None:
        if chunk == BUSY and not chunks:
            raise BusyDonor(f"{short(donor)} serves as many others as it can", "a donor with time", "ask again later")
        number = request.first_chunk + len(chunks)
        if number >= request.stop_chunk or leaf_of_chunk(chunk) != hashes[number]:
            raise RemoteProtocolError(f"{short(donor)} sent other bytes as chunk {number}", "the bytes of the state")
        chunks.append(chunk)
        on_chunk(len(chunk))

    await ask(network, donor, request, take, within_s=ANSWER_WITHIN_S)
    if len(chunks) < request.stop_chunk - request.first_chunk:
        raise TransportError(f"{short(donor)} has dropped that state", "the generation that it offered")
    return chunks


class StateSource(Protocol):
    """States of one unit that may be served, as `Generations` has them."""

    def pin(self, commit: CommitId, now_s: float, /) -> None:
        """Keep a state for a while, because a peer downloads it."""
        ...

    def shared(self, now_s: float, /) -> CommitId | None:
        """The state that newcomers fetch now; None if there is none."""
        ...

    async def list(self) -> Sequence[GenerationRef]:
        """All of them, oldest first."""
        ...

    async def head_of(self, ref: GenerationRef, /) -> tuple[StateHeader, Root] | None:
        """Header and root of a state; None if it is gone."""
        ...

    async def read_chunks(self, ref: GenerationRef, first_chunk: int, stop_chunk: int, /) -> Sequence[bytes] | None:
        """The bytes of some chunks, in order; None if the state is gone."""
        ...

    async def hashes(self, ref: GenerationRef, /) -> Sequence[bytes] | None:
        """The leaf hashes of all chunks; None if the state is gone."""
        ...


class PartSource(Protocol):
    """A state that is being downloaded here, as `PartialDownload` has it."""

    def groups(self, commit: CommitId, group: int, /) -> bytes:
        """Of each `group` chunks of the state at a commit, 1 if all are here, else 0; empty if none of it is here."""
        ...

    async def read_chunks(self, commit: CommitId, first_chunk: int, stop_chunk: int, /) -> Sequence[bytes] | None:
        """The bytes of some chunks, in order; None if not all of them are here."""
        ...


class ResultSource(Protocol):
    """Results of slices that may be served, as `UnitLog` has them."""

    async def read_result(self, base: CommitId, result_hash: Root, /) -> bytes | None:
        """The bytes of a result, or None."""
        ...


class TransferService:
    """Serves this peer's data of one unit."""

    def __init__(
        self,
        unit: UnitName,
        log_: ResultSource,
        generations: StateSource,
        grid: ChunkGrid,
        certificates_after: Callable[[Sequence[CommitId]], Iterable[bytes]],
        milestones: Callable[[], Iterable[bytes]] = tuple,
        incoming: PartSource | None = None,
    ) -> None:
        self._unit = unit
        self._incoming = incoming
        self._turns = Turns()
        self._log = log_
        self._generations = generations
        self._grid = grid
        self._certificates_after = certificates_after
        self._milestones = milestones
        self.asked: Callable[[], None] = lambda: None
        """Called when a peer asks which states there are."""

    async def serve(self, peer: PeerId, request: FetchRequest, stream: Stream) -> None:
        """Answer one request; an empty end answers for what is not here."""
        stream.count_as(self._unit, "")
        match request:
            case _ if request.unit != self._unit:
                return
            case FetchResult():
                await self._send_result(request, stream)
            case FetchCommits():
                num_bytes = 0
                for certificate in self._certificates_after(request.known):
                    num_bytes += len(certificate)
                    if num_bytes > MAX_CHAIN_BYTES:
                        return
                    await stream.send_frame(certificate)
            case FetchState():
                await self._send_state(peer, request, stream)
            case FetchHashes():
                await self._send_hashes(request, stream)
            case FetchParts():
                await self._send_parts(request, stream)
            case FetchMilestones():
                for sealed in self._milestones():
                    await stream.send_frame(sealed)

    async def _send_result(self, request: FetchResult, stream: Stream) -> None:
        data = await self._log.read_result(request.base, request.result_hash)
        for begin in range(0, len(data or b""), PIECE_BYTES):
            await stream.send_frame((data or b"")[begin : begin + PIECE_BYTES])

    async def _send_state(self, peer: PeerId, request: FetchState, stream: Stream) -> None:
        if request.stop_chunk > 0:
            await self._send_chunks(peer, request, stream)
            return
        self.asked()
        refs, shared = await self._generations.list(), self._generations.shared(trio.current_time())
        for ref in sorted(refs, key=lambda ref: (ref.commit == shared, ref.index), reverse=True):
            head = await self._generations.head_of(ref)
            if head is not None:
                await stream.send_frame(head[1] + head[0].to_bytes())

    async def _send_chunks(self, peer: PeerId, request: FetchState, stream: Stream) -> None:
        if request.knows_busy and self._turns.has_none_for(peer):
            await stream.send_frame(BUSY)
            return
        async with self._turns.turn(peer):
            ref = next((ref for ref in await self._generations.list() if ref.commit == request.commit), None)
            if ref is not None:
                self._generations.pin(ref.commit, trio.current_time())
            stop_chunk = min(request.stop_chunk, self._grid.num_chunks)
            for first_chunk in range(request.first_chunk, stop_chunk, CHUNKS_AT_ONCE):
                chunks = await self._read(ref, request, first_chunk, min(first_chunk + CHUNKS_AT_ONCE, stop_chunk))
                if chunks is None and ref is not None:
                    raise TransportError("the generation was replaced meanwhile", "a newer one")
                if chunks is None:  # an empty end: the asker tries another donor
                    state = f"chunk {first_chunk} of the state at {short(CommitId(request.commit))}"
                    log.info("state_not_here", asker=peer_name(peer), reason=f"{state} was asked for, and is not here")
                    return
                for chunk in chunks:
                    await stream.send_frame(chunk)

    async def _read(
        self, ref: GenerationRef | None, request: FetchState, first_chunk: int, stop_chunk: int
    ) -> Sequence[bytes] | None:
        if ref is not None:
            return await self._generations.read_chunks(ref, first_chunk, stop_chunk)
        if self._incoming is None:
            return None
        return await self._incoming.read_chunks(CommitId(request.commit), first_chunk, stop_chunk)

    async def _send_parts(self, request: FetchParts, stream: Stream) -> None:
        """Say which chunks are here: all of a generation, or what has come of a download."""
        here = b"" if self._incoming is None else self._incoming.groups(request.commit, request.group)
        if any(ref.commit == request.commit for ref in await self._generations.list()):
            here = b"\1" * -(-self._grid.num_chunks // request.group)
        bits = np.packbits(np.frombuffer(here, dtype=np.uint8), bitorder="little").tobytes()
        for begin in range(0, len(bits), PIECE_BYTES):
            await stream.send_frame(bits[begin : begin + PIECE_BYTES])

    async def _send_hashes(self, request: FetchHashes, stream: Stream) -> None:
        for ref in await self._generations.list():
            if ref.commit == request.commit:
                self._generations.pin(ref.commit, trio.current_time())
                data = b"".join(await self._generations.hashes(ref) or ())
                for begin in range(0, len(data), PIECE_BYTES):
                    await stream.send_frame(data[begin : begin + PIECE_BYTES])
                return


async def read_request(stream: Stream) -> FetchRequest:
    """The request that opens a stream on the channel "fetch".

    Raises:
        RemoteProtocolError: no request, or one that is not understood.
    """
    with trio.move_on_after(FRAME_WITHIN_S):
        frame = await stream.receive_frame()
        if frame is not None and len(frame) <= MAX_FRAME_BYTES:
            return decode_fetch(frame)
    raise RemoteProtocolError("a stream without a request", "one request")
