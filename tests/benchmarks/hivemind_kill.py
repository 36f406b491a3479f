"""What hivemind's own DecentralizedAverager does when one of four peers is killed in mid-exchange: hung or returned, equal or not.

`python -m tests.benchmarks.hivemind_kill FOLDER RANK ...` is one averager; `kill_in_mid_exchange` starts four and kills one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from peer.demo_processes import Running
from protocol.errors import MachineError
from tests.benchmarks.processes import Children, kill_all_of
from tests.benchmarks.swarm import wait_until

NUM_PEERS: Final = 4
VICTIM: Final = NUM_PEERS - 1
START_LIMIT_S: Final = 90.0
MATCHMAKING_LIMIT_S: Final = 60.0
STRIKE_AFTER_S: Final = 1.0
PART_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class HivemindTrial:
    """What the three survivors did within the limit after the kill.

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


def kill_in_mid_exchange(
    children: Children, folder: Path, num_elements: int, exchange_s: float, limit_s: float
) -> HivemindTrial:
    """Four averagers on loopback, the fourth killed a second after it began to send, all killed at the end.

    Args:
        exchange_s: each peer's sending is paced to last about so long; hivemind itself has no cap of its upload.

    Raises:
        MachineError: they did not start, or found no group.
    """
    folder.mkdir(parents=True)
    running = [_start(children, folder, 0, num_elements, exchange_s)]
    _await_ready(folder, running, 0)
    running += [_start(children, folder, rank, num_elements, exchange_s) for rank in range(1, NUM_PEERS)]
    for rank in range(1, NUM_PEERS):
        _await_ready(folder, running, rank)
    (folder / "go").touch()
    if not wait_until((folder / f"began-{VICTIM}").exists, MATCHMAKING_LIMIT_S, 0.01):
        raise MachineError("hivemind's averagers found no group", "an exchange", f"read {running[0].log_file}")
    time.sleep(STRIKE_AFTER_S)
    kill_all_of(running[VICTIM])
    struck_s = time.time()
    results = [folder / f"result-{rank}.json" for rank in range(NUM_PEERS) if rank != VICTIM]
    wait_until(lambda: all(result.exists() for result in results), limit_s)
    for averager in running:
        kill_all_of(averager)
    told = [json.loads(result.read_text()) for result in results if result.exists()]
    return HivemindTrial(
        num_returned=len(told),
        num_successes=sum(1 for result in told if result["group"] > 0),
        are_equal=len(told) == len(results) and len({result["vector"] for result in told}) == 1,
        returned_s=max(r["unix_s"] for r in told) - struck_s if len(told) == len(results) else limit_s,
    )


def _start(children: Children, folder: Path, rank: int, num_elements: int, exchange_s: float) -> Running:
    command = [sys.executable, "-m", "tests.benchmarks.hivemind_kill", str(folder), str(rank)]
    return children.start(f"{folder.name}-{rank}", [*command, str(num_elements), str(exchange_s)], {})


def _await_ready(folder: Path, running: list[Running], rank: int) -> None:
    if not wait_until((folder / f"ready-{rank}").exists, START_LIMIT_S):
        raise MachineError(f"averager {rank} did not start", "a running averager", f"read {running[rank].log_file}")


# --- one averager -------------------------------------------------------------------------------------------------------------


def _pace_sending(folder: Path, rank: int, pause_s: float) -> None:
    """Every part waits a little before it is sent, and the first one leaves a mark for whoever wants to strike."""
    from hivemind.averaging.allreduce import AllReduceRunner

    original = AllReduceRunner._generate_input_for_peer

    async def paced(runner: Any, peer_index: int) -> AsyncIterator[Any]:
        (folder / f"began-{rank}").touch()
        async for message in original(runner, peer_index):
            await asyncio.sleep(pause_s)
            yield message

    AllReduceRunner._generate_input_for_peer = paced


def main(arguments: list[str]) -> int:
    """Average once with the others, and leave what came of it in a file."""
    import torch
    from hivemind import DHT
    from hivemind.averaging import DecentralizedAverager

    folder, rank = Path(arguments[0]), int(arguments[1])
    num_elements, exchange_s = int(arguments[2]), float(arguments[3])
    # three streams send side by side, each a quarter of the vector
    parts_per_stream = max(1, num_elements * 4 // NUM_PEERS // PART_BYTES)
    _pace_sending(folder, rank, exchange_s / parts_per_stream)
    first = folder / "address"
    initial = [] if rank == 0 else [first.read_text()]
    dht = DHT(initial_peers=initial, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if rank == 0:
        first.write_text(str(dht.get_visible_maddrs()[0]))
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
    with averager.get_tensors() as tensors:
        digest = sha256(tensors[0].numpy().tobytes()).hexdigest()
    told = {"unix_s": time.time(), "group": len(group) if group else 0, "vector": digest}
    temporary = folder / f"result-{rank}.tmp"
    temporary.write_text(json.dumps(told))
    temporary.rename(folder / f"result-{rank}.json")
    time.sleep(3600)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
