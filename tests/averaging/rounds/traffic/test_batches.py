from __future__ import annotations

import pytest

from averaging.codecs import codec_by_name
from averaging.rounds.traffic.batches import BATCH_BYTES, TAIL_S, FrameSizer, consecutive, runs_of, split_batch
from protocol.errors import RemoteProtocolError
from protocol.tensors.tensor_schema import ChunkGrid

CODEC, GRID = codec_by_name("fp32"), ChunkGrid(35, 10)
LONG_BYTES = 1 << 40
DATA = memoryview(bytes(range(140)))


def _whole_frames() -> int:
    return BATCH_BYTES


def test_frames_grow_to_what_their_stream_carries_in_a_tenth_of_a_second() -> None:
    sizer = FrameSizer(100.0, LONG_BYTES)
    assert sizer.max_bytes(100.0) == 0, "one chunk at first"
    sizer.sent(20_000)
    assert 4_999 <= sizer.max_bytes(100.4) <= 5_000
    sizer.sent(20_000_000)
    assert sizer.max_bytes(100.5) == BATCH_BYTES


def test_what_was_waited_for_says_nothing_of_the_line() -> None:
    sizer = FrameSizer(100.0, LONG_BYTES)
    sizer.waited(3.0)
    sizer.sent(20_000)
    assert 4_999 <= sizer.max_bytes(103.4) <= 5_000


def test_what_an_empty_buffer_takes_at_once_does_not_make_the_next_frame_as_large_as_it_may_be() -> None:
    sizer = FrameSizer(100.0, LONG_BYTES)
    for num_bytes in (8_000, 16_000, 32_000):
        sizer.sent(num_bytes)
        assert sizer.max_bytes(100.0) == 2 * num_bytes


def test_the_last_frames_become_ever_smaller_down_to_what_is_carried_in_a_moment() -> None:
    sizer = FrameSizer(100.0, 10_000_000)
    sizer.sent(8_800_000)
    assert sizer.max_bytes(101.0) == 600_000, "half of what is left"
    sizer.sent(1_100_000)
    assert sizer.max_bytes(101.0) == 50_000
    sizer.sent(90_000)
    assert sizer.max_bytes(101.0) == int(9_990_000 * TAIL_S), "smaller ones cost more than they bring"


def test_chunks_that_follow_one_another_share_a_frame_up_to_its_size() -> None:
    chunks = [bytes(BATCH_BYTES // 4)] * 10
    assert list(runs_of([0, 1, 2, 3, 4, 7, 8], chunks, _whole_frames)) == [range(4), range(4, 5), range(7, 9)]
    assert list(runs_of([], chunks, _whole_frames)) == []


def test_numbers_are_taken_together_while_they_follow_one_another_and_up_to_a_length() -> None:
    assert list(consecutive([0, 1, 2, 3, 4, 7, 9, 10], 3)) == [range(3), range(3, 5), range(7, 8), range(9, 11)]
    assert list(consecutive([], 3)) == []


def test_a_chunk_larger_than_a_frame_of_several_goes_alone() -> None:
    chunks = [bytes(BATCH_BYTES + 1), b"1", b"2"]
    assert list(runs_of(range(3), chunks, _whole_frames)) == [range(1), range(1, 3)]


def test_a_frame_is_read_as_the_chunks_that_it_holds_without_a_copy() -> None:
    batch = split_batch(DATA[40:], 1, 4, CODEC, GRID)
    assert [(chunk, bytes(data)) for chunk, data in batch] == [
        (1, bytes(DATA[40:80])),
        (2, bytes(DATA[80:120])),
        (3, bytes(DATA[120:])),
    ]
    assert all(data.obj is DATA.obj for _, data in batch)


@pytest.mark.parametrize(("num_bytes", "stop_chunk"), [(0, 4), (39, 4), (41, 4), (80, 1), (100, 1)])
def test_a_frame_of_no_chunk_a_part_of_one_or_more_than_there_are_is_refused(num_bytes: int, stop_chunk: int) -> None:
    with pytest.raises(RemoteProtocolError):
        split_batch(DATA[:num_bytes], 0, stop_chunk, CODEC, GRID)
