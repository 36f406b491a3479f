"""`python -m tests.benchmarks.sum_audit --json FILE [--quick]`: in how many rounds a reducer that sums falsely is convicted.

A run of 16 members with 25 million values in int8 has one reducer that signs its whole slice falsely. In each round every other member
draws its audits as the product does, at the default share. A chunk that is drawn is proven with the product's own code: real
contributions, Merkle paths, signatures and the run's rule. Honest chunks that are drawn are checked alike and must convict nobody.

One liar makes its sums a tenth too long, which nobody sees at first sight; the other sends ten times the opposite. The network is left
out: everybody who is asked answers.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from averaging.arithmetic.batched_codec import decode_run, encode_run
from averaging.codecs import codec_by_name
from averaging.rounds.audit.chunk_fetch import Collecting, collecting_of, proof_of
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.exchange.chunk_means import ChunkMeans
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from protocol.merkle import MerkleTree, leaf_hash, merkle_root
from protocol.rounds.audit.sum_audit_core import Glance, Pick, glanced_chunks, others_slices, picks
from protocol.rounds.audit.sum_proof import ShownChunk, encode_proof
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, SignatureCheck, sum_of
from protocol.rounds.messages.claim import encode_sum
from protocol.rounds.messages.record import Ballot, CommitRecord, Contributor, OuterStep, SliceRecord
from protocol.rounds.schedule.sum_rules import AUDIT_SHARE, SumRules
from protocol.tensors.tensor_schema import ChunkGrid
from tests.at_once import encode_chunks
from tests.benchmarks.results import Row, machine, print_rows, write_rows

BENCH: Final = "sum_audit"
NUM_VALUES: Final = 25_000_000
CHUNK: Final = 1 << 16
NUM_MEMBERS: Final = 16
WITHIN_ROUNDS: Final = 10
LEAST_CAUGHT: Final = 0.85
"""Share of runs in which the liar is convicted within so many rounds; the rest of them find it a few rounds later."""

MOST_ROUNDS: Final = 200
CODEC: Final = codec_by_name("int8")
GRID: Final = ChunkGrid(NUM_VALUES, CHUNK)
RUN, UNIT, BASE = RunId(b"r" * 32), UnitName("fragment-0"), CommitId(b"b" * 32)
LIES: Final = {"a tenth too long": 1.1, "ten times the opposite": -10.0}


def _delta(member: int) -> torch.Tensor:
    """Honest deltas: a common direction, and noise of the member's own."""
    common_N = torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(99))
    own_N = torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(member))
    return common_N.mul_(1e-3).add_(own_N, alpha=0.6e-3)


@dataclass
class World:
    """The contributions of one round, its slices, and what their reducers sign. Means are made once they are needed."""

    liar: int
    factor: float
    robust: str
    contributions: Sequence[Sequence[memoryview]]
    trees: Sequence[MerkleTree]
    identities: Sequence[Identity]
    record: CommitRecord = field(init=False)
    results: dict[int, bytes] = field(default_factory=dict)
    verdicts: dict[int, tuple[str, int, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        peers = [each.peer_id for each in self.identities]
        entries = tuple(
            Contributor(peer, 1, tree.root, 1000 + 10 * number, 0)
            for number, (peer, tree) in enumerate(zip(peers, self.trees, strict=True))
        )
        size = -(-GRID.num_chunks // NUM_MEMBERS)
        parts = [
            SliceRecord(first, min(first + size, GRID.num_chunks), peers[number], Root(bytes(32)), ())
            for number, first in enumerate(range(0, GRID.num_chunks, size))
        ]
        self.record = CommitRecord(
            UNIT,
            BASE,
            1,
            Ballot(0, peers[0]),
            tuple(parts),
            entries,
            CODEC.name,
            1 << 40,
            0,
            OuterStep("mean", 1.0, 0.0),
            1,
            tuple(peers),
            (1,) * NUM_MEMBERS,
            None,
        )
        means = ChunkMeans(CODEC, GRID, SumRules(robust=self.robust))
        self.check = SumCheck(UNIT, CODEC, means, SignatureCheck(Ed25519Verifier(), RUN))

    @property
    def liar_peer(self) -> PeerId:
        """The reducer that lies."""
        return self.identities[self.liar].peer_id

    def result_of(self, part: SliceRecord) -> bytes:
        """The bytes that its reducer returns; those of the liar are false in every chunk."""
        if part.first_chunk not in self.results:
            counted = [
                (
                    each.peer_id,
                    _Chunks({c: self.contributions[number][c] for c in range(part.first_chunk, part.stop_chunk)}),
                )
                for number, each in enumerate(self.identities)
            ]
            weights = [entry.tokens for entry in self.record.contributors]
            run = range(part.first_chunk, part.stop_chunk)
            mean_n, _ = self.check.means.of(run, CODEC, counted, weights)
            if part.reducer == self.liar_peer:
                mean_n = mean_n * self.factor
            self.results[part.first_chunk] = b"".join(encode_run(CODEC, mean_n, CHUNK))
        return self.results[part.first_chunk]

    def audit(self, pick: Pick) -> str:
        """Why the product's own check convicts nobody of this chunk; empty where it convicts the reducer."""
        if pick.chunk not in self.verdicts:
            part, data = pick.part, self.result_of(pick.part)
            hashes = [leaf_hash(data[begin : begin + self.check.chunk_bytes]) for begin in _begins(data)]
            signed = replace(part, result_hash=merkle_root(hashes))
            what = sum_of(self.record, signed)
            signer = next(each for each in self.identities if each.peer_id == part.reducer)
            sealed = seal_of(seal(signer, ROUND_DOMAIN, RUN, 1, NEVER_MS, encode_sum(what)))
            signed = replace(signed, seal=sealed)
            collected: Collecting = collecting_of(self.record, Pick(signed, pick.chunk), GRID, CODEC)
            collected.take(
                ShownChunk(tree.root, b"".join(tree.path(pick.chunk, pick.chunk + 1)), bytes(chunks[pick.chunk]))
                for tree, chunks in zip(self.trees, self.contributions, strict=True)
            )
            proof = proof_of(collected, signed, hashes)
            began_s = time.perf_counter()
            why_not = self.check.why_not(proof)
            took_s = time.perf_counter() - began_s
            self.verdicts[pick.chunk] = why_not, len(encode_proof(proof)), took_s
        return self.verdicts[pick.chunk][0]

    def looks_wrong(self, member: int, draw: random.Random) -> list[SliceRecord]:
        """The slices that look wrong to a member at first sight: only the liar's may, so only that one is computed."""
        found: list[SliceRecord] = []
        for part in others_slices(self.record, self.identities[member].peer_id):
            if part.reducer != self.liar_peer:
                continue
            data, sums = self.result_of(part), [0.0, 0.0, 0.0]
            for chunk in glanced_chunks(part, draw.random):
                begin, stop = GRID.bounds(chunk)
                place = (chunk - part.first_chunk) * self.check.chunk_bytes
                one = data[place : place + CODEC.encoded_bytes(stop - begin)]
                own_n = decode_run(CODEC, [self.contributions[member][chunk]], CHUNK, stop - begin)
                mean_n = decode_run(CODEC, [one], CHUNK, stop - begin)
                for number, pair in enumerate(((own_n, own_n), (mean_n, mean_n), (own_n, mean_n))):
                    sums[number] += float(torch.dot(*pair))
            found += [part] if Glance(*sums).looks_wrong else []
        return found

    def rounds_until_caught(self, seed: int, *, has_sight: bool) -> tuple[int, int]:
        """The round in which the liar is convicted, from 1 on, and the chunks that were audited until then."""
        draw, num_audited = random.Random(seed), 0
        honest = [number for number in range(NUM_MEMBERS) if number != self.liar]
        suspects = {number: self.looks_wrong(number, draw) if has_sight else [] for number in honest}
        for index in range(1, MOST_ROUNDS + 1):
            is_caught = False
            for number in honest:
                me = self.identities[number].peer_id
                for pick in picks(self.record, me, AUDIT_SHARE, suspects[number], 0, draw.random):
                    num_audited += 1
                    is_false = not self.audit(pick)
                    if is_false and pick.part.reducer != self.liar_peer:
                        raise AssertionError(f"chunk {pick.chunk} of an honest reducer is called false")
                    is_caught = is_caught or is_false
            if is_caught:
                return index, num_audited
        return MOST_ROUNDS, num_audited


@dataclass(frozen=True)
class _Chunks:
    chunks: dict[int, memoryview]
    is_stranger: bool = False


def _begins(data: bytes) -> range:
    return range(0, len(data), CODEC.encoded_bytes(CHUNK))


def _rows(name: str, world: World, num_trials: int, *, has_sight: bool) -> list[Row]:
    found = [world.rounds_until_caught(seed, has_sight=has_sight) for seed in range(num_trials)]
    rounds = [index for index, _ in found]
    share = sum(index <= WITHIN_ROUNDS for index in rounds) / len(rounds)
    fetched = sum(audited for _, audited in found) * (NUM_MEMBERS - 1)
    bytes_share = fetched / (sum(rounds) * (NUM_MEMBERS - 1) * GRID.num_chunks)
    settings = {
        "members": NUM_MEMBERS,
        "values": NUM_VALUES,
        "chunk": CHUNK,
        "robust": world.robust,
        "share": AUDIT_SHARE,
        "machine": machine(),
    }
    lied = {chunk: each for chunk, each in world.verdicts.items() if not each[0]}
    spread = {"best": float(min(rounds)), "worst": float(max(rounds))}
    median = statistics.median(rounds)
    most_bytes, most_s = max(each[1] for each in lied.values()), max(each[2] for each in lied.values())
    plain: dict[str, Any] = {"trials": num_trials, "settings": settings}
    return [
        Row(BENCH, f"{name}: round of the conviction", median, "rounds", spread=spread, **plain),
        Row(
            BENCH,
            f"{name}: convicted within {WITHIN_ROUNDS} rounds",
            round(share, 4),
            "share",
            target=f">= {LEAST_CAUGHT:g}",
            met=share >= LEAST_CAUGHT,
            **plain,
        ),
        Row(BENCH, f"{name}: bytes fetched by a member, of a contribution", round(bytes_share, 4), "share", **plain),
        Row(BENCH, f"{name}: the longest proof", most_bytes / 1e6, "MB", **plain),
        Row(BENCH, f"{name}: the longest check of a proof", round(most_s * 1000, 2), "ms", **plain),
    ]


def main(arguments: Sequence[str]) -> int:
    """0 when the liars are convicted as soon as they should."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sum_audit", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the rows go, one JSON object a line")
    parser.add_argument("--quick", action="store_true", help="fewer trials, and the plain mean alone")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num_trials = 100 if options.quick else 1000
    identities = sorted(
        (Identity(bytes([number]) * 32) for number in range(NUM_MEMBERS)), key=lambda each: each.peer_id
    )
    contributions = [encode_chunks(_delta(number), CODEC, GRID) for number in range(NUM_MEMBERS)]
    trees = [MerkleTree.over([leaf_hash(chunk) for chunk in chunks]) for chunks in contributions]
    rows = list[Row]()
    for robust in ("off",) if options.quick else ("off", "clip-agree"):
        for name, factor in LIES.items():
            world = World(5, factor, robust, contributions, trees, identities)
            rows += _rows(f"{robust}, {name}", world, num_trials, has_sight=True)
    if options.json is not None:
        write_rows(rows, options.json)
    print_rows(rows, "a reducer that sums falsely")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
