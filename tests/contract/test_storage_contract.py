"""The contract of every form of Storage: whole files, ordered logs, nothing unfinished in sight."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from averaging.network.seams.interfaces import LOG_FRAME_BYTES, Storage
from averaging.network.seams.offload import ThreadOffload
from averaging.storage.file_storage import FileStorage
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
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


async def test_a_file_that_is_begun_appears_when_it_is_finished_and_not_before(storage: Storage) -> None:
    await storage.write_atomic("results/old", [b"old"])
    begun = storage.begin("results/new")
    assert begun.num_bytes == 0
    part = bytearray(b"first ")
    await begun.add(memoryview(part))
    part[:] = bytes(len(part))
    assert begun.num_bytes == 6
    assert list(await storage.list_names("")) == ["results/old"]
    assert await storage.read("results/new") is None
    await begun.add(b"")
    await begun.add(b"second")
    await begun.finish()
    assert await storage.read("results/new") == b"first second"
    begun.drop()
    assert list(await storage.list_names("")) == ["results/new", "results/old"]
    assert await storage.size_bytes() == len(b"oldfirst second")


async def test_a_file_that_was_begun_and_left_leaves_nothing_and_the_old_one_stays(storage: Storage) -> None:
    await storage.write_atomic("a/name", [b"old"])
    begun = storage.begin("a/name")
    await begun.add(b"new" * 1000)
    begun.drop()
    storage.begin("a/other").drop()
    assert await storage.read("a/name") == b"old"
    assert await storage.size_bytes() == 3


async def test_a_file_without_a_part_is_empty_and_two_that_were_begun_under_one_name_are_each_whole(
    storage: Storage,
) -> None:
    await storage.begin("empty").finish()
    assert await storage.read("empty") == b""
    first, second = storage.begin("a/name"), storage.begin("a/name")
    for number in range(3):
        await first.add(b"f%d" % number)
        await second.add(b"s%d" % number)
    await first.finish()
    assert await storage.read("a/name") == b"f0f1f2"
    await second.finish()
    assert await storage.read("a/name") == b"s0s1s2"


async def test_a_folder_that_goes_while_a_file_in_it_is_begun_is_made_again(storage: Storage) -> None:
    await storage.write_atomic("a/old", [b"old"])
    begun = storage.begin("a/new")
    await storage.delete("a/old")
    await begun.add(b"new")
    await begun.finish()
    assert await storage.read("a/new") == b"new"


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
        storage.begin(name)
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
