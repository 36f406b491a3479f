"""`python -m tests.benchmarks.hivemind_baseline FOLDER RANK PEERS VALUES ADDRESS COMPRESSION`: one of hivemind's own averagers, as it
comes: parts of 512 KiB, each round with its matchmaking, everybody wanted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Final

from tests.benchmarks.allreduce_files import await_order, ready_file, seed_of, sleep_until, write_result, write_whole

COMPRESSIONS: Final = {"fp32": "NoCompression", "fp16": "Float16Compression"}
BANDWIDTH: Final = 1e9
STEP_TIMEOUT_S: Final = 120.0


def main(arguments: list[str]) -> int:
    """Trial after trial; ends by being killed."""
    import hivemind
    import torch

    folder, rank, num_peers, num_elements = Path(arguments[0]), *map(int, arguments[1:4])
    address, compression = arguments[4], COMPRESSIONS[arguments[5]]
    torch.set_num_threads(1)
    first = folder / "address"
    while rank and not first.exists():
        time.sleep(0.02)
    initial = [] if rank == 0 else [first.read_text()]
    dht = hivemind.DHT(initial_peers=initial, start=True, host_maddrs=[f"/ip4/{address}/tcp/0"])
    if rank == 0:
        own = [str(found) for found in dht.get_visible_maddrs()]
        write_whole(first, next(found for found in own if f"/ip4/{address}/" in found))
    values_N = torch.randn(num_elements, generator=torch.Generator().manual_seed(seed_of(rank)))
    averager = hivemind.averaging.DecentralizedAverager(
        [values_N.clone()],
        dht,
        start=True,
        prefix="bench",
        target_group_size=num_peers,
        min_group_size=num_peers,
        bandwidth=BANDWIDTH,
        compression=getattr(hivemind.compression, compression)(),
    )
    write_whole(ready_file(folder, rank), "")
    number = 0
    while True:
        begins_s = await_order(folder, number)
        with averager.get_tensors() as tensors:
            tensors[0].copy_(values_N)
        sleep_until(begins_s)
        group = _averaged(averager)
        write_result(folder, rank, number, {"began_s": begins_s, "ended_s": time.time(), "group": group})
        number += 1


def _averaged(averager: object) -> int:
    """One round; the size of the group, 0 where there was none."""
    try:
        group = averager.step(timeout=STEP_TIMEOUT_S)  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001 - whatever it raises is the answer to what it does
        print(repr(error), flush=True)
        return 0
    return len(group) if group else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
