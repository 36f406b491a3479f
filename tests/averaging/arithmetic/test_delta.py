from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.batched_codec import encode_run
from averaging.arithmetic.delta import encode_delta, pseudo_gradient
from averaging.codecs import codec_by_name, codec_names


def test_subtracting_the_whole_delta_from_the_anchor_gives_the_local_parameters() -> None:
    anchor_N, theta_N = torch.tensor([4.0, -2.0]), torch.tensor([1.0, 3.0])
    delta_N = pseudo_gradient(anchor_N, theta_N)
    assert delta_N.tolist() == [3.0, -5.0]
    assert torch.equal(anchor_N - delta_N, theta_N)


@pytest.mark.parametrize("codec_name", codec_names())
def test_a_delta_that_is_encoded_at_once_has_the_bytes_of_the_delta(codec_name: str) -> None:
    codec, generator = codec_by_name(codec_name), torch.Generator().manual_seed(1)
    anchor_n, theta_n = torch.randn(3 * 512 + 7, generator=generator), torch.randn(3 * 512 + 7, generator=generator)
    expected = encode_run(codec, pseudo_gradient(anchor_n, theta_n), 512)
    room = memoryview(bytearray(sum(map(len, expected))))
    assert encode_delta(codec, anchor_n, theta_n, 512, room) == expected
    assert bytes(room) == b"".join(expected)
