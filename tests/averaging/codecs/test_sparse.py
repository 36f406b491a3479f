from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from averaging.codecs import codec_by_name
from averaging.codecs.sparse import BLOCK_ELEMENTS, RESULTS, TOPK, SparseCodec
from protocol.errors import LocalProtocolError, RemoteProtocolError

CODECS = (TOPK, *RESULTS)
SIZES = (0, 1, 2, 63, 64, 65, 257, 4095, 4096, 4097, 4160, 8192, 12_345)
SCALE_OF_ONE = 248

by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def _values(num: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


def _kept(values_n: torch.Tensor, stride: int) -> torch.Tensor:
    """The largest of each block as they are, ties by the lower place: the slow and plain way."""
    kept_n = torch.zeros_like(values_n)
    for begin in range(0, len(values_n), BLOCK_ELEMENTS):
        block = values_n[begin : begin + BLOCK_ELEMENTS]
        order = torch.sort(block.abs(), descending=True, stable=True).indices[: -(-len(block) // stride)]
        kept_n[begin + order] = block[order]
    return kept_n


def _round_trip(codec: SparseCodec, values_n: torch.Tensor) -> torch.Tensor:
    data = codec.encode(values_n)
    assert len(data) == codec.encoded_bytes(len(values_n))
    decoded_n = codec.decode(data, len(values_n))
    assert torch.equal(decoded_n, codec.decode(memoryview(data), len(values_n)))
    return decoded_n


@by_codec
@pytest.mark.parametrize("num", SIZES)
def test_the_largest_of_each_block_are_written_with_their_signs_and_nothing_else(codec: SparseCodec, num: int) -> None:
    values_n = _values(num)
    decoded_n, kept_n = _round_trip(codec, values_n), _kept(values_n, codec.numbers.stride)
    assert not ((decoded_n != 0) & (kept_n == 0)).any(), "a value that is not among the largest"
    reported = decoded_n != 0
    assert torch.equal(decoded_n[reported].sign(), kept_n[reported].sign())
    if num >= 64:
        assert int(reported.sum()) >= 0.9 * int((kept_n != 0).sum())
        assert float((decoded_n - kept_n).norm() / kept_n.norm()) < 0.13


@by_codec
@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_zeros_ties_sizes_and_lengths_comes_back(codec: SparseCodec, seed: int) -> None:
    chooser = np.random.default_rng(seed)
    num = int(chooser.integers(1, 20_000))
    values_n = (
        _values(num, seed)
        * torch.from_numpy(np.repeat(10.0 ** chooser.integers(-12, 12, num // 500 + 1), 500)[:num]).float()
    )
    values_n[torch.from_numpy(chooser.random(num) < chooser.choice([0.0, 0.5, 0.97, 0.999]))] = 0.0
    if seed % 3 == 0:  # many of one size
        values_n = values_n.sign() * 2.0 ** values_n.abs().clamp(2**-10, 2**10).log2().round()
    decoded_n, kept_n = _round_trip(codec, values_n), _kept(values_n, codec.numbers.stride)
    assert not ((decoded_n != 0) & (kept_n == 0)).any()
    assert torch.all((decoded_n - kept_n).abs() <= kept_n.abs() * 1.0001), "worse than nothing"


def test_of_equal_values_the_first_are_kept() -> None:
    decoded_n = _round_trip(TOPK, torch.cat([torch.full((4096,), -3.0), torch.full((100,), 0.5)]))
    assert decoded_n.nonzero().flatten().tolist() == [*range(64), 4096, 4097]
    torch.testing.assert_close(decoded_n[:64], torch.full((64,), -3.0), rtol=0.1, atol=0.0)


@by_codec
def test_a_mean_of_as_many_sparse_contributions_as_there_is_room_for_loses_no_place(codec: SparseCodec) -> None:
    num_members, num = 64 // codec.numbers.stride, 3 * BLOCK_ELEMENTS + 100
    decoded = [_round_trip(TOPK, _values(num, seed)) for seed in range(num_members)]
    mean_n = torch.stack(decoded).sum(0) / num_members
    reported_n = _round_trip(codec, mean_n)
    assert float(((reported_n != 0) & (mean_n == 0)).sum()) == 0
    assert float((reported_n - mean_n).norm() / mean_n.norm()) < 0.12


@by_codec
def test_zeros_and_what_is_too_small_are_zeros(codec: SparseCodec) -> None:
    for values_n in (torch.zeros(5000), torch.full((5000,), 1e-45), torch.full((5000,), -1e-39)):
        assert not _round_trip(codec, values_n).any()


@by_codec
def test_one_value_alone_in_its_block_is_exact(codec: SparseCodec) -> None:
    for place in (0, 17, 4095, 4096, 4999):
        values_n = torch.zeros(5000)
        values_n[place] = -(2.0**-7)
        assert torch.equal(_round_trip(codec, values_n), values_n)


@by_codec
def test_the_largest_numbers_there_are_do_not_overflow(codec: SparseCodec) -> None:
    values_n = _values(9000).sign() * 3.4e38
    assert torch.isfinite(_round_trip(codec, values_n)).all()


@by_codec
def test_small_blocks_beside_large_ones_keep_their_values_down_to_2_to_the_minus_30(codec: SparseCodec) -> None:
    values_n = torch.cat([_values(4096, seed) * 2.0 ** (-10 * seed) for seed in range(4)])
    decoded_n, kept_n = _round_trip(codec, values_n), _kept(values_n, codec.numbers.stride)
    for begin in (0, 4096, 8192):
        block = slice(begin, begin + 4096)
        assert float((decoded_n[block] - kept_n[block]).norm() / kept_n[block].norm()) < 0.13
    values_n[12_288:] *= 2.0**-10
    assert not _round_trip(codec, values_n)[12_288:].any(), "no scale is as small"


@pytest.mark.parametrize(
    ("name", "chunk", "bits", "error"),
    [
        ("topk", 1 << 16, 10.1875, 0.066),
        ("topk", 1 << 18, 10.140625, 0.066),
        ("top6", 1 << 16, 10.09375, 0.058),
        ("top12", 1 << 16, 9.046875, 0.075),
        ("top25", 1 << 16, 8.0234375, 0.085),
    ],
)
def test_noise_costs_the_bits_and_the_error_that_are_written_down(
    name: str, chunk: int, bits: float, error: float
) -> None:
    codec = codec_by_name(name)
    assert isinstance(codec, SparseCodec)
    assert 8 * codec.encoded_bytes(chunk) / codec.num_places(chunk) == bits
    values_n = _values(1 << 16)
    kept_n = _kept(values_n, codec.numbers.stride)
    off = float((codec.decode(codec.encode(values_n), 1 << 16) - kept_n).norm() / kept_n.norm())
    assert 0.7 * error < off < error


@by_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [3, 5000])
def test_values_that_are_not_finite_are_never_encoded(codec: SparseCodec, bad: float, place: int) -> None:
    values_n = _values(5010)
    values_n[place] = bad
    with pytest.raises(LocalProtocolError, match="not finite"):
        codec.encode(values_n)


@by_codec
def test_a_wrong_length_is_refused_before_anything_is_allocated(codec: SparseCodec) -> None:
    data = codec.encode(_values(300))
    for wrong in (b"", data[:-1], data + b"\0"):
        with pytest.raises(RemoteProtocolError, match="bytes of"):
            codec.decode(wrong, 300)
    with pytest.raises(RemoteProtocolError):
        codec.decode(data, 1 << 50)


# --- malformed fields, of 5000 values by "topk": 2 levels, 2 blocks, 79 places ------------------------------------------------

NUM = 5000
PLACES = 79
BITS_AT = 8 + 2


def _parts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(2,) levels, (2,) scales, and the bits: 6 x 79 low ones, 158 high ones, 2 x 79 of codes, 2 of nothing."""
    data = TOPK.encode(_values(NUM))
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8, offset=BITS_AT), bitorder="little")
    return np.frombuffer(data, dtype="<f4", count=2).copy(), np.frombuffer(data, np.uint8, 2, 8).copy(), bits.copy()


def _refused(change: Callable[[np.ndarray, np.ndarray, np.ndarray], None], match: str) -> None:
    levels, scales, bits = _parts()
    change(levels, scales, bits)
    data = levels.tobytes() + scales.tobytes() + np.packbits(bits, bitorder="little").tobytes()
    with pytest.raises(RemoteProtocolError, match=match):
        TOPK.decode(data, NUM)


def test_the_parts_put_together_again_are_what_was_encoded() -> None:
    levels, scales, bits = _parts()
    data = levels.tobytes() + scales.tobytes() + np.packbits(bits, bitorder="little").tobytes()
    assert data == TOPK.encode(_values(NUM))


@pytest.mark.parametrize("level", [float("nan"), float("inf"), -1.0, -0.0])
def test_a_codebook_that_is_negative_or_not_finite_is_refused(level: float) -> None:
    for number in (0, 1):
        _refused(lambda levels, scales, bits, n=number: levels.__setitem__(n, level), "negative or not finite")


def test_a_codebook_that_is_not_in_order_is_refused() -> None:
    def change(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        levels[:] = levels[::-1].copy()

    _refused(change, "not in order")


@pytest.mark.parametrize("level", [0.0, 1e-45, 1e-39])
def test_a_codebook_of_zeros_or_subnormal_numbers_is_refused(level: float) -> None:
    _refused(lambda levels, scales, bits: levels.__setitem__(0, level), "not normal")


def test_a_scale_that_makes_a_level_subnormal_is_refused() -> None:
    def change(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        levels[0], scales[1] = 1e-37, SCALE_OF_ONE - 8 * 5

    _refused(change, "not normal")


@pytest.mark.parametrize("scale", [1, 7, 249, 255])
def test_a_scale_that_nobody_writes_is_refused(scale: int) -> None:
    _refused(lambda levels, scales, bits: scales.__setitem__(1, scale), "no encoder writes")


def test_a_codebook_without_a_block_that_uses_it_is_refused() -> None:
    _refused(lambda levels, scales, bits: scales.fill(0), "no block that uses it")


def test_places_in_a_block_without_a_scale_are_refused() -> None:
    def change(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        scales[1] = 0
        bits[8 * PLACES :] = 0

    _refused(change, "without a scale")


def test_codes_in_a_block_without_a_scale_are_refused() -> None:
    _refused(lambda levels, scales, bits: scales.__setitem__(1, 0), "at a place without a value")


@pytest.mark.parametrize("bit", range(2))
def test_bits_behind_the_last_code_are_refused(bit: int) -> None:
    _refused(lambda levels, scales, bits: bits.__setitem__(10 * PLACES + bit, 1), "behind its last code")


def test_more_or_fewer_places_than_the_size_has_are_refused() -> None:
    def one_more(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        highs = bits[6 * PLACES : 8 * PLACES]
        highs[np.flatnonzero(highs == 0)[0]] = 1

    def one_fewer(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        highs = bits[6 * PLACES : 8 * PLACES]
        highs[np.flatnonzero(highs)[0]] = 0

    _refused(one_more, "80 places")
    _refused(one_fewer, "78 places")


def test_a_place_that_one_block_has_too_many_and_the_next_one_too_few_is_refused() -> None:
    def from_second(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        highs = bits[6 * PLACES : 8 * PLACES]
        highs[128 + np.flatnonzero(highs[128:])[-1]] = 0
        highs[np.flatnonzero(highs[:127] == 0)[-1]] = 1

    def from_first(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        highs = bits[6 * PLACES : 8 * PLACES]
        highs[np.flatnonzero(highs[:128])[-1]] = 0
        highs[128 + np.flatnonzero(highs[128:] == 0)[0]] = 1

    _refused(from_second, "places in a block")
    _refused(from_first, "places in a block")


def test_places_that_are_not_in_order_are_refused() -> None:
    def change(levels: np.ndarray, scales: np.ndarray, bits: np.ndarray) -> None:
        bits[6 * PLACES : 6 * PLACES + 64] = 1  # all of the first block in its first 64 values
        bits[6 * PLACES + 64 : 6 * PLACES + 128] = 0
        lows = bits[: 6 * PLACES].reshape(6, PLACES)
        lows[:, 0], lows[:, 1] = 1, 0

    _refused(change, "not in order")


def _with_one_value() -> tuple[np.ndarray, np.ndarray]:
    """Head and bits of a block whose only value is at place 5; its other 63 places repeat that one."""
    values_n = torch.zeros(4096)
    values_n[5] = -1.0
    data = TOPK.encode(values_n)
    return np.frombuffer(data, np.uint8, 9).copy(), np.unpackbits(
        np.frombuffer(data, np.uint8, offset=9), bitorder="little"
    )


def test_a_place_that_is_told_twice_is_refused() -> None:
    head, bits = _with_one_value()
    lows = bits[: 6 * 64].reshape(6, 64)
    lows[:, 63] = 1
    with pytest.raises(RemoteProtocolError, match="occurs twice"):
        TOPK.decode(head.tobytes() + np.packbits(bits, bitorder="little").tobytes(), 4096)


def test_a_code_of_a_repeated_place_is_refused() -> None:
    head, bits = _with_one_value()
    bits[8 * 64 + 10] = 1
    with pytest.raises(RemoteProtocolError, match="at a place without a value"):
        TOPK.decode(head.tobytes() + np.packbits(bits, bitorder="little").tobytes(), 4096)


def test_a_place_behind_the_last_value_is_refused() -> None:
    data = TOPK.encode(torch.cat([torch.zeros(62), torch.ones(1)]))  # 63 values: the place 62
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=9), bitorder="little")
    bits[0] = 1  # 63
    with pytest.raises(RemoteProtocolError, match="behind the last value"):
        TOPK.decode(data[:9] + np.packbits(bits, bitorder="little").tobytes(), 63)


@by_codec
def test_bits_turned_at_random_are_refused_or_give_finite_values_of_the_right_number(codec: SparseCodec) -> None:
    chooser, data = np.random.default_rng(5), codec.encode(_values(NUM))
    for _ in range(60):
        wrong = np.frombuffer(data, dtype=np.uint8).copy()
        wrong[chooser.integers(0, len(wrong), 2)] ^= np.uint8(1 << chooser.integers(0, 8))
        try:
            decoded_n = codec.decode(wrong.tobytes(), NUM)
        except RemoteProtocolError:
            continue
        assert decoded_n.shape == (NUM,)
        assert torch.isfinite(decoded_n).all()
