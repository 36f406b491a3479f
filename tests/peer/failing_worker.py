"""`python -m tests.peer.failing_worker CHANNEL_FD MEMORY_FD`: the training process. It runs out of memory at its next step once it is
told so by a file, which it removes: the process that is started after it trains on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import peer.worker
from peer.training.local_training import Counters, LocalTrainer

FAILS_VARIABLE: Final = "TRAINING_FAILS"
"""Environment of a failing worker: the file that tells it. Variables that begin with POTLUCK_ are kept from training processes."""


class FailingTrainer(LocalTrainer):
    """The real one, until the file is there."""

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> Counters:
        try:
            Path(os.environ[FAILS_VARIABLE]).unlink()
        except FileNotFoundError:
            return super().step(goes_on)
        raise MemoryError("injected")


if __name__ == "__main__":
    peer.worker.LocalTrainer = FailingTrainer  # type: ignore[misc]
    sys.exit(peer.worker.main())
