"""The text of a stage's micro-batches. On a card the next one is read, into pinned memory, while the present one is computed.

Shapes: B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from averaging.data.assignment import SourceSpan, heldout_windows, step_windows
from averaging.data.token_reader import TokenReader
from peer.machine.device import is_on_card
from peer.pipeline.stage.lane_compute import Targets
from peer.pipeline.stage.stage_channel import StagePlan
from peer.training.replica.text_batches import TextBatch, pinned, text_batch
from protocol.pipeline.stage_machine import LaneConfig, Point


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A micro-batch of a lane at a point. A `number` from `num_micro_batches` on is one of held-out text."""

    lane: int
    at: Point
    number: int

    def next(self, lanes: LaneConfig) -> TextPlace:
        """The micro-batch that the lane needs after it, unless it goes back to a snapshot."""
        is_measured = self.at.step == 0
        if self.number + 1 < lanes.num_micro_batches + lanes.heldout_passes * is_measured:
            return TextPlace(self.lane, self.at, self.number + 1)
        is_over = self.at.step + 1 == lanes.inner_steps
        return TextPlace(self.lane, Point(self.at.round + is_over, 0 if is_over else self.at.step + 1), 0)


class StageTexts:
    """Reads the text that the first and the last stage need. The run's seed, lane and step tell which, so any peer can compute it.

    Args:
        is_ahead: whether a thread reads the next micro-batch; by default for cards only.
    """

    def __init__(self, plan: StagePlan, device: torch.device, *, is_ahead: bool | None = None) -> None:
        self._plan, self._lanes, self._device = plan, plan.lanes, device
        self._is_ahead = is_on_card(device) if is_ahead is None else is_ahead
        self._train = _reader(plan, plan.train_shards, plan.train_spans)
        self._heldout = _reader(plan, plan.heldout_shards, plan.heldout_spans)
        self._sequences = plan.inner.batch_tokens // plan.model.context_tokens
        self._here: tuple[TextPlace, tuple[TextBatch, int]] | None = None
        self._coming: tuple[TextPlace, Future[tuple[TextBatch, int]]] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def tokens_of(self, lane: int, at: Point, number: int) -> torch.Tensor:
        """(B, T + 1) int64 of one micro-batch. Raises StorageError."""
        return self._text_at(TextPlace(lane, at, number))[0].tokens_BT

    def targets_of(self, lane: int, at: Point, number: int) -> Targets:
        """The targets of one micro-batch, and their weight among those of its step, or of the held-out text."""
        batch, num_counted = self._text_at(TextPlace(lane, at, number))
        targets_BT = batch.tokens_BT[:, 1:] if batch.targets_BT is None else batch.targets_BT
        weight = float((targets_BT >= 0).sum())
        return Targets(targets_BT, weight, weight / max(1, num_counted))

    def _text_at(self, place: TextPlace) -> tuple[TextBatch, int]:
        """The text of one micro-batch, and how many tokens count in all micro-batches of its step."""
        if self._here is not None and self._here[0] == place:
            return self._here[1]
        coming, self._coming = self._coming, None
        found = coming[1].result() if coming is not None and coming[0] == place else self._read(place)
        self._here = (place, found)
        if self._is_ahead:
            self._begin_to_read(place.next(self._lanes))
        return found

    def _begin_to_read(self, place: TextPlace) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="stage text")
        self._coming = (place, self._thread.submit(self._read, place))

    def _read(self, place: TextPlace) -> tuple[TextBatch, int]:
        plan, lanes, window = self._plan, self._lanes, self._plan.model.context_tokens + 1
        rows, number, reader = self._sequences // lanes.num_micro_batches, place.number, self._train
        if number >= lanes.num_micro_batches:
            number, reader = number - lanes.num_micro_batches, self._heldout
            starts = heldout_windows(rows * lanes.heldout_passes, reader.spans, window)
        else:
            step = place.at.round * lanes.inner_steps + place.at.step
            starts = step_windows(plan.seed, f"lane {place.lane}", step, self._sequences, reader.spans, window).starts
        batch = text_batch(reader, starts[number * rows : (number + 1) * rows], window)
        return (
            pinned(batch) if self._device.type == "cuda" else batch,
            reader.num_counted(starts, window) if reader.is_marked else 0,
        )


def _reader(plan: StagePlan, shards: Sequence[Path], spans: Sequence[SourceSpan]) -> TokenReader:
    """A stage in the middle has no shards."""
    return TokenReader(shards, plan.token_bytes, has_counts=plan.has_counts, spans=spans if shards else ())
