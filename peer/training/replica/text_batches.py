"""Brings windows of text to a device, the next ones while it computes.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from averaging.data.shards import TokenReader
from peer.machine.device import is_on_card


class Batches:
    """Reads micro-batches for one device.

    Args:
        window: T + 1 tokens of a sequence.
        is_ahead: whether a thread reads the next micro-batch meanwhile; by default for cards only, where the copy goes beside
            computing from pinned memory.
    """

    def __init__(self, device: torch.device, window: int, *, is_ahead: bool | None = None) -> None:
        self._device, self._window = device, window
        self._is_ahead = is_on_card(device) if is_ahead is None else is_ahead
        self._thread: ThreadPoolExecutor | None = None

    def of_step(self, reader: TokenReader, parts: Sequence[tuple[int, ...]]) -> Iterator[torch.Tensor]:
        """A micro-batch for each of these parts, the windows at its starts: (B, T + 1) int64 on the device."""
        if not self._is_ahead:
            yield from (self.at(reader, part) for part in parts)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches")
        coming = self._thread.submit(self._read, reader, parts[0])
        for part in parts[1:]:
            here, coming = coming.result(), self._thread.submit(self._read, reader, part)
            yield self._placed(here)
        yield self._placed(coming.result())

    def at(self, reader: TokenReader, starts: Sequence[int]) -> torch.Tensor:
        """The windows at these starts, (B, T + 1) int64 on the device."""
        return self._placed(self._read(reader, tuple(starts)))

    def _read(self, reader: TokenReader, starts: tuple[int, ...]) -> torch.Tensor:
        rows = torch.from_numpy(np.stack([reader.read(start, self._window) for start in starts]).astype(np.int64))
        return rows.pin_memory() if self._device.type == "cuda" else rows

    def _placed(self, rows_BT: torch.Tensor) -> torch.Tensor:
        return rows_BT.to(self._device, non_blocking=True)
