"""One member's contribution on one base: the delta, encoded once on the unit's fixed chunk grid, and its signed header (rule 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from averaging.chunk_runs import decode_run, encode_run, runs_in, span_bytes
from averaging.codecs import Codec
from averaging.delta import encode_delta
from averaging.error_feedback import FedDelta, Feedback, encode_fed
from averaging.vectors import new_bytes
from protocol.errors import RemoteProtocolError
from protocol.ids import HASH_BYTES, Root
from protocol.merkle import MerkleTree, leaf_hash, merkle_root
from protocol.rounds.messages import Proposal, SliceSpec
from protocol.rounds.requests import ExchangeHello
from protocol.tensor_schema import ChunkGrid


@dataclass(frozen=True)
class EncodedContribution:
    """What this peer offers on a base.

    Attributes:
        theta_N: (N,) float32, the local parameters at the snapshot: rule 20 needs them when the commit is applied.
        chunks: encoded chunks, in grid order, one behind the other in one memory.
        tree: over their leaf hashes.
        header: the signed ContributionHeader envelope.
    """

    theta_N: torch.Tensor
    tokens: int
    chunks: tuple[bytes | memoryview, ...]
    tree: MerkleTree
    header: bytes = b""

    @property
    def hashes(self) -> Sequence[bytes]:
        """Of the chunks, in order."""
        return self.tree.levels[0]

    @property
    def root(self) -> Root:
        """Of the chunks."""
        return self.tree.root


def encode_chunks(values_N: torch.Tensor, codec: Codec, grid: ChunkGrid) -> tuple[memoryview, ...]:
    """Each chunk of a (N,) float32 vector by itself."""
    runs = runs_in(0, grid.num_chunks, grid.chunk_elements)
    spans = (slice(*grid.span(run.start, run.stop)) for run in runs)
    return tuple(chain.from_iterable(encode_run(codec, values_N[span], grid.chunk_elements) for span in spans))


def encode_contribution(
    anchor_N: torch.Tensor, theta_N: torch.Tensor, tokens: int, codec: Codec, grid: ChunkGrid
) -> EncodedContribution:
    """The delta of a snapshot, encoded; the header is added when it is signed.

    Raises:
        LocalProtocolError: the local parameters are not finite; nothing is offered.
    """
    # run by run, each while it is in the processor's cache
    room = new_bytes(len(span_bytes(codec, grid, 0, grid.num_chunks)))
    chunks, hashes = list[memoryview](), list[bytes]()
    for run in runs_in(0, grid.num_chunks, grid.chunk_elements):
        span, place = slice(*grid.span(run.start, run.stop)), span_bytes(codec, grid, run.start, run.stop)
        encoded = encode_delta(
            codec, anchor_N[span], theta_N[span], grid.chunk_elements, room[place.start : place.stop]
        )
        chunks += encoded
        hashes += map(leaf_hash, encoded)
    return EncodedContribution(theta_N, tokens, tuple(chunks), MerkleTree.over(tuple(hashes)))


def encode_with_feedback(
    anchor_N: torch.Tensor, theta_N: torch.Tensor, tokens: int, codec: Codec, feedback: Feedback
) -> tuple[EncodedContribution, FedDelta]:
    """As `encode_contribution`, with the residual in it; and what the codec left out."""
    fed = encode_fed(anchor_N, theta_N, feedback.residual, feedback.beta, codec, feedback.grid)
    hashes = tuple(leaf_hash(chunk) for chunk in fed.chunks)
    return EncodedContribution(theta_N, tokens, fed.chunks, MerkleTree.over(hashes)), fed


def split_hashes(data: bytes, num_chunks: int) -> tuple[bytes, ...]:
    """A list of leaf hashes from its wire form.

    Raises:
        RemoteProtocolError: not one hash per chunk.
    """
    if len(data) != HASH_BYTES * num_chunks:
        raise RemoteProtocolError(f"{len(data)} bytes of chunk hashes", f"{HASH_BYTES * num_chunks}")
    return tuple(data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES))


def split_chunks(
    data: bytes | memoryview, codec: Codec, grid: ChunkGrid, first_chunk: int, stop_chunk: int
) -> tuple[memoryview, ...]:
    """The encoded chunks of a slice as views of their concatenation.

    Raises:
        RemoteProtocolError: the total length is not that of the slice.
    """
    chunks: list[memoryview] = []
    view, begin = memoryview(data), 0
    for chunk in range(first_chunk, stop_chunk):
        start, stop = grid.bounds(chunk)
        size_bytes = codec.encoded_bytes(stop - start)
        chunks.append(view[begin : begin + size_bytes])
        begin += size_bytes
    if begin != len(data):
        raise RemoteProtocolError(
            f"a slice of {len(data)} bytes", f"{begin} bytes for its {stop_chunk - first_chunk} chunks"
        )
    return tuple(chunks)


def check_result(
    chunks: Sequence[bytes | memoryview], result_hash: Root, first_chunk: int, codec: Codec, grid: ChunkGrid
) -> None:
    """Whether the bytes of a slice's result are those that were signed, and mean something. What is kept and acked must be fit to be
    applied: a commit that nobody can apply would end the run.

    Raises:
        RemoteProtocolError: other bytes, or values that are not finite.
    """
    if result_root(chunks) != result_hash:
        raise RemoteProtocolError("result bytes with another hash", "the bytes that were signed")
    for run in runs_in(first_chunk, first_chunk + len(chunks), grid.chunk_elements):
        begin, stop = grid.span(run.start, run.stop)
        part = chunks[run.start - first_chunk : run.stop - first_chunk]
        decode_run(codec, part, grid.chunk_elements, stop - begin)


def result_root(chunks: Sequence[bytes | memoryview]) -> Root:
    """The hash by which a record names a slice's result."""
    return merkle_root([leaf_hash(chunk) for chunk in chunks])


def hello_of(
    proposal: Proposal, part: SliceSpec, mine: EncodedContribution | None, *, no_part: bool = False
) -> ExchangeHello:
    """What opens a stream to the reducer of a slice, with the hashes of the chunks that are brought; None offers nothing, with
    `no_part` because nothing was to be brought.
    """
    named = (proposal.unit, proposal.base, proposal.ballot, part.first_chunk)
    if mine is None:
        return ExchangeHello(*named, b"", b"", no_part=no_part)
    hashes = mine.hashes[part.first_chunk : part.stop_chunk]
    path = mine.tree.path(part.first_chunk, part.stop_chunk)
    return ExchangeHello(*named, mine.header, b"".join(hashes), b"".join(path))
