"""Notes of training processes beside their progress, over all of their lives: speed, compiling, skipped steps, card faults."""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise, zip_longest
from typing import Final

import structlog

from peer.training.plan.card_report import CardReport, with_notes
from peer.training.worker_channel import Failed, OutOfMemory, Progress

log = structlog.get_logger()

MOST_CARD_FAULTS: Final = 3
"""Lives in a row that a card ended before a step. Then training goes on without the card."""

SPEED_WINDOW_S: Final = 10.0


class Speed:
    """The speed of training, from the tokens that were counted lately."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, tokens_trained: int) -> None:
        """So many tokens since the start were trained by now. A process that obeys a command tells the count of its last step again,
        which is no step.
        """
        if not self._counts or tokens_trained != self._counts[-1][1]:
            self._counts.append((now_s, tokens_trained))

    def tokens_per_s(self, now_s: float) -> float:
        """Over the window that ends now; 0 before two counts."""
        while len(self._counts) > 2 and now_s - self._counts[0][0] > SPEED_WINDOW_S:
            self._counts.popleft()
        if len(self._counts) < 2:
            return 0.0
        (begin_s, begin), (_, end) = self._counts[0], self._counts[-1]
        return max(0, end - begin) / max(1e-3, now_s - begin_s)

    @property
    def slowest_s(self) -> float:
        """The longest time between two steps; infinite before two."""
        times_s = [time_s for time_s, _ in self._counts]
        return max((later - earlier for earlier, later in pairwise(times_s)), default=math.inf)


class WorkerNotes:
    """Collects the notes of one life after another."""

    def __init__(self) -> None:
        self.compile_note = ""
        """Why layers run eagerly although the plan compiles them, in one line."""

        self.wire_note = ""
        """Why values go a slow way between the cards of one replica, in one line."""

        self.skipped_steps = 0
        """Steps that were not taken, since their gradient was not finite."""

        self.on_cpu_because = ""
        """Why training is on the CPU and not on the card; empty while it is where it belongs."""

        self.source_tokens: tuple[int, ...] = ()
        """Tokens of each source that were trained on."""

        self._skipped_before = 0
        self._read_before: tuple[int, ...] = ()
        self._card_faults = 0
        self._card: str | None = None

    @property
    def leaves_card(self) -> bool:
        """Whether the card failed so often that the next life is better without it."""
        return self._card_faults >= MOST_CARD_FAULTS

    def added_to(self, report: CardReport | None) -> CardReport | None:
        """The report on the card with these notes, for the owner."""
        return with_notes(report, self.compile_note, self.skipped_steps, self.source_tokens)

    def take(self, event: Progress) -> None:
        """Note what a running process says."""
        self._card = event.card
        if event.card:
            self.on_cpu_because = ""
        if event.busy_s and event.card:
            self._card_faults = 0
        if event.compile_note not in ("", self.compile_note):  # a later life is told to try no more, and has no reason
            self.compile_note = event.compile_note
            log.info("layers_not_compiled", reason=self.compile_note)
        if event.wire_note not in ("", self.wire_note):
            self.wire_note = event.wire_note
            log.info("cards_linked_slowly", reason=self.wire_note)
        skipped = self._skipped_before + event.skipped_steps
        if skipped > self.skipped_steps and skipped.bit_count() == 1:  # a line for the first, then ever fewer
            log.warning("step_skipped", reason="its gradient was not finite; nothing was changed", skipped=skipped)
        self.skipped_steps = skipped
        pairs = zip_longest(self._read_before, event.source_tokens, fillvalue=0)
        self.source_tokens = tuple(before + now for before, now in pairs)

    def left_card(self, *, is_on_cpu: bool) -> None:
        """The next life is without the card that failed, on others or on the CPU."""
        self._card_faults = 0
        self.on_cpu_because = self.on_cpu_because if is_on_cpu else ""

    def died(self, cause: OutOfMemory | Failed | None) -> bool:
        """Note the end of a life. Returns whether the next one may be on another device, with a micro-batch of its own."""
        self._skipped_before, self._read_before = self.skipped_steps, self.source_tokens
        if not isinstance(cause, Failed) or not cause.is_of_card:
            return False
        self._card_faults += 1
        is_left = cause.is_gone or self.leaves_card
        self.on_cpu_because = cause.reason if is_left or self._card else ""
        return is_left
