"""The committed path, printed as one hash for each number of threads: `python -m tests.golden.committed_path THREADS...`."""

from __future__ import annotations

import sys
from hashlib import sha256

import torch

from averaging.codecs import codec_by_name
from averaging.genesis import genesis_anchor
from averaging.outer_step import apply_outer_step
from averaging.rounds.contribution import encode_contribution, result_root
from averaging.state import UnitState, state_root
from averaging.weighted_mean import WeightedSum, sum_dtype
from protocol.decoder_schema import DecoderConfig, decoder_schema
from protocol.ids import CommitId, UnitName
from protocol.rounds.messages import OuterStep
from protocol.tensor_schema import ChunkGrid
from tests.instruction_sets import check_off

CONFIG = DecoderConfig(dim=32, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=88, context_tokens=16)
WEIGHTS = (2048, 40_961, 7)


def main() -> None:
    """A line for each number of threads: Python's start and torch's import are most of the work."""
    check_off()
    for threads in map(int, sys.argv[1:]):
        torch.set_num_threads(threads)
        print(committed_hash())


def committed_hash() -> str:
    """Genesis, three contributions, two commits by each codec and outer step; every byte goes into the hash."""
    schema = decoder_schema(CONFIG)
    digest = sha256()
    for codec_name, result_name, outer in (
        ("fp32", "fp32", OuterStep("mean", 1.0, 0.0)),
        ("fp16", "fp16", OuterStep("nesterov", 0.7, 0.9)),
        ("int8", "int8", OuterStep("nesterov", 0.4, 0.5)),
        ("int4", "int4", OuterStep("mean", 1.0, 0.0)),
        ("e3m0", "e3m0", OuterStep("nesterov", 0.4, 0.9)),
        ("topk", "top6", OuterStep("mean", 1.0, 0.0)),
        ("topk", "top12", OuterStep("mean", 1.0, 0.0)),
        ("topk", "top25", OuterStep("mean", 1.0, 0.0)),
    ):
        codec, result_codec = codec_by_name(codec_name), codec_by_name(result_name)
        grid = ChunkGrid(schema.num_elements, 13_000 if codec_name == "topk" else 1000)  # three blocks and a part
        anchor_N = genesis_anchor(schema, 11)
        momentum_N = torch.zeros_like(anchor_N)
        for commit in range(2):
            offers = [
                encode_contribution(anchor_N, genesis_anchor(schema, 100 + 10 * commit + member), 1, codec, grid)
                for member in range(len(WEIGHTS))
            ]
            update_N = torch.empty_like(anchor_N)
            for chunk in range(grid.num_chunks):
                begin, stop = grid.bounds(chunk)
                total = WeightedSum(stop - begin, sum_dtype(result_name))
                for weight, offer in zip(WEIGHTS, offers, strict=True):
                    total.add(weight, codec.decode(offer.chunks[chunk], stop - begin))
                encoded = result_codec.encode(total.mean().float())
                digest.update(result_root([encoded]))
                update_N[begin:stop] = result_codec.decode(encoded, stop - begin)
            anchor_N, momentum_N = apply_outer_step(anchor_N, momentum_N, update_N, outer)
            state = UnitState(UnitName("fragment-0"), CommitId(bytes(32)), commit, 0, anchor_N, momentum_N)
            digest.update(state_root(state, grid))
            for offer in offers:
                digest.update(offer.root)
    return digest.hexdigest()


if __name__ == "__main__":
    main()
