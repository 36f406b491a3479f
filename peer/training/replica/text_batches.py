"""Brings windows of text to a device, the next ones while it computes.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from averaging.data.shard_form import ShardForm
from averaging.data.token_reader import TokenReader
from averaging.data.tokenizer import Bits
from averaging.models.attention import documents_of
from peer.machine.device import is_on_card
from peer.models.chunked_loss import NOT_COUNTED
from peer.models.decoder import ALL_COUNT, LossMarks


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Windows of text on a device.

    Attributes:
        tokens_BT: (B, T + 1) int64.
        targets_BT: (B, T) int64, `NOT_COUNTED` for tokens that do not count; None if all of them do.
        places_BT: (B, T) int64, positions in documents that must not see each other; None if all tokens of a window do.
    """

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor | None = None
    places_BT: torch.Tensor | None = None

    @property
    def marks(self) -> LossMarks:
        """The facts about its tokens, for its own mean loss."""
        return self.marks_within(0)

    def marks_within(self, num_counted: int) -> LossMarks:
        """The same within a step in which so many tokens count."""
        if self.targets_BT is None:
            return ALL_COUNT
        return LossMarks(num_counted, None if self.places_BT is None else documents_of(self.places_BT))


def text_batch(reader: TokenReader, starts: Sequence[int], window: int) -> TextBatch:
    """The windows of T + 1 tokens at these starts, in the machine's memory."""

    def stacked(rows: Iterable[npt.NDArray[np.generic]]) -> torch.Tensor:
        return torch.from_numpy(np.stack(list(rows)).astype(np.int64))

    tokens_BT = stacked(reader.read(start, window) for start in starts)
    if not reader.is_marked:
        return TextBatch(tokens_BT)
    counted_BT = stacked(reader.targets_counted(start, window) for start in starts).bool()
    targets_BT = tokens_BT[:, 1:].masked_fill(~counted_BT, NOT_COUNTED)
    if not reader.form.has_starts:
        return TextBatch(tokens_BT, targets_BT)
    return TextBatch(tokens_BT, targets_BT, stacked(_places(reader.begins(start, window - 1)) for start in starts))


def unread_batch(tokens_BT: torch.Tensor, form: ShardForm) -> TextBatch:
    """Tokens in the form of a run's batches, as if each window were one document and counted whole."""
    inputs_BT, targets_BT = tokens_BT[:, :-1], tokens_BT[:, 1:]
    if not form.num_planes:
        return TextBatch(tokens_BT)
    places_T = torch.arange(inputs_BT.shape[1], device=tokens_BT.device)
    return TextBatch(tokens_BT, targets_BT, places_T.expand(inputs_BT.shape) if form.has_starts else None)


def _places(begins_T: Bits) -> npt.NDArray[np.int64]:
    """(T,): the position of each token in its document, of which the first may have begun before."""
    numbers_T = np.arange(len(begins_T))
    places_T: npt.NDArray[np.int64] = numbers_T - np.maximum.accumulate(np.where(begins_T, numbers_T, 0))
    return places_T


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

    def of_step(self, reader: TokenReader, parts: Sequence[tuple[int, ...]]) -> Iterator[TextBatch]:
        """A micro-batch for each of these parts, the windows at its starts, on the device."""
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

    def at(self, reader: TokenReader, starts: Sequence[int]) -> TextBatch:
        """The windows at these starts, on the device."""
        return self._placed(self._read(reader, tuple(starts)))

    def _read(self, reader: TokenReader, starts: tuple[int, ...]) -> TextBatch:
        found = text_batch(reader, starts, self._window)
        return pinned(found) if self._device.type == "cuda" else found

    def _placed(self, batch: TextBatch) -> TextBatch:
        return _moved(batch, lambda rows: rows.to(self._device, non_blocking=True))


def pinned(batch: TextBatch) -> TextBatch:
    """The same in pinned memory, from which copies go to a CUDA card beside computing."""
    return _moved(batch, torch.Tensor.pin_memory)


def _moved(batch: TextBatch, move: Callable[[torch.Tensor], torch.Tensor]) -> TextBatch:
    targets_BT, places_BT = batch.targets_BT, batch.places_BT
    return TextBatch(
        move(batch.tokens_BT),
        None if targets_BT is None else move(targets_BT),
        None if places_BT is None else move(places_BT),
    )
