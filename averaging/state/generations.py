"""Generations: whole states of a unit on disk, verified when loaded. The caller decides which to keep.

A file is: header length u32, header, root 32 bytes, then the chunks in order. Chunks have fixed sizes, so one can be read alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Final

import structlog

from averaging.network.seams.interfaces import Offload, Storage
from averaging.state.partial_download import PartialDownload
from averaging.state.state import (
    STATE_BYTES_PER_VALUE,
    StateHeader,
    StateParts,
    UnitState,
    header_from_bytes,
    leaf_of_chunk,
    root_of,
    state_chunks,
)
from protocol.errors import RemoteProtocolError, StorageError
from protocol.estimates.unit_disk import MAX_PINNED
from protocol.ids import CommitId, Root
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

PIN_S: Final = 60.0
"""Lease of a download, which asks for another stripe every few seconds until it is over."""

SHARED_S: Final = 600.0
"""Everybody who comes this soon after the first newcomer is offered the same generation, so that they can help each other."""

CHUNKS_AT_ONCE: Final = 16
MAX_HEAD_BYTES: Final = 1024
_LOADED_AT_ONCE_BYTES: Final = 4 << 20
"""Part of a file that is in memory while a generation is loaded."""

_LENGTH: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"generations/(\d{12})-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Result of the search for the newest good generation: its round, 0 if there is none, and a sentence for each damaged one."""

    index: int = 0
    problems: tuple[str, ...] = ()


class _DamagedGenerationError(StorageError):
    """The file could be read and its contents are wrong, so that reading it again would not help."""


@dataclass(frozen=True, slots=True)
class GenerationRef:
    """A generation on disk."""

    index: int
    commit: CommitId
    name: str


class Generations:
    """The generations of one unit in a Storage, and the one that is being downloaded (`incoming`)."""

    def __init__(self, storage: Storage, grid: ChunkGrid, offload: Offload) -> None:
        self._storage = storage
        self._grid = grid
        self._offload = offload
        self.incoming = PartialDownload(storage, grid)
        self.last_load = LoadReport()
        """The last report of `load_newest`, for the status."""

        self.num_damaged = 0
        """Number of damaged generations that this process has found."""

        self.refused = ""
        """Why the disk refused the last generation, in one line; empty if it did not. `num_refused` counts refusals."""
        self.num_refused = 0

        self._pinned_until_s: dict[CommitId, float] = {}
        self._shared: tuple[CommitId, float] = (CommitId(b""), 0.0)
        """The generation that newcomers share, and until when others are led to it."""

        self._hashed: tuple[str, tuple[bytes, ...]] = ("", ())
        self._num_written = 0

    async def write(self, state: UnitState, root: Root) -> GenerationRef:
        """Write a state atomically.

        Raises:
            StorageError: the disk refused; older generations are untouched.
        """
        ref = GenerationRef(state.index, state.head, f"generations/{state.index:012d}-{state.head.hex()}")

        def parts() -> list[bytes | memoryview]:
            header = state.header.to_bytes()
            return [_LENGTH.pack(len(header)), header, root, *chain.from_iterable(state_chunks(state, self._grid))]

        try:
            await self._storage.write_atomic(ref.name, await self._offload.run(parts, cost_s=0.001))
        except StorageError as error:
            self.refused, self.num_refused = error.one_line(), self.num_refused + 1
            raise
        finally:  # a repaired state has the name of the wrong one
            self._hashed, self._num_written = ("", ()), self._num_written + 1
        self.refused = ""
        return ref

    def pin(self, commit: CommitId, now_s: float) -> None:
        """Keep this generation for PIN_S from `now_s` (monotonic), because a peer downloads it and must not begin again at each
        commit; and for SHARED_S from the first pin on, unless another is shared already.

        At most MAX_PINNED generations are pinned; the oldest pin makes room.
        """
        if self.shared(now_s) is None:
            self._shared = commit, now_s + SHARED_S
        until_s = self._shared[1] if commit == self._shared[0] else now_s
        self._pinned_until_s.pop(commit, None)
        self._pinned_until_s[commit] = max(now_s + PIN_S, until_s)
        while len(self._pinned_until_s) > MAX_PINNED:
            del self._pinned_until_s[next(iter(self._pinned_until_s))]

    def shared(self, now_s: float) -> CommitId | None:
        """The generation that newcomers are to fetch, so that all fetch the same; None if none began within SHARED_S."""
        commit, until_s = self._shared
        return commit if now_s < until_s and commit in self._pinned_until_s else None

    async def keep_only(self, commits: Collection[CommitId], now_s: float) -> int:
        """Delete the generations of all other commits that are not pinned; returns their number."""
        num_deleted = 0
        self._pinned_until_s = {commit: end_s for commit, end_s in self._pinned_until_s.items() if end_s > now_s}
        for ref in await self.list():
            if ref.commit not in commits and ref.commit not in self._pinned_until_s:
                await self._storage.delete(ref.name)
                num_deleted += 1
        return num_deleted

    async def list(self) -> Sequence[GenerationRef]:
        """The generations on disk, oldest first."""
        refs = []
        for name in await self._storage.list_names("generations/"):
            match = _NAME.fullmatch(name)
            if match is not None:
                refs.append(GenerationRef(int(match[1]), CommitId(bytes.fromhex(match[2])), name))
        return sorted(refs, key=lambda ref: (ref.index, ref.commit))

    async def load(self, ref: GenerationRef) -> tuple[UnitState, Root]:
        """Read a generation and check it against its root. It is read again if a repaired state takes its place meanwhile.

        Raises:
            StorageError: missing or damaged; use an older one.
        """
        head = await self._storage.read_range(ref.name, 0, MAX_HEAD_BYTES)
        while True:
            if head is None:
                raise _missing(ref)
            try:
                header, root, begin = _parse_head(head)
                return await self._load_chunks(ref, _Loading(header, root, self._grid), begin), root
            except RemoteProtocolError as error:
                before, head = head, await self._storage.read_range(ref.name, 0, MAX_HEAD_BYTES)
                if head == before:
                    raise _DamagedGenerationError(
                        f"generation {ref.name} is damaged: {error.found}", error.expected, "an older one is used"
                    ) from error

    async def _load_chunks(self, ref: GenerationRef, loading: _Loading, begin: int) -> UnitState:
        """The state of a file whose chunks start at byte `begin`. Raises RemoteProtocolError: damaged."""
        num_chunks = self._grid.num_chunks
        each = max(1, _LOADED_AT_ONCE_BYTES // (STATE_BYTES_PER_VALUE * self._grid.bounds(0)[1]))
        for first_chunk in range(0, num_chunks, each):
            stop_chunk = min(first_chunk + each, num_chunks)
            start, stop = (STATE_BYTES_PER_VALUE * place for place in self._grid.span(first_chunk, stop_chunk))
            # a byte after the last chunk would be damage
            num_bytes = stop - start + (stop_chunk == num_chunks)
            data = await self._storage.read_range(ref.name, begin + start, num_bytes)
            if data is None:
                raise _missing(ref)
            await self._offload.run(partial(loading.add, first_chunk, stop_chunk, data), cost_s=0.001)
            del data  # it would stay in memory while the next part is read
        return loading.whole()

    async def load_newest(
        self, among: Collection[CommitId] | None = None, attested: Mapping[CommitId, Root] = MappingProxyType({})
    ) -> tuple[UnitState, Root, Sequence[str]] | None:
        """The newest good generation, its root, and one sentence per damaged one; None if there is none.

        Damaged generations are deleted, because they would be offered to joiners and take the place of good ones. Unreadable ones
        stay, because the disk may read them the next time.

        Args:
            among: only these commits, since states of other lineages may be on disk as well; None for all.
            attested: known roots by commit; a generation with another root counts as damaged.
        """
        problems: list[str] = []
        for ref in reversed(await self.list()):
            if among is not None and ref.commit not in among:
                continue
            try:
                state, root = await self.load(ref)
            except StorageError as error:
                problems.append(error.one_line())
                if isinstance(error, _DamagedGenerationError):
                    await self._delete_damaged(ref)
                continue
            if attested.get(ref.commit, root) != root:
                problems.append(f"generation {ref.name} has another root than the run attests")
                await self._delete_damaged(ref)
                continue
            self.last_load = LoadReport(ref.index, tuple(problems))
            return state, root, problems
        self.last_load = LoadReport(0, tuple(problems))
        for problem in problems:
            log.warning("generation_damaged", reason=problem)
        return None

    async def _delete_damaged(self, ref: GenerationRef) -> None:
        self.num_damaged += 1
        try:
            await self._storage.delete(ref.name)
        except StorageError as error:
            log.warning("generation_not_deleted", reason=error.one_line())

    async def head_of(self, ref: GenerationRef) -> tuple[StateHeader, Root] | None:
        """Header and root of a generation, without its chunks; None if it is gone or its head is damaged."""
        head = await self._head(ref)
        return None if head is None else head[:2]

    async def _head(self, ref: GenerationRef) -> tuple[StateHeader, Root, int] | None:
        """Header, root, and the offset of the chunks."""
        data = await self._storage.read_range(ref.name, 0, MAX_HEAD_BYTES)
        if data is None:
            return None
        try:
            return _parse_head(data)
        except RemoteProtocolError as error:
            log.warning("generation_damaged", reason=f"generation {ref.name} is damaged: {error.found}")
            return None

    async def read_chunks(self, ref: GenerationRef, first_chunk: int, stop_chunk: int) -> Sequence[bytes] | None:
        """The bytes of some chunks, in order; None if the generation is gone or its head is damaged."""
        head = await self._head(ref)
        if head is None:
            return None
        begin = head[2]
        spans = [self._grid.bounds(chunk) for chunk in range(first_chunk, stop_chunk)]
        chunks: list[bytes] = []
        for start, stop in spans:
            data = await self._storage.read_range(
                ref.name, begin + STATE_BYTES_PER_VALUE * start, STATE_BYTES_PER_VALUE * (stop - start)
            )
            if data is None:
                return None
            chunks.append(data)
        return chunks

    async def hashes(self, ref: GenerationRef) -> Sequence[bytes] | None:
        """The leaf hashes of all chunks; None if the generation is gone. The last result is cached."""
        if ref.name == self._hashed[0]:
            return self._hashed[1]
        hashes, num_written = list[bytes](), self._num_written
        for first_chunk in range(0, self._grid.num_chunks, CHUNKS_AT_ONCE):
            stop_chunk = min(first_chunk + CHUNKS_AT_ONCE, self._grid.num_chunks)
            chunks = await self.read_chunks(ref, first_chunk, stop_chunk)
            if chunks is None:
                return None
            hashes += await self._offload.run(partial(_leaf_hashes, chunks), cost_s=0.0001)
            del chunks  # they would stay in memory while the next ones are read
        if self._num_written == num_written:  # else it may have been replaced meanwhile
            self._hashed = (ref.name, tuple(hashes))
        return hashes


class _Loading:
    """A generation whose chunks come in order, a few at a time. Each is hashed and copied."""

    def __init__(self, header: StateHeader, root: Root, grid: ChunkGrid) -> None:
        self._header, self._root, self._grid = header, root, grid
        self._parts = StateParts(header, grid)
        self._hashes: list[bytes] = []

    def add(self, first_chunk: int, stop_chunk: int, data: bytes) -> None:
        """Add the next chunks. Blocks.

        Raises:
            RemoteProtocolError: another length than theirs, or another root once all are here.
        """
        base = self._grid.bounds(first_chunk)[0]
        num_bytes = STATE_BYTES_PER_VALUE * (self._grid.bounds(stop_chunk - 1)[1] - base)
        if len(data) != num_bytes:
            raise RemoteProtocolError(f"{len(data)} bytes from chunk {first_chunk} on", f"{num_bytes}")
        view = memoryview(data)
        for chunk in range(first_chunk, stop_chunk):
            start, stop = (STATE_BYTES_PER_VALUE * (place - base) for place in self._grid.bounds(chunk))
            self._hashes.append(leaf_of_chunk(view[start:stop]))
            self._parts.put(chunk, view[start:stop])
        if stop_chunk == self._grid.num_chunks and root_of(self._header, self._hashes) != self._root:
            raise RemoteProtocolError("bytes that do not match the state root", "the bytes that were written")

    def whole(self) -> UnitState:
        """The state. Raises RemoteProtocolError: values are not finite."""
        return self._parts.whole()


def _missing(ref: GenerationRef) -> StorageError:
    return StorageError(f"generation {ref.name} is missing", "the file", "an older one is used")


def _leaf_hashes(chunks: Sequence[bytes]) -> list[bytes]:
    return [leaf_of_chunk(chunk) for chunk in chunks]


def _parse_head(data: bytes) -> tuple[StateHeader, Root, int]:
    if len(data) < _LENGTH.size:
        raise RemoteProtocolError(f"a generation of {len(data)} bytes", "a whole file")
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    if len(data) < begin + 32:
        raise RemoteProtocolError("a generation without its header", "a whole file")
    return header_from_bytes(data[_LENGTH.size : begin]), Root(data[begin : begin + 32]), begin + 32
