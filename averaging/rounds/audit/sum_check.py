"""Computes one chunk of a sum again, with the reducer's own arithmetic, and compares it with what the reducer signed.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from averaging.arithmetic.batched_codec import encode_run
from averaging.codecs import Codec
from averaging.rounds.exchange.chunk_means import ChunkMeans, UndecodableError
from protocol.ids import UnitName
from protocol.merkle import leaf_hash
from protocol.rounds.audit.sum_proof import SumProof, proof_problem
from protocol.rounds.lineage.record_rules import SignatureCheck


@dataclass(frozen=True)
class _Shown:
    """One chunk of a contribution, as a sum takes it."""

    chunks: Mapping[int, bytes | memoryview]
    is_stranger: bool


@dataclass(frozen=True)
class SumCheck:
    """How sums of one unit are checked.

    Attributes:
        codec: of contributions.
        means: with the codec of results, the unit's chunks and the rule of its sums.
        signatures: of the run.
    """

    unit: UnitName
    codec: Codec
    means: ChunkMeans
    signatures: SignatureCheck

    @property
    def chunk_bytes(self) -> int:
        """Bytes of the longest chunk of a contribution."""
        begin, stop = self.means.grid.bounds(0)
        return self.codec.encoded_bytes(stop - begin)

    def why_not(self, proof: SumProof) -> str:
        """Why a proof convicts nobody; empty if the reducer's sum is false. It computes the mean of one chunk: run it in a thread."""
        problem = proof_problem(proof, self.unit, self.means.grid.num_chunks, self.signatures)
        if problem:
            return problem
        return "" if self._is_false(proof) else f"chunk {proof.chunk} is summed as the rule says"

    def _is_false(self, proof: SumProof) -> bool:
        """Whether the run's rule makes another chunk of these contributions. A reducer decodes each chunk that it counts, so a sum
        that counts one which does not decode is false as well; so is one that leaves out a chunk of a member and does not say so.
        """
        grid, chunk, what = self.means.grid, proof.chunk, proof.sum
        begin, stop = grid.bounds(chunk)
        if any(len(shown.data) != self.codec.encoded_bytes(stop - begin) for shown in proof.shown):
            return True
        counted = [
            (each.peer, _Shown({chunk: shown.data}, each.is_stranger))
            for each, shown in zip(what.inputs, proof.shown, strict=True)
        ]
        run, weights = range(chunk, chunk + 1), [each.weight for each in what.inputs]
        try:
            mean_n, (left_out,) = self.means.of(run, self.codec, counted, weights)
        except UndecodableError:
            return True
        (encoded,) = encode_run(self.means.result_codec, mean_n, grid.chunk_elements)
        named = {each.peer for each in what.disagreeing}
        return leaf_hash(encoded) != proof.leaf or any(peer not in named for peer, _ in left_out)
