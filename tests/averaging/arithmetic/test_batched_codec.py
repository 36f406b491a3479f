from __future__ import annotations

import pytest
import torch

from averaging.arithmetic import batched_codec as chunk_runs
from averaging.arithmetic.batched_codec import RUN_ELEMENTS, decode_run, encode_run, run_chunks, span_bytes
from averaging.codecs import codec_by_name, codec_names
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.tensors.tensor_schema import ChunkGrid

CHUNKS = pytest.mark.parametrize("chunk_elements", [256, 512, 600, 37, 38])
SIZES = pytest.mark.parametrize("num_elements", [512 * 7, 512 * 7 + 1, 512, 100])


@pytest.fixture(autouse=True, params=[True, False], ids=["compiled", "not compiled"])
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(chunk_runs, "BLOCKS", None)


def _values(num_elements: int) -> torch.Tensor:
    values_n = torch.randn(num_elements, generator=torch.Generator().manual_seed(5))
    values_n[: num_elements // 3] *= 1e-3
    values_n[num_elements // 2 : num_elements // 2 + 300] = 0.0
    return values_n


@SIZES
@CHUNKS
@pytest.mark.parametrize("codec_name", codec_names())
def test_a_run_has_the_bytes_and_the_values_of_chunk_by_chunk(
    codec_name: str, chunk_elements: int, num_elements: int
) -> None:
    codec, values_n = codec_by_name(codec_name), _values(num_elements)
    alone = [codec.encode(part_n) for part_n in values_n.split(chunk_elements)]
    assert encode_run(codec, values_n, chunk_elements) == alone
    decoded_n = torch.cat(
        [codec.decode(c, p.numel()) for c, p in zip(alone, values_n.split(chunk_elements), strict=True)]
    )
    together_n = decode_run(codec, [memoryview(chunk) for chunk in alone], chunk_elements, num_elements)
    assert together_n.numpy().tobytes() == decoded_n.numpy().tobytes()


@SIZES
@CHUNKS
@pytest.mark.parametrize("codec_name", codec_names())
def test_runs_written_at_their_places_make_the_encoding_of_the_whole_vector(
    codec_name: str, chunk_elements: int, num_elements: int
) -> None:
    codec, values_n, grid = codec_by_name(codec_name), _values(num_elements), ChunkGrid(num_elements, chunk_elements)
    alone = [codec.encode(part_n) for part_n in values_n.split(chunk_elements)]
    room = bytearray(len(span_bytes(codec, grid, 0, grid.num_chunks)))
    for begin in range(0, grid.num_chunks, 3):
        stop = min(begin + 3, grid.num_chunks)
        place, part_n = span_bytes(codec, grid, begin, stop), values_n[slice(*grid.span(begin, stop))]
        written = encode_run(codec, part_n, chunk_elements, memoryview(room)[place.start : place.stop])
        assert written == alone[begin:stop]
    assert room == b"".join(alone)


def test_no_place_is_made_up_for_chunks_that_the_grid_has_not() -> None:
    with pytest.raises(LocalProtocolError):
        span_bytes(codec_by_name("int8"), ChunkGrid(1000, 256), 0, 5)


@pytest.mark.parametrize("chunk_elements", [1 << 13, 1 << 16])
@pytest.mark.parametrize("codec_name", ["topk", "top6", "top12", "top25"])
def test_sparse_chunks_of_whole_blocks_are_written_together_as_each_would_be(
    codec_name: str, chunk_elements: int
) -> None:
    codec, values_n = codec_by_name(codec_name), _values(4 * chunk_elements + 50)
    values_n[chunk_elements : 2 * chunk_elements] = 0.0
    values_n[2 * chunk_elements :] *= (torch.arange(2 * chunk_elements + 50) // 4096 % 5 + 1.0) ** 20
    values_n[3 * chunk_elements + 9 :: 3] = 0.0
    parts = values_n.split(chunk_elements)
    alone = [codec.encode(part_n) for part_n in parts]
    assert encode_run(codec, values_n, chunk_elements) == alone
    decoded_n = torch.cat([codec.decode(c, p.numel()) for c, p in zip(alone, parts, strict=True)])
    together_n = decode_run(codec, [memoryview(chunk) for chunk in alone], chunk_elements, values_n.numel())
    assert together_n.numpy().tobytes() == decoded_n.numpy().tobytes()
    for spoilt in (alone[:-1], [alone[0][:-1], *alone[1:]], [*alone, alone[0]], [*alone[1:], b""]):
        with pytest.raises(RemoteProtocolError):
            decode_run(codec, spoilt, chunk_elements, values_n.numel())


@pytest.mark.parametrize("codec_name", codec_names())
def test_chunks_of_other_lengths_or_too_few_are_refused(codec_name: str) -> None:
    codec = codec_by_name(codec_name)
    chunks = [bytes(chunk) for chunk in encode_run(codec, _values(1024), 256)]
    for spoilt in (chunks[:3], [chunks[0][:-1], chunks[1] + b"\0", *chunks[2:]], [chunks[0] * 2, *chunks[1:]]):
        with pytest.raises(RemoteProtocolError):
            decode_run(codec, spoilt, 256, 1024)


def test_values_that_are_not_finite_are_refused_both_ways() -> None:
    codec, values_n = codec_by_name("int8"), _values(1024)
    values_n[700] = float("nan")
    with pytest.raises(LocalProtocolError):
        encode_run(codec, values_n, 256)
    chunks = encode_run(codec, _values(1024), 256)
    chunks[2] = b"\xff\xff\xff\xff" + chunks[2][4:]
    with pytest.raises(RemoteProtocolError):
        decode_run(codec, chunks, 256, 1024)


def test_a_run_is_as_many_chunks_as_stay_in_the_cache() -> None:
    assert (run_chunks(16384), run_chunks(RUN_ELEMENTS), run_chunks(2 * RUN_ELEMENTS)) == (16, 1, 1)
