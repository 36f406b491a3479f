"""Dependencies of every exchange of a unit (exchange.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from averaging.codecs import Codec
from averaging.network.seams.interfaces import BegunFile, Network, Offload
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.lineage.next_state import Encoded, SliceBytes
from averaging.rounds.traffic.result_ref import NamedResult
from averaging.rounds.traffic.spans import Moving, Record, nowhere, spanned
from protocol.identity.identity import Verifier
from protocol.ids import PeerId, RunId
from protocol.rounds.events import ResultRefused
from protocol.rounds.messages.messages import Member, Proposal, ResultReady
from protocol.tensors.tensor_schema import ChunkGrid


def _nobody(_: PeerId) -> None:
    pass


async def _nothing(_: ResultReady | ResultRefused) -> None:
    pass


@dataclass(frozen=True)
class ExchangeContext:
    """Dependencies of every exchange of a unit."""

    run_id: RunId
    me: Member
    network: Network
    offload: Offload
    verifier: Verifier
    means: ChunkMeans
    """The codec of results, the unit's chunks, and the rules by which slices are summed."""
    seal: Callable[[bytes], Awaitable[bytes]]
    begin_result: Callable[[NamedResult], BegunFile]
    """Opens a file for an arriving result."""
    keep_result: Callable[[NamedResult, SliceBytes, BegunFile | None], Awaitable[Callable[[], None]]]
    """Stores a whole result on disk; its first bytes may be in that file already. It returns a function, which is called once all of
    the result was examined.
    """
    examine: Callable[[int, Encoded], Awaitable[list[bytes]]]
    """Checks that chunks of a result, from that number on, are fit to apply; returns their leaf hashes. It may also compute the
    next state from them in a thread.
    """
    holds_result: Callable[[NamedResult], Awaitable[bool]]
    announce: Callable[[ResultReady], Awaitable[None]]
    probe: Callable[[PeerId], None] = _nobody
    """A stream to this peer broke: ping it now, before the next regular ping."""
    learn: Callable[[ResultReady], Awaitable[None]] = _nothing
    """Takes a reducer's result header from our own stream: the reducer's announcement may have been lost."""
    refused: Callable[[ResultRefused], Awaitable[None]] = _nothing
    """Called when a reducer's result cannot be used."""
    record: Record = nowhere
    credential: Callable[[], bytes] = bytes
    """The proof of our admission, where a record of our sums has to show it."""

    @property
    def result_codec(self) -> Codec:
        """The codec of results."""
        return self.means.result_codec

    @property
    def grid(self) -> ChunkGrid:
        """The unit's chunks."""
        return self.means.grid

    def spanned(self, proposal: Proposal, name: str, detail: str = "") -> AbstractContextManager[Moving]:
        """Record how long a block of this attempt takes."""
        return spanned(self.record, name, proposal.unit, detail, proposal.index)
