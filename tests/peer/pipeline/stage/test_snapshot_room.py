"""The shared memory of a stage's snapshots: what is laid down is read, and what was read takes no memory."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator

import pytest
import torch

from peer.pipeline.stage.snapshot_room import SnapshotRoom, rooms_bytes
from peer.training import worker_channel
from peer.training.worker_channel import Area, SharedVectors, mapping_bytes
from protocol.errors import LocalProtocolError, MachineError, RemoteProtocolError
from protocol.tensors.stage_schema import stage_schema
from tests.peer.stage_world import STAGES

SCHEMA = stage_schema(STAGES, 1)


@pytest.fixture
def both() -> Iterator[tuple[SnapshotRoom, SnapshotRoom, SharedVectors]]:
    """The rooms as the daemon and as a training process have them, and the areas before them."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mapping_bytes(SCHEMA.num_elements) + rooms_bytes(SCHEMA))
        ours, theirs = (SnapshotRoom(file.fileno(), SCHEMA) for _ in range(2))
        yield ours, theirs, SharedVectors(file.fileno(), SCHEMA.num_elements)


def test_a_snapshot_goes_each_way_without_touching_the_other_way_or_the_areas(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors],
) -> None:
    ours, theirs, vectors = both
    vectors.write(Area.ASIDE, torch.full((SCHEMA.num_elements,), 3.0))
    size = ours.num_bytes
    ours.give(b"\1" * size)
    theirs.out[:size] = 2
    theirs.put_down()
    assert theirs.back.eq(1).all()
    assert ours.take(size) == b"\2" * size
    assert theirs.back.eq(1).all()
    assert torch.equal(vectors.read(Area.ASIDE), torch.full((SCHEMA.num_elements,), 3.0))


def test_the_daemon_copies_without_the_mapping_whose_copies_would_stop_its_event_loop(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, _ = both
    written, pwrite = bytes(range(250)) * 10, os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(ours, "_mapping", None)
        patched.setattr(ours, "_free", lambda begin, num_bytes: None)
        patched.setattr(os, "pwrite", lambda file, data, place: pwrite(file, data[:1000], place))
        ours.give(written)
        theirs.out[:3] = 7
        assert ours.take(3) == b"\7\7\7"
    assert theirs.back[: len(written)].numpy().tobytes() == written


def test_a_snapshot_for_which_there_is_no_memory_is_an_error_in_a_line(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: memoryview, place: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(MachineError, match="no memory for a snapshot of 3 bytes"):
        both[0].give(b"\1\1\1")


def test_a_snapshot_leaves_its_room_in_pieces_between_which_other_threads_have_their_turn(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs, _ = both
    pieces = list[tuple[int, int]]()

    class Mapping:
        def madvise(self, _advice: int, begin: int, num_bytes: int) -> None:
            pieces.append((begin, num_bytes))

    monkeypatch.setattr(worker_channel, "_FREED_BYTES", mmap.ALLOCATIONGRANULARITY)
    monkeypatch.setattr(ours, "_mapping", Mapping())
    theirs.out[:] = 2
    ours.take(ours.num_bytes)
    assert [num_bytes for _, num_bytes in pieces] == [mmap.ALLOCATIONGRANULARITY] * len(pieces)
    assert [begin for begin, _ in pieces] == list(range(0, ours.num_bytes, mmap.ALLOCATIONGRANULARITY))


def test_a_snapshot_that_was_taken_is_the_readers_own_whatever_is_written_afterwards(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors],
) -> None:
    ours, theirs, _ = both
    theirs.out[:] = 2
    taken = ours.take(ours.num_bytes)
    theirs.out[:] = 3
    assert taken == b"\2" * ours.num_bytes
    assert ours.take(1) == b"\3"


def test_more_than_the_room_holds_is_not_read(both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors]) -> None:
    ours, _, _ = both
    with pytest.raises(LocalProtocolError, match="at most"):
        ours.take(ours.num_bytes + 1)


def test_what_was_read_is_freed(both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors]) -> None:
    ours, theirs, _ = both
    theirs.out[:100] = 2
    ours.give(b"\1" * 100)
    assert ours.take(100) == b"\2" * 100
    ours.forget(100)
    assert not theirs.out[:100].any()
    assert not theirs.back[:100].any()


def test_a_snapshot_that_is_larger_than_any_of_the_stage_is_refused(
    both: tuple[SnapshotRoom, SnapshotRoom, SharedVectors],
) -> None:
    ours, theirs, _ = both
    with pytest.raises(RemoteProtocolError, match="at most"):
        ours.give(bytes(ours.num_bytes + 1))
    assert not theirs.back.any()
