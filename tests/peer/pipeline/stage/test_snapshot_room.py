"""The shared memory of a stage's snapshots: what is laid down is read, and what was read takes no memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
import torch

from peer.pipeline.stage.snapshot_room import SnapshotRoom, rooms_bytes
from peer.training.worker_channel import Area, SharedVectors, mapping_bytes
from protocol.errors import RemoteProtocolError
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
