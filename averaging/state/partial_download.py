"""The part of a state that is being downloaded and is here already, on disk: a download goes on after a crash where it was.

Nothing here is trusted: every chunk is checked against its hash when it is read back. One download at a time has a place, so that
what is kept never weighs more than one state. A file is incoming/<commit>/<first chunk>: some chunks, one after another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        """What is here of which state, unchecked; nothing where the disk cannot be read."""
        held: dict[CommitId, int] = {}
        try:
            for name in await self._storage.list_names("incoming/"):
                if match := _NAME.fullmatch(name):
                    commit = CommitId(bytes.fromhex(match[1]))
                    held[commit] = held.get(commit, 0) + len(await self._storage.read(name) or b"")
        except StorageError as error:
            log.warning("download_not_found_again", reason=error.one_line())
            return {}
        return held

    async def restore(self, commit: CommitId, hashes: Sequence[bytes]) -> dict[int, bytes]:
        """The chunks of the state at `commit` that are here and good, by number; what is left of other downloads is deleted."""
        here: dict[int, bytes] = {}
        for name in await self._storage.list_names("incoming/"):
            match = _NAME.fullmatch(name)
            if match is None or match[1] != commit.hex():
                await self._storage.delete(name)
                continue
            data = await self._storage.read(name) or b""
            good = self._good_chunks(int(match[2]), data, hashes)
            if sum(map(len, good.values())) < len(data):
                log.warning("kept_chunks_damaged", reason=f"{name} is damaged: {len(good)} chunks of it are used")
            here |= good
        return here

    def _good_chunks(self, first_chunk: int, data: bytes, hashes: Sequence[bytes]) -> dict[int, bytes]:
        good: dict[int, bytes] = {}
        begin = 0
        for chunk in range(first_chunk, self._grid.num_chunks):
            start, stop = self._grid.bounds(chunk)
            end = begin + STATE_BYTES_PER_VALUE * (stop - start)
            if end > len(data):
                break
            if leaf_of_chunk(data[begin:end]) == hashes[chunk]:
                good[chunk] = data[begin:end]
            begin = end
        return good

    async def keep(self, commit: CommitId, first_chunk: int, chunks: Sequence[bytes]) -> None:
        """Write some chunks that follow each other. A disk that refuses costs only their download after a crash."""
        try:
            await self._storage.write_atomic(f"incoming/{commit.hex()}/{first_chunk:08d}", chunks)
        except StorageError as error:
            log.warning("download_not_kept", reason=error.one_line())

    async def clear(self) -> None:
        """The download is over, and what became of it is on disk elsewhere. What cannot be deleted makes room for the next one."""
        try:
            for name in await self._storage.list_names("incoming/"):
                await self._storage.delete(name)
        except StorageError as error:
            log.warning("download_not_cleared", reason=error.one_line())
