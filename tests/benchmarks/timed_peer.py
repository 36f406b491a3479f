"""`python -m tests.benchmarks.timed_peer join ...`: a peer whose training process is timed (timed_worker.py)."""

from __future__ import annotations

import sys
from typing import Final

import peer.training.worker_process
import potluck

TIMED_PEER: Final = "tests.benchmarks.timed_peer"
"""The module to run in the place of potluck."""

if __name__ == "__main__":
    peer.training.worker_process.WORKER_MODULE = "tests.benchmarks.timed_worker"
    sys.argv[0] = "potluck"
    potluck.main()
