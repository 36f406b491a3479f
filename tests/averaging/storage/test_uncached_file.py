from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from averaging.storage import uncached_file
from averaging.storage.uncached_file import UncachedFile

BLOCK_BYTES = 4096
AT_ONCE_BYTES = 1 << 21
DIRECT = getattr(os, "O_DIRECT", 0)
LENGTHS = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, AT_ONCE_BYTES, 2 * AT_ONCE_BYTES + 5]


@pytest.fixture(autouse=True)
def _on_every_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the tests' folder has no such files, the tests run as on a file system that ignores the flag."""
    real = os.open
    try:
        UncachedFile(tmp_path / "probe").close()
    except OSError:
        monkeypatch.setattr(os, "open", lambda path, flags, mode: real(path, flags & ~DIRECT, mode))
    (tmp_path / "probe").unlink(missing_ok=True)


def _write(path: Path, *calls: list[bytes]) -> None:
    file = UncachedFile(path)
    for parts in calls:
        file.write(parts)
    file.finish()


@pytest.mark.parametrize("last_bytes", LENGTHS)
@pytest.mark.parametrize("first_bytes", LENGTHS)
def test_a_file_has_all_that_was_written_whatever_the_lengths_of_its_parts(
    tmp_path: Path, first_bytes: int, last_bytes: int
) -> None:
    first, last = os.urandom(first_bytes), os.urandom(last_bytes)
    _write(tmp_path / "calls", [first], [last])
    _write(tmp_path / "parts", [first, b"", last])
    assert (tmp_path / "calls").read_bytes() == first + last
    assert (tmp_path / "parts").read_bytes() == first + last


def test_whole_blocks_are_on_their_way_before_the_end_and_what_was_there_is_gone(tmp_path: Path) -> None:
    path, data = tmp_path / "file", os.urandom(3 * BLOCK_BYTES + 7)
    path.write_bytes(os.urandom(10 * BLOCK_BYTES))
    file = UncachedFile(path)
    file.write([data])
    assert path.read_bytes() == data[: 3 * BLOCK_BYTES]
    file.finish()
    assert path.read_bytes() == data


@pytest.mark.parametrize("begin", [0, 1, BLOCK_BYTES])
@pytest.mark.parametrize("last_bytes", [0, 1, BLOCK_BYTES])
def test_long_zeros_are_read_as_such_and_take_no_room(tmp_path: Path, begin: int, last_bytes: int) -> None:
    first, last, zeros = os.urandom(begin), os.urandom(last_bytes), bytes(3 * AT_ONCE_BYTES)
    _write(tmp_path / "file", [first, zeros], [os.urandom(0), zeros, last])
    assert (tmp_path / "file").read_bytes() == first + 2 * zeros + last
    assert (tmp_path / "file").stat().st_blocks * 512 < AT_ONCE_BYTES


def test_a_view_of_floats_is_written_as_its_bytes(tmp_path: Path) -> None:
    view = memoryview(os.urandom(4 * 1000)).cast("f")
    file = UncachedFile(tmp_path / "file")
    file.write([view])
    file.finish()
    assert (tmp_path / "file").read_bytes() == view.tobytes()


def _patched(monkeypatch: pytest.MonkeyPatch, write: Callable[..., int]) -> None:
    monkeypatch.setattr(uncached_file.os, "pwrite", write)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP])
def test_where_a_file_system_opens_it_so_but_writes_none_so_it_is_written_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real, data = os.pwrite, os.urandom(AT_ONCE_BYTES + 9)

    def write(descriptor: int, blocks: memoryview, place: int) -> int:
        if _is_direct(descriptor):
            raise OSError(number, os.strerror(number))
        return real(descriptor, blocks, place)

    _patched(monkeypatch, write)
    _write(tmp_path / "file", [data])
    assert (tmp_path / "file").read_bytes() == data


def test_a_write_that_takes_a_part_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, data = os.pwrite, os.urandom(AT_ONCE_BYTES + 9)

    def write(descriptor: int, blocks: memoryview, place: int) -> int:
        return real(descriptor, blocks[: max(BLOCK_BYTES, len(blocks) // 3)], place)

    _patched(monkeypatch, write)
    _write(tmp_path / "file", [data])
    assert (tmp_path / "file").read_bytes() == data


def test_a_write_that_ends_inside_a_block_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, data, calls = os.pwrite, os.urandom(AT_ONCE_BYTES + 9), list[int]()

    def write(descriptor: int, blocks: memoryview, place: int) -> int:
        calls.append(place)
        if len(calls) > 1:
            if _is_direct(descriptor):
                raise OSError(errno.EIO, "asked for a part of a block")
            return real(descriptor, blocks, place)
        whole = real(descriptor, blocks[:BLOCK_BYTES], place)
        return whole - 100  # what a file system may tell that has written a part of a block

    _patched(monkeypatch, write)
    _write(tmp_path / "file", [data])
    assert calls[:2] == [0, BLOCK_BYTES - 100]
    assert (tmp_path / "file").read_bytes() == data


def test_a_write_that_takes_nothing_is_an_error_and_not_tried_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = UncachedFile(tmp_path / "file")
    _patched(monkeypatch, lambda *_: 0)
    with pytest.raises(OSError, match="nothing was written"):
        file.write([bytes(BLOCK_BYTES)])
    file.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_what_the_disk_refuses_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def write(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    file = UncachedFile(tmp_path / "file")
    _patched(monkeypatch, write)
    with pytest.raises(OSError, match=os.strerror(number)):
        file.write([bytes(BLOCK_BYTES)])
    file.close()
    file.close()


def test_files_written_at_the_same_time_do_not_share_their_memory(tmp_path: Path) -> None:
    data = [os.urandom(2 * AT_ONCE_BYTES + number) for number in range(8)]
    threads = [
        threading.Thread(target=_write, args=(tmp_path / str(number), [each])) for number, each in enumerate(data)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(tmp_path / str(number)).read_bytes() for number in range(8)] == data
