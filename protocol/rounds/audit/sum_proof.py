"""A proof that a reducer signed a false sum: one chunk of each contribution that the sum counts, and the chunk that it names instead.

The reducer signs which contributions it sums, by their roots and weights, and the root of its result (claim.py). A Merkle path leads
from each shown chunk to its contribution's root, and from the leaf of the result's chunk to the result's root. So whoever computes the
mean of the shown chunks by the run's rule, and finds another leaf, knows that the reducer lied. Nothing else is needed: neither the
other chunks, nor the record, nor the word of whoever made the proof.

Here everything but the mean is checked; averaging/rounds/audit/sum_check.py computes it.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES, Root, UnitName, short
from protocol.merkle import leaf_hash, range_root
from protocol.received import require
from protocol.rounds.lineage.record_rules import SignatureCheck, is_signed
from protocol.rounds.messages.bounds import MAX_MEMBERS, MAX_TOKENS
from protocol.rounds.messages.claim import SliceSum, encode_sum
from protocol.rounds.messages.messages import FalseSum
from protocol.rounds.messages.wire import decode_body, encode_body

MOST_LEVELS: Final = 22
"""Hashes of the longest path: a unit has at most 2^22 chunks."""

_PROOF_OVERHEAD_BYTES: Final = 1 << 16
_INPUT_OVERHEAD_BYTES: Final = 2048
"""More than everything of a proof, and of one contribution in it, takes besides the chunks."""


@dataclass(frozen=True, slots=True)
class ShownChunk:
    """One chunk of a contribution, encoded, and the hashes that lead from it to the contribution's root, 32 bytes each."""

    root: Root
    path: bytes
    data: bytes

    def __post_init__(self) -> None:
        require(len(self.root) == HASH_BYTES, f"a root of {len(self.root)} bytes", f"{HASH_BYTES} bytes")
        require_path(self.path)

    def leads_to_root(self, num_chunks: int, chunk: int) -> bool:
        """Whether this is the chunk of that number of the contribution with this root."""
        return is_leaf_of(self.root, num_chunks, chunk, leaf_hash(self.data), self.path)


@dataclass(frozen=True, slots=True)
class SumProof:
    """The proof of one false sum.

    Attributes:
        sum: what the reducer signed.
        seal: its seal on that.
        chunk: the number of the chunk that is shown, in the unit's grid.
        leaf: the hash of this chunk in the reducer's result.
        path: the hashes that lead from it to the result's root, 32 bytes each.
        shown: this chunk of each contribution that the sum counts, in the order of `sum.inputs`.
    """

    sum: SliceSum
    seal: bytes
    chunk: int
    leaf: bytes
    path: bytes
    shown: tuple[ShownChunk, ...]

    def __post_init__(self) -> None:
        require(len(self.leaf) == HASH_BYTES, f"a leaf of {len(self.leaf)} bytes", f"{HASH_BYTES} bytes")
        require_path(self.path)
        found = f"{len(self.sum.inputs)} contributions and {len(self.shown)} chunks"
        is_fine = 1 <= len(self.sum.inputs) == len(self.shown) <= MAX_MEMBERS
        require(is_fine, found, f"1 to {MAX_MEMBERS} contributions, and a chunk of each")
        for each in self.sum.inputs:
            require(0 <= each.weight <= MAX_TOKENS, f"a weight of {each.weight} tokens", "0 to 2^53")
        weighs = any(each.weight and not each.is_stranger for each in self.sum.inputs)
        require(weighs, "a sum without any weight", "at least one token of a keeper or member")

    @property
    def words(self) -> str:
        """The proven lie, as the end of a sentence about the reducer."""
        return f"signed a false sum of chunk {self.chunk} on base {short(self.sum.base)}"


def require_path(path: bytes) -> None:
    """Check the length of the hashes of a Merkle path."""
    is_fine = len(path) % HASH_BYTES == 0 and len(path) <= MOST_LEVELS * HASH_BYTES
    require(is_fine, f"a path of {len(path)} bytes", f"up to {MOST_LEVELS} hashes of {HASH_BYTES} bytes")


def most_proof_bytes(chunk_bytes: int) -> int:
    """The length of the longest proof, in bytes, where a contribution's chunk has `chunk_bytes`."""
    return _PROOF_OVERHEAD_BYTES + MAX_MEMBERS * (chunk_bytes + _INPUT_OVERHEAD_BYTES)


def encode_proof(proof: SumProof) -> bytes:
    """Its bytes, which are carried as they are."""
    return encode_body(proof)


def decode_proof(data: bytes, chunk_bytes: int) -> SumProof:
    """A proof from its bytes; `proof_problem` judges it.

    Raises:
        RemoteProtocolError: not a proof, too long, a value out of its bounds, or bytes that `encode_proof` does not write.
    """
    proof = decode_body(SumProof, data, most_proof_bytes(chunk_bytes))
    if encode_body(proof) != data:
        raise RemoteProtocolError(f"a proof of {len(data)} bytes with others among them", "its own bytes only")
    return proof


def hash_of_proof(data: bytes) -> bytes:
    """The 32 bytes by which a proof is asked for."""
    return sha256(data).digest()


def notice_of(proof: SumProof, data: bytes) -> FalseSum:
    """The message that tells others of a proof, of which `data` are the bytes."""
    what = proof.sum
    return FalseSum(what.unit, what.base, what.reducer, what.result_hash, hash_of_proof(data))


def proof_problem(proof: SumProof, unit: UnitName, num_chunks: int, check: SignatureCheck) -> str:
    """Why this proves nothing, whatever the mean of its chunks is; empty if only that is left to compute.

    Args:
        unit, num_chunks: of the reader's run. A sum of another unit or grid is none of its.
        check: of the run: a sum that was signed in another run convicts nobody in this one.
    """
    what = proof.sum
    if what.unit != unit:
        return f"a sum of unit {what.unit}; expected {unit}"
    if not 0 <= what.first_chunk <= proof.chunk < what.stop_chunk <= num_chunks:
        return f"chunk {proof.chunk} of slice [{what.first_chunk}, {what.stop_chunk}); expected one of {num_chunks}"
    peers = [each.peer for each in what.inputs]
    if sorted(set(peers)) != peers:
        return "contributions in another order than that of peers; expected each once"
    if not is_signed(check, what.reducer, proof.seal, encode_sum(what)):
        return f"a sum that {short(what.reducer)} did not sign"
    num_results, place = what.stop_chunk - what.first_chunk, proof.chunk - what.first_chunk
    if not is_leaf_of(what.result_hash, num_results, place, proof.leaf, proof.path):
        return f"a leaf that is not chunk {proof.chunk} of the signed result"
    for each, shown in zip(what.inputs, proof.shown, strict=True):
        if shown.root != each.root or not shown.leads_to_root(num_chunks, proof.chunk):
            return f"a chunk that is not chunk {proof.chunk} of what {short(each.peer)} contributed"
    return ""


def is_leaf_of(root: Root, num_leaves: int, place: int, leaf: bytes, path: bytes) -> bool:
    """Whether a leaf hash stands at this place under a root; `path` are the hashes between them, joined."""
    hashes = [path[begin : begin + HASH_BYTES] for begin in range(0, len(path), HASH_BYTES)]
    try:
        return range_root(num_leaves, place, [leaf], hashes) == root
    except RemoteProtocolError:
        return False
