from __future__ import annotations

import numpy as np
import pytest
import torch

from averaging.codecs import SMALLEST_NORMAL, Codec, codec_by_name
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.kinds import codec_table

CODECS = [codec_by_name(name) for name in ("fp32", "fp16", "int8", "int4", "e3m0")]
BLOCKS = {name: codec_table.CODECS[name].block for name in ("int8", "int4", "e3m0")}
HALF_STEP = {"fp32": 0.0, "fp16": 2.0**-11, "int8": 1 / 254, "int4": 1 / 14, "e3m0": 1 - 2**-0.5}
"""The most by which a value may be off, in absolute maxima of its block."""

by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
by_block_codec = pytest.mark.parametrize("codec", [c for c in CODECS if c.name in BLOCKS], ids=lambda codec: codec.name)
SIZES = (0, 1, 2, 127, 128, 129, 255, 256, 257, 1000)


def _values(num: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


@by_codec
@pytest.mark.parametrize("num", SIZES)
def test_the_length_is_exact_and_decoding_comes_close(codec: Codec, num: int) -> None:
    values_n = _values(num)
    data = codec.encode(values_n)
    assert len(data) == codec.encoded_bytes(num)
    decoded_n = codec.decode(data, num)
    largest = float(values_n.abs().max()) if num else 0.0
    assert torch.all((decoded_n - values_n).abs() <= largest * HALF_STEP[codec.name] * 1.0001 + 1e-7)


@by_codec
def test_what_was_decoded_is_encoded_to_the_same_bytes(codec: Codec) -> None:
    values_n = codec.decode(codec.encode(_values(1001)), 1001)
    assert codec.encode(values_n) == codec.encode(codec.decode(codec.encode(values_n), 1001))


@pytest.mark.parametrize(
    ("name", "bits", "error"), [("int8", 8.125, 0.0071), ("int4", 4.25, 0.118), ("e3m0", 4.125, 0.205)]
)
def test_noise_costs_the_bits_and_the_error_that_are_written_down(name: str, bits: float, error: float) -> None:
    codec, num = codec_by_name(name), 1 << 16
    values_n = _values(num)
    data = codec.encode(values_n)
    assert 8 * len(data) / num == bits
    off = float((codec.decode(data, num) - values_n).norm() / values_n.norm())
    assert 0.98 * error < off < error


def test_fp32_is_bit_exact_and_fp16_is_exact_for_its_own_values() -> None:
    values_n = _values(300)
    assert torch.equal(codec_by_name("fp32").decode(codec_by_name("fp32").encode(values_n), 300), values_n)
    halves_n = values_n.half().float()
    assert torch.equal(codec_by_name("fp16").decode(codec_by_name("fp16").encode(halves_n), 300), halves_n)


def test_fp16_clamps_what_it_cannot_hold() -> None:
    codec = codec_by_name("fp16")
    decoded_n = codec.decode(codec.encode(torch.tensor([1e9, -1e9])), 2)
    assert decoded_n.tolist() == [65504.0, -65504.0]


@by_block_codec
@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 1e-20, 1e30, 3e38])
def test_blocks_of_zeros_subnormals_and_huge_values_survive(codec: Codec, scale: float) -> None:
    values_n = torch.full((BLOCKS[codec.name],), scale)
    decoded_n = codec.decode(codec.encode(values_n), len(values_n))
    if scale >= 1e-20:
        torch.testing.assert_close(decoded_n, values_n, rtol=1e-5, atol=0.0)
    else:
        assert not decoded_n.any(), "too small for a scale"


@by_block_codec
def test_a_value_beside_much_larger_ones_does_not_hurt_other_blocks(codec: Codec) -> None:
    block = BLOCKS[codec.name]
    values_n = torch.cat([torch.full((block,), 1e20), torch.full((block,), 1e-6)])
    decoded_n = codec.decode(codec.encode(values_n), 2 * block)
    torch.testing.assert_close(decoded_n, values_n, rtol=1e-5, atol=0.0)


def test_int8_rounds_half_to_even() -> None:
    codec = codec_by_name("int8")
    values_n = torch.zeros(BLOCKS["int8"])
    values_n[:4] = torch.tensor([127.0, 0.5, 1.5, 2.5])  # scale 1
    assert codec.decode(codec.encode(values_n), BLOCKS["int8"])[:4].tolist() == [127.0, 0.0, 2.0, 2.0]


def test_int4_rounds_half_to_even_and_packs_the_first_value_low() -> None:
    codec = codec_by_name("int4")
    data = codec.encode(torch.tensor([7.0, 0.5, 1.5, -2.5, -7.0]))  # scale 1
    assert data == b"\0\0\x80\x3f" + bytes([0x07, 0xE2, 0x09])
    assert codec.decode(data, 5).tolist() == [7.0, 0.0, 2.0, -2.0, -7.0]


def test_e3m0_takes_the_nearest_power_of_two_in_the_log_domain() -> None:
    codec = codec_by_name("e3m0")
    root = 2.0**-0.5
    reported = [1.0, root + 1e-6, root - 1e-6, -0.25, 2**-6.49, -(2**-6.51), 0.0, -0.0]
    assert codec.decode(codec.encode(torch.tensor(reported)), 8).tolist() == [
        1.0,
        1.0,
        0.5,
        -0.25,
        2.0**-6,
        0.0,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("name", ["int4", "e3m0"])
def test_a_code_that_nobody_writes_is_refused(name: str) -> None:
    codec = codec_by_name(name)
    data = codec.encode(_values(10))
    with pytest.raises(RemoteProtocolError, match="not finite"):
        codec.decode(data[:-1] + b"\x80", 10)
    with pytest.raises(RemoteProtocolError, match="behind its last value"):
        codec.decode(data[:-1] + b"\x71", 9)


@pytest.mark.parametrize("place", [0, 9, 255, 299])
def test_the_one_code_of_int8_that_nobody_writes_is_refused(place: int) -> None:
    codec = codec_by_name("int8")
    data, at = codec.encode(_values(300)), 8 + place
    with pytest.raises(RemoteProtocolError, match="no encoder writes"):
        codec.decode(data[:at] + b"\x80" + data[at + 1 :], 300)
    assert codec.decode(data[:at] + b"\x81" + data[at + 1 :], 300)[place] < 0


@by_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_never_encoded(codec: Codec, bad: float) -> None:
    values_n = _values(10)
    values_n[3] = bad
    with pytest.raises(LocalProtocolError):
        codec.encode(values_n)


@by_codec
def test_a_wrong_length_is_refused(codec: Codec) -> None:
    data = codec.encode(_values(300))
    for wrong in (b"", data[:-1], data + b"\0"):
        with pytest.raises(RemoteProtocolError):
            codec.decode(wrong, 300)
    with pytest.raises(RemoteProtocolError):
        codec.decode(data, 1 << 40)  # judged before anything is allocated


@pytest.mark.parametrize(("name", "bits"), [("fp32", b"\0\0\xc0\x7f"), ("fp16", b"\0\x7e\0\x7c")])
def test_received_values_that_are_not_finite_are_refused(name: str, bits: bytes) -> None:
    codec = codec_by_name(name)
    with pytest.raises(RemoteProtocolError, match="not finite"):
        codec.decode(bits, len(bits) // (4 if name == "fp32" else 2))


@by_block_codec
@pytest.mark.parametrize("scale", [float("nan"), float("inf"), -1.0, -0.0, SMALLEST_NORMAL / 2])
def test_a_scale_that_is_not_finite_negative_or_not_normal_is_refused(codec: Codec, scale: float) -> None:
    data = np.array([scale], dtype="<f4").tobytes() + codec.encode(_values(10))[4:]
    with pytest.raises(RemoteProtocolError, match="scale"):
        codec.decode(data, 10)


@by_block_codec
def test_a_scale_of_zero_is_refused_but_for_a_block_of_zeros(codec: Codec) -> None:
    data = bytes(4) + codec.encode(_values(10))[4:]
    with pytest.raises(RemoteProtocolError, match="scale of zero"):
        codec.decode(data, 10)


@by_block_codec
def test_a_scale_that_makes_values_too_large_is_refused(codec: Codec) -> None:
    data = np.array([3e38], dtype="<f4").tobytes() + codec.encode(_values(10))[4:]
    if codec.name == "e3m0":  # its codes are at most 1
        assert float(codec.decode(data, 10).abs().max()) == np.float32(3e38)
        return
    with pytest.raises(RemoteProtocolError, match="not finite"):
        codec.decode(data, 10)
