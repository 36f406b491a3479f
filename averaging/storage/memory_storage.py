"""Storage in memory with the crash behaviour of a disk: unsynced writes are lost, in whole or in part."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import trio

from averaging.network.seams.clocks import Timers
from averaging.storage.storage_names import check_name
from protocol.errors import StorageError

SYNC_COST_S = 0.004
"""Virtual time of an fsync."""

UNBOUNDED_BYTES = 1 << 40


class MemoryDisk:
    """One machine's disk. It survives a crash of its process, but loses unsynced writes.

    Attributes:
        files: finished files.
        logs: durable records of each log.
        capacity_bytes: writes beyond it fail as on a full disk.
    """

    def __init__(self, capacity_bytes: int = UNBOUNDED_BYTES) -> None:
        self.files: dict[str, bytes] = {}
        self.logs: dict[str, list[bytes]] = {}
        self.capacity_bytes = capacity_bytes
        self._pending: dict[int, tuple[str, bytes | tuple[bytes, ...]]] = {}
        self._next_write = 0
        self._is_dead = False

    def crash(self, chooser: random.Random) -> None:
        """Power off. The chooser keeps or loses each unsynced append or replacement of a log; unsynced files are lost."""
        lost: set[str] = set()
        for name, written in self._pending.values():
            # a log keeps its order: records after a lost one are lost too
            if not name or name in lost or chooser.random() >= 0.5:
                lost.add(name)
            elif isinstance(written, bytes):
                self.logs.setdefault(name, []).append(written)
            else:
                self.logs[name] = list(written)
        self._pending.clear()
        self._is_dead = True

    def power_on(self) -> None:
        """Make the disk usable again, with the data that survived."""
        self._is_dead = False

    def check_alive(self) -> None:
        """Raises StorageError after `crash`: a dead process writes nothing more."""
        if self._is_dead:
            raise StorageError("the disk is gone: this process has crashed", "a live process")

    def used_bytes(self) -> int:
        """Bytes of files and logs."""
        return sum(map(len, self.files.values())) + sum(len(r) for log in self.logs.values() for r in log)

    def begin(self, name: str, record: bytes) -> int:
        """Begin an append or a file that is not durable yet."""
        return self._begin(name, record, len(record))

    def begin_replacement(self, name: str, records: tuple[bytes, ...]) -> int:
        """Begin a replacement of a log that is not durable yet; the old log stays until it is."""
        return self._begin(name, records, sum(map(len, records)))

    def check_room(self, num_bytes: int) -> None:
        """Raises StorageError: the disk is gone, or has no room for `num_bytes` more."""
        self.check_alive()
        if self.capacity_bytes < UNBOUNDED_BYTES and self.used_bytes() + num_bytes > self.capacity_bytes:
            raise StorageError("no space left on the disk", f"{num_bytes} bytes", "free some space and start again")

    def _begin(self, name: str, written: bytes | tuple[bytes, ...], num_bytes: int) -> int:
        self.check_room(num_bytes)
        self._next_write += 1
        self._pending[self._next_write] = (name, written)
        return self._next_write

    def finish(self, write: int) -> None:
        """Make the write durable. Raises StorageError if the machine has crashed since `begin`, even if it is up again."""
        self.check_alive()
        if self._pending.pop(write, None) is None:
            raise StorageError("the disk went away during a write: this process has crashed", "a live process")

    def fail_with_disk_full_after(self, num_bytes: int) -> None:
        """Let only `num_bytes` more fit from now on."""
        self.capacity_bytes = self.used_bytes() + num_bytes


class MemoryBegunFile:
    """A file of a MemoryStorage that is being written. Made by `MemoryStorage.begin`."""

    def __init__(self, storage: MemoryStorage, name: str) -> None:
        self._storage = storage
        self._name = check_name(name)
        self._parts: list[bytes] = []

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return sum(map(len, self._parts))

    async def add(self, part: bytes | memoryview) -> None:
        """Add a copy of the part."""
        await trio.lowlevel.checkpoint()
        self._storage.check_room(self.num_bytes + len(part))
        self._parts.append(bytes(part))

    async def finish(self) -> None:
        """Make the file durable after one sync."""
        await self._storage.write_atomic(self._name, self._parts)

    def drop(self) -> None:
        """Forget the parts."""
        self._parts.clear()


class MemoryStorage:
    """Storage on a MemoryDisk, below an optional folder. `timers`, if given, do the waits for the disk."""

    def __init__(self, disk: MemoryDisk, folder: str = "", timers: Timers | None = None) -> None:
        self._disk = disk
        self._timers = timers
        self._append_lock = trio.Lock()
        self._prefix = f"{folder}/" if folder else ""

    def check_room(self, num_bytes: int) -> None:
        """As `MemoryDisk.check_room`."""
        self._disk.check_room(num_bytes)

    def _path(self, name: str) -> str:
        return self._prefix + check_name(name)

    async def write_atomic(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Durable and whole after one sync, or not there."""
        path, data = self._path(name), b"".join(parts)
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._sync(self._disk.begin("", data))
        self._disk.files[path] = data

    def begin(self, name: str) -> MemoryBegunFile:
        """Durable and whole after one sync at its end, or not there."""
        return MemoryBegunFile(self, name)

    async def append(self, name: str, record: bytes) -> None:
        """Durable after one sync."""
        path = self._path(name)
        async with self._append_lock:
            await self._sync(self._disk.begin(path, record))
            self._disk.logs.setdefault(path, []).append(record)

    async def replace_log(self, name: str, records: Iterable[bytes]) -> None:
        """Durable and whole after one sync, or not there."""
        path, replacement = self._path(name), tuple(records)
        async with self._append_lock:
            await self._sync(self._disk.begin_replacement(path, replacement))
            self._disk.logs[path] = list(replacement)

    async def _sync(self, write: int) -> None:
        # a cancellation does not undo a write that has begun, because a thread would finish it as well
        if self._timers is not None:
            await self._timers.sleep_through(SYNC_COST_S)
        else:
            with trio.CancelScope(shield=True):
                await trio.sleep(SYNC_COST_S)
        self._disk.finish(write)

    async def read(self, name: str) -> bytes | None:
        """The file, or None."""
        self._disk.check_alive()
        return self._disk.files.get(self._path(name))

    async def read_range(self, name: str, offset_bytes: int, num_bytes: int) -> bytes | None:
        """Part of the file, or None."""
        data = await self.read(name)
        return None if data is None else data[offset_bytes : offset_bytes + num_bytes]

    async def read_records(self, name: str) -> Sequence[bytes]:
        """All durable records."""
        self._disk.check_alive()
        return tuple(self._disk.logs.get(self._path(name), ()))

    async def list_names(self, prefix: str) -> Sequence[str]:
        """Finished files that start with `prefix`, sorted."""
        self._disk.check_alive()
        begin, skip = self._prefix + prefix, len(self._prefix)
        files = [path[skip:] for path in self._disk.files if path.startswith(begin)]
        return sorted(files + [path[skip:] for path in self._disk.logs if path.startswith(begin)])

    async def delete(self, name: str) -> None:
        """Remove the file if it is there."""
        self._disk.check_alive()
        self._disk.files.pop(self._path(name), None)
        self._disk.logs.pop(self._path(name), None)

    async def size_bytes(self) -> int:
        """Bytes of all files and logs below our folder."""
        files = sum(len(data) for path, data in self._disk.files.items() if path.startswith(self._prefix))
        return files + sum(
            len(r) for path, log in self._disk.logs.items() if path.startswith(self._prefix) for r in log
        )
