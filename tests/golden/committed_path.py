"""The committed path, printed as hashes for each number of threads: `python -m tests.golden.committed_path THREADS...`.

Two for each number: that of the cases below, which a file holds, and that of every outer step and codec there is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

import torch

from averaging.arithmetic.batched_codec import decode_run, encode_run
from averaging.arithmetic.genesis import genesis_anchor
from averaging.arithmetic.robust_mean import robust_mean
from averaging.arithmetic.weighted_mean import WeightedSum, sum_dtype
from averaging.codecs import codec_by_name, codec_names
from averaging.models.llama.config import LlamaConfig
from averaging.rounds.exchange.chunk_means import MAX_DELTA
from averaging.rounds.lineage.next_state import NextState
from averaging.rounds.traffic.contribution import EncodedContribution, result_root
from averaging.state.state import StateHashes, UnitState, state_root
from protocol.ids import CommitId, UnitName
from protocol.kinds.outer_table import OUTER_STEPS
from protocol.kinds.robust_table import ROBUST_RULES
from protocol.merkle import leaf_hash
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import apply_outer_step, encode_contribution
from tests.instruction_sets import check_off

CONFIG = LlamaConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=88, context_tokens=16)
WEIGHTS = (2048, 40_961, 7)
MEAN, NESTEROV = OuterStep("mean", 1.0, 0.0), OuterStep("nesterov", 0.4, 0.5)
UNIT, COMMIT = UnitName("fragment-0"), CommitId(bytes(32))


@dataclass(frozen=True, slots=True)
class Case:
    """Codecs of contributions and of results, the outer step, and values in a chunk."""

    codec: str
    result: str
    outer: OuterStep
    chunk_elements: int


CHUNK_BY_CHUNK = (
    Case("fp32", "fp32", MEAN, 1000),
    Case("fp16", "fp16", OuterStep("nesterov", 0.7, 0.9), 1000),
    Case("int8", "int8", NESTEROV, 1000),
    Case("int4", "int4", MEAN, 1000),
    Case("e3m0", "e3m0", OuterStep("nesterov", 0.4, 0.9), 1000),
    # three blocks and a part
    Case("topk", "top6", MEAN, 13_000),
    Case("topk", "top12", MEAN, 13_000),
    Case("topk", "top25", MEAN, 13_000),
)
"""The block codecs as torch and NumPy write them: these chunks are no whole blocks."""

IN_RUNS = (
    *(Case(name, name, outer, 1024) for name in ("int8", "int4", "e3m0", "fp32", "fp16") for outer in (MEAN, NESTEROV)),
    Case("topk", "top25", MEAN, 3 * 4096),
)
"""Whole blocks and plain values, which the compiled library takes where there is one."""

Commit: TypeAlias = (
    "Callable[[Case, ChunkGrid, UnitState, Sequence[EncodedContribution]], tuple[UnitState, list[bytes]]]"
)
"""From a state and three contributions to the next state, and what goes into the hash."""


def main() -> None:
    """A line for each number of threads: Python's start and torch's import are most of the work."""
    check_off()
    for threads in map(int, sys.argv[1:]):
        torch.set_num_threads(threads)
        print(committed_hash())
        print(kinds_hash())


def kinds_hash() -> str:
    """Every kind of outer step, every codec and every rule for means in the tables, from values of many sizes."""
    digest, places = sha256(), torch.arange(100_003)
    # torch's own random numbers differ between instruction sets
    mixed = [((places + number) * 2_654_435_761 % 65_537 - 32_768).float() for number in range(3)]
    vectors = [torch.div(mixed_N, 10.0 ** (3 + number)) for number, mixed_N in enumerate(mixed)]
    for kind, facts in sorted(OUTER_STEPS.items()):
        moved = apply_outer_step(*vectors, OuterStep(kind, 0.3, 0.9 if facts.takes_momentum else 0.0))
        for each_N in moved:
            digest.update(each_N.numpy().tobytes())
    for name in sorted(codec_names()):
        for vector_N in vectors:
            data = codec_by_name(name).encode(vector_N)
            digest.update(data)
            digest.update(codec_by_name(name).decode(data, vector_N.numel()).numpy().tobytes())
    for rule in ROBUST_RULES.values():
        rows_mn = torch.stack([vectors[0], *(torch.add(vectors[0], vector_N) for vector_N in vectors), -vectors[0]])
        for dtype in (torch.float32, torch.float64):
            mean_N, judgement = robust_mean(rows_mn.clone(), (*WEIGHTS, 1, 1000), rule, dtype)
            digest.update(mean_N.numpy().tobytes() + judgement.agreements.tobytes() + judgement.is_kept.tobytes())
    return digest.hexdigest()


def committed_hash() -> str:
    """Each chunk encoded, decoded and summed by itself."""
    return _hash(CHUNK_BY_CHUNK, _commit_chunk_by_chunk)


def hash_in_runs() -> str:
    """All whole chunks together, as rounds do it: summed from their bytes, and the next state made from those of the result."""
    return _hash(IN_RUNS, _commit_in_runs)


def _hash(cases: Sequence[Case], commit: Commit) -> str:
    """Genesis, three contributions, two commits of each case; every byte goes into the hash."""
    schema = model_schema(CONFIG)
    digest = sha256()
    for case in cases:
        codec, grid = codec_by_name(case.codec), ChunkGrid(schema.num_elements, case.chunk_elements)
        anchor_N = genesis_anchor(schema, 11)
        state = UnitState(UNIT, COMMIT, 0, 0, anchor_N, torch.zeros_like(anchor_N))
        for index in range(2):
            offers = [
                encode_contribution(state.anchor_N, genesis_anchor(schema, 100 + 10 * index + member), 1, codec, grid)
                for member in range(len(WEIGHTS))
            ]
            state, hashed = commit(case, grid, state, offers)
            for data in (*hashed, *(offer.root for offer in offers)):
                digest.update(data)
            state = UnitState(UNIT, COMMIT, index + 1, 0, state.anchor_N, state.momentum_N)
    return digest.hexdigest()


def _commit_chunk_by_chunk(
    case: Case, grid: ChunkGrid, state: UnitState, offers: Sequence[EncodedContribution]
) -> tuple[UnitState, list[bytes]]:
    codec, result_codec, hashed = codec_by_name(case.codec), codec_by_name(case.result), list[bytes]()
    update_N = torch.empty_like(state.anchor_N)
    for chunk in range(grid.num_chunks):
        begin, stop = grid.bounds(chunk)
        total = WeightedSum(stop - begin, sum_dtype(case.result))
        for weight, offer in zip(WEIGHTS, offers, strict=True):
            total.add(weight, codec.decode(offer.chunks[chunk], stop - begin))
        encoded = result_codec.encode(total.mean().float())
        hashed.append(result_root([encoded]))
        update_N[begin:stop] = result_codec.decode(encoded, stop - begin)
    moved = apply_outer_step(state.anchor_N, state.momentum_N, update_N, case.outer)
    after = UnitState(UNIT, COMMIT, state.index, 0, *moved)
    return after, [*hashed, state_root(after, grid)]


def _commit_in_runs(
    case: Case, grid: ChunkGrid, state: UnitState, offers: Sequence[EncodedContribution]
) -> tuple[UnitState, list[bytes]]:
    result_codec, hashed = codec_by_name(case.result), list[bytes]()
    ahead = NextState(state, case.outer, result_codec, grid)
    num_whole = grid.num_elements // grid.chunk_elements
    for run in filter(len, (range(num_whole), range(num_whole, grid.num_chunks))):
        encoded = encode_run(result_codec, _mean_of(case, grid, run, offers), grid.chunk_elements)
        hashed.append(result_root(encoded))
        ahead.make(run.start, encoded, [leaf_hash(chunk) for chunk in encoded])
    after = ahead.at(ChainLink(UNIT, COMMIT, state.index, (), 0, 1))
    return after, [*hashed, StateHashes(grid).root(after)]


def _mean_of(case: Case, grid: ChunkGrid, run: range, offers: Sequence[EncodedContribution]) -> torch.Tensor:
    """As a reducer: from the bytes where that can be, else decoded first."""
    codec, (begin, stop), size = codec_by_name(case.codec), grid.span(run.start, run.stop), grid.chunk_elements
    chunks = [offer.chunks[run.start : run.stop] for offer in offers]
    total = WeightedSum(stop - begin, sum_dtype(case.result))
    if not all(
        total.add_encoded(weight, codec, part, size, MAX_DELTA) for weight, part in zip(WEIGHTS, chunks, strict=True)
    ):
        total = WeightedSum(stop - begin, sum_dtype(case.result))
        for weight, part in zip(WEIGHTS, chunks, strict=True):
            total.add(weight, decode_run(codec, part, size, stop - begin))
    return total.mean().float()


if __name__ == "__main__":
    main()
