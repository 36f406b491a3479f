"""The downloaded part of a state on disk, so that a download resumes after a crash.

Nothing here is trusted: every chunk is checked against its hash when it is read back. Only one download is kept at a time, so that
it never takes more room than one state. A file is incoming/<commit>/<first chunk>: some chunks, one after another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

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
            await self._storage.write_atomic(f"incoming/{commit.hex()}/{first_chunk:08d}", chunks)
        except StorageError as error:
            log.warning("download_not_kept", reason=error.one_line())

    async def clear(self) -> None:
        """Delete the finished download, whose state is on disk elsewhere. The next download deletes what stays."""
        try:
            for name in await self._storage.list_names("incoming/"):
                await self._storage.delete(name)
        except StorageError as error:
            log.warning("download_not_cleared", reason=error.one_line())
