"""Serves the host's checkpoints to members on the channel "fetch", in the form in which a peer serves its own states.

So `potluck checkpoint fetch` and a peer without another donor get the run's model from the host. The bytes are read from the
checkpoint's files when they are asked for, and nothing is kept in memory but hashes. The asker checks every chunk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.rounds.traffic.transfer import MAX_CHAIN_BYTES, TransferService, read_request
from averaging.state.generations import CHUNKS_AT_ONCE, GenerationRef
from averaging.state.state import StateHeader, leaf_of_chunk
from coordinator.checkpoints.checkpoints import CheckpointManifest, momentum_name, parameters_name, read_manifest
from coordinator.checkpoints.tensor_files import StoredVector
from protocol.errors import ConfigError, RemoteProtocolError, StorageError
from protocol.ids import CommitId, PeerId, Root, UnitName, short
from protocol.rounds.messages.requests import FetchCommits, FetchRequest
from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Offload, Stream
    from coordinator.ledger.ledger import CheckpointRow, Ledger
    from coordinator.ledger.ledger_writer import LedgerWriter

_KEPT_HASHES: Final = 2
"""Checkpoints whose hashes are cached: the newest one, and one that is being downloaded while it is replaced."""


class CheckpointStates:
    """One unit's states in the checkpoints of a folder. `rows` returns the checkpoints of the followed lineage, oldest first."""

    def __init__(
        self,
        folder: Path,
        schema: TensorSchema,
        grid: ChunkGrid,
        rows: Callable[[], Sequence[CheckpointRow]],
        offload: Offload,
    ) -> None:
        self.grid = grid
        self._folder = folder
        self._schema = schema
        self._rows = rows
        self._offload = offload
        self._hashes: dict[str, tuple[bytes, ...]] = {}

    def pin(self, commit: CommitId, now_s: float, /) -> None:
        """Nothing is to be kept: a download of a checkpoint that is pruned meanwhile goes on with a newer one."""

    async def list(self) -> Sequence[GenerationRef]:
        """The unit's states, oldest first. Damaged checkpoints, and old ones without momentum, are left out."""
        found = []
        for row in self._rows():
            manifest = await self._manifest(row.path)
            head = None if manifest is None else self._head(manifest)
            if head is not None:
                found.append(GenerationRef(head[0].index, head[0].head, row.path))
        return found

    async def head_of(self, ref: GenerationRef, /) -> tuple[StateHeader, Root] | None:
        """Header and root of the unit's state in a checkpoint."""
        manifest = await self._manifest(ref.name)
        return None if manifest is None else self._head(manifest)

    async def read_chunks(self, ref: GenerationRef, first_chunk: int, stop_chunk: int, /) -> Sequence[bytes] | None:
        """The bytes of some chunks, each anchor and then momentum."""
        manifest = await self._manifest(ref.name)
        if manifest is None:
            return None
        return await self._offload.run(partial(self._read, self._folder / ref.name, manifest, first_chunk, stop_chunk))

    async def hashes(self, ref: GenerationRef, /) -> Sequence[bytes] | None:
        """The leaf hashes of all chunks. The last ones are cached."""
        if ref.name in self._hashes:
            return self._hashes[ref.name]
        found: list[bytes] = []
        for first_chunk in range(0, self.grid.num_chunks, CHUNKS_AT_ONCE):
            stop_chunk = min(first_chunk + CHUNKS_AT_ONCE, self.grid.num_chunks)
            chunks = await self.read_chunks(ref, first_chunk, stop_chunk)
            if chunks is None:
                return None
            found += await self._offload.run(partial(_leaves, chunks))
            del chunks  # they would stay in memory while the next ones are read
        self._hashes[ref.name] = tuple(found)
        while len(self._hashes) > _KEPT_HASHES:
            del self._hashes[next(iter(self._hashes))]
        return self._hashes[ref.name]

    async def _manifest(self, name: str) -> CheckpointManifest | None:
        try:
            return await self._offload.run(partial(read_manifest, self._folder / name))
        except (ConfigError, StorageError):
            return None  # pruned meanwhile, or damaged: others are offered

    def _head(self, manifest: CheckpointManifest) -> tuple[StateHeader, Root] | None:
        stored = next((unit for unit in manifest.units or () if unit.unit == self._schema.unit), None)
        entry = stored or (manifest if manifest.unit == self._schema.unit else None)
        if entry is None or manifest.momentum is None:  # an old one is no state to go on from
            return None
        header = StateHeader(self._schema.unit, CommitId(bytes.fromhex(entry.commit)), entry.index, entry.total_tokens)
        return header, Root(bytes.fromhex(entry.state_root))

    def _read(
        self, path: Path, manifest: CheckpointManifest, first_chunk: int, stop_chunk: int
    ) -> Sequence[bytes] | None:
        try:
            anchor = StoredVector(path / parameters_name(manifest.unit), self._schema)
            momentum = StoredVector(path / momentum_name(manifest.unit), self._schema)
            spans = [self.grid.bounds(chunk) for chunk in range(first_chunk, stop_chunk)]
            return [anchor.read(*span) + momentum.read(*span) for span in spans]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read ({error.strerror})", "a readable checkpoint") from error


def _leaves(chunks: Sequence[bytes]) -> list[bytes]:
    return [leaf_of_chunk(chunk) for chunk in chunks]


class _NoResults:
    """The host has whole states, and no results of rounds."""

    async def read_result(self, base: CommitId, result_hash: Root, /) -> bytes | None:
        return None


@dataclass(frozen=True)
class DonorView:
    """The donor's questions to the host.

    Attributes:
        is_member: whether a peer may fetch.
        lineage: the followed commits of the spine, newest first, down to the genesis; empty before the start.
        others: answers for units that are kept elsewhere; None if the run has none.
        kept_elsewhere: those units.
        milestones: the newest of each unit.
    """

    is_member: Callable[[PeerId], Awaitable[bool]]
    lineage: Callable[[], Sequence[CommitId]]
    others: Callable[[PeerId, FetchRequest, Stream], Awaitable[None]] | None = None
    kept_elsewhere: frozenset[UnitName] = frozenset()
    milestones: Callable[[], Sequence[bytes]] = tuple


class CheckpointDonor:
    """Answers for the spine of the run: its certificates from the ledger, its states from the checkpoints."""

    def __init__(self, spine: UnitName, states: CheckpointStates, ledger: LedgerWriter, view: DonorView) -> None:
        self._spine = spine
        self._ledger = ledger
        self._view = view
        self._service = TransferService(
            spine, _NoResults(), states, states.grid, lambda _known: (), lambda: view.milestones()
        )

    async def serve_fetch(self, sender: PeerId, stream: Stream) -> None:
        """Answer one request; an empty end answers for what is not here.

        Raises:
            RemoteProtocolError: the sender is no member, or the request is malformed.
        """
        if not await self._view.is_member(sender):
            raise RemoteProtocolError(f"{short(sender)} is not admitted to this run", "a member", "join the run first")
        request = await read_request(stream)
        if request.unit in self._view.kept_elsewhere and self._view.others is not None:
            await self._view.others(sender, request, stream)
        elif isinstance(request, FetchCommits) and request.unit == self._spine:
            stream.count_as(self._spine, "")
            for certificate in await self._certificates_after(request.known):
                await stream.send_frame(certificate)
        else:
            await self._service.serve(sender, request, stream)

    async def _certificates_after(self, known: Sequence[CommitId]) -> Sequence[bytes]:
        """Certificates of the followed lineage after the newest known commit, oldest first, as many as one answer may hold."""
        wanted, after = set(known), list[CommitId]()
        for commit in self._view.lineage():
            if commit in wanted:
                return await self._ledger.run(partial(_certificates, self._spine, commit, after[::-1]))
            after.append(commit)
        return ()


def _certificates(unit: UnitName, base: CommitId, commits: Sequence[CommitId], ledger: Ledger) -> list[bytes]:
    found, num_bytes = list[bytes](), 0
    for commit in commits:
        row = next((row for row in ledger.commits(unit, base) if row.commit == commit), None)
        if row is None or num_bytes + len(row.certificate) > MAX_CHAIN_BYTES:
            break
        found.append(row.certificate)
        num_bytes += len(row.certificate)
        base = commit
    return found
