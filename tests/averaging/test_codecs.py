from __future__ import annotations

import pytest
import torch

from averaging.codecs import INT8_BLOCK_ELEMENTS, Codec, codec_by_name
from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError

CODECS = [codec_by_name(name) for name in ("fp32", "fp16", "int8")]
by_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
SIZES = (1, 2, 255, 256, 257, 1000)


def _values(num: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


@by_codec
@pytest.mark.parametrize("num", SIZES)
def test_the_length_is_exact_and_decoding_comes_close(codec: Codec, num: int) -> None:
    values_n = _values(num)
    data = codec.encode(values_n)
    assert len(data) == codec.encoded_bytes(num)
    decoded_n = codec.decode(data, num)
    # Half a step of the coarsest codec: the block's absolute maximum / 127 / 2.
    assert float((decoded_n - values_n).abs().max()) <= float(values_n.abs().max()) / 254 + 1e-7


def test_fp32_is_bit_exact_and_fp16_is_exact_for_its_own_values() -> None:
    values_n = _values(300)
    assert torch.equal(codec_by_name("fp32").decode(codec_by_name("fp32").encode(values_n), 300), values_n)
    halves_n = values_n.half().float()
    assert torch.equal(codec_by_name("fp16").decode(codec_by_name("fp16").encode(halves_n), 300), halves_n)


def test_fp16_clamps_what_it_cannot_hold() -> None:
    codec = codec_by_name("fp16")
    decoded_n = codec.decode(codec.encode(torch.tensor([1e9, -1e9])), 2)
    assert decoded_n.tolist() == [65504.0, -65504.0]


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 1e-20, 1e30, 3e38])
def test_int8_survives_blocks_of_zeros_subnormals_and_huge_values(scale: float) -> None:
    codec = codec_by_name("int8")
    values_n = torch.full((INT8_BLOCK_ELEMENTS,), scale)
    decoded_n = codec.decode(codec.encode(values_n), INT8_BLOCK_ELEMENTS)
    assert bool(torch.isfinite(decoded_n).all())
    if scale >= 1e-20:
        torch.testing.assert_close(decoded_n, values_n, rtol=1e-5, atol=0.0)


def test_int8_rounds_half_to_even() -> None:
    codec = codec_by_name("int8")
    values_n = torch.zeros(INT8_BLOCK_ELEMENTS)
    values_n[:4] = torch.tensor([127.0, 0.5, 1.5, 2.5])  # scale 1
    assert codec.decode(codec.encode(values_n), INT8_BLOCK_ELEMENTS)[:4].tolist() == [127.0, 0.0, 2.0, 2.0]


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


def test_an_int8_scale_that_is_not_finite_is_refused() -> None:
    codec = codec_by_name("int8")
    data = b"\0\0\xc0\x7f" + codec.encode(_values(10))[4:]
    with pytest.raises(RemoteProtocolError, match="not finite"):
        codec.decode(data, 10)


def test_an_unknown_codec_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="fp16, fp32, int8"):
        codec_by_name("zip")
