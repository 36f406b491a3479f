from __future__ import annotations

import numpy as np
import pytest
import torch

from averaging.arithmetic.batched_codec import RUN_ELEMENTS
from averaging.arithmetic.error_feedback import (
    MAX_RATIO,
    NO_ORIGIN,
    NORM_DECAY,
    FedDelta,
    Feedback,
    Residual,
    bounded,
    no_residual,
    norm_of,
)
from averaging.codecs import Codec, codec_by_name
from protocol.errors import LocalProtocolError
from protocol.ids import Root
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_fed

GRID = ChunkGrid(num_elements=600, chunk_elements=128)
FIRST, SECOND, THIRD = Root(b"1" * 32), Root(b"2" * 32), Root(b"3" * 32)
ALL = range(GRID.num_chunks)


def _integers(seed: int, most: int = 100) -> torch.Tensor:
    """(N,) whole numbers: sums of them are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, (GRID.num_elements,), generator=generator).to(torch.float32)


class WholeNumbers:
    """A codec that keeps the multiples of eight below each value: what it leaves out is exact."""

    name = "whole"
    leaves_out = False

    def encode(self, values_n: torch.Tensor) -> bytes:
        return torch.mul(torch.floor(torch.div(values_n, 8.0)), 8.0).numpy().tobytes()

    def decode(self, data: bytes | memoryview, num_elements: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.float32)

    def encoded_bytes(self, num_elements: int) -> int:
        return 4 * num_elements

    def head_bytes(self, num_elements: int) -> int | None:
        return 0


def _sent(chunks: tuple[bytes, ...], chunk: int) -> torch.Tensor:
    begin, stop = GRID.bounds(chunk)
    return WholeNumbers().decode(chunks[chunk], stop - begin)


def _offered(feedback: Feedback, root: Root, delta_N: torch.Tensor, codec: str = "int4") -> Feedback:
    fed = encode_fed(delta_N, torch.zeros_like(delta_N), feedback.residual, feedback.beta, codec_by_name(codec), GRID)
    return feedback.offered(root, fed)


def _fresh(beta: float = 1.0) -> Feedback:
    return Feedback(beta, GRID, no_residual(GRID))


def test_what_was_sent_and_what_is_left_are_together_what_was_trained_bit_by_bit() -> None:
    """Forty rounds; some count all chunks, some half of them, some none: what they do not count stays in the local work."""
    feedback = _fresh()
    trained_N, sent_N, work_N = (torch.zeros(GRID.num_elements) for _ in range(3))
    for number in range(40):
        step_N = _integers(number)
        trained_N, work_N = trained_N + step_N, work_N + step_N
        root = Root(bytes([number + 1]) * 32)
        fed = encode_fed(work_N, torch.zeros_like(work_N), feedback.residual, 1.0, WholeNumbers(), GRID)
        feedback = feedback.offered(root, fed)
        assert (fed.num_clipped, fed.num_dropped) == (0, 0)
        covered = (list(ALL), [0, 2, 4], [])[number % 3]
        feedback = feedback.counted(root, covered)
        for chunk in covered:
            begin, stop = GRID.bounds(chunk)
            sent_N[begin:stop] += _sent(fed.chunks, chunk)
            work_N[begin:stop] = 0.0
        assert torch.equal(sent_N + feedback.residual.values_N + work_N, trained_N)
    assert feedback.residual.values_N.abs().max() < 8.0
    assert sent_N.abs().max() > 100.0


def test_beta_is_the_share_of_the_residual_that_is_offered_again() -> None:
    feedback = _fresh(0.5)
    first = encode_fed(_integers(1), torch.zeros(600), feedback.residual, 0.5, WholeNumbers(), GRID)
    feedback = feedback.offered(FIRST, first).counted(FIRST, ALL)
    second = encode_fed(_integers(2), torch.zeros(600), feedback.residual, 0.5, WholeNumbers(), GRID)
    sent_N = torch.cat([_sent(second.chunks, chunk) for chunk in ALL])
    assert torch.equal(sent_N + second.left_N, _integers(2) + 0.5 * first.left_N)


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "int4", "e3m0"])
def test_any_codec_leaves_what_it_did_not_send(codec: str) -> None:
    delta_N = torch.randn(600, generator=torch.Generator().manual_seed(3))
    used = codec_by_name(codec)
    fed = encode_fed(delta_N, torch.zeros(600), no_residual(GRID), 0.9, used, GRID)
    for chunk in ALL:
        begin, stop = GRID.bounds(chunk)
        sent_n = used.decode(fed.chunks[chunk], stop - begin)
        assert torch.equal(fed.left_N[begin:stop], delta_N[begin:stop] - sent_n)
    assert (codec == "fp32") == (not fed.left_N.any())


def test_nothing_changes_until_a_commit_counts_it() -> None:
    feedback = _offered(_fresh(), FIRST, _integers(1))
    assert not feedback.residual.values_N.any()
    assert set(feedback.residual.origins) == {NO_ORIGIN}
    assert feedback.counted(FIRST, []) is feedback


def test_a_commit_that_counts_it_makes_the_pending_residual_the_one_and_telling_it_again_changes_nothing() -> None:
    offered = _offered(_fresh(), FIRST, _integers(1))
    assert offered.pending is not None
    after = offered.counted(FIRST, ALL)
    assert torch.equal(after.residual.values_N, offered.pending.values_N)
    assert (set(after.residual.origins), after.pending) == ({FIRST}, None)
    assert after.counted(FIRST, ALL) is after
    again = _offered(after, SECOND, _integers(2))
    assert again.counted(FIRST, [1]) is again


def test_chunks_that_were_not_covered_keep_their_residual() -> None:
    before = _offered(_fresh(), FIRST, _integers(1)).counted(FIRST, ALL)
    offered = _offered(before, SECOND, _integers(2))
    after = offered.counted(SECOND, [1, 2])
    assert offered.pending is not None
    begin, stop = GRID.span(1, 3)
    assert torch.equal(after.residual.values_N[begin:stop], offered.pending.values_N[begin:stop])
    assert torch.equal(after.residual.values_N[:begin], before.residual.values_N[:begin])
    assert torch.equal(after.residual.values_N[stop:], before.residual.values_N[stop:])
    assert after.residual.origins == (FIRST, SECOND, SECOND, FIRST, FIRST)


def test_a_counted_contribution_whose_residual_is_not_here_leaves_zero_where_it_was_counted() -> None:
    before = _offered(_fresh(), FIRST, _integers(1)).counted(FIRST, ALL)
    after = _offered(before, SECOND, _integers(2)).counted(THIRD, [0])
    begin, stop = GRID.bounds(0)
    assert not after.residual.values_N[begin:stop].any()
    assert torch.equal(after.residual.values_N[stop:], before.residual.values_N[stop:])
    assert after.pending is not None


def test_a_pending_residual_that_was_built_on_another_one_is_not_taken() -> None:
    """An older process offered FIRST, this one SECOND on the same base; FIRST is counted here, SECOND on another lineage later."""
    offered = _offered(_offered(_fresh(), FIRST, _integers(1)), SECOND, _integers(2))
    after = offered.counted(FIRST, ALL)
    assert not after.residual.values_N.any()
    assert not after.counted(SECOND, ALL).residual.values_N.any()


def test_counts_in_a_row_come_to_the_same_as_one_after_another() -> None:
    offered = _offered(_offered(_fresh(), FIRST, _integers(1)).counted(FIRST, ALL), SECOND, _integers(2))
    counts = [(THIRD, [0]), (SECOND, [0, 1, 2]), (FIRST, [4])]
    together, one_by_one = offered.after(counts), offered
    for root, chunks in counts:
        one_by_one = one_by_one.counted(root, chunks)
    assert torch.equal(together.residual.values_N, one_by_one.residual.values_N)
    assert together.residual.origins == one_by_one.residual.origins == (SECOND, SECOND, SECOND, FIRST, FIRST)
    assert not together.residual.values_N[: GRID.bounds(0)[1]].any()


def test_residuals_that_cannot_be_relied_on_are_none() -> None:
    after = _offered(_fresh(), FIRST, _integers(1)).counted(FIRST, ALL).without([0, 1])
    assert after.residual.origins == (NO_ORIGIN, NO_ORIGIN, FIRST, FIRST, FIRST)
    assert not after.residual.values_N[:256].any()
    assert after.residual.norms[:2] == (0.0, 0.0)


# --- the bound ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_values", [0, 1, 2, 3, 127, 128, 1000])
def test_a_norm_is_the_euclidean_one(num_values: int) -> None:
    values_n = torch.randn(num_values, generator=torch.Generator().manual_seed(num_values))
    assert norm_of(values_n) == pytest.approx(float(values_n.double().norm()), rel=1e-12)


def test_a_norm_of_the_largest_values_is_finite() -> None:
    assert norm_of(torch.full((1000,), 3e38)) == pytest.approx(3e38 * 1000**0.5)


def test_what_passes_the_bound_is_scaled_down_to_it() -> None:
    values_n = torch.randn(100, generator=torch.Generator().manual_seed(1))
    norm = norm_of(values_n)
    assert bounded(values_n, norm) == (values_n, False)
    scaled_n, is_clipped = bounded(values_n, norm / 3)
    assert is_clipped
    assert norm_of(scaled_n) == pytest.approx(norm / 3, rel=1e-5)


def test_a_rest_that_is_not_finite_is_dropped() -> None:
    dropped_n, is_clipped = bounded(torch.tensor([1.0, float("inf")]), 5.0)
    assert (dropped_n.tolist(), is_clipped) == ([0.0, 0.0], True)


class Nothing(WholeNumbers):
    """A codec that sends zeros, so that all is left."""

    def encode(self, values_n: torch.Tensor) -> bytes:
        return torch.zeros_like(values_n).numpy().tobytes()


@pytest.mark.parametrize("beta", [0.95, 1.0])
def test_the_residual_stays_within_a_multiple_of_the_deltas_whatever_the_codec_does(beta: float) -> None:
    feedback, delta_N, num_clipped = _fresh(beta), torch.ones(600), 0
    for number in range(200):
        fed = encode_fed(delta_N, torch.zeros(600), feedback.residual, beta, Nothing(), GRID)
        root = Root(bytes([number % 250 + 1]) * 32)
        feedback, num_clipped = feedback.offered(root, fed).counted(root, ALL), num_clipped + fed.num_clipped
    for chunk in ALL:
        begin, stop = GRID.bounds(chunk)
        most = min(MAX_RATIO, 1.0 / (1.0 - beta) if beta < 1 else MAX_RATIO)
        assert norm_of(feedback.residual.values_N[begin:stop]) <= most * norm_of(delta_N[begin:stop]) * (1 + 1e-5)
    assert (num_clipped > 0) == (beta == 1.0)


def test_the_bound_remembers_long_deltas_for_a_while() -> None:
    long = encode_fed(_integers(1), torch.zeros(600), no_residual(GRID), 1.0, Nothing(), GRID)
    feedback = _fresh().offered(FIRST, long).counted(FIRST, ALL)
    short = encode_fed(torch.zeros(600), torch.zeros(600), feedback.residual, 1.0, Nothing(), GRID)
    assert short.norms == tuple(NORM_DECAY * norm for norm in long.norms)
    assert short.num_clipped == 0


def test_a_residual_that_would_overflow_is_left_out_of_that_chunk() -> None:
    huge = encode_fed(torch.full((600,), 3e38), torch.zeros(600), no_residual(GRID), 1.0, Nothing(), GRID)
    feedback = _fresh().offered(FIRST, huge).counted(FIRST, ALL)
    fed = encode_fed(torch.full((600,), 3e38), torch.zeros(600), feedback.residual, 1.0, codec_by_name("fp32"), GRID)
    assert fed.num_dropped == GRID.num_chunks
    assert bool(torch.isfinite(fed.left_N).all())


def test_local_parameters_that_are_not_finite_are_refused() -> None:
    theta_N = torch.zeros(600)
    theta_N[7] = float("nan")
    with pytest.raises(LocalProtocolError, match="not finite"):
        encode_fed(torch.zeros(600), theta_N, no_residual(GRID), 1.0, codec_by_name("int4"), GRID)


@pytest.mark.parametrize("codec", ["fp32", "int8", "int4", "topk"])
def test_several_chunks_at_a_time_give_the_bytes_and_numbers_of_each_by_itself(codec: str) -> None:
    """With one whose residual would overflow, one whose rest is beyond the bound, and a shorter last one."""
    grid, used = ChunkGrid(4096 * 4 + 300, 4096), codec_by_name(codec)
    generator = torch.Generator().manual_seed(5)
    theta_N = torch.randn(grid.num_elements, generator=generator)
    residual_N = torch.randn(grid.num_elements, generator=generator)
    residual_N[:4096] = 3e38
    theta_N[4096:8192] *= 1e-4
    residual_N[4096:8192] *= 100.0
    norms = tuple(float(chunk % 2) for chunk in range(grid.num_chunks))
    whole = _encode_with(residual_N, norms, theta_N, used, grid)
    for chunk in range(grid.num_chunks):
        span = slice(*grid.bounds(chunk))
        alone_grid = ChunkGrid(span.stop - span.start, 4096)
        alone = _encode_with(residual_N[span], norms[chunk : chunk + 1], theta_N[span], used, alone_grid)
        assert alone.chunks == whole.chunks[chunk : chunk + 1]
        assert torch.equal(alone.left_N, whole.left_N[span])
        assert alone.norms == whole.norms[chunk : chunk + 1]
    assert whole.num_dropped == 1
    assert whole.num_clipped == (0 if codec == "fp32" else 1)


@pytest.mark.parametrize("codec", ["int8", "topk"])
def test_the_chunks_of_a_delta_lie_one_behind_the_other_in_one_memory(codec: str) -> None:
    grid = ChunkGrid(5 * (RUN_ELEMENTS // 2) + 300, RUN_ELEMENTS // 2)
    zeros_N = torch.zeros(grid.num_elements)
    theta_N = torch.randn(grid.num_elements, generator=torch.Generator().manual_seed(5))
    chunks = _encode_with(zeros_N, (0.0,) * grid.num_chunks, theta_N, codec_by_name(codec), grid).chunks
    begins = [int(np.frombuffer(chunk, dtype=np.uint8).ctypes.data) for chunk in chunks]
    assert [begin + len(chunk) for begin, chunk in zip(begins, chunks, strict=True)][:-1] == begins[1:]


def _encode_with(
    residual_N: torch.Tensor, norms: tuple[float, ...], theta_N: torch.Tensor, codec: Codec, grid: ChunkGrid
) -> FedDelta:
    residual = Residual(residual_N, (NO_ORIGIN,) * grid.num_chunks, norms)
    return encode_fed(torch.zeros(grid.num_elements), theta_N, residual, 2.0, codec, grid)
