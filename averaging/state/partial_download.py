"""The downloaded part of a state on disk, so that a download resumes after a crash.

Nothing here is trusted: every chunk is checked against its hash when it is read back. Only one download is kept at a time, so that
it never takes more room than one state. A file is incoming/<commit>/<first chunk>: some chunks, one after another.

The chunks are also given to other peers that fetch the same state. These check them like those of any donor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import structlog

from averaging.network.seams.interfaces import Storage
from averaging.state.state import STATE_BYTES_PER_VALUE, leaf_of_chunk
from protocol.errors import StorageError
from protocol.ids import CommitId
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

_NAME: Final = re.compile(r"incoming/([0-9a-f]{64})/(\d{8})")


class PartialDownload:
    """The unfinished download of one unit's state in a Storage."""

    def __init__(self, storage: Storage, grid: ChunkGrid) -> None:
        self._storage = storage
        self._grid = grid
        self._commit: CommitId | None = None
        self._files: dict[int, int] = {}
        """Of the download of this process: the number of good chunks in each file, by its first chunk."""

    async def held_bytes(self) -> dict[CommitId, int]:
        """Downloaded bytes by commit, unchecked; empty if the disk cannot be read."""
        found: dict[CommitId, int] = {}
        try:
            for name in await self._storage.list_names("incoming/"):
                if match := _NAME.fullmatch(name):
                    commit = CommitId(bytes.fromhex(match[1]))
                    found[commit] = found.get(commit, 0) + len(await self._storage.read(name) or b"")
        except StorageError as error:
            log.warning("download_not_found_again", reason=error.one_line())
            return {}
        return found

    async def restore(self, commit: CommitId, hashes: Sequence[bytes], put: Callable[[int, bytes], None]) -> int:
        """Call `put` with the number and the bytes of each good chunk of the state at `commit`; returns how many there are. Only
        one file is in memory at a time. Leftovers of other downloads are deleted.
        """
        num_chunks = 0
        self._commit, self._files = commit, {}
        for name in await self._storage.list_names("incoming/"):
            match = _NAME.fullmatch(name)
            if match is None or match[1] != commit.hex():
                await self._storage.delete(name)
                continue
            data = await self._storage.read(name) or b""
            good_bytes = num_good = 0
            for chunk, part in self._good_chunks(int(match[2]), data, hashes):
                put(chunk, part)
                good_bytes, num_good = good_bytes + len(part), num_good + 1
            if good_bytes < len(data):
                log.warning("kept_chunks_damaged", reason=f"{name} is damaged: {num_good} chunks of it are used")
            else:
                self._files[int(match[2])] = num_good
            num_chunks += num_good
        return num_chunks

    def _good_chunks(self, first_chunk: int, data: bytes, hashes: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        begin = 0
        for chunk in range(first_chunk, self._grid.num_chunks):
            start, stop = self._grid.bounds(chunk)
            end = begin + STATE_BYTES_PER_VALUE * (stop - start)
            if end > len(data):
                break
            if leaf_of_chunk(data[begin:end]) == hashes[chunk]:
                yield chunk, data[begin:end]
            begin = end

    async def keep(self, commit: CommitId, first_chunk: int, chunks: Sequence[bytes]) -> None:
        """Write some consecutive chunks. If the disk refuses, a crash costs only their download."""
        try:
            await self._storage.write_atomic(_name(commit, first_chunk), chunks)
        except StorageError as error:
            log.warning("download_not_kept", reason=error.one_line())
            return
        if commit == self._commit:
            self._files[first_chunk] = len(chunks)

    def groups(self, commit: CommitId, group: int) -> bytes:
        """Of each `group` chunks of the state at `commit`, 1 if all are here, else 0; empty if none of it is here."""
        if commit != self._commit or not self._files:
            return b""
        here = np.zeros(-(-self._grid.num_chunks // group) * group, dtype=np.uint8)
        here[self._grid.num_chunks :] = 1  # the last group is shorter
        for first_chunk, number in self._files.items():
            here[first_chunk : first_chunk + number] = 1
        return here.reshape(-1, group).all(axis=1).astype(np.uint8).tobytes()

    async def read_chunks(self, commit: CommitId, first_chunk: int, stop_chunk: int) -> Sequence[bytes] | None:
        """The bytes of some chunks of the state at `commit`, in order; None if not all of them are here."""
        found: list[bytes] = []
        while commit == self._commit and first_chunk < stop_chunk:
            fitting = (begin for begin, number in self._files.items() if begin <= first_chunk < begin + number)
            begin = max(fitting, default=first_chunk)
            number = min(stop_chunk, begin + self._files.get(begin, 0)) - first_chunk
            start, stop = (
                STATE_BYTES_PER_VALUE * place for place in self._grid.span(first_chunk, first_chunk + max(1, number))
            )
            offset = start - STATE_BYTES_PER_VALUE * self._grid.bounds(begin)[0]
            data = await self._storage.read_range(_name(commit, begin), offset, stop - start) if number > 0 else None
            if data is None or len(data) != stop - start:
                return None
            found += self._cut(data, first_chunk, number)
            first_chunk += number
        return found if first_chunk == stop_chunk and found else None

    def _cut(self, data: bytes, first_chunk: int, number: int) -> Iterator[bytes]:
        base = self._grid.bounds(first_chunk)[0]
        for chunk in range(first_chunk, first_chunk + number):
            start, stop = (STATE_BYTES_PER_VALUE * (place - base) for place in self._grid.bounds(chunk))
            yield data[start:stop]

    async def clear(self) -> None:
        """Delete the finished download, whose state is on disk elsewhere. The next download deletes what stays."""
        self._commit, self._files = None, {}
        try:
            for name in await self._storage.list_names("incoming/"):
                await self._storage.delete(name)
        except StorageError as error:
            log.warning("download_not_cleared", reason=error.one_line())


def _name(commit: CommitId, first_chunk: int) -> str:
    return f"incoming/{commit.hex()}/{first_chunk:08d}"
