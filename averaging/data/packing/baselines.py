"""Two baselines for the loss plot: zlib on the held-out text, and a table of byte pairs.

Both work on bytes, whatever tokens the model sees, so that runs with different tokenizers can be compared.
"""

from __future__ import annotations

import zlib
from typing import Final

import numpy as np
import numpy.typing as npt

from averaging.data.sources.texts import Text
from averaging.data.tokenizer import END, VOCAB_SIZE, ByteTokens, encode_bytes

YARDSTICK_BYTES: Final = 1 << 26
"""Upper bound on the bytes of each part that the baselines read. Counting a table does not need all of a large data set."""

_BLOCK_BYTES: Final = 1 << 20
"""Pairs are counted in blocks. One block for each short document would cost more than the counting."""


class PairCounter:
    """Counts how often each byte or end mark follows each other one."""

    def __init__(self, max_bytes: int = YARDSTICK_BYTES) -> None:
        self._left = max_bytes
        self._waiting: list[ByteTokens] = []
        self._num_waiting = 0
        self._counts = np.zeros(VOCAB_SIZE * VOCAB_SIZE, dtype=np.int64)

    def add(self, tokens: ByteTokens) -> None:
        """Count the pairs in the text, up to the bound."""
        taken = tokens[: self._left]
        self._left -= len(taken)
        if len(taken):
            self._waiting.append(taken)
            self._num_waiting += len(taken)
        if self._num_waiting > _BLOCK_BYTES:
            self._count()

    def table(self) -> npt.NDArray[np.int64]:
        """(VOCAB_SIZE, VOCAB_SIZE): row, then the byte or end mark that followed it."""
        self._count()
        return self._counts.reshape(VOCAB_SIZE, VOCAB_SIZE)

    def _count(self) -> None:
        if self._waiting:
            tokens = np.concatenate(self._waiting)
            codes = tokens[:-1].astype(np.int64) * VOCAB_SIZE + tokens[1:]
            self._counts += np.bincount(codes, minlength=VOCAB_SIZE * VOCAB_SIZE)
            # the last one is the first of the next pair
            self._waiting, self._num_waiting = [tokens[-1:]], 1


class Baselines:
    """Both baselines, fed with the text while it is packed."""

    def __init__(self, max_bytes: int = YARDSTICK_BYTES) -> None:
        self._pairs = {"train": PairCounter(max_bytes), "heldout": PairCounter(max_bytes)}
        self._zlib = zlib.compressobj(9)
        self._zlib_left = max_bytes
        self._num_bytes = self._num_compressed = 0

    def add(self, text: Text) -> None:
        """Add the next piece of text; of a document of which only some counts, that."""
        counter = self._pairs.get(text.split)
        if counter is None:
            return
        found = text.counted_data
        tokens = encode_bytes(found)
        counter.add(np.append(tokens, np.uint16(END)) if text.is_last else tokens)
        if text.split == "heldout" and self._zlib_left > 0:
            data = found[: self._zlib_left]
            self._zlib_left -= len(data)
            self._num_bytes += len(data)
            self._num_compressed += len(self._zlib.compress(data))

    def zlib_bits_per_byte(self) -> float:
        """Bits per byte of zlib at level 9 over the held-out text, without end marks."""
        num_compressed = self._num_compressed + len(self._zlib.copy().flush())
        return 8.0 * num_compressed / max(1, self._num_bytes)

    def pairs_nats_per_byte(self) -> float:
        """Cross-entropy of the held-out text under a table P(next | byte) counted on the training part with add-one smoothing."""
        counts = self._pairs["train"].table() + 1.0
        log_p = np.log(counts) - np.log(counts.sum(axis=1, keepdims=True))
        heldout = self._pairs["heldout"].table()
        return float(-(log_p * heldout).sum() / max(1, int(heldout.sum())))
