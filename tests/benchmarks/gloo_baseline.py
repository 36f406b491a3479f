"""`python -m tests.benchmarks.gloo_baseline FOLDER RANK PEERS VALUES ADDRESS PORT`: torch's gloo all-reduce of float32, one process a
member: clear text on plain sockets, nobody may die. The bound of what two cores can do without a codec.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as distributed

from tests.benchmarks.allreduce_files import await_order, ready_file, seed_of, sleep_until, write_result, write_whole

TIMEOUT_S = 600.0


def main(arguments: list[str]) -> int:
    """Trial after trial; ends by being killed."""
    folder, rank, num_peers, num_elements = Path(arguments[0]), *map(int, arguments[1:4])
    address, port = arguments[4], int(arguments[5])
    torch.set_num_threads(1)
    store = distributed.TCPStore(address, port, num_peers, rank == 0, timedelta(seconds=TIMEOUT_S))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_peers)
    values_N = torch.randn(num_elements, generator=torch.Generator().manual_seed(seed_of(rank)))
    vector_N = values_N.clone()
    distributed.all_reduce(vector_N)  # connections are made
    write_whole(ready_file(folder, rank), "")
    number = 0
    while True:
        begins_s = await_order(folder, number)
        vector_N.copy_(values_N)
        sleep_until(begins_s)
        distributed.all_reduce(vector_N)
        vector_N /= num_peers
        write_result(folder, rank, number, {"began_s": begins_s, "ended_s": time.time()})
        number += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
