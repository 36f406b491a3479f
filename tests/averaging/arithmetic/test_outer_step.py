from __future__ import annotations

import pytest
import torch

from averaging.arithmetic.outer_step import step_by_encoded
from averaging.codecs import codec_by_name
from protocol.errors import RemoteProtocolError
from protocol.rounds.messages.messages import OuterStep
from tests.at_once import apply_outer_step


def _vectors(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(50, generator=generator) for _ in range(count)]


def test_nesterov_agrees_with_torch_sgd_over_several_steps() -> None:
    anchor_N, *updates = _vectors(6)
    parameter = torch.nn.Parameter(anchor_N.clone())
    reference = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    momentum_N = torch.zeros(50)
    for update_N in updates:
        parameter.grad = update_N.clone()
        reference.step()
        anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, OuterStep("nesterov", 0.7, 0.9))
    torch.testing.assert_close(anchor_N, parameter.detach(), rtol=1e-5, atol=1e-6)


def test_the_plain_mean_at_rate_one_lands_on_the_average_of_the_members() -> None:
    anchor_N, theta_a, theta_b = _vectors(3)
    update_N = ((anchor_N - theta_a) + (anchor_N - theta_b)) / 2
    moved_N, momentum_N = apply_outer_step(anchor_N, torch.zeros(50), update_N, OuterStep("mean", 1.0, 0.0))
    torch.testing.assert_close(moved_N, (theta_a + theta_b) / 2)
    assert not momentum_N.any()


def test_the_arguments_are_left_alone() -> None:
    anchor_N, momentum_N, update_N = _vectors(3)
    before = [v.clone() for v in (anchor_N, momentum_N, update_N)]
    apply_outer_step(anchor_N, momentum_N, update_N, OuterStep("nesterov", 0.5, 0.5))
    assert all(torch.equal(a, b) for a, b in zip(before, (anchor_N, momentum_N, update_N), strict=True))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="mean or nesterov"):
        apply_outer_step(*_vectors(3), OuterStep("adam", 1.0, 0.0))


def test_a_step_by_an_encoded_update_is_the_step_by_the_update() -> None:
    anchor_n, update_n = (torch.randn(1024, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    codec, outer = codec_by_name("int8"), OuterStep("mean", 0.5, 0.0)
    chunks, moved_n = [codec.encode(part_n) for part_n in update_n.split(512)], torch.empty(1024)
    assert step_by_encoded(moved_n, anchor_n, codec, chunks, 512, outer)
    decoded_n = torch.cat([codec.decode(chunk, 512) for chunk in chunks])
    expected_n, _ = apply_outer_step(anchor_n, torch.zeros(1024), decoded_n, outer)
    assert torch.equal(moved_n, expected_n)


def test_momentum_needs_the_decoded_update() -> None:
    codec, outer = codec_by_name("int8"), OuterStep("nesterov", 0.5, 0.9)
    assert not step_by_encoded(torch.empty(512), torch.ones(512), codec, [codec.encode(torch.ones(512))], 512, outer)
