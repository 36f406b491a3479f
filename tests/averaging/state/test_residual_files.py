from __future__ import annotations

import torch
import trio.testing

from averaging.arithmetic.error_feedback import NO_ORIGIN, Pending, Residual
from averaging.state.residual_files import FOLDER, NUM_SEGMENTS, ResidualFiles, bound_bytes, segments_of
from averaging.storage.memory_storage import MemoryDisk, MemoryStorage
from protocol.ids import CommitId, Root
from protocol.tensors.tensor_schema import ChunkGrid
from tests.virtual import InlineOffload

Clock = trio.testing.MockClock
GRID = ChunkGrid(num_elements=1000, chunk_elements=30)
COMMIT = CommitId(b"c" * 32)
ROOT = Root(b"r" * 32)


def _values(seed: int) -> torch.Tensor:
    return torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))


def _marks(letter: bytes) -> tuple[Root, ...]:
    return tuple(Root(letter * 31 + bytes([chunk])) for chunk in range(GRID.num_chunks))


NORMS = tuple(float(chunk) / 3 for chunk in range(GRID.num_chunks))
RESIDUAL = Residual(_values(1), _marks(b"o"), NORMS)
PENDING = Pending(_values(2), (ROOT,) * GRID.num_chunks, _marks(b"b"), NORMS)


async def _written() -> tuple[MemoryDisk, ResidualFiles]:
    disk = MemoryDisk()
    files = ResidualFiles(MemoryStorage(disk), GRID, InlineOffload())
    for number in range(len(files.segments)):
        await files.write_stored(number, COMMIT, RESIDUAL)
        await files.write_pending(number, PENDING)
    return disk, files


def test_segments_cover_all_chunks_once_and_are_few() -> None:
    for num_elements in (1, 30, 31, 479, 480, 481, 1000, 30_000):
        grid = ChunkGrid(num_elements, 30)
        chunks = [chunk for segment in segments_of(grid) for chunk in segment]
        assert chunks == list(range(grid.num_chunks))
        assert len(segments_of(grid)) <= NUM_SEGMENTS


async def test_what_is_written_is_read_back_bit_by_bit(autojump_clock: Clock) -> None:
    _, files = await _written()
    found = await files.load()
    assert found.pending is not None
    assert torch.equal(found.residual.values_N, RESIDUAL.values_N)
    assert torch.equal(found.pending.values_N, PENDING.values_N)
    assert (found.residual.origins, found.residual.norms) == (RESIDUAL.origins, NORMS)
    assert (found.pending.roots, found.pending.built_on, found.pending.norms) == (
        PENDING.roots,
        PENDING.built_on,
        NORMS,
    )
    assert (set(found.standing), found.problems) == ({COMMIT}, ())


async def test_a_disk_without_any_has_none(autojump_clock: Clock) -> None:
    found = await ResidualFiles(MemoryStorage(MemoryDisk()), GRID, InlineOffload()).load()
    assert not found.residual.values_N.any()
    assert (set(found.residual.origins), set(found.standing)) == ({NO_ORIGIN}, {None})
    assert (found.pending, found.problems) == (None, ())


async def test_any_damaged_or_torn_file_costs_its_own_chunks_and_is_named(autojump_clock: Clock) -> None:
    for number, damage in enumerate(
        (lambda data: data[:-1], lambda data: b"", lambda data: bytes([*data[:50], data[50] ^ 1, *data[51:]]))
    ):
        disk, files = await _written()
        name = f"{FOLDER}stored/{number:02d}"
        disk.files[name] = damage(disk.files[name])
        found = await files.load()
        chunks = files.segments[number]
        begin, stop = GRID.span(chunks.start, chunks.stop)
        assert not found.residual.values_N[begin:stop].any()
        assert torch.equal(found.residual.values_N[stop:], RESIDUAL.values_N[stop:])
        assert {found.standing[chunk] for chunk in chunks} == {None}
        assert [name in problem for problem in found.problems] == [True]


async def test_a_segment_in_the_place_of_another_is_refused(autojump_clock: Clock) -> None:
    disk, files = await _written()
    disk.files[f"{FOLDER}pending/01"] = disk.files[f"{FOLDER}pending/00"]
    found = await files.load()
    assert found.pending is not None
    assert {found.pending.roots[chunk] for chunk in files.segments[1]} == {NO_ORIGIN}
    assert len(found.problems) == 1


async def test_it_takes_no_more_than_eight_bytes_a_value_and_one_segment_with_what_is_told_of_chunks(
    autojump_clock: Clock,
) -> None:
    disk, _ = await _written()
    largest = max(map(len, disk.files.values()))
    assert disk.used_bytes() + largest == bound_bytes(GRID)
    large = ChunkGrid(100_000_000, 16_384)
    assert bound_bytes(large) / large.num_elements < 8 * (1 + 1 / (2 * NUM_SEGMENTS)) + 0.01
