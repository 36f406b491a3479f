"""A SIGTERM to a real daemon at ten moments of a round on loopback, with a small model. See parting.py.

A round follows the clock. Before each trial all peers train on one head, and the host has told how many tokens of the leaver count up
to a commit. At its moment after that commit the leaver tells how many tokens it has ready, and gets its signal. Once the others have
held two more rounds, the host tells again how many count.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Final
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from protocol.errors import MachineError
from tests.benchmarks.processes import open_children
from tests.benchmarks.recovery_swarm import TINY, await_whole, open_swarm, run_config
from tests.benchmarks.swarm import BenchPeer, Swarm, fetch, wait_until

NUM_PEERS: Final = 4
INTERVAL_S: Final = 10.0
SLOWDOWN: Final = 20.0
"""Steps are few, so that four peers and a host share a small machine."""

GONE_LIMIT_S: Final = 60.0
ROUNDS_AFTER: Final = 2
ROUNDS_LIMIT_S: Final = 120.0
MOST_TRIES: Final = 5
"""Of one moment: a commit that comes between two readings makes them useless."""


class _PeerRow(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    peer: str
    tokens_counted: int = 0


class _PeerPage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    peers: tuple[_PeerRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Parted:
    """One trial.

    Attributes:
        moment: share of a round after the last commit.
        ready_tokens: trained and not counted when the signal was sent.
        counted_tokens: of the leaver, counted after that.
        gone_s: seconds until its process had ended.
    """

    moment: float
    ready_tokens: int
    counted_tokens: int
    gone_s: float

    @property
    def is_counted(self) -> bool:
        """Whether all work counted."""
        return self.counted_tokens >= self.ready_tokens


def partings(num_moments: int) -> Iterator[Parted]:
    """A trial at each of so many moments, spread evenly over a round; each peer is the leaver in its turn.

    Raises:
        MachineError: something that must happen did not happen in time.
    """
    with tempfile.TemporaryDirectory(prefix="potluck-parting-") as folder:
        directory = Path(folder)
        config = run_config(TINY, NUM_PEERS, INTERVAL_S)
        with (
            open_children(directory / "logs") as children,
            open_swarm(children, directory / "run", config, SLOWDOWN) as swarm,
        ):
            for number in range(num_moments):
                yield _parted(swarm, swarm.peers[1 + number % NUM_PEERS], (number + 0.5) / num_moments)


def _parted(swarm: Swarm, leaver: BenchPeer, moment: float) -> Parted:
    for _ in range(MOST_TRIES):
        await_whole(swarm)
        index = _await_commit(leaver)
        end_s = time.monotonic() + moment * INTERVAL_S
        before = _counted_at(swarm, leaver, index)
        time.sleep(max(0.0, end_s - time.monotonic()))
        status = leaver.status()
        if status is None or before is None or status.index != index:
            continue
        begun_s = time.monotonic()
        leaver.running.process.send_signal(SIGTERM)
        gone_s = _gone_after_s(leaver, begun_s)
        _await_rounds(swarm, index + 1 + ROUNDS_AFTER)
        counted = _counted(swarm, leaver) - before
        swarm.start_peer(leaver.number)
        return Parted(moment, status.tokens_ready, counted, gone_s)
    raise MachineError(f"no quiet moment in {MOST_TRIES} rounds", "one round after another", "look at the peers' logs")


def _await_commit(peer: BenchPeer) -> int:
    """The index of the peer's next commit."""
    begun = _index(peer)
    if not wait_until(lambda: _index(peer) > begun, ROUNDS_LIMIT_S):
        raise MachineError(f"no commit in {ROUNDS_LIMIT_S:.0f} s", "one", "look at the peers' logs")
    return _index(peer)


def _index(peer: BenchPeer) -> int:
    status = peer.status()
    return -1 if status is None else status.index


def _counted_at(swarm: Swarm, peer: BenchPeer, index: int) -> int | None:
    """Tokens of the peer that count up to this commit; None if the host is ahead of it already, or behind for a whole round."""
    end_s = time.monotonic() + INTERVAL_S
    while time.monotonic() < end_s:
        status = swarm.host_status()
        if status is not None and status.index == index:
            counted = _counted(swarm, peer)
            again = swarm.host_status()
            return counted if again is not None and again.index == index else None
        if status is not None and status.index > index:
            return None
        time.sleep(0.1)
    return None


def _counted(swarm: Swarm, peer: BenchPeer) -> int:
    """Tokens of the peer that count, as the host tells them."""
    where = urlsplit(swarm.host_url)
    page = fetch(f"http://{where.netloc}/api/peers?search={peer.peer_id}", _PeerPage)
    if page is None:
        raise MachineError("a host that lists no peers", "one that answers", "look at its log")
    return next((row.tokens_counted for row in page.peers if row.peer == peer.peer_id), 0)


def _gone_after_s(peer: BenchPeer, begun_s: float) -> float:
    try:
        peer.running.process.wait(GONE_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        expected = f"one that ends within {GONE_LIMIT_S:.0f} s"
        raise MachineError("a peer that does not leave", expected, "look at its log") from error
    return time.monotonic() - begun_s


def _await_rounds(swarm: Swarm, index: int) -> None:
    def is_there() -> bool:
        status = swarm.host_status()
        return status is not None and status.index >= index

    if not wait_until(is_there, ROUNDS_LIMIT_S, 0.2):
        raise MachineError(
            f"no round {index} in {ROUNDS_LIMIT_S:.0f} s", "rounds of those that stay", "look at their logs"
        )
