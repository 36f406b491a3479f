from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import StorageError


async def test_a_crash_loses_unsynced_writes_whole_and_keeps_a_prefix_of_each_log(autojump_clock: MockClock) -> None:
    outcomes: set[int] = set()
    for seed in range(20):
        disk = MemoryDisk()
        storage = MemoryStorage(disk)
        await storage.append("log", b"0")
        await storage.write_atomic("head", [b"old"])
        refused: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, storage, refused)
            await trio.sleep(0.001)
            disk.crash(random.Random(seed))
        disk.power_on()
        after = MemoryStorage(disk)
        records = list(await after.read_records("log"))
        assert records in ([b"0"], [b"0", b"1"])
        assert await after.read("head") == b"old"
        assert refused == ["append", "write"]
        outcomes.add(len(records))
    assert outcomes == {1, 2}


async def test_a_crash_in_a_replacement_leaves_the_old_log_or_the_new_one(autojump_clock: MockClock) -> None:
    outcomes: set[tuple[bytes, ...]] = set()
    for seed in range(20):
        disk = MemoryDisk()
        storage = MemoryStorage(disk, "unit")
        for record in (b"0", b"1"):
            await storage.append("log", record)

        async def replace(storage: MemoryStorage) -> None:
            with pytest.raises(StorageError):
                await storage.replace_log("log", [b"a", b"b", b"c"])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(replace, storage)
            await trio.sleep(0.001)
            disk.crash(random.Random(seed))
        disk.power_on()
        outcomes.add(tuple(await MemoryStorage(disk, "unit").read_records("log")))
    assert outcomes == {(b"0", b"1"), (b"a", b"b", b"c")}


async def test_a_disk_without_room_for_both_logs_keeps_the_old_one(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    await storage.append("log", b"1" * 10)
    disk.fail_with_disk_full_after(8)
    with pytest.raises(StorageError, match="no space left"):
        await storage.replace_log("log", [b"2" * 9])
    assert list(await storage.read_records("log")) == [b"1" * 10]
    await storage.replace_log("log", [b"2" * 8])
    assert list(await storage.read_records("log")) == [b"2" * 8]


async def _refused(storage: MemoryStorage, refused: list[str]) -> None:
    async def append() -> None:
        with pytest.raises(StorageError):
            await storage.append("log", b"1")
        refused.append("append")

    async def write() -> None:
        with pytest.raises(StorageError):
            await storage.write_atomic("head", [b"new"])
        refused.append("write")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(append)
        nursery.start_soon(write)
    refused.sort()


async def test_a_crashed_process_reads_and_writes_nothing_more(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    await storage.write_atomic("head", [b"x"])
    disk.crash(random.Random(0))
    for attempt in (storage.read("head"), storage.append("log", b""), storage.list_names("")):
        with pytest.raises(StorageError):
            await attempt


async def test_a_write_from_before_the_crash_does_not_land_after_it(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)

    async def write() -> None:
        with pytest.raises(StorageError):
            await storage.write_atomic("head", [b"late"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await trio.sleep(0.001)
        disk.crash(random.Random(0))
        disk.power_on()
    assert await storage.read("head") is None


async def test_a_full_disk_refuses_and_keeps_what_it_has(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    storage = MemoryStorage(disk)
    await storage.write_atomic("head", [b"old"])
    disk.fail_with_disk_full_after(10)
    await storage.append("log", b"12345")
    with pytest.raises(StorageError, match="no space left"):
        await storage.write_atomic("head", [b"too long for it"])
    assert await storage.read("head") == b"old"


async def test_two_folders_of_one_disk_do_not_see_each_other(autojump_clock: MockClock) -> None:
    disk = MemoryDisk()
    one, other = MemoryStorage(disk, "one"), MemoryStorage(disk, "other")
    await one.write_atomic("head", [b"1"])
    assert await other.read("head") is None
    assert list(await other.list_names("")) == []
    assert list(await one.list_names("")) == ["head"]
