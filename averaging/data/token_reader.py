"""Reads packed text: windows of tokens, which of them count in a loss, and where documents begin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from averaging.data.assignment import SourceSpan
from averaging.data.shard_form import ShardForm, TokenBytes
from averaging.data.tokenizer import Bits, Tokens
from protocol.errors import StorageError


class TokenReader:
    """One part of the data set as a single long sequence of tokens, mapped from its shards.

    Args:
        paths: the shards, in order.
        token_bytes: of one token.
        has_counts, has_starts: the planes that the shards have (averaging/data/shard_form.py).
        spans: the sources of a mixture; empty for all tokens as one source.

    Raises:
        StorageError: a shard that has not the length of such a shard.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        token_bytes: TokenBytes = 2,
        *,
        has_counts: bool = False,
        has_starts: bool = False,
        spans: Sequence[SourceSpan] = (),
    ) -> None:
        self.form = ShardForm(token_bytes, has_counts, has_starts)
        self._shards: list[Tokens] = []
        self._planes: list[list[npt.NDArray[np.uint8]]] = []
        for path in paths:
            self._map(path)
        self._starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        self.spans = tuple(spans) or (SourceSpan(0, self.num_tokens, 1.0),)

    def _map(self, path: Path) -> None:
        num_bytes, form = path.stat().st_size, self.form
        num_tokens = form.num_tokens(num_bytes)
        if num_tokens is None:
            raise StorageError(f"{path} has {num_bytes} bytes", "a whole shard of the run's data", "remove the file")
        # bytes after the tokens are planes; a file of tokens alone may be empty of none
        self._shards.append(np.memmap(path, dtype=f"<u{form.token_bytes}", mode="r", shape=(num_tokens,)))
        begin, length = num_tokens * form.token_bytes, form.plane_bytes(num_tokens)
        self._planes.append(
            [
                np.memmap(path, dtype=np.uint8, mode="r", offset=begin + number * length, shape=(length,))
                for number in range(form.num_planes)
            ]
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return int(self._starts[-1])

    @property
    def is_marked(self) -> bool:
        """Whether some tokens may not count in a loss."""
        return self.form.num_planes > 0

    def read(self, start: int, num_tokens: int) -> Tokens:
        """(num_tokens,) uint16 or uint32 from `start`, across shards."""
        parts: list[Tokens] = []
        for shard, begin, stop in self._spans(start, num_tokens):
            parts.append(np.asarray(self._shards[shard][begin:stop]))
        return np.concatenate(parts)

    def counted(self, start: int, num_tokens: int) -> Bits:
        """(num_tokens,): whether each token counts in a loss where it is the next one. All do if the data set does not say."""
        if not self.form.has_counts:
            return np.ones(num_tokens, dtype=np.bool_)
        return self._bits(0, start, num_tokens)

    def begins(self, start: int, num_tokens: int) -> Bits:
        """(num_tokens,): whether each token begins a document. None does if the data set does not say."""
        if not self.form.has_starts:
            return np.zeros(num_tokens, dtype=np.bool_)
        return self._bits(self.form.num_planes - 1, start, num_tokens)

    def targets_counted(self, start: int, num_tokens: int) -> Bits:
        """(num_tokens - 1,): whether the window's second and later tokens count in its loss. The first token of
        an isolated document does not, for nothing that predicts it is in sight.
        """
        counted = self.counted(start + 1, num_tokens - 1)
        return counted & ~self.begins(start + 1, num_tokens - 1)

    def num_counted(self, starts: Sequence[int], num_tokens: int) -> int:
        """Tokens that count in the losses of the windows at these starts."""
        return sum(int(self.targets_counted(start, num_tokens).sum()) for start in starts)

    def aligned(self, starts: Sequence[int], num_tokens: int) -> tuple[int, ...]:
        """These starts of windows, each moved back to the beginning of its document if that is less than a window away. They stay as
        they are if the data set does not say where documents begin.
        """
        if not self.form.has_starts:
            return tuple(starts)
        return tuple(self._aligned(start, num_tokens) for start in starts)

    def _aligned(self, start: int, num_tokens: int) -> int:
        first = max(0, start - num_tokens + 1)
        found = np.flatnonzero(self.begins(first, start + 1 - first))
        return first + int(found[-1]) if len(found) else start

    def _bits(self, plane: int, start: int, num_tokens: int) -> Bits:
        parts: list[Bits] = [np.zeros(0, dtype=np.bool_)]
        for shard, begin, stop in self._spans(start, num_tokens):
            first = begin // 8
            packed = np.asarray(self._planes[shard][plane][first : -(-stop // 8)])
            bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
            parts.append(bits[begin - 8 * first : stop - 8 * first])
        return np.concatenate(parts)

    def _spans(self, start: int, num_tokens: int) -> list[tuple[int, int, int]]:
        """The shards that hold these tokens: number, first token and end within each."""
        spans = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while num_tokens > 0:
            begin = start - int(self._starts[shard])
            length = min(num_tokens, len(self._shards[shard]) - begin)
            spans.append((shard, begin, begin + length))
            start, num_tokens, shard = start + length, num_tokens - length, shard + 1
        return spans
