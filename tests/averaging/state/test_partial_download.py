from __future__ import annotations

import trio.testing
from structlog.testing import capture_logs

from averaging.state.partial_download import PartialDownload
from averaging.state.state import STATE_BYTES_PER_VALUE, leaf_of_chunk
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.ids import CommitId
from protocol.tensors.tensor_schema import ChunkGrid

Clock = trio.testing.MockClock
GRID = ChunkGrid(25, 10)
COMMIT, OTHER = CommitId(b"c" * 32), CommitId(b"o" * 32)
CHUNKS = [
    bytes([number]) * (STATE_BYTES_PER_VALUE * (GRID.bounds(number)[1] - GRID.bounds(number)[0])) for number in range(3)
]
HASHES = [leaf_of_chunk(chunk) for chunk in CHUNKS]


def _incoming(disk: MemoryDisk) -> PartialDownload:
    return PartialDownload(MemoryStorage(disk), GRID)


async def _restored(incoming: PartialDownload, commit: CommitId = COMMIT) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    assert await incoming.restore(commit, HASHES, found.__setitem__) == len(found)
    return found


async def test_what_was_kept_is_there_after_a_restart(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 1, CHUNKS[1:])
    assert await _restored(_incoming(disk)) == {1: CHUNKS[1], 2: CHUNKS[2]}
    await _incoming(disk).keep(COMMIT, 0, CHUNKS[:1])
    assert await _restored(_incoming(disk)) == dict(enumerate(CHUNKS))


async def test_only_chunks_with_the_right_hash_are_taken(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 0, CHUNKS)
    (name,) = disk.files
    data = bytearray(disk.files[name])
    data[len(CHUNKS[0]) + 3] ^= 1
    disk.files[name] = bytes(data[:-1])
    with capture_logs() as entries:
        assert await _restored(_incoming(disk)) == {0: CHUNKS[0]}
    assert [entry["reason"] for entry in entries] == [f"{name} is damaged: 1 chunks of it are used"]


async def test_another_download_takes_the_place(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 0, CHUNKS)
    assert await _restored(_incoming(disk), OTHER) == {}
    assert not disk.files


async def test_a_full_disk_costs_only_what_could_not_be_kept(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    disk.fail_with_disk_full_after(len(CHUNKS[0]))
    incoming = _incoming(disk)
    await incoming.keep(COMMIT, 0, CHUNKS[:1])
    await incoming.keep(COMMIT, 1, CHUNKS[1:])
    assert await _restored(incoming) == {0: CHUNKS[0]}


async def test_nothing_is_left_when_it_is_over(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 0, CHUNKS)
    await _incoming(disk).clear()
    assert not disk.files


async def test_how_much_is_here_of_which_state_is_known_before_its_hashes_are(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 1, CHUNKS[1:])
    await _incoming(disk).keep(COMMIT, 0, CHUNKS[:1])
    await _incoming(disk).keep(OTHER, 0, CHUNKS[:1])
    assert await _incoming(disk).held_bytes() == {COMMIT: sum(map(len, CHUNKS)), OTHER: len(CHUNKS[0])}


async def test_what_has_come_of_a_download_is_told_by_groups_and_read_for_others(autojump_clock: Clock) -> None:
    incoming = _incoming(MemoryDisk())
    assert incoming.groups(COMMIT, 1) == b""
    await _restored(incoming)
    await incoming.keep(COMMIT, 1, CHUNKS[1:])
    assert incoming.groups(COMMIT, 1) == bytes([0, 1, 1])
    assert incoming.groups(COMMIT, 2) == bytes([0, 1]), "the last group is shorter"
    assert incoming.groups(OTHER, 1) == b""
    assert await incoming.read_chunks(COMMIT, 1, 3) == CHUNKS[1:]
    assert await incoming.read_chunks(COMMIT, 2, 3) == CHUNKS[2:]
    assert await incoming.read_chunks(COMMIT, 0, 2) is None
    assert await incoming.read_chunks(OTHER, 1, 2) is None
    await incoming.keep(COMMIT, 0, CHUNKS[:1])
    assert await incoming.read_chunks(COMMIT, 0, 3) == CHUNKS, "out of several files"


async def test_chunks_that_were_here_before_a_restart_are_given_once_they_are_checked(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    await _incoming(disk).keep(COMMIT, 0, CHUNKS[:1])
    incoming = _incoming(disk)
    assert incoming.groups(COMMIT, 1) == b""
    assert await incoming.read_chunks(COMMIT, 0, 1) is None
    await _restored(incoming)
    assert incoming.groups(COMMIT, 1) == bytes([1, 0, 0])
    await incoming.clear()
    assert await incoming.read_chunks(COMMIT, 0, 1) is None


async def test_a_file_that_lies_within_a_longer_one_hides_none_of_its_chunks(autojump_clock: Clock) -> None:
    """A restart with another number of donors cuts the stripes elsewhere."""
    incoming = _incoming(MemoryDisk())
    await _restored(incoming)
    await incoming.keep(COMMIT, 1, CHUNKS[1:2])
    await incoming.keep(COMMIT, 0, CHUNKS)
    assert incoming.groups(COMMIT, 1) == bytes([1, 1, 1])
    assert await incoming.read_chunks(COMMIT, 2, 3) == CHUNKS[2:]
