"""`python -m tests.benchmarks.allreduce_arithmetic [--json FILE]`: the mean of 2 to 16 members against the exact one.

By the product's own encoding and sum, without a network: normal noise, equal weights, two quantisations as in a round. Prints a table
for a README. With sparse contributions nearly all of the error is what they leave out, which error feedback brings in later rounds; a
second row is against the exact mean of what was sent: that is what the codec of results adds, and it never comes again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from averaging.arithmetic.batched_codec import decode_run
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import codec_by_name
from protocol.kinds.codec_table import leaves_out
from protocol.tensors.round_defaults import sparse_result_codec
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_chunks
from tests.benchmarks.allreduce_files import seed_of
from tests.benchmarks.allreduce_rows import MAX_MEMBERS
from tests.benchmarks.results import Row, write_rows

BENCH: Final = "allreduce_arithmetic"
NUM_ELEMENTS: Final = 1 << 20
GRID: Final = ChunkGrid(NUM_ELEMENTS, 16384)
MEMBERS: Final = (2, 3, 4, 8, 16)
TOKENS: Final = 1000
FLAT: Final = 1.05
"""No number of members has a larger error than so many times that of two."""


@dataclass(frozen=True, slots=True)
class Codecs:
    """Of contributions, and of results."""

    codec: str
    result: str

    @property
    def name(self) -> str:
        """For people."""
        return self.codec if self.codec == self.result else f"{self.codec}, results {self.result}"


ALL: Final = (
    *(Codecs(name, name) for name in ("fp32", "fp16", "int8", "int4", "e3m0")),
    Codecs("topk", sparse_result_codec(MAX_MEMBERS)),
)


@dataclass(frozen=True, slots=True)
class Errors:
    """By the 2-norm and number of members: against the exact mean of the members' vectors, and of what they sent of them."""

    of_all: Mapping[int, float]
    of_sent: Mapping[int, float]


def relative_errors(codecs: Codecs) -> Errors:
    """One member after another joins the sum."""
    total = WeightedSum(NUM_ELEMENTS, sum_dtype(codecs.result))
    all_N, sent_N = torch.zeros(NUM_ELEMENTS, dtype=torch.float64), torch.zeros(NUM_ELEMENTS, dtype=torch.float64)
    of_all: dict[int, float] = {}
    of_sent: dict[int, float] = {}
    for num_members in range(1, MEMBERS[-1] + 1):
        generator = torch.Generator().manual_seed(seed_of(num_members - 1))
        values_N = torch.randn(NUM_ELEMENTS, generator=generator)
        decoded_N = _coded(codecs.codec, values_N)
        total.add(TOKENS, decoded_N)
        all_N += values_N
        sent_N += decoded_N
        if num_members in MEMBERS:
            mean_N = _coded(codecs.result, total.mean().float()).double()
            of_all[num_members] = _relative(mean_N, all_N / num_members)
            of_sent[num_members] = _relative(mean_N, sent_N / num_members)
    return Errors(of_all, of_sent)


def _coded(codec_name: str, values_N: torch.Tensor) -> torch.Tensor:
    """There and back."""
    codec = codec_by_name(codec_name)
    return decode_run(codec, encode_chunks(values_N, codec, GRID), GRID.chunk_elements, NUM_ELEMENTS)


def _relative(mean_N: torch.Tensor, exact_N: torch.Tensor) -> float:
    return float((mean_N - exact_N).norm() / exact_N.norm())


def error_rows(bench: str, found: Mapping[Codecs, Errors] | None = None) -> list[Row]:
    """One row a codec: flat means that no number of members is worse than two."""
    rows = []
    for codecs, errors in (found or {codecs: relative_errors(codecs) for codecs in ALL}).items():
        metric = f"relative error of the mean of 2 to {MEMBERS[-1]} members, {codecs.name}"
        rows.append(_row(bench, metric, errors.of_all, FLAT))
        if leaves_out(codecs.codec):
            rows.append(_row(bench, f"{metric}, against that of what was sent", errors.of_sent, None))
    return rows


def _row(bench: str, metric: str, errors: Mapping[int, float], flat: float | None) -> Row:
    """The figure is that of most members."""
    worst = max(errors.values())
    target, met = ("", None) if flat is None else (f"<= {flat:g} x that of 2 members", worst <= flat * errors[2])
    spread = {"best": min(errors.values()), "worst": worst}
    about = {"members": {str(num): error for num, error in errors.items()}, "values": NUM_ELEMENTS}
    return Row(bench, metric, errors[MEMBERS[-1]], "", None, None, target, met, len(errors), spread, about)


def table(found: Mapping[Codecs, Errors]) -> str:
    """For a README; the last column is the worst over that of two members."""
    lines = [f"| codec | {' | '.join(map(str, MEMBERS))} | worst / 2 |", "|" + "---|" * (len(MEMBERS) + 2)]
    for codecs, errors in found.items():
        kinds = {codecs.name: errors.of_all}
        if leaves_out(codecs.codec):
            kinds["the same, of what was sent"] = errors.of_sent
        for name, of in kinds.items():
            cells = (f"{of[num]:.3g}" for num in MEMBERS)
            lines.append(f"| {name} | {' | '.join(cells)} | {max(of.values()) / of[2]:.3f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """0 when the error of every codec is flat."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.allreduce_arithmetic", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the rows go, one JSON object a line")
    options = parser.parse_args(arguments)
    found = {codecs: relative_errors(codecs) for codecs in ALL}
    rows = error_rows(BENCH, found)
    if options.json is not None:
        write_rows(rows, options.json)
    print(table(found))
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
