"""`python -m tests.benchmarks.allreduce_peer join ...`: a peer that hands the rounds given vectors when it is told to.

The daemon is the real one, with its network, credentials, rounds, log and generations. There is no training process: a trainer in the
daemon gives `anchor - delta`, where delta is noise from the peer's rank, made before the round is ordered. allreduce_marks.py has the
marks of each step of a round; allreduce_files.py says how trials are ordered and told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import peer.training.worker_process
import potluck
from peer.training.worker_process import EarlyWorker

FOLDER_VARIABLE: Final = "BENCH_ALLREDUCE_FOLDER"
TOKENS: Final = 1000
"""The weight of each member's contribution."""


@contextmanager
def _no_worker() -> Iterator[EarlyWorker | None]:
    """In the place of the training process; then, as the front door would, the daemon's imports."""
    install()
    yield None


def _rank(arguments: Sequence[str]) -> int:
    """From 0, by the peer's folder, which ends with its number."""
    return int(arguments[arguments.index("--state-dir") + 1].rpartition("-")[2]) - 1


def install() -> None:
    """Give this process's daemon a trainer and a service of the benchmark."""
    import torch
    import trio

    import peer.daemon
    import peer.session.build_rounds
    import peer.session.run_layout
    from averaging.rounds.unit_service import RoundService
    from peer.status.reporting import Reporter
    from peer.training.peer_trainer import PeerTrainer
    from tests.benchmarks import allreduce_marks
    from tests.benchmarks.allreduce_trainer import Desk, GivenTrainer

    torch.set_num_threads(1)
    desk = Desk(Path(os.environ[FOLDER_VARIABLE]), _rank(sys.argv), TOKENS)
    allreduce_marks.install(desk.marks)

    @asynccontextmanager
    async def given_trainer(
        plan: Any, layout: Any, anchor_N: torch.Tensor, *_rest: object
    ) -> AsyncIterator[PeerTrainer]:
        trainer = GivenTrainer(desk, anchor_N)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            yield trainer
            nursery.cancel_scope.cancel()

    class SeenService(RoundService):
        def __init__(self, config: Any, chain: Any, open_round: Any, tools: Any, rounds: Any) -> None:
            super().__init__(config, chain, open_round, tools, rounds)
            desk.see(self, tools.network)

    class SeenReporter(Reporter):
        def __init__(self, client: Any, *rest: Any) -> None:
            super().__init__(client, *rest)
            desk.see_host(client)

    setattr(peer.daemon, "Reporter", SeenReporter)  # noqa: B010
    setattr(peer.session.run_layout, "open_trainer", given_trainer)  # noqa: B010 - mypy takes no plain assignment
    setattr(peer.session.build_rounds, "RoundService", SeenService)  # noqa: B010


def main() -> None:
    """The real program with given vectors."""
    setattr(peer.training.worker_process, "early_worker", _no_worker)  # noqa: B010
    sys.argv[0] = "potluck"
    potluck.main()


if __name__ == "__main__":
    main()
