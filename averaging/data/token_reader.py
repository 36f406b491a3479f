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
    """One part of the data set as a single long sequence of tokens, read from its shards.

    A shard is open only while it is read. So the number of shards is not bound by the number of files that a process may have open,
    and a shard that is cut or lost meanwhile is an error and no crash, as it would be of a mapped file.

    Args:
        paths: the shards, in order.
        token_bytes: of one token.
        has_counts, has_starts: the planes that the shards have (averaging/data/shard_form.py).
        spans: the sources of a mixture; empty for all tokens as one source.

    Raises:
        StorageError: a shard is not there, or has not the length of such a shard. Reading raises it, too.
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
        self._paths = tuple(paths)
        self._type = np.dtype(f"<u{token_bytes}")
        self._starts = np.cumsum([0, *(_num_tokens(path, self.form) for path in self._paths)])
        self.spans = tuple(spans) or (SourceSpan(0, self.num_tokens, 1.0),)

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
        tokens = np.empty(num_tokens, dtype=self._type)
        done = 0
        for shard, begin, stop in self._spans(start, num_tokens):
            room = tokens[done : done + stop - begin]
            _read_into(self._paths[shard], begin * self._type.itemsize, room.view(np.uint8))
            done += len(room)
        return tokens

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
            packed = np.empty(-(-stop // 8) - first, dtype=np.uint8)
            _read_into(self._paths[shard], self._plane_begin(shard, plane) + first, packed)
            bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
            parts.append(bits[begin - 8 * first : stop - 8 * first])
        return np.concatenate(parts)

    def _plane_begin(self, shard: int, plane: int) -> int:
        num_tokens = self._length(shard)
        return num_tokens * self.form.token_bytes + plane * self.form.plane_bytes(num_tokens)

    def _length(self, shard: int) -> int:
        return int(self._starts[shard + 1] - self._starts[shard])

    def _spans(self, start: int, num_tokens: int) -> list[tuple[int, int, int]]:
        """The shards that hold these tokens: number, first token and end within each."""
        spans = []
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        while num_tokens > 0:
            begin = start - int(self._starts[shard])
            length = min(num_tokens, self._length(shard) - begin)
            spans.append((shard, begin, begin + length))
            start, num_tokens, shard = start + length, num_tokens - length, shard + 1
        return spans


def _num_tokens(path: Path, form: ShardForm) -> int:
    try:
        num_bytes = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error
    num_tokens = form.num_tokens(num_bytes)
    if num_tokens is None:
        raise StorageError(f"{path} has {num_bytes} bytes", "a whole shard of the run's data", "remove the file")
    return num_tokens


def _read_into(path: Path, offset_bytes: int, values: npt.NDArray[np.uint8]) -> None:
    room = values.data
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset_bytes)
            while room:
                num_bytes = file.readinto(room)
                if not num_bytes:
                    raise _unreadable(path, "it ends too early")
                room = room[num_bytes:]
    except OSError as error:
        raise _unreadable(path, str(error.strerror)) from error


def _unreadable(path: Path, why: str) -> StorageError:
    return StorageError(
        f"{path} cannot be read ({why})", "a shard of the run's data", "start again: it is fetched anew"
    )
