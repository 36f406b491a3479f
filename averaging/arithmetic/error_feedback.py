"""Error feedback: the part of a contribution that a codec left out is added to the next one. Pure arithmetic and bookkeeping.

With e the residual, D the delta, beta the manifest's factor and Q the codec (1901.09847, algorithm 2; with beta as in SparseLoCo,
2508.15706): a = beta e + D and q = Q(a). Once a commit counts the contribution, e <- a - deq(q), for the chunks that the commit
covers and no others. Until then a - deq(q) is only pending. Everything works chunk by chunk, in single float32 operations.

A chunk's origin is the contribution that left its residual. A pending residual may only replace the residual that it was built on.
If a commit counts a contribution whose residual is not available, the chunk's residual becomes zero: it was sent with that
contribution.

The residual is bounded: a chunk's norm is at most MAX_RATIO times that of the largest recent delta there, and every value is
finite. A residual beyond the bound is scaled down to it, and the caller gets the number of such chunks.

Rules: R20 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.batched_codec import chunk_views, decode_run, encode_run, new_room, span_bytes
from averaging.arithmetic.delta import pseudo_gradient
from averaging.arithmetic.vectors import new_vector
from averaging.codecs import Codec
from protocol.errors import LocalProtocolError
from protocol.ids import HASH_BYTES, Root
from protocol.tensors.tensor_schema import ChunkGrid

MAX_RATIO: Final = 64.0
"""Largest norm of a residual, relative to the deltas. A codec that never lengthens a vector leaves |e| <= |D| / (1 - beta), which
is 20 at beta = 0.95. A codec that keeps one value in 64 reaches about 64 / sqrt(3) = 37 without decay, when each value waits for 64
rounds. Dense codecs of four bits stay below 1. Beyond 64 something is wrong, or the deltas have become so short that the residual
would drown them.
"""

NORM_DECAY: Final = 0.9
"""Decay per round of the remembered norm of a chunk's deltas. A single long delta raises the bound for some dozens of rounds only.
"""

NO_ORIGIN: Final = Root(bytes(HASH_BYTES))
"""Origin of a chunk without a residual: zeros."""


@dataclass(frozen=True)
class Residual:
    """Trained work that is in no commit and not in the local parameters either. Never changed in place.

    Attributes:
        values_N: (N,) float32.
        origins: by chunk, the root of the contribution that left it, or of the one that it was sent with.
        norms: by chunk, the remembered norm of the deltas.
    """

    values_N: torch.Tensor
    origins: tuple[Root, ...]
    norms: tuple[float, ...]


@dataclass(frozen=True)
class Pending:
    """The residual of the contributions on offer. Never changed in place.

    Attributes:
        values_N: (N,) float32, a - deq(q).
        roots: by chunk, the contribution; the same for all chunks unless read back from disk.
        built_on: by chunk, the origin of the residual that went into it.
        norms: by chunk, the norm to remember.
    """

    values_N: torch.Tensor
    roots: tuple[Root, ...]
    built_on: tuple[Root, ...]
    norms: tuple[float, ...]


@dataclass(frozen=True)
class FedDelta:
    """An encoded delta, with the residual added.

    Attributes:
        chunks: encoded, in grid order, consecutive in one memory.
        left_N: (N,) float32, what the codec left out, within the bound.
        norms: by chunk, the norm to remember.
        num_clipped: number of chunks whose remainder was scaled down.
        num_dropped: number of chunks whose residual was left out, because the sum would not have been finite.
    """

    chunks: tuple[bytes | memoryview, ...]
    left_N: torch.Tensor
    norms: tuple[float, ...]
    num_clipped: int = 0
    num_dropped: int = 0


def no_residual(grid: ChunkGrid) -> Residual:
    """The residual of a peer that has not offered anything yet."""
    zeros_N = torch.zeros(grid.num_elements, dtype=torch.float32)
    return Residual(zeros_N, (NO_ORIGIN,) * grid.num_chunks, (0.0,) * grid.num_chunks)


def norm_of(values_n: torch.Tensor) -> float:
    """Euclidean norm of a (n,) float32 vector: exact squares in float64, summed by halves, so that every machine gets the same
    result.
    """
    return chunk_norms(values_n, max(1, values_n.numel()))[0] if values_n.numel() else 0.0


def chunk_norms(values_n: torch.Tensor, chunk_elements: int) -> list[float]:
    """`norm_of` each chunk of a (n,) float32 vector, the last of which may be shorter."""
    stop = values_n.numel() // chunk_elements * chunk_elements
    squares = values_n[:stop].numpy().astype(np.float64).reshape(-1, chunk_elements)
    np.multiply(squares, squares, out=squares)
    length = chunk_elements
    while length > 1:
        half = length // 2
        np.add(squares[:, :half], squares[:, length - half : length], out=squares[:, :half])
        length -= half
    norms: list[float] = np.sqrt(squares[:, 0]).tolist()
    return norms if stop == values_n.numel() else [*norms, norm_of(values_n[stop:])]


def bounded(left_n: torch.Tensor, most: float) -> tuple[torch.Tensor, bool]:
    """A (n,) float32 remainder scaled to a norm of at most `most`, up to rounding, and whether scaling was needed."""
    norm = norm_of(left_n)
    if norm <= most:
        return left_n, False
    if not np.isfinite(norm):
        return torch.zeros_like(left_n), True
    return torch.mul(left_n, float(np.float32(most / norm))), True


class FedEncoder:
    """Encodes a snapshot's delta and the residual together, some chunks at a time, so that only the remainder needs a whole vector.
    Bytes and numbers equal those of working chunk by chunk, in any order.

    `chunks` are in grid order, consecutive in `data`; a chunk's bytes are valid once it was encoded.
    """

    def __init__(
        self,
        anchor_N: torch.Tensor,
        theta_N: torch.Tensor,
        residual: Residual,
        beta: float,
        codec: Codec,
        grid: ChunkGrid,
    ) -> None:
        """Args: anchor_N, theta_N: (N,) float32."""
        self._anchor_N, self._theta_N, self._residual, self._beta = anchor_N, theta_N, residual, beta
        self._codec, self._grid = codec, grid
        self._room = new_room(codec, grid)
        self.data = self._room.toreadonly()
        self.chunks = chunk_views(self._room, codec, grid)
        self._left_N = new_vector(grid.num_elements)
        self._norms = [0.0] * grid.num_chunks
        self._num_clipped = self._num_dropped = 0

    def encode(self, run: range) -> None:
        """Encode these chunks, each once.

        Raises:
            LocalProtocolError: the local parameters are not finite; do not offer anything.
        """
        codec, size = self._codec, self._grid.chunk_elements
        begin, stop = self._grid.span(run.start, run.stop)
        delta_n = pseudo_gradient(self._anchor_N[begin:stop], self._theta_N[begin:stop])
        found = chunk_norms(delta_n, size)
        if not np.isfinite(found).all():
            raise LocalProtocolError(
                "a delta with values that are not finite", "finite values", "skip this contribution"
            )
        before = self._residual.norms[run.start : run.stop]
        norms = [max(norm, NORM_DECAY * known) for norm, known in zip(found, before, strict=True)]
        self._norms[run.start : run.stop] = norms
        fed_n = torch.add(torch.mul(self._residual.values_N[begin:stop], self._beta), delta_n)
        self._num_dropped += _drop_overflown(fed_n, delta_n, size)
        place = span_bytes(codec, self._grid, run.start, run.stop)
        data = encode_run(codec, fed_n, size, self._room[place.start : place.stop])
        left_n = self._left_N[begin:stop]
        torch.sub(fed_n, decode_run(codec, data, size, stop - begin), out=left_n)
        self._num_clipped += _bound(left_n, norms, size)

    def finished(self) -> FedDelta:
        """The result. Call it once all chunks were encoded."""
        return FedDelta(self.chunks, self._left_N, tuple(self._norms), self._num_clipped, self._num_dropped)


def _drop_overflown(fed_n: torch.Tensor, delta_n: torch.Tensor, chunk_elements: int) -> int:
    """Leave the residual out of chunks where the sum is not finite. Returns their number."""
    if bool(torch.isfinite(fed_n).all()):
        return 0
    num_dropped = 0
    for begin in range(0, fed_n.numel(), chunk_elements):
        span = slice(begin, begin + chunk_elements)
        if not bool(torch.isfinite(fed_n[span]).all()):
            fed_n[span] = delta_n[span]
            num_dropped += 1
    return num_dropped


def _bound(left_n: torch.Tensor, norms: Sequence[float], chunk_elements: int) -> int:
    """Scale down the chunks whose remainder exceeds their bound. Returns their number."""
    num_clipped = 0
    for chunk, norm in enumerate(chunk_norms(left_n, chunk_elements)):
        if not norm <= MAX_RATIO * norms[chunk]:
            span = slice(chunk * chunk_elements, (chunk + 1) * chunk_elements)
            left_n[span] = bounded(left_n[span], MAX_RATIO * norms[chunk])[0]
            num_clipped += 1
    return num_clipped


@dataclass(frozen=True)
class Feedback:
    """One unit's residual, and the pending residual of the newest contribution."""

    beta: float
    grid: ChunkGrid
    residual: Residual
    pending: Pending | None = None

    def offered(self, root: Root, fed: FedDelta) -> Feedback:
        """A contribution with this root, made with our residual, is offered. It replaces the pending residual."""
        roots = (root,) * self.grid.num_chunks
        return Feedback(
            self.beta, self.grid, self.residual, Pending(fed.left_N, roots, self.residual.origins, fed.norms)
        )

    def moved_by(self, root: Root, chunks: Iterable[int]) -> list[int]:
        """Those of these chunks whose residual changes when a commit counts this contribution. The others have counted it already."""
        return [chunk for chunk in sorted(chunks) if self.residual.origins[chunk] != root]

    def counted(self, root: Root, chunks: Iterable[int]) -> Feedback:
        """A commit counts these chunks of our contribution. Their pending part becomes the residual, or zero if it is not available
        (R20). Calling it again changes nothing.
        """
        return self.after([(root, chunks)])

    def after(self, counts: Iterable[tuple[Root, Iterable[int]]]) -> Feedback:
        """As `counted` for several contributions, in the order of their commits."""
        origins, pending = list(self.residual.origins), self.pending
        is_taken = dict[int, bool]()
        for root, chunks in counts:
            for chunk in chunks:
                if origins[chunk] == root:
                    continue
                is_pending = pending is not None and pending.roots[chunk] == root
                is_taken[chunk] = is_pending and pending is not None and pending.built_on[chunk] == origins[chunk]
                origins[chunk] = root
        if not is_taken:
            return self
        taken = [chunk for chunk, is_it in is_taken.items() if is_it]
        emptied = [chunk for chunk, is_it in is_taken.items() if not is_it]
        values_N, norms = self._values_after(taken, emptied), list(self.residual.norms)
        if pending is not None:
            for chunk in taken:
                norms[chunk] = pending.norms[chunk]
        residual = Residual(values_N, tuple(origins), tuple(norms))
        return Feedback(self.beta, self.grid, residual, None if taken else pending)

    def _values_after(self, taken: Sequence[int], emptied: Sequence[int]) -> torch.Tensor:
        pending = self.pending
        if pending is not None and len(taken) == self.grid.num_chunks:
            return pending.values_N  # the usual case costs no copy
        values_N = self.residual.values_N.clone()
        if pending is not None:
            for chunk in taken:
                begin, stop = self.grid.bounds(chunk)
                values_N[begin:stop] = pending.values_N[begin:stop]
        for chunk in emptied:
            begin, stop = self.grid.bounds(chunk)
            values_N[begin:stop] = 0.0
        return values_N

    def without(self, chunks: Iterable[int]) -> Feedback:
        """Reset the residual of these chunks to zero, for chunks that cannot be trusted."""
        origins, norms = list(self.residual.origins), list(self.residual.norms)
        values_N = self.residual.values_N.clone()
        for chunk in chunks:
            begin, stop = self.grid.bounds(chunk)
            values_N[begin:stop], origins[chunk], norms[chunk] = 0.0, NO_ORIGIN, 0.0
        return Feedback(self.beta, self.grid, Residual(values_N, tuple(origins), tuple(norms)), self.pending)
