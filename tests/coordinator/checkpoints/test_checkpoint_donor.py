"""The host as a donor of its checkpoints: a member downloads them as it downloads a peer's state, and checks every chunk."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
import trio

from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.interfaces import Stream
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.fetching.download import DownloadContext, download_state
from averaging.rounds.traffic.transfer import FETCH_CHANNEL, fetch_commits
from averaging.trio_errors import run_single_error
from coordinator.checkpoints.checkpoint_donor import CheckpointDonor, CheckpointStates, DonorView
from coordinator.checkpoints.checkpoints import read_manifest, stored_unit
from coordinator.ledger.ledger import CheckpointRow, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from protocol.errors import TransportError, UnreachableError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.requests import FetchRequest
from protocol.tensors.expert_schema import held_units
from protocol.tensors.model_config import model_schema
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema
from tests.coordinator.chain_world import UNIT, Chain, rows_of
from tests.coordinator.checkpoints.loaded import load_checkpoint
from tests.coordinator.checkpoints.test_checkpoints import MIXTURE, checkpoint_of, checkpoint_of_experts, decoder
from tests.virtual import InlineOffload

HOST, ASKER = PeerId("host"), PeerId("asker")


def row_of(path: Path) -> CheckpointRow:
    stored = read_manifest(path)
    return CheckpointRow(
        CommitId(bytes.fromhex(stored.commit)),
        UnitName(stored.unit),
        stored.index,
        stored.total_tokens,
        Root(bytes.fromhex(stored.state_root)),
        path.name,
        stored.written_unix_s,
    )


@dataclass
class Host:
    """A host whose checkpoints a member may fetch."""

    folder: Path
    schema: TensorSchema
    rows: list[CheckpointRow]
    is_member: bool = True
    others: list[UnitName] = field(default_factory=list)

    @property
    def grid(self) -> ChunkGrid:
        return ChunkGrid(self.schema.num_elements, 1024)

    def serve(self, swarm: MemorySwarm, ledger: LedgerWriter, lineage: list[CommitId]) -> None:
        async def admitted(_peer: PeerId) -> bool:
            return self.is_member

        async def elsewhere(_peer: PeerId, request: FetchRequest, _stream: Stream) -> None:
            self.others.append(request.unit)

        states = CheckpointStates(self.folder, self.schema, self.grid, lambda: self.rows, ThreadOffload())
        view = DonorView(admitted, lambda: lineage, elsewhere, frozenset({UnitName("expert-0")}))
        donor = CheckpointDonor(self.schema.unit, states, ledger, view)
        swarm.start(HOST).serve_streams(FETCH_CHANNEL, donor.serve_fetch)


def _fetched(host: Host, root: Root, tmp_path: Path) -> torch.Tensor:
    async def fetch() -> torch.Tensor:
        async with trio.open_nursery() as nursery:
            swarm = MemorySwarm(nursery, random.Random(1))
            with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
                host.serve(swarm, LedgerWriter(ledger, InlineOffload()), [])
                tools = DownloadContext(swarm.start(ASKER), ThreadOffload(), host.schema.unit, host.grid)
                state = await download_state(tools, [HOST], {host.rows[-1].commit: root})
            nursery.cancel_scope.cancel()
        return torch.cat(state.vectors)

    return run_single_error(fetch)


def test_a_member_downloads_the_newest_checkpoint_byte_for_byte(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path / "checkpoints", decoder())
    row = row_of(path)
    host = Host(path.parent, model_schema(decoder()), [row])
    assert torch.equal(_fetched(host, row.state_root, tmp_path), torch.cat(load_checkpoint(path)[1].vectors))


def test_the_trunk_of_a_run_of_experts_is_served_from_the_checkpoint_of_all(tmp_path: Path) -> None:
    path = checkpoint_of_experts(tmp_path / "checkpoints", decoder())
    trunk = held_units(decoder(), MIXTURE, [0]).schemas[0]
    host = Host(path.parent, trunk, [row_of(path)])
    unit = stored_unit(path, trunk, host.grid)
    assert torch.equal(_fetched(host, unit.root, tmp_path), torch.cat(unit.state.vectors))


def test_bytes_that_changed_on_the_hosts_disk_are_not_taken(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path / "checkpoints", decoder())
    row, weights = row_of(path), path / f"{row_of(path).unit}.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(UnreachableError, match="hashes of another root"):
        _fetched(Host(path.parent, model_schema(decoder()), [row]), row.state_root, tmp_path)


def test_a_checkpoint_that_was_pruned_is_not_offered(tmp_path: Path) -> None:
    path = checkpoint_of(tmp_path / "checkpoints", decoder())
    row = row_of(path)
    gone = CheckpointRow(CommitId(b"g" * 32), row.unit, 2, 400, row.state_root, "00000002-gone", 1)
    host = Host(path.parent, model_schema(decoder()), [gone, row])
    assert _fetched(host, row.state_root, tmp_path).numel() == 2 * host.schema.num_elements


def test_certificates_of_the_followed_lineage_come_in_order_and_a_stranger_gets_none(tmp_path: Path) -> None:
    chain = Chain()
    for _ in range(4):
        chain.commit()
    certificates = list(chain.certificates)
    rows = rows_of(certificates)
    lineage = [row.commit for row in reversed(rows)] + [rows[0].parent]
    host = Host(tmp_path, model_schema(decoder(), UNIT), [])

    async def ask(known: CommitId) -> list[bytes]:
        async with trio.open_nursery() as nursery:
            swarm = MemorySwarm(nursery, random.Random(1))
            with open_ledger(tmp_path / "ledger.sqlite3") as ledger:
                ledger.add_progress(rows, ())
                host.serve(swarm, LedgerWriter(ledger, InlineOffload()), lineage)
                found = await fetch_commits(swarm.start(ASKER), HOST, UNIT, [known])
            nursery.cancel_scope.cancel()
        return found

    assert trio.run(ask, rows[0].parent) == certificates
    assert trio.run(ask, rows[1].commit) == certificates[2:]
    assert trio.run(ask, CommitId(b"x" * 32)) == []
    host.is_member = False
    with pytest.raises(TransportError):
        run_single_error(partial(ask, rows[0].parent))
