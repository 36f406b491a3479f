from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from averaging.arithmetic.gram import joined, lane_sums
from averaging.arithmetic.outer_step import step_into
from averaging.arithmetic.weighted_mean import WeightedSum
from averaging.codecs import Codec, codec_by_name, sparse
from averaging.codecs.build_hook import compile_blocks
from averaging.codecs.compiled import BLOCKS, CompiledBlocks, load, problem
from averaging.codecs.int8 import Int8Codec
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.rounds.messages.record import OuterStep

ROOT = Path(__file__).parents[3]
CHUNK = 512
BLOCK_NAMES = ("int8", "int4", "e3m0")
NAMES = (*BLOCK_NAMES, "fp32", "fp16")


def _builds() -> Iterator[tuple[str, ...]]:
    """The flags of each build that this machine can run."""
    yield ()
    if platform.machine() in ("x86_64", "AMD64"):
        words = set(Path("/proc/cpuinfo").read_text(encoding="ascii").split())
        yield ("-march=x86-64",)
        if {"avx2", "bmi2", "fma", "f16c", "movbe"} <= words:
            yield ("-march=x86-64-v3",)
        if {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= words:
            yield ("-march=x86-64-v4",)


@pytest.fixture(scope="module", params=list(_builds()), ids=lambda flags: flags[0] if flags else "as installed")
def blocks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CompiledBlocks:
    library = tmp_path_factory.mktemp("blocks") / "blocks.so"
    assert compile_blocks(ROOT, library, *request.param) == ""
    return CompiledBlocks(library)


@pytest.fixture(params=NAMES)
def codec(request: pytest.FixtureRequest) -> Codec:
    return codec_by_name(request.param)


def _values(seed: int = 7) -> torch.Tensor:
    """Eight chunks: noise of every size that a float32 has, zeros, numbers below the smallest normal one, halves, equal maxima."""
    values_n = torch.randn(8 * CHUNK, generator=torch.Generator().manual_seed(seed))
    values_n[:CHUNK] *= torch.logspace(-44, 37, CHUNK)
    values_n[CHUNK : CHUNK + 300] = 0.0
    values_n[CHUNK + 300 : 2 * CHUNK] = 1e-41
    values_n[2 * CHUNK : 3 * CHUNK] = (torch.arange(CHUNK) % 256 - 127) / 2
    values_n[3 * CHUNK : 4 * CHUNK] = torch.tensor([-1.0, 1.0, -0.0, 0.5]).repeat(CHUNK // 4)
    values_n[4 * CHUNK : 5 * CHUNK] = 2.0 ** -(torch.arange(CHUNK) % 9 / 2)  # next to the borders between powers of two
    return values_n


def _encoded(codec: Codec, values_n: torch.Tensor) -> list[bytes]:
    return [codec.encode(part_n) for part_n in values_n.split(CHUNK)]


def test_chunks_are_written_as_the_codec_writes_them(blocks: CompiledBlocks, codec: Codec) -> None:
    values_n = _values()
    room = bytearray(8 * codec.encoded_bytes(CHUNK))
    assert blocks.encode(codec, values_n, None, CHUNK, memoryview(room))
    assert bytes(room) == b"".join(_encoded(codec, values_n))


def test_a_difference_is_written_as_the_codec_writes_it(blocks: CompiledBlocks, codec: Codec) -> None:
    values_n, minus_n = _values(), _values(8)[torch.randperm(8 * CHUNK, generator=torch.Generator().manual_seed(3))]
    room = bytearray(8 * codec.encoded_bytes(CHUNK))
    assert blocks.encode(codec, values_n, minus_n, CHUNK, memoryview(room))
    assert bytes(room) == b"".join(_encoded(codec, torch.sub(values_n, minus_n)))


@pytest.mark.parametrize(("num_rows", "length"), [(1, 1), (2, 8), (3, 127), (5, 129), (16, 1003), (64, 300)])
def test_products_of_rows_are_those_without_the_library_bit_for_bit(
    blocks: CompiledBlocks, num_rows: int, length: int
) -> None:
    rows_mn = torch.randn(num_rows, length, generator=torch.Generator().manual_seed(length))
    rows_mn *= torch.logspace(-40, 17, length)
    sums = blocks.gram(rows_mn)
    assert sums is not None
    assert joined(sums).tobytes() == joined(lane_sums(rows_mn)).tobytes()


def test_more_rows_than_a_round_has_members_are_left_to_be_multiplied_without_the_library(
    blocks: CompiledBlocks,
) -> None:
    assert blocks.gram(torch.ones(65, 8)) is None
    assert blocks.gram(torch.ones(2, 16)[:, ::2]) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_left_to_the_codec_to_refuse(blocks: CompiledBlocks, codec: Codec, value: float) -> None:
    values_n = _values()
    values_n[5 * CHUNK + 77] = value
    room = memoryview(bytearray(8 * codec.encoded_bytes(CHUNK)))
    assert not blocks.encode(codec, values_n, None, CHUNK, room)
    with pytest.raises(LocalProtocolError):
        codec.encode(values_n)


def test_chunks_mean_what_the_codec_says(blocks: CompiledBlocks, codec: Codec) -> None:
    values_n = _values()
    values_n[:CHUNK].clamp_(-1e30, 1e30)
    chunks, found_n = _encoded(codec, values_n), torch.empty(8 * CHUNK)
    assert blocks.decode(codec, chunks, CHUNK, found_n)
    expected = b"".join(codec.decode(chunk, CHUNK).numpy().tobytes() for chunk in chunks)
    assert found_n.numpy().tobytes() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_sums_are_those_of_decoded_values_bit_for_bit(blocks: CompiledBlocks, codec: Codec, dtype: torch.dtype) -> None:
    expected, found_n = WeightedSum(8 * CHUNK, dtype), torch.zeros(8 * CHUNK, dtype=dtype)
    for seed, weight in ((1, 1), (2, 40_961), (3, (1 << 53) - 1)):
        values_n = _values(seed)
        values_n[:CHUNK].clamp_(-1e15, 1e15)
        chunks = _encoded(codec, values_n)
        assert blocks.add(codec, chunks, CHUNK, float(weight), 1e18, found_n)
        expected.add(weight, torch.cat([codec.decode(chunk, CHUNK) for chunk in chunks]))
    mean_n = torch.div(found_n, float(40_962 + (1 << 53) - 1))
    assert mean_n.numpy().tobytes() == expected.mean().numpy().tobytes()


def test_a_step_by_encoded_values_is_that_by_decoded_ones(blocks: CompiledBlocks, codec: Codec) -> None:
    values_n, anchor_n, outer = _values(), _values(9), OuterStep("mean", 0.7, 0.0)
    values_n[:CHUNK].clamp_(-1e30, 1e30)
    chunks, found_n, expected_n = _encoded(codec, values_n), torch.empty(8 * CHUNK), torch.empty(8 * CHUNK)
    assert blocks.step(codec, chunks, CHUNK, outer.learning_rate, anchor_n, found_n)
    update_n = torch.cat([codec.decode(chunk, CHUNK) for chunk in chunks])
    step_into((expected_n,), (anchor_n,), update_n, outer)
    assert found_n.numpy().tobytes() == expected_n.numpy().tobytes()


def _accepts(codec: Codec, chunk: bytes) -> bool:
    try:
        codec.decode(chunk, CHUNK)
    except RemoteProtocolError:
        return False
    return True


def test_bytes_are_taken_or_left_as_the_codec_takes_or_refuses_them(blocks: CompiledBlocks, codec: Codec) -> None:
    plain = codec.encode(torch.ones(CHUNK))
    num_scales = (codec.head_bytes(CHUNK) or 0) // 4
    scales = [0.0, 1.0, -1.0, -0.0, 1e-41, 1.2e-38, float("nan"), float("inf"), 1e36]
    for scale in scales:
        for code in range(256):
            chunk = bytearray(plain)
            chunk[:4] = np.float32(scale).tobytes()
            chunk[4 * num_scales + 3] = code
            is_taken = blocks.decode(codec, [bytes(chunk)], CHUNK, torch.empty(CHUNK))
            assert is_taken == _accepts(codec, bytes(chunk)), (scale, code)


@pytest.mark.parametrize("codec", BLOCK_NAMES, indirect=True)
def test_scales_whose_products_might_not_be_finite_are_left_to_the_codec(blocks: CompiledBlocks, codec: Codec) -> None:
    chunk = np.float32(3.3e38).tobytes() + codec.encode(torch.ones(CHUNK))[4:]
    assert not blocks.decode(codec, [chunk], CHUNK, torch.empty(CHUNK))
    assert not blocks.step(codec, [chunk], CHUNK, 1.0, torch.zeros(CHUNK), torch.empty(CHUNK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("codec", [*BLOCK_NAMES, "fp32"], indirect=True)
def test_values_beyond_the_bound_of_a_sum_are_left_to_be_judged_one_by_one(
    blocks: CompiledBlocks, codec: Codec, dtype: torch.dtype
) -> None:
    chunks = [codec.encode(torch.full((CHUNK,), 2e18))]
    assert not blocks.add(codec, chunks, CHUNK, 1.0, 1e18, torch.zeros(CHUNK, dtype=dtype))


def test_every_float16_means_what_the_codec_says(blocks: CompiledBlocks) -> None:
    codec = codec_by_name("fp16")
    halves = np.arange(1 << 16, dtype="<u2")
    finite = halves[halves & 0x7C00 != 0x7C00]
    found_n = torch.empty(len(finite))
    assert blocks.decode(codec, [finite.tobytes()], len(finite), found_n)
    assert found_n.numpy().tobytes() == codec.decode(finite.tobytes(), len(finite)).numpy().tobytes()
    for half in halves[halves & 0x7C00 == 0x7C00]:
        assert not blocks.decode(codec, [half.tobytes()], 1, found_n[:1])


def test_values_at_each_border_between_two_float16_are_written_as_the_codec_writes_them(blocks: CompiledBlocks) -> None:
    codec = codec_by_name("fp16")
    sizes = np.arange(0x7C00, dtype="<u2").view("<f2").astype(np.float32)
    borders = np.append((sizes[:-1] + sizes[1:]) / 2, np.float32(65520.0))
    near = [sizes, borders, np.nextafter(borders, np.float32(0)), np.nextafter(borders, np.float32(np.inf))]
    values_n = torch.from_numpy(np.concatenate([*near, *(-each for each in near)]))
    room = bytearray(2 * len(values_n))
    assert blocks.encode(codec, values_n, None, len(values_n), memoryview(room))
    assert bytes(room) == codec.encode(values_n)


@pytest.mark.parametrize("codec", ["fp32", "fp16"], indirect=True)
def test_chunks_of_any_length_at_any_byte_are_written_and_read(blocks: CompiledBlocks, codec: Codec) -> None:
    size = 301
    values_n, minus_n, found_n = _values()[: 3 * size], _values(8)[-3 * size :], torch.empty(3 * size)
    encoded = b"".join(codec.encode(part_n) for part_n in values_n.split(size))
    room, step = memoryview(bytearray(len(encoded) + 1))[1:], len(encoded) // 3
    assert blocks.encode(codec, values_n, None, size, room)
    assert bytes(room) == encoded
    assert blocks.decode(codec, [room[begin : begin + step] for begin in range(0, len(room), step)], size, found_n)
    decoded_n = codec.decode(encoded, 3 * size)
    assert found_n.numpy().tobytes() == decoded_n.numpy().tobytes()
    views = [room[begin : begin + step] for begin in range(0, len(room), step)]
    assert blocks.step(codec, views, size, 0.7, minus_n, found_n)
    assert found_n.numpy().tobytes() == torch.sub(minus_n, torch.mul(decoded_n, 0.7)).numpy().tobytes()
    for dtype in (torch.float32, torch.float64):
        expected, sum_n = WeightedSum(3 * size, dtype), torch.zeros(3 * size, dtype=dtype)
        expected.add(1, decoded_n.clone())
        assert blocks.add(codec, views, size, 1.0, 3e38, sum_n)
        assert sum_n.numpy().tobytes() == expected.mean().numpy().tobytes()
    assert blocks.encode(codec, values_n, minus_n, size, room)
    assert bytes(room) == codec.encode(torch.sub(values_n, minus_n))


SPARSE = 4096


@pytest.mark.parametrize("num_places", [64, 256, 1024])
def test_the_largest_values_are_those_that_the_sparse_codec_finds(blocks: CompiledBlocks, num_places: int) -> None:
    generator = np.random.default_rng(4)
    noise = generator.standard_normal(2 * SPARSE)
    for values in (
        noise,
        np.round(noise * 2),  # many are equal
        np.where(generator.random(2 * SPARSE) < 0.01, noise, 0.0),  # fewer than there is room for
        np.full(2 * SPARSE, -2.0),
        np.zeros(2 * SPARSE),
        noise * 1e-42,
        np.sign(noise) * 3e38,
        np.where(np.arange(2 * SPARSE) == SPARSE - 1, 1.0, 0.0),
    ):
        single = values.astype(np.float32)
        expected = sparse._largest((single.view(np.uint32) & 0x7FFFFFFF).reshape(-1, SPARSE), num_places)
        found = blocks.largest(single, num_places)
        assert found is not None
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize("value", [float("nan"), -float("inf")])
def test_of_values_that_are_not_finite_none_are_the_largest(blocks: CompiledBlocks, value: float) -> None:
    values = np.ones(2 * SPARSE, dtype=np.float32)
    values[-1] = value
    assert blocks.largest(values, 64) is None


@pytest.mark.parametrize("name", ["topk", "top6"])
def test_sparse_chunks_have_the_same_bytes_without_the_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = codec_by_name(name)
    vectors = [torch.randn(num, generator=torch.Generator().manual_seed(num)) for num in (SPARSE, 3 * SPARSE + 100, 50)]
    compiled = [codec.encode(values_n) for values_n in vectors]
    monkeypatch.setattr(sparse, "BLOCKS", None)
    assert [codec.encode(values_n) for values_n in vectors] == compiled


def test_of_a_sparse_chunk_with_a_rest_only_the_rest_is_looked_through_without_the_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_through, largest = list[int](), sparse._largest

    def watched(sizes: npt.NDArray[np.uint32], num_places: int) -> sparse.IntArray:
        looked_through.append(len(sizes))
        return largest(sizes, num_places)

    monkeypatch.setattr(sparse, "_largest", watched)
    codec_by_name("topk").encode(torch.randn(3 * SPARSE + 100))
    assert looked_through == [1]


def test_what_does_not_fit_is_not_touched(blocks: CompiledBlocks) -> None:
    codec = codec_by_name("int8")
    values_n, chunks = torch.ones(2 * CHUNK), _encoded(codec, torch.ones(2 * CHUNK))
    room = memoryview(bytearray(2 * codec.encoded_bytes(CHUNK)))
    assert blocks.encode(codec, values_n, None, CHUNK, room)
    assert not blocks.encode(codec, values_n, None, CHUNK, room[:-1])
    assert not blocks.encode(codec, values_n, None, CHUNK, memoryview(bytes(len(room))))
    assert not blocks.encode(codec, values_n, values_n[1:], CHUNK, room)
    assert not blocks.encode(codec, torch._neg_view(values_n), None, CHUNK, room)
    uneven_n = torch.frombuffer(bytearray(4 * 2 * CHUNK + 1), dtype=torch.float32, offset=1)
    assert not blocks.encode(codec, uneven_n, None, CHUNK, room)
    assert not blocks.decode(codec, chunks, CHUNK, uneven_n)
    assert not blocks.encode(codec, values_n.double(), None, CHUNK, room)
    assert not blocks.encode(codec, torch.ones(4 * CHUNK)[::2], None, CHUNK, room)
    assert not blocks.encode(codec, values_n[: CHUNK + 1], None, CHUNK, room)
    assert not blocks.encode(codec, values_n, None, 100, room)
    assert not blocks.encode(codec_by_name("fp16"), values_n, None, CHUNK, room)
    assert not blocks.encode(codec_by_name("topk"), values_n, None, CHUNK, room)
    assert not blocks.encode(Int8Codec(128), values_n, None, CHUNK, room)
    assert blocks.decode(codec, chunks, CHUNK, values_n)
    assert not blocks.decode(codec, chunks, CHUNK, values_n[1:])
    assert not blocks.decode(codec, [chunks[0], chunks[1][1:]], CHUNK, values_n)
    assert not blocks.add(codec, chunks, CHUNK, 1.0, 1e18, values_n.half())
    uneven_n = torch.frombuffer(bytearray(8 * 2 * CHUNK + 4), dtype=torch.float64, offset=4)
    assert not blocks.add(codec, chunks, CHUNK, 1.0, 1e18, uneven_n)
    assert not blocks.decode(codec, chunks, CHUNK, values_n.double())
    assert not blocks.step(codec, chunks, CHUNK, 1.0, values_n[1:], values_n)


def test_the_library_of_this_installation_is_that_of_its_source() -> None:
    assert BLOCKS is not None, "install again with a C compiler: make install"


def test_a_library_of_another_source_is_not_used(tmp_path: Path) -> None:
    library, other = tmp_path / "blocks.so", tmp_path / "blocks.c"
    assert compile_blocks(ROOT, library, "-O1") == ""
    other.write_bytes((ROOT / "averaging/codecs/blocks.c").read_bytes() + b"\n")
    with pytest.raises(OSError, match="another source"):
        CompiledBlocks(library, other)


def test_without_a_library_there_is_none(tmp_path: Path) -> None:
    assert load(tmp_path / "blocks.so") is None
    (tmp_path / "blocks.so").write_bytes(b"not a library")
    assert load(tmp_path / "blocks.so") is None
    assert "blocks.so" in problem(tmp_path / "blocks.so")
    assert problem() == ""
