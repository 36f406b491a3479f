from __future__ import annotations

from itertools import chain
from math import ceil

import pytest
import torch

from averaging.arithmetic.batched_codec import RUN_ELEMENTS
from averaging.arithmetic.error_feedback import Feedback, no_residual
from averaging.codecs import codec_by_name
from averaging.rounds.traffic.contribution import FIRST_ELEMENTS, LEAST_RUNS, MOST_STRETCHES, DeltaEncoder, stretches
from protocol.errors import LocalProtocolError
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_contribution, encode_with_feedback

INT8 = codec_by_name("int8")
GRID = ChunkGrid(10_100, 1024)


def _vector(seed: int) -> torch.Tensor:
    return torch.randn(GRID.num_elements, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("has_feedback", [False, True])
def test_a_delta_encoded_in_any_order_is_the_one_that_is_encoded_at_once(has_feedback: bool) -> None:
    feedback = Feedback(0.5, GRID, no_residual(GRID)) if has_feedback else None
    encoder = DeltaEncoder(_vector(1), _vector(2), 7, INT8, GRID, feedback)
    for run in (range(8, 10), range(3), range(5, 8), range(3, 5)):
        encoder.encode(run)
    encoded, fed = encoder.finished()
    if feedback is None:
        whole = encode_contribution(_vector(1), _vector(2), 7, INT8, GRID)
        assert fed is None
    else:
        whole, left = encode_with_feedback(_vector(1), _vector(2), 7, INT8, feedback)
        assert fed is not None
        assert torch.equal(fed.left_N, left.left_N)
        assert (fed.norms, fed.num_clipped) == (left.norms, left.num_clipped)
    assert (encoded.root, encoded.tokens) == (whole.root, 7)
    assert [bytes(chunk) for chunk in encoded.chunks] == [bytes(chunk) for chunk in whole.chunks]


def test_a_chunk_stands_in_its_place_as_soon_as_it_is_encoded() -> None:
    encoder = DeltaEncoder(_vector(1), _vector(2), 7, INT8, GRID)
    view = encoder.chunks[9]
    encoder.encode(range(9, 10))
    assert view == encode_contribution(_vector(1), _vector(2), 7, INT8, GRID).chunks[9]


def test_a_contribution_with_chunks_that_are_not_encoded_is_none() -> None:
    encoder = DeltaEncoder(_vector(1), _vector(2), 7, INT8, GRID)
    encoder.encode(range(9))
    with pytest.raises(LocalProtocolError, match="chunks that are not encoded"):
        encoder.finished()


CHUNK = RUN_ELEMENTS // 4


@pytest.mark.parametrize("num_chunks", [1, 7, 64, 3000])
@pytest.mark.parametrize("num_others", [0, 1, 3])
def test_every_chunk_is_encoded_once_whoever_it_goes_to(num_chunks: int, num_others: int) -> None:
    size = ceil(num_chunks / (num_others + 1))
    parts = [range(min(num_chunks, n * size), min(num_chunks, (n + 1) * size)) for n in range(num_others)]
    order = stretches(parts, ChunkGrid(num_chunks * CHUNK, CHUNK))
    assert sorted(chain.from_iterable(chain.from_iterable(order))) == list(range(num_chunks))
    assert len(order) <= MOST_STRETCHES + max(map(len, order)).bit_length()


def test_each_reducer_gets_something_in_its_turn_and_what_goes_nowhere_comes_last() -> None:
    order = stretches([range(8), range(32, 40)], ChunkGrid(40 * CHUNK, CHUNK))
    runs = list(chain.from_iterable(order))
    assert [run.start for run in runs] == [0, 32, 1, 33, 4, 36, 8, 12, 16, 20, 24, 28]
    assert [len(run) for run in runs[:6]] == [1, 1, 3, 3, 4, 4], (
        "a little at first, which leaves when the first call is over"
    )
    assert [len(runs) for runs in order] == [2, 4, 6]


def test_of_short_chunks_as_many_come_first_as_are_worth_a_frame() -> None:
    short = FIRST_ELEMENTS // 4
    (first,), *_ = stretches([range(1000)], ChunkGrid(1000 * short, short))
    assert first == range(4)


def test_after_its_beginning_a_long_vector_is_encoded_in_a_few_calls() -> None:
    order = stretches([range(1000), range(1000, 2000)], ChunkGrid(3000 * CHUNK, CHUNK))
    assert [len(runs) for runs in order[:6]] == [2, 4, 8, 16, 32, 47]
    assert {len(runs) for runs in order[5:-1]} == {47}


def test_a_short_vector_is_encoded_in_stretches_that_are_worth_a_call() -> None:
    order = stretches([range(100)], ChunkGrid(100 * CHUNK, CHUNK))
    assert [len(runs) for runs in order] == [1, 2, 4, LEAST_RUNS, LEAST_RUNS, 3]
