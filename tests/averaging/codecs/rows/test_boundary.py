"""Bytes between stages: sizes, rounding against plain Python, and what is refused before anything is computed."""

from __future__ import annotations

import dataclasses
import math
import struct
from hashlib import sha256

import pytest
import torch

from averaging.codecs.rows.boundary import (
    CODECS,
    HEAD_BYTES,
    Boundary,
    BoundaryCodec,
    decode_boundary,
    encode_boundary,
    row_bytes,
)
from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from protocol.ids import RunId
from protocol.pipeline.micro_batch import MicroBatch
from tests.averaging.codecs.rows.rounded import quantised

BATCH = MicroBatch(RunId(bytes(range(32))), lane=1, step=9, number=2, weights=4)
SHAPE = (2, 3, 130)
TINY = 2.0**-126

by_codec = pytest.mark.parametrize("codec", CODECS)
by_scaled = pytest.mark.parametrize("codec", ["int8", "int4"])


def _boundary(codec: BoundaryCodec, shape: tuple[int, int, int] = SHAPE) -> Boundary:
    return Boundary(codec, "forward", 1, BATCH, shape)


def _values(shape: tuple[int, int, int] = SHAPE, seed: int = 1) -> torch.Tensor:
    values_BTD = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    values_BTD[0, 0] *= 1e-3
    values_BTD[-1, -1] = 0.0
    return values_BTD


def _rehashed(message: bytes, payload: bytes) -> bytes:
    return message[: HEAD_BYTES - 16] + sha256(payload).digest()[:16] + payload


@by_codec
@pytest.mark.parametrize("shape", [SHAPE, (1, 1, 1), (3, 2, 7), (1, 4, 256)])
def test_lengths_are_exact_and_what_comes_out_has_the_shape_of_what_went_in(
    codec: BoundaryCodec, shape: tuple[int, int, int]
) -> None:
    values_BTD, boundary = _values(shape), _boundary(codec, shape)
    message = encode_boundary(values_BTD, boundary)
    assert len(message) == boundary.message_bytes
    decoded_BTD = decode_boundary(message, boundary)
    assert decoded_BTD.shape == values_BTD.shape
    # once more changes nothing where the codec writes values as they are
    if codec in ("fp32", "fp64", "bf16"):
        assert encode_boundary(decoded_BTD, boundary) == message


@pytest.mark.parametrize("dim", [128, 768, 2048])
def test_a_token_in_int8_takes_at_most_1_03_bytes_a_value_with_its_head(dim: int) -> None:
    boundary = _boundary("int8", (4, 128, dim))
    assert boundary.message_bytes / (4 * 128) <= 1.03 * dim
    assert _boundary("int4", (4, 128, dim)).message_bytes / (4 * 128) <= 0.53 * dim


@by_scaled
def test_scaled_codecs_round_as_plain_python_does(codec: BoundaryCodec) -> None:
    largest = 127 if codec == "int8" else 7
    for row, got in zip(
        _values().flatten(0, 1).tolist(), quantised(_values(), codec).flatten(0, 1).tolist(), strict=True
    ):
        size = len(row) if codec == "int8" else 128
        for begin in range(0, len(row), size):
            group = row[begin : begin + size]
            exact = struct.unpack("<I", struct.pack("<f", max(map(abs, group)) / largest))[0]
            scale = struct.unpack("<f", struct.pack("<I", (exact + 0xFFFF) >> 16 << 16))[0]
            codes = [round(value / scale) if scale else 0 for value in group]
            assert max(map(abs, codes)) <= largest
            assert got[begin : begin + size] == pytest.approx([code * scale for code in codes], rel=1e-7, abs=0.0)


@by_codec
def test_values_come_back_as_close_as_the_codec_says(codec: BoundaryCodec) -> None:
    values_BTD = _values()
    off = (quantised(values_BTD, codec) - values_BTD).abs()
    largest = values_BTD.abs().amax(dim=-1, keepdim=True)
    step = {"fp32": 0.0, "fp64": 0.0, "bf16": 2.0**-8, "int8": 0.505 / 127, "int4": 0.505 / 7}[codec]
    assert bool((off <= largest * step).all())


def test_float64_goes_there_and_back_to_the_bit() -> None:
    values_BTD = _values().double() / 3
    decoded_BTD = decode_boundary(encode_boundary(values_BTD, _boundary("fp64")), _boundary("fp64"))
    assert torch.equal(decoded_BTD, values_BTD)


def test_bfloat16_rounds_as_torch_does_but_never_to_infinity() -> None:
    values_BTD = _values()
    assert torch.equal(quantised(values_BTD, "bf16"), values_BTD.bfloat16().float())
    largest = torch.full((1, 1, 2), torch.finfo(torch.float32).max)
    assert quantised(largest, "bf16")[0, 0, 0] == torch.finfo(torch.bfloat16).max


@by_scaled
def test_rows_too_small_for_a_scale_are_zeros_and_large_ones_stay_finite_or_are_refused(codec: BoundaryCodec) -> None:
    assert quantised(torch.full((1, 1, 4), TINY), codec).tolist() == [[[0.0] * 4]]
    assert bool(torch.isfinite(quantised(torch.full((1, 1, 4), 3.3e38), codec)).all())
    with pytest.raises(LocalProtocolError, match="too large"):
        quantised(torch.full((1, 1, 4), torch.finfo(torch.float32).max), codec)


@by_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_not_sent(codec: BoundaryCodec, bad: float) -> None:
    values_BTD = _values()
    values_BTD[1, 1, 5] = bad
    with pytest.raises(LocalProtocolError, match="not finite"):
        encode_boundary(values_BTD, _boundary(codec))


@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8"])
def test_values_beyond_float32_are_not_sent(codec: BoundaryCodec) -> None:
    with pytest.raises(LocalProtocolError, match="beyond float32"):
        encode_boundary(torch.full(SHAPE, 1e200, dtype=torch.float64), _boundary(codec))


def test_values_of_another_shape_or_no_floats_are_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="floats"):
        encode_boundary(_values()[:1], _boundary("int8"))
    with pytest.raises(LocalProtocolError, match="floats"):
        encode_boundary(torch.zeros(SHAPE, dtype=torch.int64), _boundary("int8"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (2, 3, 129)}, "bytes of a forward pass"),
        ({"shape": (3, 2, 130)}, "shape"),
        ({"codec": "int4"}, "bytes of a forward pass"),
        ({"direction": "backward"}, "direction"),
        ({"stage": 2}, "stage"),
        ({"batch": dataclasses.replace(BATCH, step=8)}, "another step"),
        ({"batch": dataclasses.replace(BATCH, number=1)}, "another number"),
        ({"batch": dataclasses.replace(BATCH, weights=5)}, "another weights"),
        ({"batch": dataclasses.replace(BATCH, lane=0)}, "another lane"),
        ({"batch": dataclasses.replace(BATCH, run_id=RunId(bytes(32)))}, "another run_id"),
    ],
)
def test_a_message_for_something_else_is_refused_with_a_reason(changes: dict[str, object], message: str) -> None:
    sent = encode_boundary(_values(), _boundary("int8"))
    with pytest.raises(RemoteProtocolError, match=message):
        decode_boundary(sent, dataclasses.replace(_boundary("int8"), **changes))


def test_a_codec_of_the_same_length_is_told_apart() -> None:
    sent = encode_boundary(_values((1, 1, 2)), _boundary("int8", (1, 1, 2)))
    with pytest.raises(RemoteProtocolError, match="codec"):
        decode_boundary(sent, _boundary("bf16", (1, 1, 2)))


@pytest.mark.parametrize("cut", [0, HEAD_BYTES, -1])
def test_a_message_of_another_length_is_refused(cut: int) -> None:
    message = encode_boundary(_values(), _boundary("int8"))
    with pytest.raises(RemoteProtocolError, match="bytes of a forward pass"):
        decode_boundary(message[:cut], _boundary("int8"))
    with pytest.raises(RemoteProtocolError, match="bytes of a forward pass"):
        decode_boundary(message + b"\0", _boundary("int8"))


def test_a_bit_that_was_flipped_anywhere_is_noticed() -> None:
    boundary = _boundary("int8", (1, 1, 9))
    message = encode_boundary(_values((1, 1, 9)), boundary)
    for place in range(len(message)):
        flipped = bytearray(message)
        flipped[place] ^= 16
        with pytest.raises(RemoteProtocolError):
            decode_boundary(bytes(flipped), boundary)


@pytest.mark.parametrize(
    ("codec", "payload", "message"),
    [
        ("fp32", struct.pack("<3f", 1.0, math.nan, 2.0), "fp32 values that are not finite"),
        ("fp64", struct.pack("<3d", 1.0, math.inf, 2.0), "fp64 values that are not finite"),
        ("bf16", struct.pack("<3H", 0, 0x7F80, 0), "bf16 values that are not finite"),
        ("int8", struct.pack("<H3b", 0x7F80, 1, 2, 3), "negative, not normal or not finite"),
        ("int8", struct.pack("<H3b", 0xBF80, 1, 2, 3), "negative, not normal or not finite"),
        ("int8", struct.pack("<H3b", 0x0001, 1, 2, 3), "negative, not normal or not finite"),
        ("int8", struct.pack("<H3b", 0x3F80, 1, -128, 3), "a code that no encoder writes"),
        ("int8", struct.pack("<H3b", 0x7F7F, 1, 127, 3), "int8 values that are not finite"),
        ("int4", struct.pack("<H2B", 0x3F80, 0x08, 0), "a code that no encoder writes"),
        ("int4", struct.pack("<H2B", 0x3F80, 0x11, 0x11), "bits behind"),
    ],
)
def test_what_no_encoder_writes_is_refused_also_with_a_good_hash(
    codec: BoundaryCodec, payload: bytes, message: str
) -> None:
    boundary = _boundary(codec, (1, 1, 3))
    sent = encode_boundary(torch.ones(1, 1, 3), boundary)
    with pytest.raises(RemoteProtocolError, match=message):
        decode_boundary(_rehashed(sent, payload), boundary)


def test_the_bytes_are_those_of_every_machine() -> None:
    values_BTD = torch.arange(-40, 40, dtype=torch.float32).view(1, 2, 40) / 7
    hashes = [
        sha256(encode_boundary(values_BTD, _boundary(codec, (1, 2, 40)))[HEAD_BYTES:]).hexdigest()[:16]
        for codec in ("bf16", "int8", "int4")
    ]
    assert hashes == ["3a72bc9033fa52bf", "fb63dc0ae348e33d", "fa81d19568f5f5b5"]


def test_boundaries_that_cannot_be_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one value"):
        _boundary("int8", (0, 1, 1))
    with pytest.raises(ConfigError, match="make it smaller"):
        _boundary("fp32", (1 << 12, 1 << 12, 1 << 12))
    with pytest.raises(
        ConfigError, match="forward pass in 'zip'; expected forward or backward in one of fp32, fp64, bf16, int8"
    ):
        Boundary("zip", "forward", 1, BATCH, SHAPE)
    assert row_bytes("int4", 129) == 65 + 4
