from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from averaging.network.seams.offload import ThreadOffload
from averaging.storage import file_storage
from averaging.storage.file_storage import EARLY_BYTES, FileStorage, clear_unfinished
from averaging.storage.uncached_file import CAN_BE_UNCACHED
from protocol.errors import StorageError


async def test_a_log_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.append("log", b"first")
    await storage.append("log", b"second")
    whole = (tmp_path / "log").read_bytes()
    for cut in range(len(whole) - 13, len(whole)):
        (tmp_path / "log").write_bytes(whole[:cut])
        reopened = FileStorage(tmp_path, ThreadOffload())
        assert list(await reopened.read_records("log")) == [b"first"]
        await reopened.append("log", b"third")
        assert list(await reopened.read_records("log")) == [b"first", b"third"]


async def test_a_flipped_bit_before_the_last_record_is_damage_and_nothing_is_overwritten(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    for record in (b"first", b"second", b"third"):
        await storage.append("log", record)
    whole = (tmp_path / "log").read_bytes()
    last_frame = len(whole) // 3
    for bit in range(8 * (len(whole) - last_frame)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "log").write_bytes(damaged)
        reopened = FileStorage(tmp_path, ThreadOffload())
        with pytest.raises(StorageError, match="damaged"):
            await reopened.read_records("log")
        with pytest.raises(StorageError, match="damaged"):
            await reopened.append("log", b"fourth")
        assert (tmp_path / "log").read_bytes() == bytes(damaged)


async def test_a_tail_of_zeros_was_never_written(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.append("log", b"first")
    with open(tmp_path / "log", "ab") as file:
        file.write(bytes(4096))
    reopened = FileStorage(tmp_path, ThreadOffload())
    assert list(await reopened.read_records("log")) == [b"first"]
    await reopened.append("log", b"second")
    assert list(await reopened.read_records("log")) == [b"first", b"second"]


async def test_a_last_record_with_a_flipped_bit_ends_the_log(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.append("log", b"first")
    await storage.append("log", b"second")
    data = bytearray((tmp_path / "log").read_bytes())
    data[-1] ^= 1
    (tmp_path / "log").write_bytes(data)
    assert list(await FileStorage(tmp_path, ThreadOffload()).read_records("log")) == [b"first"]


async def test_a_record_that_is_left_out_is_said_in_one_line(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.append("log", b"one")
    with (tmp_path / "log").open("ab") as file:
        file.write(b"tor")
    with capture_logs() as entries:
        assert list(await storage.read_records("log")) == [b"one"]
    assert [(entry["event"], entry["num_bytes"]) for entry in entries] == [("unfinished_record_left_out", 3)]


async def test_a_leftover_of_an_unfinished_write_never_appears(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.write_atomic("head", [b"x"])
    (tmp_path / "head.3.unfinished").write_bytes(b"half")
    assert list(await storage.list_names("")) == ["head"]
    assert await storage.size_bytes() == 1


@pytest.mark.parametrize("can_be_uncached", [True, False])
async def test_what_one_writer_told_of_is_whole_while_another_writes_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_be_uncached: bool
) -> None:
    monkeypatch.setattr(file_storage, "CAN_BE_UNCACHED", CAN_BE_UNCACHED and can_be_uncached)
    storage, data = FileStorage(tmp_path, ThreadOffload()), os.urandom(2 * EARLY_BYTES)
    first, second = storage.begin("head"), storage.begin("head")
    await first.add(data)
    await second.add(data[:EARLY_BYTES])  # its file is open, and emptied where it is the same
    assert len(list(tmp_path.iterdir())) == 2
    await first.finish()
    assert await storage.read("head") == data
    await second.add(data[EARLY_BYTES:])
    await second.finish()
    assert await storage.read("head") == data
    assert [path.name for path in tmp_path.iterdir()] == ["head"]


async def test_a_full_disk_is_a_storage_error_and_the_old_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path / "full", ThreadOffload())
    await storage.write_atomic("head", [b"old"])
    monkeypatch.setattr(file_storage, "_WRITES", itertools.count(7))
    (tmp_path / "full" / "head.7.unfinished").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        await storage.write_atomic("head", [b"new"])
    assert await storage.read("head") == b"old"


async def test_a_disk_without_room_for_a_replacement_keeps_the_old_log_and_appends_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.append("log", b"old")
    monkeypatch.setattr(file_storage, "_WRITES", itertools.count(7))
    (tmp_path / "log.7.unfinished").symlink_to("/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        await storage.replace_log("log", [b"new"])
    await storage.append("log", b"next")
    assert list(await storage.read_records("log")) == [b"old", b"next"]


async def test_after_a_replacement_whose_name_was_not_synced_the_next_append_syncs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut would bring the old log back, without what was appended and told since."""
    storage, synced = FileStorage(tmp_path, ThreadOffload()), []
    await storage.append("log", b"old and long")

    def refuse(folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_storage, "sync_folder", refuse)
        with pytest.raises(StorageError, match="Input/output"):
            await storage.replace_log("log", [b"new"])
        with pytest.raises(StorageError, match="Input/output"):
            await storage.append("log", b"next")
    monkeypatch.setattr(file_storage, "sync_folder", synced.append)
    for record in (b"next", b"last"):
        await storage.append("log", record)
    assert list(await storage.read_records("log")) == [b"new", b"next", b"last"]
    assert synced == [tmp_path], "once is enough"


async def test_a_process_killed_in_a_replacement_leaves_the_old_log(tmp_path: Path) -> None:
    await FileStorage(tmp_path, ThreadOffload()).append("log", b"old")
    (tmp_path / "log.3.unfinished").write_bytes(b"half of the new")
    clear_unfinished(tmp_path)
    storage = FileStorage(tmp_path, ThreadOffload())
    assert list(await storage.read_records("log")) == [b"old"]
    await storage.replace_log("log", [b"new"])
    assert list(await storage.read_records("log")) == [b"new"]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


async def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = FileStorage(tmp_path / "file" / "below", ThreadOffload())
    with pytest.raises(StorageError):
        await storage.write_atomic("head", [b"x"])
    with pytest.raises(StorageError):
        await storage.append("log", b"x")


async def test_names_below_a_folder_are_listed_and_an_empty_folder_goes(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    for name in ("a/one", "a/two", "ab/three", "top"):
        await storage.write_atomic(name, [b"x"])
    assert list(await storage.list_names("a/")) == ["a/one", "a/two"]
    assert list(await storage.list_names("a/t")) == ["a/two"]
    assert list(await storage.list_names("a")) == ["a/one", "a/two", "ab/three"]
    assert list(await storage.list_names("missing/")) == []
    await storage.delete("a/one")
    assert (tmp_path / "a").is_dir()
    await storage.delete("a/two")
    assert not (tmp_path / "a").exists()


def _before_scan(monkeypatch: pytest.MonkeyPatch, folder: Path, act: Callable[[], None]) -> None:
    """Have `act` happen after `folder` was listed by the one above it, and before it is looked into."""
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if Path(path) == folder:
            act()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)


@pytest.mark.parametrize("ask", ["size_bytes", "list_names"])
async def test_a_folder_that_is_deleted_in_the_middle_of_a_walk_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    storage, gone = FileStorage(tmp_path, ThreadOffload()), tmp_path / "results" / "base"
    await storage.write_atomic("results/kept/one", [b"12345"])
    gone.mkdir()
    _before_scan(monkeypatch, gone, gone.rmdir)
    if ask == "size_bytes":
        assert await storage.size_bytes() == 5
    else:
        assert list(await storage.list_names("results/")) == ["results/kept/one"]
    assert not gone.exists()


@pytest.mark.parametrize("ask", ["size_bytes", "list_names"])
async def test_a_folder_that_cannot_be_read_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.write_atomic("results/one", [b"12345"])

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    _before_scan(monkeypatch, tmp_path / "results", fail)
    with pytest.raises(StorageError, match="could not list"):
        await (storage.size_bytes() if ask == "size_bytes" else storage.list_names("results/"))


@pytest.mark.parametrize("has_advice", [True, False])
async def test_a_file_that_comes_in_parts_is_on_its_way_to_the_disk_before_it_is_finished_and_whole_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_advice: bool
) -> None:
    monkeypatch.setattr(file_storage, "CAN_BE_UNCACHED", False)
    advised: list[tuple[int, int]] = []
    if has_advice:
        monkeypatch.setattr(
            os, "posix_fadvise", lambda _, begin, length, advice: advised.append((begin, length)), raising=False
        )
    else:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    parts = [os.urandom(EARLY_BYTES), b"short", os.urandom(EARLY_BYTES + 3)]
    begun = FileStorage(tmp_path, ThreadOffload()).begin("folder/file")
    for part in parts:
        await begun.add(part)
    first, short, last = map(len, parts)
    assert advised == ([(0, first), (first + short, last)] if has_advice else []), "what is short is left to the sync"
    await begun.finish()
    assert (tmp_path / "folder" / "file").read_bytes() == b"".join(parts)


async def test_a_kernel_that_takes_no_advice_costs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "not implemented")

    monkeypatch.setattr(file_storage, "CAN_BE_UNCACHED", False)
    monkeypatch.setattr(os, "posix_fadvise", refuse, raising=False)
    begun = FileStorage(tmp_path, ThreadOffload()).begin("file")
    await begun.add(bytes(EARLY_BYTES))
    await begun.finish()
    assert (tmp_path / "file").read_bytes() == bytes(EARLY_BYTES)


@pytest.mark.parametrize("has_uncached", [True, False])
async def test_long_files_are_written_past_the_cache_where_their_file_system_can_do_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_uncached: bool
) -> None:
    real, made, direct = os.open, list[str](), getattr(os, "O_DIRECT", 0)

    def make(path: Any, flags: int, mode: int = 0o777, **rest: Any) -> int:
        if flags & direct:
            if not has_uncached:
                raise OSError(errno.EINVAL, "invalid argument")
            made.append(Path(path).name.partition(".")[0])
        return real(path, flags, mode, **rest)

    monkeypatch.setattr(os, "open", make)
    storage, long = FileStorage(tmp_path, ThreadOffload()), os.urandom(EARLY_BYTES // 2)
    await storage.write_atomic("short", [b"x"])
    await storage.write_atomic("long", [long, long, b"x"])
    begun = storage.begin("parts")
    await begun.add(long + long)
    await begun.add(b"x")
    await begun.finish()
    for name in ("long", "parts"):
        assert (tmp_path / name).read_bytes() == long + long + b"x"
    assert made == (["long", "parts"] if has_uncached and CAN_BE_UNCACHED else [])


async def test_a_long_file_that_the_disk_does_not_take_leaves_the_old_one_and_nothing_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.write_atomic("file", [b"old"])

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="No space left"):
        await storage.write_atomic("file", [bytes(EARLY_BYTES)])
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


async def test_a_write_that_fails_for_whatever_reason_keeps_no_file_open(tmp_path: Path) -> None:
    class Failing(list[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            yield bytes(EARLY_BYTES)
            if (tmp_path / "head").exists() or list(tmp_path.iterdir()):
                raise MemoryError

    storage, before = FileStorage(tmp_path, ThreadOffload()), len(os.listdir("/dev/fd"))
    with pytest.raises(MemoryError):
        await storage.write_atomic("head", Failing([b"x"]))
    assert (list(tmp_path.iterdir()), len(os.listdir("/dev/fd"))) == ([], before)


async def test_what_was_not_finished_is_cleared_and_what_was_stays(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path, ThreadOffload())
    await storage.write_atomic("folder/whole", [b"x"])
    (tmp_path / "folder" / "half.unfinished").write_bytes(b"ha")
    clear_unfinished(tmp_path)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["whole"]
    clear_unfinished(tmp_path / "missing")
