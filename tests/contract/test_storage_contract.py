"""What every form of Storage keeps: whole files, ordered logs, nothing unfinished in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from averaging.network.file_storage import FileStorage
from averaging.network.memory_storage import MemoryDisk, MemoryStorage
from averaging.network.offload import ThreadOffload
from averaging.network.seams import LOG_FRAME_BYTES, Storage
from protocol.errors import LocalProtocolError


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "memory":
        return MemoryStorage(MemoryDisk(), "unit")
    return FileStorage(tmp_path / "unit", ThreadOffload())


async def test_what_is_written_is_read_back_whole_and_in_part(storage: Storage) -> None:
    await storage.write_atomic("results/ab/cd", [b"hello ", memoryview(b"world")])
    assert await storage.read("results/ab/cd") == b"hello world"
    assert await storage.read_range("results/ab/cd", 6, 3) == b"wor"
    assert await storage.read_range("results/ab/cd", 9, 100) == b"ld"
    assert await storage.read_range("results/ab/cd", 100, 1) == b""


async def test_a_missing_file_is_none_and_a_missing_log_is_empty(storage: Storage) -> None:
    assert await storage.read("nothing") is None
    assert await storage.read_range("nothing", 0, 1) is None
    assert list(await storage.read_records("nothing")) == []
    assert list(await storage.list_names("")) == []
    assert await storage.size_bytes() == 0
    await storage.delete("nothing")


async def test_a_second_write_replaces_the_first(storage: Storage) -> None:
    await storage.write_atomic("head", [b"first and long"])
    await storage.write_atomic("head", [b"second"])
    assert await storage.read("head") == b"second"


async def test_records_come_back_in_the_order_of_their_appends(storage: Storage) -> None:
    records = [b"", b"a", b"b" * 100_000]
    for record in records:
        await storage.append("log", record)
    assert list(await storage.read_records("log")) == records


async def test_appends_from_many_tasks_are_all_kept(storage: Storage) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(storage.append, "log", b"%d" % number)
    assert sorted(await storage.read_records("log")) == [b"%d" % number for number in range(10)]


async def test_a_deleted_log_begins_anew(storage: Storage) -> None:
    await storage.append("log", b"old")
    await storage.delete("log")
    assert list(await storage.list_names("")) == []
    await storage.append("log", b"new")
    assert list(await storage.read_records("log")) == [b"new"]


async def test_a_replaced_log_holds_the_new_records_alone_and_goes_on_after_them(storage: Storage) -> None:
    for record in (b"one", b"two" * 1000, b"three"):
        await storage.append("log", record)
    await storage.append("other", b"stays")
    await storage.replace_log("log", [b"two", b""])
    assert list(await storage.read_records("log")) == [b"two", b""]
    assert await storage.size_bytes() <= len(b"twostays") + 3 * LOG_FRAME_BYTES
    for record in (b"four", b"five"):
        await storage.append("log", record)
    assert list(await storage.read_records("log")) == [b"two", b"", b"four", b"five"]
    await storage.replace_log("log", [])
    await storage.append("log", b"six")
    assert list(await storage.read_records("log")) == [b"six"]
    assert list(await storage.read_records("other")) == [b"stays"]


async def test_a_log_may_begin_with_a_replacement(storage: Storage) -> None:
    await storage.replace_log("b/log", [b"first"])
    await storage.append("b/log", b"second")
    assert list(await storage.read_records("b/log")) == [b"first", b"second"]
    assert list(await storage.list_names("")) == ["b/log"]


async def test_an_append_beside_a_replacement_comes_before_it_or_after_it(storage: Storage) -> None:
    await storage.append("log", b"old")
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(storage.append, "log", b"%d" % number)
        nursery.start_soon(storage.replace_log, "log", [b"new"])
        for number in range(4, 8):
            nursery.start_soon(storage.append, "log", b"%d" % number)
    records = list(await storage.read_records("log"))
    assert records[0] == b"new"
    assert set(records[1:]) <= {b"%d" % number for number in range(8)}
    assert len(set(records)) == len(records)


async def test_names_are_listed_by_prefix_and_sorted(storage: Storage) -> None:
    for name in ("b/2", "a", "b/1"):
        await storage.write_atomic(name, [b"x"])
    await storage.append("b/log", b"x")
    assert list(await storage.list_names("")) == ["a", "b/1", "b/2", "b/log"]
    assert list(await storage.list_names("b/")) == ["b/1", "b/2", "b/log"]
    assert await storage.size_bytes() >= 4


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../up", "a/../b", "a//b", ".hidden", "a b", "a\n"])
async def test_a_name_that_could_climb_out_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(LocalProtocolError):
        await storage.write_atomic(name, [b"x"])
    with pytest.raises(LocalProtocolError):
        await storage.read(name)
    with pytest.raises(LocalProtocolError):
        await storage.replace_log(name, [b"x"])


async def test_a_cancelled_write_is_there_whole_or_not_at_all(storage: Storage) -> None:
    await storage.write_atomic("head", [b"old"])
    with trio.move_on_after(0.001):
        await storage.write_atomic("head", [b"new" * 100_000])
    assert await storage.read("head") in (b"old", b"new" * 100_000)
    with trio.move_on_after(0.001):
        await storage.append("log", b"one")
    await storage.append("log", b"two")
    assert list(await storage.read_records("log")) in ([b"two"], [b"one", b"two"])
    with trio.move_on_after(0.001):
        await storage.replace_log("log", [b"three" * 100_000])
    await storage.append("log", b"four")
    records = list(await storage.read_records("log"))
    assert records[-1] == b"four"
    assert records[-2] in (b"two", b"three" * 100_000)
