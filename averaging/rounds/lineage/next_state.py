"""The state after the coming commit: computed chunk by chunk while results arrive, so that little is left to do at the commit, or
made in the place of the state before it, which takes no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch
import trio

from averaging.arithmetic.batched_codec import decode_run, run_chunks
from averaging.arithmetic.outer_step import moved_vectors, step_by_encoded, step_into
from averaging.codecs import Codec
from averaging.rounds.traffic.batches import consecutive
from averaging.state.state import UnitState
from protocol.errors import LocalProtocolError
from protocol.merkle import leaf_hash
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import OuterStep
from protocol.tensors.tensor_schema import ChunkGrid

Encoded: TypeAlias = Sequence[bytes | memoryview]
"""Consecutive chunks of a result, as they were sent."""


@dataclass(frozen=True)
class SliceBytes:
    """A slice's checked result: its bytes, and the leaf hashes of its chunks."""

    data: bytes | memoryview
    hashes: tuple[bytes, ...]


class NextState:
    """A step from `state` by `outer`, from bytes that are not committed yet. Every chunk remembers the bytes it was made from; if
    the record names others, it is made again. Callers use `claim` so that no two threads make the same chunk.
    """

    def __init__(
        self,
        state: UnitState,
        outer: OuterStep,
        codec: Codec,
        grid: ChunkGrid,
    ) -> None:
        """Takes 8 bytes a value, 4 if the momentum does not move.

        Raises:
            RemoteProtocolError: an outer step that this version does not know.
        """
        self._state = state
        self._outer = outer
        self._codec = codec
        self._grid = grid
        self._moved = moved_vectors(state.vectors, outer)
        self._claimed = set[int]()
        self._made_by: dict[int, bytes] = {}
        self._num_running = 0
        self._ended = trio.Event()
        """Set, and replaced, when one of them ends."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Marks that a thread will make chunks, or is making them. Entered in trio's thread, by the task that starts the thread."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            ended, self._ended = self._ended, trio.Event()
            ended.set()

    async def until_idle(self, within_s: float) -> bool:
        """Wait until no thread makes chunks; False if none of them ends for `within_s`. Do not use the state then."""
        while self._num_running:
            with trio.move_on_after(within_s) as scope:
                await self._ended.wait()
            if scope.cancelled_caught:
                return False
        return True

    def follows(self, state: UnitState, outer: OuterStep) -> bool:
        """Whether this is the step from that very state with those settings."""
        return self._state is state and self._outer == outer

    def claim(self, chunks: range) -> bool:
        """Claim these chunks for the caller; False if any of them was claimed already."""
        if not self._claimed.isdisjoint(chunks):
            return False
        self._claimed.update(chunks)
        return True

    def make(self, first_chunk: int, encoded: Encoded, hashes: Sequence[bytes]) -> None:
        """Make the chunks from `first_chunk` on from these bytes, whose leaf hashes are `hashes`. Raises as `Codec.decode`."""
        numbers = range(first_chunk, first_chunk + len(encoded))
        lacking = (chunk for chunk, by in zip(numbers, hashes, strict=True) if self._made_by.get(chunk) != by)
        for run in consecutive(lacking, run_chunks(self._grid.chunk_elements)):
            part = slice(run.start - first_chunk, run.stop - first_chunk)
            for chunk in run:  # refused bytes may have overwritten part of the chunk
                self._made_by.pop(chunk, None)
            self._step(run, encoded[part])
            self._made_by.update(zip(run, hashes[part], strict=True))

    def _step(self, run: range, encoded: Encoded) -> None:
        span = slice(*self._grid.span(run.start, run.stop))
        moved, before = (tuple(each_N[span] for each_N in each) for each in (self._moved, self._state.vectors))
        if not step_by_encoded(moved, before, self._codec, encoded, self._grid.chunk_elements, self._outer):
            step_into(moved, before, decoded(self._codec, self._grid, run, encoded), self._outer)

    def at(self, link: ChainLink) -> UnitState:
        """The state at this commit.

        Raises:
            LocalProtocolError: some chunks were not made.
        """
        if len(self._made_by) < self._grid.num_chunks:
            raise LocalProtocolError(f"{len(self._made_by)} chunks of a new state", f"{self._grid.num_chunks}")
        return UnitState(self._state.unit, link.commit, link.index, link.total_tokens, *self._moved)


Seen = Callable[[slice, torch.Tensor, torch.Tensor], None]
"""Sees a part of a step: its place in the vectors, and the anchor there before and after it, (n,) float32 each."""


def step_in_place(
    state: UnitState, outer: OuterStep, codec: Codec, grid: ChunkGrid, first_chunk: int, encoded: Encoded, seen: Seen
) -> None:
    """Move these chunks of the state's own vectors; nobody else may read them. `seen` is called with each part before its old values
    are gone. Raises as `Codec.decode`; then some chunks may have moved and others not.
    """
    numbers = range(first_chunk, first_chunk + len(encoded))
    for run in consecutive(numbers, run_chunks(grid.chunk_elements)):
        span, part = slice(*grid.span(run.start, run.stop)), encoded[run.start - first_chunk : run.stop - first_chunk]
        before = tuple(each_N[span] for each_N in state.vectors)
        after = moved_vectors(before, outer)
        if not step_by_encoded(after, before, codec, part, grid.chunk_elements, outer):
            step_into(after, before, decoded(codec, grid, run, part), outer)
        seen(span, before[0], after[0])
        for old_n, new_n in zip(before, after, strict=True):
            if new_n is not old_n:
                old_n.copy_(new_n)


def decoded(codec: Codec, grid: ChunkGrid, run: range, encoded: Encoded) -> torch.Tensor:
    """The values of consecutive chunks of a result, (n,) float32. Raises as `Codec.decode`."""
    begin, stop = grid.span(run.start, run.stop)
    return decode_run(codec, encoded, grid.chunk_elements, stop - begin)


def examined(codec: Codec, grid: ChunkGrid, first_chunk: int, encoded: Encoded, ahead: NextState | None) -> list[bytes]:
    """The leaf hashes of chunks that arrived, checked to be fit to apply; with `ahead` the next state is computed from them.

    Raises:
        RemoteProtocolError: bytes that do not decode, or values that are not finite.
    """
    hashes = [leaf_hash(chunk) for chunk in encoded]
    if ahead is not None:
        ahead.make(first_chunk, encoded, hashes)
        return hashes
    for run in consecutive(range(first_chunk, first_chunk + len(encoded)), run_chunks(grid.chunk_elements)):
        decoded(codec, grid, run, encoded[run.start - first_chunk : run.stop - first_chunk])
    return hashes
