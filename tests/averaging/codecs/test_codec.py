"""Properties that every codec in the table has, whatever its arithmetic."""

from __future__ import annotations

import pytest
import torch

from averaging.codecs import Codec, codec_by_name, codec_names
from protocol.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from protocol.kinds.codec_table import CODECS

every_codec = pytest.mark.parametrize("codec", [*map(codec_by_name, codec_names())], ids=lambda codec: codec.name)
SIZES = (0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 4097, 9001)


def _values(num: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed))


def test_every_line_of_the_table_has_its_codec() -> None:
    assert codec_names() == tuple(CODECS)


@every_codec
@pytest.mark.parametrize("num", SIZES)
def test_every_encoding_is_as_long_as_the_table_says(codec: Codec, num: int) -> None:
    expected = CODECS[codec.name].encoded_bytes(num)
    assert codec.encoded_bytes(num) == expected
    assert len(codec.encode(_values(num))) == expected


@every_codec
def test_every_codec_says_of_itself_what_the_table_says(codec: Codec) -> None:
    values_n = _values(8192)
    decoded_n = codec.decode(codec.encode(values_n), 8192)
    assert codec.leaves_out == CODECS[codec.name].leaves_out == (int((decoded_n == 0).sum()) > 4096)
    assert CODECS[codec.name].is_exact == torch.equal(decoded_n, values_n)


@every_codec
def test_every_codec_comes_close_to_the_values_that_it_writes(codec: Codec) -> None:
    values_n = _values(8192)
    decoded_n = codec.decode(codec.encode(values_n), 8192)
    assert decoded_n.dtype == torch.float32
    is_written = decoded_n != 0
    off_n = (decoded_n - values_n).abs()[is_written]
    assert is_written.any()
    assert float(off_n.max()) <= 0.3 * float(values_n.abs().max())
    assert torch.equal(torch.sign(decoded_n[is_written]), torch.sign(values_n[is_written]))


@every_codec
@pytest.mark.parametrize("num", [1, 300, 4096])
def test_every_codec_writes_zeros_as_zeros(codec: Codec, num: int) -> None:
    assert not codec.decode(codec.encode(torch.zeros(num)), num).any()


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_codec_writes_values_that_are_not_finite(codec: Codec, bad: float) -> None:
    values_n = _values(5000)
    values_n[4321] = bad
    with pytest.raises(LocalProtocolError, match="not finite"):
        codec.encode(values_n)


@every_codec
@pytest.mark.parametrize("change", [-1, 1])
def test_every_codec_refuses_bytes_of_another_length(codec: Codec, change: int) -> None:
    data = codec.encode(_values(1000))
    with pytest.raises(RemoteProtocolError, match="bytes"):
        codec.decode(data[:-1] if change < 0 else data + bytes(1), 1000)


@every_codec
def test_every_codec_leaves_its_argument_alone(codec: Codec) -> None:
    values_n = _values(5000)
    codec.encode(values_n)
    assert torch.equal(values_n, _values(5000))


def test_an_unknown_codec_is_named_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"codec 'zip'; expected one of .*e3m0.* topk"):
        codec_by_name("zip")
