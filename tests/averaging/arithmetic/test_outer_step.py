from __future__ import annotations

from pathlib import Path

import pytest
import torch

from averaging.arithmetic import outer
from averaging.arithmetic.outer_step import KINDS, moved_vectors, step_by_encoded, step_into
from averaging.codecs import codec_by_name
from protocol.errors import RemoteProtocolError
from protocol.kinds.outer_table import OUTER_STEPS
from protocol.rounds.messages.record import OuterStep
from tests.at_once import apply_outer_step


def _vectors(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(50, generator=generator) for _ in range(count)]


every_kind = pytest.mark.parametrize("kind", OUTER_STEPS)


def _numbers(kind: str) -> OuterStep:
    return OuterStep(kind, 0.7, 0.9 if OUTER_STEPS[kind].takes_momentum else 0.0)


def _stepped(kind: str, size: int, filled_with: float) -> list[torch.Tensor]:
    """The vectors after a step in parts of `size`, written into memory full of that value; inputs are left alone."""
    anchor_N, momentum_N, update_N = (5 * vector_N for vector_N in _vectors(3))
    before = anchor_N, momentum_N
    copies = [each_N.clone() for each_N in (*before, update_N)]
    moved = moved_vectors(before, _numbers(kind))
    for each_N in moved[: 1 + OUTER_STEPS[kind].state_vectors]:
        each_N.fill_(filled_with)
    for begin in range(0, 50, size):
        part = slice(begin, begin + size)
        step_into(
            tuple(each_N[part] for each_N in moved),
            tuple(each_N[part] for each_N in before),
            update_N[part],
            _numbers(kind),
        )
    assert all(torch.equal(a, b) for a, b in zip(copies, (*before, update_N), strict=True))
    return list(moved)


@every_kind
def test_every_kind_writes_every_value_of_every_vector_whatever_was_in_that_memory(kind: str) -> None:
    clean = _stepped(kind, 50, 0.0)
    assert all(torch.isfinite(each_N).all() for each_N in clean)
    for filled_with in (float("nan"), float("inf"), 3e38, -1.5):
        assert all(map(torch.equal, clean, _stepped(kind, 50, filled_with)))


@every_kind
def test_every_kind_moves_a_part_of_the_vectors_as_it_moves_the_whole(kind: str) -> None:
    assert all(map(torch.equal, _stepped(kind, 50, 0.0), _stepped(kind, 7, float("nan"))))


@every_kind
def test_every_kind_moves_the_anchor_and_its_state_and_leaves_other_vectors_as_they_are(kind: str) -> None:
    anchor_N, momentum_N, update_N = _vectors(3)
    before, num_moved = (anchor_N, momentum_N), 1 + OUTER_STEPS[kind].state_vectors
    moved = moved_vectors(before, _numbers(kind))
    step_into(moved, before, update_N, _numbers(kind))
    assert not any(map(torch.equal, moved[:num_moved], before[:num_moved]))
    assert all(a is b for a, b in zip(moved[num_moved:], before[num_moved:], strict=True))


@every_kind
def test_every_kind_computes_in_double_precision_where_that_is_given(kind: str) -> None:
    single, double = (
        apply_outer_step(*(vector_N.to(dtype) for vector_N in _vectors(3)), _numbers(kind))
        for dtype in (torch.float32, torch.float64)
    )
    for one_N, other_N in zip(single, double, strict=True):
        assert other_N.dtype == torch.float64
        torch.testing.assert_close(one_N.double(), other_N, rtol=1e-5, atol=1e-5)


def test_every_module_of_a_kind_has_a_line_in_the_table() -> None:
    assert outer.__file__ is not None
    modules = {path.stem for path in Path(outer.__file__).parent.glob("*.py")} - {"__init__", "outer_kind"}
    assert modules == set(OUTER_STEPS)
    assert {kind.name for kind in KINDS.values()} == set(OUTER_STEPS)


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
    with pytest.raises(RemoteProtocolError, match=r"outer step 'adam'; expected one of mean, nesterov.*; install"):
        apply_outer_step(*_vectors(3), OuterStep("adam", 1.0, 0.0))
    vectors = tuple(_vectors(2))
    with pytest.raises(RemoteProtocolError, match="'adam'"):
        step_into(vectors, vectors, vectors[0], OuterStep("adam", 1.0, 0.0))


def test_a_step_by_an_encoded_update_is_the_step_by_the_update() -> None:
    anchor_n, update_n = (torch.randn(1024, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    codec, numbers = codec_by_name("int8"), OuterStep("mean", 0.5, 0.0)
    chunks, moved_n = [codec.encode(part_n) for part_n in update_n.split(512)], torch.empty(1024)
    assert step_by_encoded((moved_n,), (anchor_n,), codec, chunks, 512, numbers)
    decoded_n = torch.cat([codec.decode(chunk, 512) for chunk in chunks])
    expected_n, _ = apply_outer_step(anchor_n, torch.zeros(1024), decoded_n, numbers)
    assert torch.equal(moved_n, expected_n)


def test_momentum_needs_the_decoded_update() -> None:
    codec, numbers = codec_by_name("int8"), OuterStep("nesterov", 0.5, 0.9)
    moved, before = (torch.empty(512), torch.empty(512)), (torch.ones(512), torch.ones(512))
    assert not step_by_encoded(moved, before, codec, [codec.encode(torch.ones(512))], 512, numbers)
