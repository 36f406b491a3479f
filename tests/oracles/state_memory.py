"""Memory that is taken for a state on each path that loads, fetches, writes or checks one, as the kernel counts it.

The program forks a child for each path. The child goes the path with a small state first, so that code and libraries are in memory.
Then it forgets its peak and goes it with a large one. The growth of the peak is the result.
"""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import numpy as np
import psutil
import torch
import trio

from averaging.data.start_weights import StartShard
from averaging.models.llama.config import LlamaConfig
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.fetching.download import DownloadContext, download_state
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, TransferService, read_request
from averaging.state.generations import Generations
from averaging.state.partial_download import PartialDownload
from averaging.state.start_state import start_root, start_state
from averaging.state.state import UnitState, state_chunks, state_root
from averaging.storage.file_storage import FileStorage
from coordinator.checkpoints.checkpoint_donor import CheckpointStates
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from coordinator.checkpoints.checkpoints import (
    CheckpointContent,
    UnitContent,
    stored_unit,
    verify_checkpoint,
    write_checkpoint,
)
from coordinator.checkpoints.weights_import import read_weights
from coordinator.ledger.ledger import CheckpointRow
from peer.machine.memory import forget_own_peak, own_peak_bytes
from protocol.ids import CommitId, PeerId, Root
from protocol.tensors.model_config import model_schema
from protocol.tensors.model_units import model_units
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

HEAD: Final = CommitId(b"h" * 32)
CHUNK: Final = 1 << 16
CHUNKS_A_FILE: Final = 4
"""Of an unfinished download; each file costs syncs of the disk."""

SHARD_BYTES: Final = 8 << 20
HOST, ASKER = PeerId("host"), PeerId("asker")

NUM_LAYERS: Final = 7
"""Of the large state, so that a copy of a vector is far more than the pieces that are in flight."""

Act = Callable[[], object]
_MODULE: Final = "tests.oracles.state_memory"
_ROOT: Final = Path(__file__).parents[2]
_LIMIT_S: Final = 600.0


def config_of(num_layers: int) -> LlamaConfig:
    """A model of a little over half a million values a layer, half of them in its embeddings if it has many."""
    return LlamaConfig(
        dim=256, num_layers=num_layers, num_heads=4, num_kv_heads=4, ffn_dim=512, context_tokens=8, is_tied=False
    )


class Files:
    """A state of one size, in every form in which it lies on a disk, below `folder`."""

    def __init__(self, folder: Path, num_layers: int) -> None:
        self.folder = folder
        self.config = config_of(num_layers)
        self.schema = model_schema(self.config)
        self.num_values = self.schema.num_elements
        self.grid = ChunkGrid(self.num_values, CHUNK)
        self.units = model_units(self.config, 2).schemas

    def state(self, schema: TensorSchema | None = None, *, is_still: bool = False) -> UnitState:
        """A state in memory. `is_still`: a momentum of zeros."""
        schema = schema or self.schema
        anchor_N = np.random.default_rng(1).standard_normal(schema.num_elements, dtype=np.float32)
        momentum_N = np.zeros_like(anchor_N) if is_still else anchor_N * np.float32(0.5)
        return UnitState(schema.unit, HEAD, 3, 600, *map(torch.from_numpy, (anchor_N, momentum_N)))

    def generations(self, name: str = "moving") -> Generations:
        """The states on a peer's disk."""
        return Generations(FileStorage(self.folder / name, ThreadOffload()), self.grid, ThreadOffload())

    def content(self, *schemas: TensorSchema) -> CheckpointContent:
        """The content of a checkpoint, of these units if there are several."""
        units = []
        for schema in schemas or (self.schema,):
            state, grid = self.state(schema), ChunkGrid(schema.num_elements, CHUNK)
            units.append(UnitContent(schema, grid, state, state_root(state, grid)))
        spine, numbers = units[0], self.config.model_dump()
        several = tuple(units) if len(units) > 1 else ()
        return CheckpointContent(
            "run", "ab" * 32, self.schema, spine.grid, numbers, spine.state, spine.root, units=several
        )

    def fill(self) -> None:
        """Write all of it."""
        for name, is_still in (("moving", False), ("still", True)):
            state = self.state(is_still=is_still)
            trio.run(self.generations(name).write, state, state_root(state, self.grid))
        trio.run(self._fill_incoming)
        for folder, schemas in (("one", ()), ("several", self.units)):
            write_checkpoint(self.folder / folder, self.content(*schemas), now_unix_s=7)
        export_checkpoint(self.checkpoint("one"), self.folder / "exported")
        data = memoryview(state.anchor_N.numpy()).cast("B")
        for begin in range(0, len(data), SHARD_BYTES):
            (self.folder / sha256(data[begin : begin + SHARD_BYTES]).hexdigest()).write_bytes(
                data[begin : begin + SHARD_BYTES]
            )

    @property
    def incoming(self) -> PartialDownload:
        """A download of which most is here."""
        return PartialDownload(FileStorage(self.folder / "joining", ThreadOffload()), self.grid)

    async def _fill_incoming(self) -> None:
        chunks = [b"".join(parts) for parts in state_chunks(self.state(), self.grid)[:-3]]
        for first in range(0, len(chunks), CHUNKS_A_FILE):
            await self.incoming.keep(HEAD, first, chunks[first : first + CHUNKS_A_FILE])

    def checkpoint(self, folder: str) -> Path:
        """The only checkpoint in a folder."""
        return next((self.folder / folder).glob("0*"))

    @property
    def root(self) -> Root:
        """The root of the state that moves."""
        return Root(bytes.fromhex(verify_checkpoint(self.checkpoint("one")).state_root))

    def shards(self) -> list[StartShard]:
        """The first weights, in order."""
        data = memoryview(self.state().anchor_N.numpy()).cast("B")
        begins = range(0, len(data), SHARD_BYTES)
        parts = [data[begin : begin + SHARD_BYTES] for begin in begins]
        return [StartShard(self.folder / sha256(part).hexdigest(), len(part) // 4) for part in parts]


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path: `prepare` makes what it needs and returns the path itself, which takes so many bytes for each value of the model, or
    of its first unit.
    """

    bytes_a_value: int
    prepare: Callable[[Files], Act]
    is_of_unit: bool = False

    def expected_bytes(self, files: Files) -> int:
        """Of memory, by formula, without the pieces that are in flight."""
        return self.bytes_a_value * (files.units[0].num_elements if self.is_of_unit else files.num_values)


def _loaded(files: Files, name: str) -> Act:
    async def load() -> UnitState:
        generations = files.generations(name)
        (ref,) = await generations.list()
        return (await generations.load(ref))[0]

    return lambda: trio.run(load)


async def _fetched(files: Files, incoming: PartialDownload | None = None) -> UnitState:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1))
        service = TransferService(files.schema.unit, _NoResults(), files.generations(), files.grid, lambda _known: ())

        async def serve(peer: PeerId, stream: Stream) -> None:
            await service.serve(peer, await read_request(stream), stream)

        swarm.start(HOST).serve_streams(FETCH_CHANNEL, serve)
        tools = DownloadContext(swarm.start(ASKER), ThreadOffload(), files.schema.unit, files.grid, incoming)
        state = await download_state(tools, [HOST], {HEAD: files.root})
        nursery.cancel_scope.cancel()
    return state


class _NoResults:
    async def read_result(self, base: CommitId, result_hash: Root, /) -> bytes | None:
        return None


def _kept(files: Files) -> Act:
    """The host fetches, writes and verifies a checkpoint."""

    def keep() -> None:
        state = trio.run(_fetched, files)
        root, numbers = state_root(state, files.grid), files.config.model_dump()
        content = CheckpointContent("run", "ab" * 32, files.schema, files.grid, numbers, state, root)
        write_checkpoint(files.folder / "kept", content, now_unix_s=8)
        verify_checkpoint(files.checkpoint("kept"))

    return keep


def _written(files: Files, *schemas: TensorSchema) -> Act:
    content = files.content(*schemas)
    return lambda: write_checkpoint(files.folder / "written", content, now_unix_s=7)


def _read_back(files: Files) -> Act:
    schema = files.units[0]
    grid = ChunkGrid(schema.num_elements, CHUNK)
    return lambda: stored_unit(files.checkpoint("several"), schema, grid)


def _served(files: Files) -> Act:
    row = CheckpointRow(HEAD, files.schema.unit, 3, 600, files.root, files.checkpoint("one").name, 7)
    states = CheckpointStates(files.folder / "one", files.schema, files.grid, lambda: [row], ThreadOffload())

    async def serve() -> None:
        (ref,) = await states.list()
        assert await states.head_of(ref) is not None
        assert await states.hashes(ref) is not None

    return lambda: trio.run(serve)


def _begun(files: Files, schema: TensorSchema) -> Act:
    shards = files.shards()
    grid = ChunkGrid(schema.num_elements, CHUNK)
    return lambda: start_root(schema, grid, 1, shards, files.schema)


PATHS: Final[Mapping[str, MeasuredPath]] = {
    "load": MeasuredPath(8, lambda files: _loaded(files, "moving")),
    "load without momentum": MeasuredPath(4, lambda files: _loaded(files, "still")),
    "download": MeasuredPath(8, lambda files: lambda: trio.run(_fetched, files)),
    "resume a download": MeasuredPath(8, lambda files: lambda: trio.run(_fetched, files, files.incoming)),
    "begin from a seed": MeasuredPath(4, lambda files: lambda: start_state(files.schema, 1)),
    "begin from weights": MeasuredPath(4, lambda files: _begun(files, files.schema)),
    "begin a unit from weights": MeasuredPath(4, lambda files: _begun(files, files.units[0]), is_of_unit=True),
    "write a checkpoint": MeasuredPath(0, _written),
    "write a checkpoint of units": MeasuredPath(0, lambda files: _written(files, *files.units)),
    "verify a checkpoint": MeasuredPath(0, lambda files: lambda: verify_checkpoint(files.checkpoint("one"))),
    "verify a checkpoint of units": MeasuredPath(
        0, lambda files: lambda: verify_checkpoint(files.checkpoint("several"))
    ),
    "read a unit of a checkpoint": MeasuredPath(8, _read_back, is_of_unit=True),
    "serve a checkpoint": MeasuredPath(0, _served),
    "keep a checkpoint": MeasuredPath(8, _kept),
    "export": MeasuredPath(0, lambda files: lambda: export_checkpoint(files.checkpoint("one"), files.folder / "again")),
    # the vector, and the file that the library maps, whose pages are the system's to take
    "import": MeasuredPath(8, lambda files: lambda: read_weights(files.folder / "exported", files.config)),
}


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes that a path should take of memory, by formula, and that it took."""

    expected_bytes: int
    taken_bytes: int


def measured(folder: Path) -> dict[str, Growth]:
    """The growth of each path, measured in a program of its own.

    Raises:
        RuntimeError: a path failed.
    """
    # A fixed threshold: the C library then gives each long piece of memory back as soon as it is free.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 18)}
    command = [sys.executable, "-m", _MODULE, str(folder)]
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return {name: Growth(*row) for name, row in json.loads(done.stdout.splitlines()[-1]).items()}


def _growth_bytes(path: MeasuredPath, small: Files, large: Files) -> int:
    path.prepare(small)()
    act = path.prepare(large)
    gc.collect()  # or the small state may lie in a cycle, and its memory be used again
    forget_own_peak()
    before_bytes = psutil.Process().memory_info().rss
    act()
    return own_peak_bytes() - before_bytes


def _in_child(path: MeasuredPath, small: Files, large: Files) -> int:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writer, str(_growth_bytes(path, small, large)).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - the child must never return into its parent's code
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as said:
        answer = said.read()
    if os.waitpid(child, 0)[1]:
        raise RuntimeError("a path failed, see above")
    return int(answer)


def main(folder: Path) -> None:
    """Print the growth of each path, as JSON in the last line."""
    torch.set_num_threads(1)  # other threads would not live on in the children
    small, large = Files(folder / "small", 2), Files(folder / "large", NUM_LAYERS)
    for files in (small, large):
        files.folder.mkdir(parents=True)
        files.fill()
    rows = {name: (path.expected_bytes(large), _in_child(path, small, large)) for name, path in PATHS.items()}
    print(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
