"""One end of a download over the real network, as a process of its own: `give` serves a made-up state, `take` fetches it.

`python -m tests.benchmarks.donor give FOLDER ADDRESS NUM_VALUES` prints {"peer", "addresses"} and serves until its input ends;
`python -m tests.benchmarks.donor take FOLDER ADDRESS NUM_VALUES DONORS` prints {"seconds", "bytes", "is_equal"}; DONORS is a JSON list
of what donors printed.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog
import torch
import trio

from averaging.network.libp2p.libp2p_network import NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import open_asyncio_thread
from averaging.network.seams.directory import signed_record_rule
from averaging.network.seams.interfaces import Network, Stream
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.fetching.download import DownloadContext, download_state
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import Generations
from averaging.state.partial_download import PartialDownload
from averaging.state.state import UnitState, state_root
from averaging.state.unit_log import UnitLog
from averaging.storage.file_storage import FileStorage
from protocol.identity.identity_file import open_identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.tensors.tensor_schema import ChunkGrid

UNIT: Final = UnitName("whole")
CHUNK_ELEMENTS: Final = 16384


def made_state(num_values: int) -> UnitState:
    """The state that every donor gives: the same in every process."""
    torch.set_num_threads(1)
    values_2N = torch.randn(2, num_values, generator=torch.Generator().manual_seed(1))
    return UnitState(UNIT, CommitId(b"s" * 32), 7, 1000, values_2N[0].clone(), values_2N[1].clone())


@asynccontextmanager
async def _network(folder: Path, address: str) -> AsyncIterator[Network]:
    folder.mkdir(parents=True, exist_ok=True)
    with open_identity(folder / "identity") as held:
        rule = signed_record_rule(Ed25519Verifier(), RunId(bytes(32)))
        options = NetworkOptions(P2pdOptions(held.path, (f"/ip4/{address}/tcp/0",)), rule)
        async with (
            open_asyncio_thread() as thread,
            open_libp2p_network(thread, options, held.identity.peer_id, unix_s=time.time) as network,
        ):
            yield network


async def give(folder: Path, address: str, num_values: int) -> None:
    """Serve until standard input ends."""
    state, grid, offload = made_state(num_values), ChunkGrid(num_values, CHUNK_ELEMENTS), ThreadOffload()
    storage = FileStorage(folder / "state", offload)
    generations = Generations(storage, grid, offload)
    await generations.write(state, state_root(state, grid))
    service = TransferService(UNIT, UnitLog(storage), generations, grid, lambda known: ())

    async def serve(peer: PeerId, stream: Stream) -> None:
        await service.serve(peer, await read_request(stream), stream)

    async with _network(folder, address) as network:
        network.serve_streams(FETCH_CHANNEL, serve)
        print(json.dumps({"peer": network.peer_id, "addresses": network.addresses()}), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


async def take(folder: Path, address: str, num_values: int, donors: list[dict[str, object]]) -> None:
    """Download once, to disk as a joiner does; connections are made before the clock starts."""
    state, grid, offload = made_state(num_values), ChunkGrid(num_values, CHUNK_ELEMENTS), ThreadOffload()
    wanted = {state.head: state_root(state, grid)}
    async with _network(folder, address) as network:
        for donor in donors:
            known = donor["addresses"]
            await network.add_addresses([str(one) for one in known] if isinstance(known, list) else [])
        tools = DownloadContext(
            network, offload, UNIT, grid, PartialDownload(FileStorage(folder / "state", offload), grid)
        )
        before = network.traffic().bulk_bytes_down
        begin_s = time.perf_counter()
        taken = await download_state(tools, [PeerId(str(donor["peer"])) for donor in donors], wanted)
        seconds = time.perf_counter() - begin_s
        is_equal = torch.equal(taken.anchor_N, state.anchor_N) and torch.equal(taken.momentum_N, state.momentum_N)
        num_bytes = network.traffic().bulk_bytes_down - before
        print(json.dumps({"seconds": seconds, "bytes": num_bytes, "is_equal": is_equal}), flush=True)


def main(arguments: list[str]) -> None:
    """As the module says."""
    # what it prints is for the program that started it
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    what, folder, address, num_values = arguments[0], Path(arguments[1]), arguments[2], int(arguments[3])
    if what == "give":
        trio.run(give, folder, address, num_values)
    else:
        trio.run(take, folder, address, num_values, json.loads(arguments[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
