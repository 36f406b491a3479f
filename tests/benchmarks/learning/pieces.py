"""A training in pieces: each goes on from the file that the one before left, and leaves one when its time is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.benchmarks.convergence_training import Corpus, Outcome, Training
from tests.benchmarks.convergence_ways import Trial
from tests.benchmarks.learning.round_trace import RoundTrace
from tests.benchmarks.learning.saved_training import restore, save

SAVE_EVERY_S: Final = 120.0
"""So much is lost at most where the process is killed."""


@dataclass(frozen=True)
class Piece:
    """A part of one training.

    Attributes:
        folder: of the file with the training's state, named by the trial's key.
    """

    trial: Trial
    text: Corpus
    folder: Path
    device: str = "cpu"

    @property
    def path(self) -> Path:
        """The file between two pieces."""
        return self.folder / f"{self.trial.key}.safetensors"

    def run_until(self, stops_at_s: float, clock: Callable[[], float] = time.monotonic) -> Outcome | None:
        """Train until the end, whose result is returned, or until this time by the clock, after at least one step: then None.

        Raises:
            BadSavedTrainingError: the file of the piece before is of no use.
            OSError: the file cannot be written.
        """
        training = Training(self.trial, self.text, self.device, RoundTrace())
        if self.path.exists():
            restore(training, self.path)
        saved_at_s = clock()
        while not training.is_over:
            training.advance()
            now_s = clock()
            if now_s >= stops_at_s and not training.is_over:
                save(training, self.path)
                return None
            if now_s - saved_at_s >= SAVE_EVERY_S:
                save(training, self.path)
                saved_at_s = now_s
        outcome = training.outcome()
        self.path.unlink(missing_ok=True)
        return outcome
