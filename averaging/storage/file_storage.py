"""Storage on real files: temporary name, fsync, rename, fsync of the folder; logs framed with length and checksums.

A log's frame: length u32, checksum of the length u32, checksum of the record u32, record; little-endian, CRC-32. The separate
checksum of the length tells a power cut, which leaves the last frame incomplete, from a damaged disk: a flipped bit in an old frame
must not make the rest of the log look unwritten.
"""

from __future__ import annotations

import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from typing import Final

import structlog
import trio

from averaging.network.seams.interfaces import Offload
from averaging.storage.storage_names import check_name
from averaging.storage.uncached_file import CAN_BE_UNCACHED, UncachedFile
from protocol.errors import LocalProtocolError, StorageError

log = structlog.get_logger()

_LENGTH: Final = struct.Struct("<I")
_FRAME: Final = struct.Struct("<III")  # LOG_FRAME_BYTES
_TEMPORARY: Final = ".unfinished"
_WRITES: Final = itertools.count()
"""Numbers the temporary names: two writers of one file with the same name would cut short a file that the other has renamed."""

MAX_RECORD_BYTES: Final = 64 << 20
EARLY_BYTES: Final = 1 << 20
"""Shorter writes are left to the sync at the end."""


class DamagedLogError(StorageError):
    """A record before the last one is damaged, so that the records after it are unknown."""


class FileStorage:
    """Files below `folder`, which is created by the first write. Appends are serialised."""

    def __init__(self, folder: Path, offload: Offload) -> None:
        self._folder = folder
        self._offload = offload
        self._append_lock = trio.Lock()
        self._good_length: dict[str, int] = {}
        self._named: set[str] = set()
        """Logs whose names are known to be durable. A name may not be after a late failure of a replacement or a killed process."""

    def _path(self, name: str) -> Path:
        return self._folder / check_name(name)

    async def write_atomic(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Durable and whole when it returns.

        Raises:
            StorageError: disk full or not writable; the old file is untouched.
        """
        path = self._path(name)
        await self._offload.run(lambda: _write_atomic(path, parts))

    def begin(self, name: str) -> FileBegun:
        """A file that is durable and whole once it is finished; before that its name does not exist."""
        return FileBegun(self._path(name), self._offload)

    async def append(self, name: str, record: bytes) -> None:
        """Durable when it returns.

        Raises:
            StorageError: disk full, not writable or damaged; a torn tail is overwritten by the next append.
        """
        path = self._path(name)
        _check_length(record)
        async with self._append_lock:
            if name not in self._good_length:
                self._good_length[name] = await self._offload.run(lambda: _scan(path)[1])
            begin, is_named = self._good_length[name], name in self._named
            self._good_length[name] = await self._offload.run(lambda: _append(path, begin, record, is_named))
            self._named.add(name)

    async def replace_log(self, name: str, records: Iterable[bytes]) -> None:
        """Durable and whole when it returns.

        Raises:
            StorageError: disk full or not writable; the log is the old one, or the new one if the sync of the folder failed.
        """
        path = self._path(name)
        async with self._append_lock:
            self._forget(name)  # a replacement that fails may be on disk nevertheless
            self._good_length[name] = await self._offload.run(lambda: _write_log(path, records))
            self._named.add(name)

    def _forget(self, name: str) -> None:
        self._good_length.pop(name, None)
        self._named.discard(name)

    async def read(self, name: str) -> bytes | None:
        """The file, or None."""
        path = self._path(name)
        return await self._offload.run(lambda: _read(path, 0, None))

    async def read_range(self, name: str, offset_bytes: int, num_bytes: int) -> bytes | None:
        """Part of the file, or None."""
        path = self._path(name)
        return await self._offload.run(lambda: _read(path, offset_bytes, num_bytes))

    async def read_records(self, name: str) -> Sequence[bytes]:
        """All good records of a log. Raises StorageError if one before the last is damaged."""
        path = self._path(name)
        return (await self._offload.run(lambda: _scan(path)))[0]

    async def list_names(self, prefix: str) -> Sequence[str]:
        """Finished files that start with `prefix`, sorted. Raises StorageError: a folder cannot be read."""
        folder = self._folder / prefix.rpartition("/")[0]
        return await self._offload.run(lambda: [n for n in _walk(folder, self._folder) if n.startswith(prefix)])

    async def delete(self, name: str) -> None:
        """Remove the file if it is there."""
        path = self._path(name)
        async with self._append_lock:
            self._forget(name)
            await self._offload.run(lambda: _delete(path, self._folder))

    async def size_bytes(self) -> int:
        """Bytes of all finished files. Raises StorageError: a folder cannot be read."""
        return await self._offload.run(lambda: folder_bytes(self._folder))


class FileBegun:
    """A file that is being written under a temporary name. Made by `FileStorage.begin`."""

    def __init__(self, path: Path, offload: Offload) -> None:
        self._offload = offload
        self._unfinished = _Unfinished(path)
        self._is_finished = False
        self.num_bytes = 0

    async def add(self, part: bytes | memoryview) -> None:
        """Write the next part. Raises StorageError: disk full or not writable."""
        await self._offload.run(lambda: self._unfinished.add([part]))
        self.num_bytes += len(part)

    async def finish(self) -> None:
        """Durable and whole when it returns. Raises StorageError: disk full or not writable; call `drop`."""
        await self._offload.run(self._unfinished.finish)
        self._is_finished = True

    def drop(self) -> None:
        """Remove an unfinished file; a finished one stays. It uses no thread, because there may be none, and the leftovers of an
        attempt would stay until the next start.
        """
        if not self._is_finished:
            self._unfinished.drop()


class _Unfinished:
    """Writes a file under a temporary name and then renames it. All methods block; raises StorageError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.{next(_WRITES)}{_TEMPORARY}")
        self._file: BufferedWriter | UncachedFile | None = None

    def add(self, parts: Sequence[bytes | memoryview]) -> None:
        """Write the next parts. The disk begins to write long ones at once, so that the sync at the end waits for the last part
        only.
        """
        num_bytes = sum(map(len, parts))
        try:
            file = self._opened(is_long=num_bytes >= EARLY_BYTES)
            if isinstance(file, UncachedFile):
                file.write(parts)
                return
            file.writelines(parts)
            if num_bytes < EARLY_BYTES or not hasattr(os, "posix_fadvise"):
                return
            file.flush()
            begin = file.tell() - num_bytes
        except OSError as error:
            raise _storage_error("write", self._path, error) from error
        with suppress(OSError):  # makes Linux begin to write; the sync reports errors
            os.posix_fadvise(file.fileno(), begin, num_bytes, os.POSIX_FADV_DONTNEED)

    def finish(self) -> None:
        """Sync, rename, and sync the folder."""
        try:
            file = self._opened(is_long=False)
            if isinstance(file, UncachedFile):
                file.finish()
            else:
                with file:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(self._temporary, self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise _storage_error("write", self._path, error) from error

    def drop(self) -> None:
        """Remove the temporary file."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _opened(self, *, is_long: bool) -> BufferedWriter | UncachedFile:
        if self._file is None:
            try:
                self._file = self._open_new(is_long)
            except FileNotFoundError:  # a concurrent delete has removed the empty folder
                self._file = self._open_new(is_long)
        return self._file

    def _open_new(self, is_long: bool) -> BufferedWriter | UncachedFile:
        _make_folder(self._temporary.parent)
        if is_long and CAN_BE_UNCACHED:
            try:
                return UncachedFile(self._temporary)
            except FileNotFoundError:
                raise
            except OSError as error:  # such as a file system without direct files; other errors are raised below
                log.debug("written_through_the_cache", path=str(self._path), reason=str(error))
        return open(self._temporary, "wb")


def _write_atomic(path: Path, parts: Sequence[bytes | memoryview]) -> None:
    with _written(path) as unfinished:
        unfinished.add(parts)


def _write_log(path: Path, records: Iterable[bytes]) -> int:
    """Write a whole log, of which only some records are in memory at a time; returns its length."""
    batch, batch_bytes, num_bytes = list[bytes](), 0, 0
    with _written(path) as unfinished:
        for record in records:
            _check_length(record)
            batch.append(_framed(record))
            batch_bytes += len(batch[-1])
            if batch_bytes >= EARLY_BYTES:
                unfinished.add(batch)
                batch, batch_bytes, num_bytes = [], 0, num_bytes + batch_bytes
        unfinished.add(batch)
    return num_bytes + batch_bytes


@contextmanager
def _written(path: Path) -> Iterator[_Unfinished]:
    """A file that is whole at the end of the block, or not there if the block fails."""
    unfinished = _Unfinished(path)
    try:
        yield unfinished
        unfinished.finish()
    except BaseException:
        unfinished.drop()
        raise


def _check_length(record: bytes) -> None:
    if len(record) > MAX_RECORD_BYTES:
        raise LocalProtocolError(f"a record of {len(record)} bytes", f"at most {MAX_RECORD_BYTES}")


def _framed(record: bytes) -> bytes:
    return _FRAME.pack(len(record), _length_checksum(len(record)), zlib.crc32(record)) + record


def _append(path: Path, begin: int, record: bytes, is_named: bool) -> int:
    frame = _framed(record)
    try:
        is_new = not is_named or not path.exists()
        _make_folder(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, begin)
            if os.pwrite(descriptor, frame, begin) != len(frame):
                raise OSError("short write")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(path.parent)
    except OSError as error:
        raise _storage_error("append to", path, error) from error
    return begin + len(frame)


def _length_checksum(length: int) -> int:
    return zlib.crc32(_LENGTH.pack(length))


def _scan(path: Path) -> tuple[list[bytes], int]:
    """Good records, and the offset after the last of them, which is that of the next append.

    Raises:
        StorageError: damage before the last frame; later records must not be taken for never written.
    """
    data = _read(path, 0, None) or b""
    records: list[bytes] = []
    begin = 0
    while begin + _FRAME.size <= len(data):
        length, length_checksum, checksum = _FRAME.unpack_from(data, begin)
        end = begin + _FRAME.size + length
        if length > MAX_RECORD_BYTES or _length_checksum(length) != length_checksum:
            end = begin + _FRAME.size  # its end is unknown
            is_good = False
        else:
            is_good = zlib.crc32(data[begin + _FRAME.size : end]) == checksum and end <= len(data)
        if not is_good:
            # a file that was lengthened before its bytes were written reads as zeros
            if any(data[begin:]) and end < len(data):
                raise _damage(path, begin, len(data))
            break
        records.append(data[begin + _FRAME.size : end])
        begin = end
    if begin < len(data):
        log.warning("unfinished_record_left_out", path=str(path), at_byte=begin, num_bytes=len(data) - begin)
    return records, begin


def read_log(path: Path) -> list[bytes]:
    """All good records of a log; none if it is missing. Blocks. Raises StorageError as `read_records`."""
    return _scan(path)[0]


def check_log(path: Path) -> None:
    """Read a log through; a missing one is fine. Blocks.

    Raises:
        DamagedLogError: a record before the last is damaged. StorageError: it cannot be read.
    """
    _scan(path)


def _damage(path: Path, begin: int, num_bytes: int) -> DamagedLogError:
    return DamagedLogError(
        f"{path} is damaged at byte {begin} of {num_bytes}",
        "whole records up to the last one",
        "what this peer has promised and voted may be lost: check the disk and join again with a fresh --state-dir",
    )


def _read(path: Path, offset_bytes: int, num_bytes: int | None) -> bytes | None:
    try:
        with open(path, "rb") as file:
            file.seek(offset_bytes)
            return file.read() if num_bytes is None else file.read(num_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _storage_error("read", path, error) from error


def _delete(path: Path, root: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _storage_error("delete", path, error) from error
    if path.parent != root:
        with suppress(OSError):  # it is not empty, or gone
            path.parent.rmdir()


def folder_bytes(folder: Path) -> int:
    """Bytes of all finished files below a folder. Blocks.

    Raises:
        StorageError: a folder or a file cannot be read.
    """
    total = 0
    for name in _walk(folder, folder):
        try:
            total += (folder / name).stat().st_size
        except FileNotFoundError:
            continue  # deleted after it was listed
        except OSError as error:
            raise _storage_error("measure", folder / name, error) from error
    return total


def _walk(folder: Path, root: Path) -> list[str]:
    """Finished files in a folder, by their names below `root`. Files that are deleted meanwhile are left out.

    Raises:
        StorageError: an existing folder cannot be read.
    """

    def on_error(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise _storage_error("list", folder, error) from error

    return sorted(
        Path(parent, name).relative_to(root).as_posix()
        for parent, _, names in os.walk(folder, onerror=on_error)
        for name in names
        if not name.endswith(_TEMPORARY) and os.path.isfile(os.path.join(parent, name))
    )


def clear_unfinished(folder: Path) -> None:
    """Remove unfinished files of a killed process. Call it before the folder is used. Blocks."""
    for path in folder.rglob("*" + _TEMPORARY):
        path.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Create a folder and its parents durably: a file is lost in a power cut if the name of its folder is lost."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _storage_error(verb: str, path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"could not {verb} {path}: {error.strerror or error}", "a writable disk with space", "nothing was lost"
    )
