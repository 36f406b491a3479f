"""What every exchange of a unit works with (exchange.py)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from averaging.codecs import Codec
from averaging.network.seams.interfaces import BegunFile, Network, Offload
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
    """What every exchange of a unit works with."""

    run_id: RunId
    me: Member
    network: Network
    offload: Offload
    verifier: Verifier
    result_codec: Codec
    grid: ChunkGrid
    seal: Callable[[bytes], Awaitable[bytes]]
    begin_result: Callable[[NamedResult], BegunFile]
    """A file for a result that comes."""
    keep_result: Callable[[NamedResult, SliceBytes, BegunFile | None], Awaitable[None]]
    """Have a whole result on disk, where the first bytes of it are in that file already."""
    examine: Callable[[int, Encoded], Awaitable[list[bytes]]]
    """Checks chunks of a result, from that number on, to be fit to be applied; returns their leaf hashes. What else can be done with
    them at once is done, too, beside trio.
    """
    holds_result: Callable[[NamedResult], Awaitable[bool]]
    announce: Callable[[ResultReady], Awaitable[None]]
    probe: Callable[[PeerId], None] = _nobody
    """A stream to this peer broke: ask it for a sign of life, now rather than at the next ping."""
    learn: Callable[[ResultReady], Awaitable[None]] = _nothing
    """A reducer's result came to us on our own stream: its announcement may have been lost on the way."""
    refused: Callable[[ResultRefused], Awaitable[None]] = _nothing
    """A reducer gave a result that cannot be used."""
    record: Record = nowhere

    def spanned(self, proposal: Proposal, name: str, detail: str = "") -> AbstractContextManager[Moving]:
        """Record how long a block of this attempt takes."""
        return spanned(self.record, name, proposal.unit, detail, proposal.index)
