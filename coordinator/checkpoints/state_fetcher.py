"""Gets a state for a checkpoint: the one before it with the results since, or a whole state from peers.

Results cost peers nothing but sending. For a whole state of the wanted round they write one to disk, which they otherwise do after
every few rounds.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from averaging.rounds.fetching.download import DownloadContext, download_state
from averaging.rounds.lineage.next_state import step_in_place
from averaging.rounds.lineage.retention import update_bytes
from averaging.rounds.traffic.contribution import split_chunks
from averaging.rounds.traffic.transfer import fetch_result
from averaging.state.state import UnitState, state_root
from coordinator.checkpoints.checkpoints import stored_unit
from protocol.errors import PotluckError, RemoteProtocolError, UnreachableError
from protocol.estimates.unit_disk import replay_at_most
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.messages.requests import FetchResult

if TYPE_CHECKING:
    from averaging.codecs import Codec
    from averaging.network.seams.interfaces import Network, Offload
    from coordinator.progress.tracker import RunTracker
    from protocol.rounds.messages.record import CommitRecord, SliceRecord
    from protocol.tensors.tensor_schema import ChunkGrid, TensorSchema

_log = structlog.get_logger()
_STEP_COST_S: Final = 0.1


@dataclass(frozen=True)
class Replayer:
    """Brings the state of the last checkpoint up to a later commit, in a run whose peers all hold the whole model as one unit.

    Attributes:
        folder: of the checkpoints.
        codec: of results.
        first: returns the state at the start of the run; blocks.
    """

    network: Network
    tracker: RunTracker
    offload: Offload
    folder: Path
    schema: TensorSchema
    grid: ChunkGrid
    codec: Codec
    first: Callable[[], UnitState]

    async def state_at(self, donors: Sequence[PeerId], commit: CommitId, root: Root) -> UnitState:
        """The state at a commit, checked against its root. It takes the memory of one state and of one slice's result.

        Raises:
            UnreachableError: the last checkpoint is too far behind, or no donor has a result since.
            RemoteProtocolError: another root.
        """
        path = self._path(commit)
        state = await self.offload.run(partial(self._base, path[0].record.parent), cost_s=_STEP_COST_S)
        for link in path:
            record = link.record
            for number, part in enumerate(record.slices):
                data = await self._result((*donors[number % len(donors) :], *donors), record, part)
                await self.offload.run(partial(self._step, state, record, part, data), cost_s=_STEP_COST_S)
            state = UnitState(state.unit, link.commit, link.index, link.total_tokens, *state.vectors)
        found = await self.offload.run(partial(state_root, state, self.grid), cost_s=_STEP_COST_S)
        if found != root:
            raise RemoteProtocolError(f"root {found[:4].hex()} after a replay", f"root {root[:4].hex()}")
        return state

    def _path(self, commit: CommitId) -> list[_Step]:
        """The commits since the last checkpoint or the start, oldest first."""
        chain, stored = self.tracker.chain, {row.commit for row in self.tracker.checkpoints}
        path, most = list[_Step](), replay_at_most(self.grid.num_elements, update_bytes(self.codec, self.grid))
        for each, index in chain.behind(commit) if chain is not None else ():
            if path and (each in stored or not index):
                return path[::-1]
            link = chain.link(each) if chain is not None else None
            if link is None or link.record is None or len(path) == most:
                break
            path.append(_Step(each, index, link.total_tokens, link.record))
        raise UnreachableError("no checkpoint shortly before that round", f"one at most {most} rounds before")

    def _base(self, commit: CommitId) -> UnitState:
        row = next((row for row in self.tracker.checkpoints if row.commit == commit), None)
        return self.first() if row is None else stored_unit(self.folder / row.path, self.schema, self.grid).state

    def _step(self, state: UnitState, record: CommitRecord, part: SliceRecord, data: bytes) -> None:
        chunks = split_chunks(data, self.codec, self.grid, part.first_chunk, part.stop_chunk)
        step_in_place(state, record.outer, self.codec, self.grid, part.first_chunk, chunks, lambda *_: None)

    async def _result(self, donors: Sequence[PeerId], record: CommitRecord, part: SliceRecord) -> bytes:
        """The checked bytes of a slice's result, from the first donor that has them."""
        request = FetchResult(record.unit, record.parent, part.first_chunk, part.stop_chunk, part.result_hash)
        for donor in dict.fromkeys(donors):
            try:
                data = await fetch_result(self.network, donor, request, self.codec, self.grid)
            except PotluckError as error:
                _log.info("result_not_fetched", reason=error.one_line())
                continue
            if data is not None:
                return data
        raise UnreachableError(f"no donor of a result of round {record.index}", "one peer that holds it")


@dataclass(frozen=True, slots=True)
class _Step:
    """A commit to replay."""

    commit: CommitId
    index: int
    total_tokens: int
    record: CommitRecord


class StateFetcher:
    """Gets verified states, by a replay if it has a `replayer`."""

    def __init__(
        self, network: Network, tracker: RunTracker, offload: Offload, replayer: Replayer | None = None
    ) -> None:
        self._network = network
        self._tracker = tracker
        self._offload = offload
        self._replayer = replayer

    async def fetch(
        self, donors: Sequence[PeerId], unit: UnitName, grid: ChunkGrid, commit: CommitId, root: Root
    ) -> UnitState:
        """The state of a unit at a commit, checked against its root.

        Raises:
            UnreachableError: no donor could send it.
        """
        # After a restart the host has no addresses of peers; their reports carry them.
        with suppress(PotluckError):
            await self._network.add_addresses(self._tracker.addresses_of(donors))
        if self._replayer is not None and donors:
            try:
                return await self._replayer.state_at(donors, commit, root)
            except PotluckError as error:
                _log.info("whole_state_fetched", reason=error.one_line())
        tools = DownloadContext(self._network, self._offload, unit, grid)
        return await download_state(tools, donors, {commit: root})
