"""`python -m tests.benchmarks.doomed_peer join ...`: a peer that kills itself at a named point of a commit that it leads.

The steps of a commit are milliseconds apart, too short to be hit from outside by reading logs. Here the daemon is the real one, with
two things wrapped before it starts: what its log of rounds writes, and the signing of its round messages, which tells who we are and
what we have said. A point is a durable write and a side of it: "before" means that nothing of it is on disk, "after" that all of it
is, and that nothing has followed from it.

    proposed    the ballot, written before anybody hears of the proposal
    settled     the first result that comes in once the record went out to be acked
    acked       our own ack
    certified   the certificate

Nothing happens until the file $POTLUCK_DOOM names a point (points.py); whoever of all peers reaches it first takes the file away, says
so, and is gone. Only openers of first attempts are meant: who takes over is not struck again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import peer.training.worker_process
import potluck
from peer.training.worker_process import EarlyWorker, early_worker


@contextmanager
def _doomed_worker() -> Iterator[EarlyWorker | None]:
    """The worker as the front door starts it, and then, as it would, the daemon's imports."""
    with early_worker() as worker:
        from tests.benchmarks.doom import install

        install()
        yield worker


def doom() -> None:
    """Of this process, before it is a peer."""
    setattr(peer.training.worker_process, "early_worker", _doomed_worker)  # noqa: B010 - mypy takes no plain assignment


def main() -> None:
    """The real program, doomed."""
    doom()
    sys.argv[0] = "potluck"
    potluck.main()


if __name__ == "__main__":
    main()
