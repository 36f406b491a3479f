from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import trio
import trio.testing
from structlog.testing import capture_logs

from averaging.network.seams.offload import ThreadOffload
from averaging.state.generations import PIN_S, SHARED_S, Generations
from averaging.state.state import UnitState, root_of, state_chunks, state_root
from averaging.storage.file_storage import FileStorage
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.errors import StorageError
from protocol.ids import CommitId, Root, UnitName
from protocol.tensors.tensor_schema import ChunkGrid
from tests.virtual import InlineOffload

GRID = ChunkGrid(20, 8)
Clock = trio.testing.MockClock


def _state(index: int) -> UnitState:
    return UnitState(
        UnitName("fragment-0"),
        CommitId(bytes([index]) * 32),
        index,
        index,
        torch.full((20,), float(index)),
        torch.zeros(20),
    )


def _generations(disk: MemoryDisk) -> Generations:
    return Generations(MemoryStorage(disk), GRID, InlineOffload())


async def _written(disk: MemoryDisk, *indices: int) -> Generations:
    generations = _generations(disk)
    for index in indices:
        await generations.write(_state(index), state_root(_state(index), GRID))
    return generations


async def test_the_newest_is_loaded_and_writing_deletes_nothing(autojump_clock: Clock) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3)
    assert [ref.index for ref in await generations.list()] == [1, 2, 3]
    loaded = await generations.load_newest()
    assert loaded is not None
    assert loaded[0].index == 3
    assert loaded[1] == state_root(_state(3), GRID)
    assert loaded[2] == []


async def test_only_the_commits_named_are_kept_whatever_their_age(autojump_clock: Clock) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3, 4)
    await generations.keep_only({_state(1).head, _state(3).head, CommitId(b"?" * 32)}, 0.0)
    assert [ref.commit for ref in await generations.list()] == [_state(1).head, _state(3).head]


async def test_states_of_other_lineages_are_not_loaded_where_commits_are_named(autojump_clock: Clock) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3)
    loaded = await generations.load_newest([_state(1).head, _state(2).head])
    assert loaded is not None
    assert loaded[0].index == 2
    assert await generations.load_newest([CommitId(b"?" * 32)]) is None


async def test_a_full_disk_refuses_a_generation_and_leaves_the_others(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2)
    disk.fail_with_disk_full_after(10)
    with pytest.raises(StorageError):
        await generations.write(_state(3), state_root(_state(3), GRID))
    assert [ref.index for ref in await generations.list()] == [1, 2]
    await generations.keep_only({_state(2).head}, 0.0)
    assert [ref.index for ref in await generations.list()] == [2]


async def test_a_damaged_newest_falls_back_one_and_says_so(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = _generations(disk)
    for index in (1, 2):
        ref = await generations.write(_state(index), state_root(_state(index), GRID))
    data = bytearray(disk.files[ref.name])
    data[-5] ^= 1
    disk.files[ref.name] = bytes(data)
    loaded = await generations.load_newest()
    assert loaded is not None
    assert loaded[0].index == 1
    assert "damaged" in loaded[2][0]
    assert (generations.last_load.index, generations.last_load.problems) == (1, tuple(loaded[2]))


async def test_what_is_damaged_goes_from_the_disk_and_what_could_not_be_read_stays(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged one would be offered to others, and be one of the two that are kept."""
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2, 3)
    names = [ref.name for ref in await generations.list()]
    disk.files[names[2]] = disk.files[names[2]][:-1] + b"?"
    assert await generations.load_newest() is not None
    assert (sorted(disk.files), generations.num_damaged) == (names[:2], 1)
    read = MemoryStorage.read

    async def refuse(storage: MemoryStorage, name: str) -> bytes | None:
        if name == names[1]:
            raise StorageError("could not read it: Input/output error", "a readable disk")
        return await read(storage, name)

    monkeypatch.setattr(MemoryStorage, "read", refuse)
    loaded = await generations.load_newest()
    assert loaded is not None
    assert (loaded[0].index, len(loaded[2])) == (1, 1)
    assert (sorted(disk.files), generations.num_damaged) == (names[:2], 1)


async def test_one_that_is_replaced_while_it_is_read_is_read_again_and_not_taken_for_damaged(
    autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, state = MemoryDisk(), _state(4)
    wrong = replace(state, anchor_N=state.anchor_N + 1.0)
    generations = _generations(disk)
    ref = await generations.write(wrong, state_root(wrong, GRID))
    read, num_reads = MemoryStorage.read_range, 0

    async def replaced(storage: MemoryStorage, name: str, offset_bytes: int, num_bytes: int) -> bytes | None:
        nonlocal num_reads
        num_reads += 1
        data = await read(storage, name, offset_bytes, num_bytes)
        if num_reads == 1:  # after the head
            await generations.write(state, state_root(state, GRID))
        return data

    monkeypatch.setattr(MemoryStorage, "read_range", replaced)
    loaded = await generations.load_newest()
    assert loaded is not None
    assert torch.equal(loaded[0].anchor_N, state.anchor_N)
    assert (generations.num_damaged, sorted(disk.files)) == (0, [ref.name])


async def test_one_with_another_root_than_the_run_attests_goes(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2)
    loaded = await generations.load_newest(None, {_state(2).head: Root(b"?" * 32)})
    assert loaded is not None
    assert loaded[0].index == 1
    assert [ref.index for ref in await generations.list()] == [1]


async def test_a_disk_that_refuses_is_told_until_it_takes_a_generation(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1)
    disk.fail_with_disk_full_after(0)
    with pytest.raises(StorageError):
        await generations.write(_state(2), state_root(_state(2), GRID))
    assert (generations.num_refused, "no space left" in generations.refused) == (1, True)
    disk.fail_with_disk_full_after(1000)
    await generations.write(_state(2), state_root(_state(2), GRID))
    assert (generations.num_refused, generations.refused) == (1, "")


async def test_bytes_behind_the_last_chunk_are_damage(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2)
    name = (await generations.list())[-1].name
    disk.files[name] += b"x"
    loaded = await generations.load_newest()
    assert loaded is not None
    assert (loaded[0].index, len(loaded[2])) == (1, 1)


@pytest.mark.parametrize("num_bytes", [0, 3, 60, 180, 200])
async def test_a_file_that_ends_early_is_damage_wherever_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int
) -> None:
    monkeypatch.setattr("averaging.state.generations._LOADED_AT_ONCE_BYTES", 1)
    generations = Generations(FileStorage(tmp_path, ThreadOffload()), GRID, ThreadOffload())
    for index in (1, 2):
        ref = await generations.write(_state(index), state_root(_state(index), GRID))
    os.truncate(tmp_path / ref.name, num_bytes)
    with pytest.raises(StorageError, match="is damaged"):
        await generations.load(ref)
    loaded = await generations.load_newest()
    assert loaded is not None
    assert state_root(loaded[0], GRID) == state_root(_state(1), GRID)
    assert not (tmp_path / ref.name).exists()


async def test_values_that_are_not_finite_are_damage_whatever_their_root(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations, odd = await _written(disk, 1), replace(_state(2), anchor_N=torch.full((20,), float("nan")))
    await generations.write(odd, state_root(odd, GRID))
    loaded = await generations.load_newest()
    assert loaded is not None
    assert (loaded[0].index, "not finite" in loaded[2][0]) == (1, True)


async def test_where_all_are_damaged_each_is_named(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2)
    for name in disk.files:
        disk.files[name] = disk.files[name][:-1]
    with capture_logs() as entries:
        assert await generations.load_newest() is None
    assert [entry["event"] for entry in entries] == ["generation_damaged"] * 2
    assert (generations.last_load.index, len(generations.last_load.problems)) == (0, 2)


async def test_one_that_is_damaged_at_its_beginning_is_not_offered_and_the_others_are(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = await _written(disk, 1, 2)
    older, newest = await generations.list()
    disk.files[newest.name] = b"\xff\xff" + disk.files[newest.name][2:]
    assert await generations.head_of(newest) is None
    assert await generations.read_chunks(newest, 0, 1) is None
    assert await generations.head_of(older) == (_state(1).header, state_root(_state(1), GRID))


async def test_a_crash_while_writing_leaves_the_generation_before(autojump_clock: Clock) -> None:
    disk = MemoryDisk()
    generations = _generations(disk)
    await generations.write(_state(1), state_root(_state(1), GRID))
    async with trio.open_nursery() as nursery:

        async def write() -> None:
            with pytest.raises(StorageError):
                await generations.write(_state(2), state_root(_state(2), GRID))

        nursery.start_soon(write)
        await trio.sleep(0.002)
        disk.crash(random.Random(1))
    disk.power_on()
    loaded = await _generations(disk).load_newest()
    assert loaded is not None
    assert loaded[0].index == 1


async def test_chunks_can_be_read_alone_and_their_hashes_make_the_root(autojump_clock: Clock) -> None:
    generations = _generations(MemoryDisk())
    ref = await generations.write(_state(4), state_root(_state(4), GRID))
    chunks = [b"".join(parts) for parts in state_chunks(_state(4), GRID)]
    for first in range(GRID.num_chunks):
        assert await generations.read_chunks(ref, first, GRID.num_chunks) == chunks[first:]
    for _ in range(2):
        hashes = await generations.hashes(ref)
        assert hashes is not None
        assert root_of(_state(4).header, hashes) == state_root(_state(4), GRID)
    await generations.keep_only((), 0.0)
    assert await generations.read_chunks(ref, 0, 1) is None


async def test_hashes_of_a_state_that_is_written_anew_are_those_of_the_new_one(autojump_clock: Clock) -> None:
    generations = _generations(MemoryDisk())
    state = _state(4)
    wrong = replace(state, anchor_N=state.anchor_N + 1.0)
    for written in (wrong, state):
        ref = await generations.write(written, state_root(written, GRID))
        hashes = await generations.hashes(ref)
        assert hashes is not None
        assert root_of(written.header, hashes) == state_root(written, GRID)


async def test_a_pinned_generation_is_kept_until_its_lease_ends(autojump_clock: Clock) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3)
    generations.pin(_state(1).head, 10.0)
    generations.pin(_state(2).head, 10.0)
    await generations.keep_only({_state(3).head}, 10.0 + PIN_S - 1.0)
    assert [ref.index for ref in await generations.list()] == [1, 2, 3]
    await generations.keep_only({_state(3).head}, 10.0 + PIN_S)
    assert [ref.index for ref in await generations.list()] == [1, 3], "the first one is shared"
    generations.pin(_state(1).head, 10.0 + SHARED_S - 1.0)
    await generations.keep_only({_state(3).head}, 10.0 + SHARED_S)
    assert [ref.index for ref in await generations.list()] == [1, 3], "somebody still downloads it"
    await generations.keep_only({_state(3).head}, 10.0 + SHARED_S + PIN_S)
    assert [ref.index for ref in await generations.list()] == [3]


async def test_newcomers_are_led_to_the_first_generation_that_one_of_them_takes_for_ten_minutes(
    autojump_clock: Clock,
) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3)
    assert generations.shared(10.0) is None
    generations.pin(_state(1).head, 10.0)
    generations.pin(_state(2).head, 20.0)
    assert generations.shared(10.0 + SHARED_S - 1.0) == _state(1).head
    assert generations.shared(10.0 + SHARED_S) is None
    generations.pin(_state(2).head, 10.0 + SHARED_S)
    assert generations.shared(10.0 + SHARED_S) == _state(2).head


async def test_no_more_generations_are_pinned_than_the_disk_is_meant_for(autojump_clock: Clock) -> None:
    generations = await _written(MemoryDisk(), 1, 2, 3, 4)
    for index in range(1, 4):
        generations.pin(_state(index).head, 0.0)
    await generations.keep_only({_state(4).head}, 1.0)
    assert [ref.index for ref in await generations.list()] == [2, 3, 4], "the oldest wish gives way"


async def test_an_empty_disk_has_no_generation(autojump_clock: Clock) -> None:
    assert await _generations(MemoryDisk()).load_newest() is None
