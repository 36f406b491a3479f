"""Gets one chunk of each contribution that a sum counts, from whoever has it, and makes the proof that they may be.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
import trio

from averaging.codecs import Codec
from averaging.network.seams.interfaces import MAX_FRAME_BYTES, Network
from averaging.rounds.traffic.contribution import split_chunks
from averaging.rounds.traffic.transfer import ask_all
from protocol.errors import PotluckError
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.merkle import MerkleTree, leaf_hash
from protocol.rounds.audit.sum_audit_core import Pick
from protocol.rounds.audit.sum_proof import ShownChunk, SumProof
from protocol.rounds.lineage.record_rules import sum_of
from protocol.rounds.messages.claim import SliceSum
from protocol.rounds.messages.record import CommitRecord, SliceRecord
from protocol.rounds.messages.requests import FetchChunk
from protocol.rounds.messages.wire import decode_body
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

ASKED_WITHIN_S: Final = 5.0
"""Limit for one peer's answer to one audit."""

_PATH_BYTES: Final = 2048
"""More than a path and the framing of a chunk take."""


@dataclass
class Collecting:
    """The chunks of one audit, as they come.

    Attributes:
        what: the signed sum; its inputs are the contributions that are needed, in the order of peers.
        num_chunks, chunk_bytes: chunks of the unit, and the length of the longest encoded one.
        num_bytes: what came from others so far.
    """

    what: SliceSum
    chunk: int
    num_chunks: int
    chunk_bytes: int
    found: dict[bytes, ShownChunk] = field(default_factory=dict)
    num_bytes: int = 0

    def take(self, shown: Iterable[ShownChunk]) -> None:
        """Keep what is needed; each chunk has to lead to its root."""
        for each in shown:
            if each.root in self.missing and each.leads_to_root(self.num_chunks, self.chunk):
                self.found[each.root] = each

    @property
    def missing(self) -> dict[bytes, PeerId]:
        """The contributions without a chunk yet, each with its peer."""
        return {each.root: each.peer for each in self.what.inputs if each.root not in self.found}

    async def ask(self, network: Network, peer: PeerId) -> None:
        """Ask a peer for all that is missing. One that does not answer, or with something else, gives nothing."""
        roots = tuple(self.missing)
        if not roots or peer == network.peer_id:
            return
        request = FetchChunk(self.what.unit, self.what.base, self.chunk, roots)
        most_bytes = len(roots) * (self.chunk_bytes + _PATH_BYTES)
        try:
            frames = await ask_all(network, peer, request, most_bytes, within_s=ASKED_WITHIN_S)
            self.num_bytes += sum(map(len, frames))
            self.take(decode_body(ShownChunk, frame, MAX_FRAME_BYTES) for frame in frames)
        except PotluckError as error:
            log.debug("chunk_not_shown", by=peer_name(peer), reason=error.one_line())

    async def ask_all(self, network: Network) -> None:
        """Ask the reducer, which has all of them, and then each contributor for its own. Everybody who is asked answers in a few
        seconds or is passed over.
        """
        await self.ask(network, self.what.reducer)
        async with trio.open_nursery() as nursery:
            for peer in dict.fromkeys(self.missing.values()):
                if peer != self.what.reducer:
                    nursery.start_soon(self.ask, network, peer)


def collecting_of(record: CommitRecord, pick: Pick, grid: ChunkGrid, codec: Codec) -> Collecting:
    """The audit of one chunk, before any has come; `codec` is that of contributions."""
    what = sum_of(record, pick.part)
    ordered = tuple(sorted(what.inputs, key=lambda each: each.peer))
    begin, stop = grid.bounds(0)
    return Collecting(replace(what, inputs=ordered), pick.chunk, grid.num_chunks, codec.encoded_bytes(stop - begin))


def result_hashes(part: SliceRecord, result: bytes, codec: Codec, grid: ChunkGrid) -> list[bytes]:
    """The leaf hashes of a slice's result, of which `codec` is the codec; may run in a thread."""
    return [leaf_hash(data) for data in split_chunks(result, codec, grid, part.first_chunk, part.stop_chunk)]


def proof_of(collected: Collecting, part: SliceRecord, hashes: Sequence[bytes]) -> SumProof:
    """The proof that one chunk of a sum makes if it is false; may run in a thread.

    Args:
        collected: with nothing missing.
        part: the slice, as the record has it.
        hashes: of the chunks of its result.
    """
    place = collected.chunk - part.first_chunk
    path = b"".join(MerkleTree.over(hashes).path(place, place + 1))
    shown = tuple(collected.found[each.root] for each in collected.what.inputs)
    return SumProof(collected.what, part.seal, collected.chunk, hashes[place], path, shown)
