"""One member's contribution on one base: the delta, encoded once on the unit's fixed chunk grid, and its signed header (R8).

Rules: R8, R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, Protocol

import torch

from averaging.arithmetic.batched_codec import chunk_views, decode_run, new_room, runs_in, span_bytes
from averaging.arithmetic.delta import encode_delta
from averaging.arithmetic.error_feedback import FedDelta, FedEncoder, Feedback
from averaging.codecs import Codec
from averaging.rounds.traffic.batches import consecutive
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import HASH_BYTES, Root
from protocol.merkle import MerkleTree, leaf_hash, merkle_root
from protocol.rounds.messages.messages import Proposal, SliceSpec
from protocol.rounds.messages.requests import LATER, ExchangeHello
from protocol.tensors.tensor_schema import ChunkGrid

FIRST_ELEMENTS: Final = 1 << 16
"""Elements of the first run for each reducer, at least one chunk. Nothing leaves before the first call is over, and a whole run
for each reducer would take too long; measured; see tests/benchmarks/LOG.md.
"""

LEAST_RUNS: Final = 8
"""The least number of runs in a call after the growing first ones: fewer would cost more in calls than they gain. The first call
takes FIRST_ELEMENTS for each reducer, for at most this many reducers. Each later call takes twice as many runs as the one before.
"""

MOST_STRETCHES: Final = 16
"""The most calls for a long vector after the growing first ones; it sets their final length."""


@dataclass(frozen=True)
class EncodedContribution:
    """A peer's offer on a base.

    Attributes:
        theta_N: (N,) float32, the local parameters at the snapshot: R20 needs them when the commit is applied.
        data: all encoded chunks, in grid order, joined.
        chunks: each of them, as a view of `data`.
        tree: over their leaf hashes.
        header: our claim (protocol/rounds/messages/claim.py), in its signed envelope.
        credential: proof of our admission, where the base roster does not have us.
        may_overwrite_theta: whether the shift of theta may be made in the memory of `theta_N`.
    """

    theta_N: torch.Tensor
    tokens: int
    data: memoryview
    chunks: tuple[bytes | memoryview, ...]
    tree: MerkleTree
    header: bytes = b""
    credential: bytes = b""
    may_overwrite_theta: bool = False

    @property
    def hashes(self) -> Sequence[bytes]:
        """The leaf hashes of the chunks, in order."""
        return self.tree.levels[0]

    @property
    def root(self) -> Root:
        """The Merkle root of the chunks."""
        return self.tree.root


class Offered(Protocol):
    """A contribution that a reducer can check: our own, or one that we carry for a leaver."""

    @property
    def header(self) -> bytes:
        """Its claim, in the envelope that its member signed."""
        ...

    @property
    def credential(self) -> bytes:
        """Proof of its member's admission, where the base roster does not have it."""
        ...

    @property
    def tree(self) -> MerkleTree:
        """Over the leaf hashes of its chunks."""
        ...


class DeltaEncoder:
    """Encodes the delta of a snapshot some chunks at a time, in any order. With feedback the residual is added to it.

    Attributes:
        data: memory for all encoded chunks, in grid order, joined.
        chunks: each of them, as a view of `data`; valid once the chunk was encoded.
    """

    def __init__(
        self,
        anchor_N: torch.Tensor,
        theta_N: torch.Tensor,
        tokens: int,
        codec: Codec,
        grid: ChunkGrid,
        feedback: Feedback | None = None,
    ) -> None:
        """Args: anchor_N, theta_N: (N,) float32."""
        self._anchor_N, self._theta_N, self._tokens, self._codec, self._grid = anchor_N, theta_N, tokens, codec, grid
        self._fed = None
        if feedback is not None:
            self._fed = FedEncoder(anchor_N, theta_N, feedback.residual, feedback.beta, codec, grid)
            self.data, self.chunks = self._fed.data, self._fed.chunks
        else:
            self._room = new_room(codec, grid)
            self.data = self._room.toreadonly()
            self.chunks = chunk_views(self._room, codec, grid)
        self._hashes = [b""] * grid.num_chunks

    def encode(self, run: range) -> None:
        """Encode these chunks, each once; may run in a thread.

        Raises:
            LocalProtocolError: the local parameters are not finite; offer nothing.
        """
        if self._fed is not None:
            self._fed.encode(run)
        else:
            span, place = (
                slice(*self._grid.span(run.start, run.stop)),
                span_bytes(self._codec, self._grid, run.start, run.stop),
            )
            room = self._room[place.start : place.stop]
            encode_delta(self._codec, self._anchor_N[span], self._theta_N[span], self._grid.chunk_elements, room)
        for chunk in run:  # while they are in the processor's cache
            self._hashes[chunk] = leaf_hash(self.chunks[chunk])

    def finished(self) -> tuple[EncodedContribution, FedDelta | None]:
        """The contribution, without its header, and what the codec left out; call after all chunks were encoded.

        Raises:
            LocalProtocolError: some chunks were not encoded.
        """
        if not all(self._hashes):
            raise LocalProtocolError("a contribution with chunks that are not encoded", "all of them")
        tree = MerkleTree.over(tuple(self._hashes))
        encoded = EncodedContribution(self._theta_N, self._tokens, self.data, self.chunks, tree)
        return encoded, None if self._fed is None else self._fed.finished()


def stretches(parts: Sequence[range], grid: ChunkGrid) -> list[list[range]]:
    """All chunks as runs, grouped by call, in encoding order for a delta that is sent while it is being encoded.

    Args:
        parts: disjoint, each going to another reducer. They take turns, a run each, so that every reducer gets something soon.
            Chunks in none of them are not sent and come last.
    """
    covered = set(chain.from_iterable(parts))
    rest = consecutive((chunk for chunk in range(grid.num_chunks) if chunk not in covered), grid.num_chunks)
    turns = zip_longest(*(_begun_runs(part, grid) for part in parts))
    order = [run for turn in turns for run in turn if run is not None]
    order += [run for part in rest for run in runs_in(part.start, part.stop, grid.chunk_elements)]
    step = max(LEAST_RUNS, -(-len(order) // MOST_STRETCHES))
    stretch, found = max(1, len(parts)), list[list[range]]()
    while order:
        found.append(order[: min(stretch, step)])
        order, stretch = order[min(stretch, step) :], 2 * stretch
    return found


def _begun_runs(part: range, grid: ChunkGrid) -> list[range]:
    """The runs of a part, the first one cut in two."""
    runs = runs_in(part.start, part.stop, grid.chunk_elements)
    num_first = max(1, FIRST_ELEMENTS // grid.chunk_elements)
    if runs and len(runs[0]) > num_first:
        cut = runs[0].start + num_first
        runs[:1] = [range(runs[0].start, cut), range(cut, runs[0].stop)]
    return runs


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
    """Check that the bytes of a slice's result are the signed ones and decode to finite values. A peer must not keep or ack a
    result that cannot be applied: such a commit would end the run.

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
    proposal: Proposal, part: SliceSpec, mine: Offered | None, *, no_part: bool = False, carried: bool = False
) -> ExchangeHello:
    """The hello that opens a stream to the reducer of a slice, with the hashes of the contribution's chunks. None offers nothing; with
    `no_part` because nothing was asked for. `carried`: the contribution is a leaver's.
    """
    named = (proposal.unit, proposal.base, proposal.ballot, part.first_chunk)
    if mine is None:
        return ExchangeHello(*named, b"", b"", no_part=no_part)
    hashes = b"".join(mine.tree.levels[0][part.first_chunk : part.stop_chunk])
    path = b"".join(mine.tree.path(part.first_chunk, part.stop_chunk))
    return ExchangeHello(*named, mine.header, hashes, path, credential=mine.credential, carried=carried)


def hello_before(proposal: Proposal, part: SliceSpec) -> ExchangeHello:
    """The hello that opens a stream while the contribution is still being encoded."""
    return ExchangeHello(proposal.unit, proposal.base, proposal.ballot, part.first_chunk, LATER, b"")
