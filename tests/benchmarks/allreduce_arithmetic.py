"""The mean of 2 to 16 members against the exact one, by the product's own encoding and sum, without a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from averaging.codecs import codec_by_name
from averaging.rounds.contribution import encode_chunks
from averaging.weighted_mean import WeightedSum, sum_dtype
from protocol.tensor_schema import ChunkGrid
from tests.benchmarks.allreduce_files import seed_of
from tests.benchmarks.results import Row

NUM_ELEMENTS: Final = 1 << 20
GRID: Final = ChunkGrid(NUM_ELEMENTS, 16384)
MEMBERS: Final = (2, 3, 4, 8, 16)


def relative_error(codec_name: str, num_members: int) -> float:
    """By the 2-norm, on normal noise, equal weights; two quantisations as in a round."""
    codec, total = codec_by_name(codec_name), WeightedSum(NUM_ELEMENTS, sum_dtype(codec_name))
    exact_N = torch.zeros(NUM_ELEMENTS, dtype=torch.float64)
    for rank in range(num_members):
        values_N = torch.randn(NUM_ELEMENTS, generator=torch.Generator().manual_seed(seed_of(rank)))
        exact_N += values_N
        total.add(1000, _decoded(codec_name, encode_chunks(values_N, codec, GRID)))
    exact_N /= num_members
    mean_N = _decoded(codec_name, encode_chunks(total.mean().float(), codec, GRID)).double()
    return float((mean_N - exact_N).norm() / exact_N.norm())


def _decoded(codec_name: str, chunks: Sequence[bytes | memoryview]) -> torch.Tensor:
    codec = codec_by_name(codec_name)
    parts = (codec.decode(chunk, stop - start) for chunk, (start, stop) in zip(chunks, _bounds(), strict=True))
    return torch.cat(list(parts))


def _bounds() -> list[tuple[int, int]]:
    return [GRID.bounds(chunk) for chunk in range(GRID.num_chunks)]


def error_rows(bench: str, codec_names: tuple[str, ...] = ("fp32", "fp16", "int8", "int4", "e3m0")) -> list[Row]:
    """One row a codec: flat means that 16 members are no worse than 2."""
    rows = []
    for name in codec_names:
        errors = {num: relative_error(name, num) for num in MEMBERS}
        worst = max(errors.values())
        spread = {"best": min(errors.values()), "worst": worst}
        limit = 1.5 * errors[2]
        about = {"members": {str(num): error for num, error in errors.items()}, "values": NUM_ELEMENTS}
        metric = f"relative error of the mean of 2 to 16 members, {name}"
        target = "<= 1.5 x that of 2 members"
        rows.append(Row(bench, metric, errors[16], "", None, None, target, worst <= limit, len(errors), spread, about))
    return rows
