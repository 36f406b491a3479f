"""The results that a unit's commits name: read from disk, checked, and turned into the next state in other threads.

Rules: R28 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from averaging.arithmetic.outer_step import moves_momentum
from averaging.codecs import Codec
from averaging.network.seams.interfaces import Offload
from averaging.rounds.lineage.next_state import Encoded, NextState, Seen, SliceBytes, examined, step_in_place
from averaging.rounds.lineage.past.held_milestones import HeldMilestones
from averaging.rounds.lineage.unit_feedback import ErrorFeedback
from averaging.rounds.traffic.contribution import split_chunks
from averaging.state.generations import Generations
from averaging.state.state import StateHashes, UnitState
from averaging.state.unit_log import UnitLog
from protocol.errors import LocalProtocolError, RemoteProtocolError, StorageError
from protocol.estimates.unit_disk import SMALL_STATE_BYTES
from protocol.identity.identity import Verifier
from protocol.ids import CommitId, Root, RunId, UnitName
from protocol.merkle import leaf_hash, merkle_root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.record import CommitRecord, OuterStep, SliceRecord
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

APPLY_COST_S: Final = 0.005
"""Virtual time that applying a commit takes, and hashing the state for its root."""

THREADS_WITHIN_S: Final = 5.0
"""How long to wait for a thread that computes the next state. The last results reach the disk before these threads end, and
computing all of it again takes much longer. A thread that is held up longer may still write to that state, so a new one is
computed.
"""


@dataclass(frozen=True)
class UnitContext:
    """Dependencies of a unit's state; `feedback` only if the run has error feedback."""

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
    """The codec of results; None: that of contributions."""

    small_state_bytes: int = SMALL_STATE_BYTES
    """A state of at most this size is written after every commit."""

    milestones: HeldMilestones | None = None
    """The host's milestones; None: the lineage is kept from the start of the run on."""

    @property
    def result_codec(self) -> Codec:
        """The codec of the bytes that commits name; `codec` is that of contributions."""
        return self.results or self.codec


class Updates:
    """The results of one unit on our disk."""

    def __init__(self, tools: UnitContext) -> None:
        self._tools = tools
        self._fresh: dict[Root, SliceBytes] = {}
        self._fresh_base: CommitId | None = None
        self._ahead: NextState | None = None
        self._hashes_of = StateHashes(tools.grid)

    def remember(self, base: CommitId, result_hash: Root, result: SliceBytes) -> None:
        """Keep a result of `base` that was just checked and is on disk, so that it is not read and hashed again to be applied.
        Results of one base are kept until a commit on it is applied.
        """
        if base != self._fresh_base:
            self._fresh_base = base
            self._fresh.clear()
        self._fresh[result_hash] = result

    def fresh(self, result_hash: Root) -> SliceBytes | None:
        """A result that is remembered; None for any other."""
        return self._fresh.get(result_hash)

    async def examine(
        self, state: UnitState | None, outer: OuterStep, first_chunk: int, encoded: Encoded
    ) -> list[bytes]:
        """The leaf hashes of chunks of a result on `state` that just arrived, checked to be fit to apply. The next state is
        computed from them at once; without `state` they are only checked.

        Raises:
            RemoteProtocolError: bytes that do not decode, or values that are not finite.
        """
        tools = self._tools
        ahead = self._ahead_of(state, outer) if state is not None else None
        if ahead is not None and not ahead.claim(range(first_chunk, first_chunk + len(encoded))):
            ahead = None
        if ahead is None:
            return await tools.offload.run(
                partial(examined, tools.result_codec, tools.grid, first_chunk, encoded, None)
            )
        with ahead.running():
            return await tools.offload.run(
                partial(examined, tools.result_codec, tools.grid, first_chunk, encoded, ahead)
            )

    def _ahead_of(self, state: UnitState, outer: OuterStep) -> NextState:
        if self._ahead is None or not self._ahead.follows(state, outer):
            self._ahead = self._next_state(state, outer)
        return self._ahead

    def _next_state(self, state: UnitState, outer: OuterStep) -> NextState:
        return NextState(state, outer, self._tools.result_codec, self._tools.grid)

    async def read(self, link: ChainLink) -> list[bytes | memoryview] | None:
        """A commit's results, slice by slice; None if one is missing."""
        if link.record is None:
            return None
        parts: list[bytes | memoryview] = []
        for part in link.record.slices:
            fresh = self._fresh.get(part.result_hash)
            data = fresh.data if fresh is not None else None
            if data is None:
                data = await self._tools.log.read_result(link.record.parent, part.result_hash)
            if data is None:
                return None
            parts.append(data)
        return parts

    async def read_good(self, link: ChainLink) -> list[bytes | memoryview] | None:
        """As `read`, but every result has the hash that the record names. Damaged ones are deleted, so that they are fetched
        again.
        """
        data, record = await self.read(link), link.record
        if data is None or record is None:
            return None
        pairs = list(zip(record.slices, data, strict=True))
        good = await self._tools.offload.run(
            lambda: [part.result_hash for part, blob in pairs if self._hashes(part, blob)], cost_s=APPLY_COST_S
        )
        if len(good) < len(pairs):
            log.warning("result_damaged", index=link.index, good=len(good), of=len(pairs))
            await self._tools.log.drop_results(record.parent, good)
            return None
        return data

    def _hashes(self, part: SliceRecord, data: bytes | memoryview) -> tuple[bytes, ...] | None:
        """The leaf hashes of a result's chunks; None if these are not the bytes that the record names."""
        try:
            hashes = tuple(leaf_hash(chunk) for chunk in self._chunks(part, data))
        except RemoteProtocolError:
            return None
        return hashes if merkle_root(hashes) == part.result_hash else None

    def _chunks(self, part: SliceRecord, data: bytes | memoryview) -> tuple[memoryview, ...]:
        return split_chunks(data, self._tools.result_codec, self._tools.grid, part.first_chunk, part.stop_chunk)

    async def advance(self, state: UnitState, link: ChainLink, data: Sequence[bytes | memoryview]) -> UnitState:
        """The state after one more commit, whose results are `data`. A rewind (R28) changes no vector, and shares those of `state`.

        Raises:
            StorageError: these are not the bytes that the record names: they were damaged on our disk since they arrived.
        """
        record, tools = _record_of(link), self._tools
        if record.rewind:
            return UnitState(state.unit, link.commit, link.index, link.total_tokens, *state.vectors)
        ahead = await self._made_ahead(state, record.outer)
        made = partial(self._outer, ahead, link, record, data, dict(self._fresh))
        advanced = await tools.offload.run(made, cost_s=APPLY_COST_S)
        if record.parent == self._fresh_base:
            self._fresh.clear()
        return advanced

    async def check(self, link: ChainLink, data: Sequence[bytes | memoryview]) -> None:
        """Check that `data` are the results of a commit, fit to apply. Those that were checked when they arrived are not read again.

        Raises:
            StorageError: these are not the bytes that the record names: they were damaged on our disk since they arrived.
            RemoteProtocolError: bytes that do not decode, or an outer step that this version does not know.
        """
        record, fresh = _record_of(link), dict(self._fresh)
        moves_momentum(record.outer)
        await self._tools.offload.run(partial(self._check, link.index, record, data, fresh))

    def _check(
        self,
        index: int,
        record: CommitRecord,
        data: Sequence[bytes | memoryview],
        fresh: Mapping[Root, SliceBytes],
    ) -> None:
        for part, blob in zip(record.slices, data, strict=True):
            known = fresh.get(part.result_hash)
            if known is not None and known.data is blob:
                continue
            if self._hashes(part, blob) is None:
                raise _damaged(index)
            examined(self._tools.result_codec, self._tools.grid, part.first_chunk, self._chunks(part, blob), None)

    async def step_in_place(
        self, state: UnitState, link: ChainLink, data: Sequence[bytes | memoryview], seen: Seen = lambda *_: None
    ) -> UnitState:
        """As `advance`, in the memory of `state`, which nobody else may read. `data` passed `check`, or was read by `read_good`.
        `seen` is called in a thread.

        Raises:
            RemoteProtocolError: bytes that do not decode; the vectors are of no use then.
        """
        record = _record_of(link)
        self._ahead = None
        if moves_momentum(record.outer):
            self._hashes_of.forget()
        await self._tools.offload.run(partial(self._step_all, state, record, data, seen), cost_s=APPLY_COST_S)
        if record.parent == self._fresh_base:
            self._fresh.clear()
        return UnitState(state.unit, link.commit, link.index, link.total_tokens, *state.vectors)

    def _step_all(self, state: UnitState, record: CommitRecord, data: Sequence[bytes | memoryview], seen: Seen) -> None:
        tools = self._tools
        for part, blob in zip(record.slices, data, strict=True):
            chunks = self._chunks(part, blob)
            step_in_place(state, record.outer, tools.result_codec, tools.grid, part.first_chunk, chunks, seen)

    async def _made_ahead(self, state: UnitState, outer: OuterStep) -> NextState:
        """The next state as far as it was computed while results arrived, else an empty one. Nothing is added to it afterwards."""
        ahead = self._ahead
        is_made = ahead is not None and ahead.follows(state, outer) and await ahead.until_idle(THREADS_WITHIN_S)
        self._ahead = None
        return ahead if ahead is not None and is_made else self._next_state(state, outer)

    def _outer(
        self,
        ahead: NextState,
        link: ChainLink,
        record: CommitRecord,
        data: Sequence[bytes | memoryview],
        fresh: Mapping[Root, SliceBytes],
    ) -> UnitState:
        for part, blob in zip(record.slices, data, strict=True):
            known = fresh.get(part.result_hash)
            hashes = known.hashes if known is not None and known.data is blob else self._hashes(part, blob)
            if hashes is None:
                raise _damaged(link.index)
            ahead.make(part.first_chunk, self._chunks(part, blob), hashes)
        return ahead.at(link)

    async def root(self, state: UnitState) -> Root:
        """The Merkle root of a state. It is hashed here, not while the state is computed, because a trainer waits for the state."""
        return await self._tools.offload.run(partial(self._hashes_of.root, state), cost_s=APPLY_COST_S)


def _record_of(link: ChainLink) -> CommitRecord:
    if link.record is None:
        raise LocalProtocolError("a link without a record", "a commit")
    return link.record


def _damaged(index: int) -> StorageError:
    return StorageError(f"a result of commit {index} damaged on our disk", "the bytes that were checked")
