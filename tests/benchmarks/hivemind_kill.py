"""hivemind's own DecentralizedAverager when one of four peers is killed in mid-exchange: hung or returned, equal or not.

`python -m tests.benchmarks.hivemind_kill FOLDER ...` imports hivemind once and forks four averagers a trial: starting Python for each
would take most of the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from peer.demo.processes import Running
from protocol.errors import MachineError
from tests.benchmarks.processes import Children, kill_all_of, kill_family
from tests.benchmarks.swarm import wait_until

NUM_PEERS: Final = 4
VICTIM: Final = NUM_PEERS - 1
START_LIMIT_S: Final = 90.0
MATCHMAKING_LIMIT_S: Final = 60.0
STRIKE_AFTER_S: Final = 1.0
PART_BYTES: Final = 8192
BEGAN_VARIABLE: Final = "BENCH_BEGAN"


@dataclass(frozen=True, slots=True)
class HivemindTrial:
    """The outcome at the three survivors within the limit after the kill.

    Attributes:
        num_returned: whose `step` came back, with success or without.
        num_successes: whose `step` returned a group.
        are_equal: whether all of them returned and hold the same vector.
        returned_s: the last one's time since the kill, the limit when somebody hung.
    """

    num_returned: int
    num_successes: int
    are_equal: bool
    returned_s: float


class Averagers:
    """Makes groups of four averagers, out of one process that has imported hivemind. Made by `open_averagers`."""

    def __init__(self, maker: Running, folder: Path) -> None:
        self._maker = maker
        self._folder = folder

    def kill_in_mid_exchange(self, number: int, limit_s: float) -> HivemindTrial:
        """Four averagers on loopback, the fourth killed a second after it began to send, all killed at the end.

        Raises:
            MachineError: they did not start, or found no group.
        """
        folder = self._folder / str(number)
        folder.mkdir()
        self._await(folder / "pids", START_LIMIT_S)
        pids = [int(pid) for pid in (folder / "pids").read_text().split()]
        try:
            for rank in range(NUM_PEERS):
                self._await(folder / f"ready-{rank}", START_LIMIT_S)
            (folder / "go").touch()
            self._await(folder / f"began-{VICTIM}", MATCHMAKING_LIMIT_S)
            time.sleep(STRIKE_AFTER_S)
            kill_family(pids[VICTIM])
            return _outcome(folder, time.time(), limit_s)
        finally:
            for pid in pids:
                kill_family(pid)

    def _await(self, mark: Path, limit_s: float) -> None:
        if not wait_until(mark.exists, limit_s, 0.01):
            raise MachineError(f"hivemind's averagers left no {mark.name}", "one", f"read {self._maker.log_file}")


def _outcome(folder: Path, struck_s: float, limit_s: float) -> HivemindTrial:
    results = [folder / f"result-{rank}.json" for rank in range(NUM_PEERS) if rank != VICTIM]
    wait_until(lambda: all(result.exists() for result in results), limit_s)
    reported = [json.loads(result.read_text()) for result in results if result.exists()]
    return HivemindTrial(
        num_returned=len(reported),
        num_successes=sum(1 for result in reported if result["group"] > 0),
        are_equal=len(reported) == len(results) and len({result["vector"] for result in reported}) == 1,
        returned_s=max(r["unix_s"] for r in reported) - struck_s if len(reported) == len(results) else limit_s,
    )


@contextmanager
def open_averagers(children: Children, folder: Path, num_elements: int, exchange_s: float) -> Iterator[Averagers]:
    """Start the process that makes them.

    Args:
        exchange_s: each peer's sending is paced to last about so long; hivemind itself has no cap of its upload.
    """
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "tests.benchmarks.hivemind_kill", str(folder), str(num_elements), str(exchange_s)]
    maker = children.start("hivemind", command, {})
    try:
        yield Averagers(maker, folder)
    finally:
        kill_all_of(maker)


# --- the averagers ------------------------------------------------------------------------------------------------------------


def _pace_sending(pause_s: float) -> None:
    """Every part waits a little before it is sent, and the first one leaves a mark for whoever wants to strike."""
    from hivemind.averaging.allreduce import AllReduceRunner

    original = AllReduceRunner._generate_input_for_peer

    async def paced(runner: Any, peer_index: int) -> AsyncIterator[Any]:
        Path(os.environ[BEGAN_VARIABLE]).touch()
        async for message in original(runner, peer_index):
            await asyncio.sleep(pause_s)
            yield message

    AllReduceRunner._generate_input_for_peer = paced


def main(arguments: list[str]) -> int:
    """Import once; for every folder that appears, four children that average there once. Ends by being killed."""
    import hivemind.averaging
    import torch

    folder, num_elements, exchange_s = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    # three streams send side by side, each a quarter of the vector
    parts_per_stream = max(1, num_elements * 4 // NUM_PEERS // PART_BYTES)
    _pace_sending(exchange_s / parts_per_stream)
    torch.set_num_threads(1)
    print(f"hivemind {hivemind.__version__}", flush=True)
    number = 0
    while True:
        trial = folder / str(number)
        if not trial.exists():
            time.sleep(0.02)
            continue
        pids = [_fork(trial, rank, num_elements) for rank in range(NUM_PEERS)]
        (trial / "pids.tmp").write_text(" ".join(map(str, pids)))
        (trial / "pids.tmp").rename(trial / "pids")
        number += 1


def _fork(folder: Path, rank: int, num_elements: int) -> int:
    """A child in a session of its own that averages; its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    try:
        os.environ[BEGAN_VARIABLE] = str(folder / f"began-{rank}")
        _average(folder, rank, num_elements)
    finally:
        os._exit(1)


def _average(folder: Path, rank: int, num_elements: int) -> None:
    """Average once with the others, and leave what came of it in a file."""
    import torch
    from hivemind import DHT
    from hivemind.averaging import DecentralizedAverager

    first = folder / "address"
    while rank and not first.exists():
        time.sleep(0.02)
    initial = [] if rank == 0 else [first.read_text()]
    dht = DHT(initial_peers=initial, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if rank == 0:
        (folder / "address.tmp").write_text(str(dht.get_visible_maddrs()[0]))
        (folder / "address.tmp").rename(first)
    vector = torch.full((num_elements,), float(rank))
    averager = DecentralizedAverager(
        [vector],
        dht,
        start=True,
        prefix="bench",
        target_group_size=NUM_PEERS,
        part_size_bytes=PART_BYTES,
        bandwidth=1e6,
    )
    (folder / f"ready-{rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    try:
        group = averager.step()
    except Exception as error:  # noqa: BLE001 - whatever it raises is the answer to what it does
        print(repr(error), flush=True)
        group = None
    _tell(folder, rank, len(group) if group else 0, averager)
    time.sleep(3600)


def _tell(folder: Path, rank: int, group_size: int, averager: Any) -> None:
    with averager.get_tensors() as tensors:
        digest = sha256(tensors[0].numpy().tobytes()).hexdigest()
    reported = {"unix_s": time.time(), "group": group_size, "vector": digest}
    temporary = folder / f"result-{rank}.tmp"
    temporary.write_text(json.dumps(reported))
    temporary.rename(folder / f"result-{rank}.json")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
