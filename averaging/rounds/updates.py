"""The results that commits of a unit name: read from the disk, checked, and turned into the next state, beside trio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from averaging.chunk_runs import decode_run, runs_in
from averaging.codecs import Codec
from averaging.generations import Generations
from averaging.network.seams import Offload
from averaging.outer_step import moved_vectors, step_into
from averaging.rounds.contribution import result_root, split_chunks
from averaging.rounds.feedback import ErrorFeedback
from averaging.state import UnitState, state_root
from averaging.unit_log import UnitLog
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from protocol.identity import Verifier
from protocol.ids import CommitId, Root, RunId, UnitName
from protocol.rounds.chain import ChainLink
from protocol.rounds.messages import CommitRecord, SliceRecord
from protocol.tensor_schema import ChunkGrid

log = structlog.get_logger()

APPLY_COST_S: Final = 0.005
"""What applying a commit costs in virtual time."""


@dataclass(frozen=True)
class UnitTools:
    """What a unit's state works with; `feedback` where the run has error feedback."""

    run_id: RunId
    unit: UnitName
    verifier: Verifier
    codec: Codec
    grid: ChunkGrid
    offload: Offload
    log: UnitLog
    generations: Generations
    feedback: ErrorFeedback | None = None
    results: Codec | None = None
    """How results are written; None: as contributions are."""

    @property
    def result_codec(self) -> Codec:
        """Of the bytes that commits name; `codec` is that of contributions."""
        return self.results or self.codec


class Updates:
    """The results of one unit on our disk."""

    def __init__(self, tools: UnitTools) -> None:
        self._tools = tools
        self._fresh: dict[Root, bytes] = {}
        self._fresh_base: CommitId | None = None

    def remember(self, base: CommitId, result_hash: Root, data: bytes) -> None:
        """A result of `base` that was checked a moment ago and is on disk: to be applied it is not read and hashed once more. Those of
        one base are kept, until a commit on it is applied.
        """
        if base != self._fresh_base:
            self._fresh_base = base
            self._fresh.clear()
        self._fresh[result_hash] = data

    async def read(self, link: ChainLink) -> list[bytes] | None:
        """A commit's results, slice by slice; None where one is missing."""
        if link.record is None:
            return None
        parts: list[bytes] = []
        for part in link.record.slices:
            data = self._fresh.get(part.result_hash)
            if data is None:
                data = await self._tools.log.read_result(link.record.parent, part.result_hash)
            if data is None:
                return None
            parts.append(data)
        return parts

    async def read_good(self, link: ChainLink) -> list[bytes] | None:
        """As `read`, and every result has the hash that the record names: what was damaged is deleted, to be fetched again."""
        data, record = await self.read(link), link.record
        if data is None or record is None:
            return None
        pairs = list(zip(record.slices, data, strict=True))
        good = await self._tools.offload.run(
            lambda: [part.result_hash for part, blob in pairs if self._is_result(part, blob)], cost_s=APPLY_COST_S
        )
        if len(good) < len(pairs):
            log.warning("result_damaged", index=link.index, good=len(good), of=len(pairs))
            await self._tools.log.drop_results(record.parent, good)
            return None
        return data

    def _is_result(self, part: SliceRecord, data: bytes) -> bool:
        try:
            chunks = split_chunks(data, self._tools.result_codec, self._tools.grid, part.first_chunk, part.stop_chunk)
        except RemoteProtocolError:
            return False
        return result_root(chunks) == part.result_hash

    async def advance(self, state: UnitState, link: ChainLink, data: Sequence[bytes]) -> UnitState:
        """The state after one more commit, whose results are `data`.

        Raises:
            StorageError: these are not the bytes that the record names: they were damaged on our disk since they came.
        """
        record = link.record
        if record is None:
            raise LocalProtocolError("a link without a record", "a commit")
        fresh = dict(self._fresh)
        advanced = await self._tools.offload.run(
            lambda: self._outer(state, link, record, data, fresh), cost_s=APPLY_COST_S
        )
        if record.parent == self._fresh_base:
            self._fresh.clear()
        return advanced

    def _outer(
        self,
        state: UnitState,
        link: ChainLink,
        record: CommitRecord,
        data: Sequence[bytes],
        fresh: Mapping[Root, bytes],
    ) -> UnitState:
        grid, codec = self._tools.grid, self._tools.result_codec
        anchor_N, momentum_N = moved_vectors(state.anchor_N, state.momentum_N, record.outer)
        for part, blob in zip(record.slices, data, strict=True):
            if fresh.get(part.result_hash) is not blob and not self._is_result(part, blob):
                raise StorageError(
                    f"a result of commit {link.index} damaged on our disk", "the bytes that were checked"
                )
            chunks = split_chunks(blob, codec, grid, part.first_chunk, part.stop_chunk)
            for run in runs_in(part.first_chunk, part.stop_chunk, grid.chunk_elements):
                begin, stop = grid.span(run.start, run.stop)
                encoded = chunks[run.start - part.first_chunk : run.stop - part.first_chunk]
                step_into(
                    (anchor_N[begin:stop], momentum_N[begin:stop]),
                    state.anchor_N[begin:stop],
                    state.momentum_N[begin:stop],
                    decode_run(codec, encoded, grid.chunk_elements, stop - begin),
                    record.outer,
                )
        return UnitState(state.unit, link.commit, link.index, link.total_tokens, anchor_N, momentum_N)

    async def root(self, state: UnitState) -> Root:
        """The Merkle root of a state."""
        return await self._tools.offload.run(lambda: state_root(state, self._tools.grid), cost_s=APPLY_COST_S)
