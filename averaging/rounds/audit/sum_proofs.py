"""The proofs of false sums that this peer has: made here, or asked of others and checked, kept on disk and shown to whoever asks.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.false_accusations import FalseAccusations
from averaging.rounds.audit.proof_fetch import LOOK_COST_S, fetch_proof
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.lineage.round_context import RoundContext, Tell, tell_failure
from averaging.rounds.lineage.round_reports import SumConvicted
from averaging.rounds.traffic.transfer import PIECE_BYTES
from averaging.state.proof_files import MOST_KEPT
from protocol.errors import RemoteProtocolError, StorageError
from protocol.identity.names import peer_name
from protocol.rounds.audit.sum_proof import SumProof, decode_proof, encode_proof, hash_of_proof, notice_of
from protocol.rounds.events import SumProven
from protocol.rounds.messages.requests import FetchProof
from protocol.rounds.orders import FetchSumProof

log = structlog.get_logger()

MOST_AT_ONCE: Final = 2
"""Proofs that are fetched at a time: each is as long as a chunk of every contribution together."""


@dataclass
class SumProofs:
    """The proofs of one unit at one peer."""

    check: SumCheck
    tools: RoundContext
    tell: Tell
    _known: dict[bytes, bytes] = field(default_factory=dict)
    _fetching: set[bytes] = field(default_factory=set)
    _false: FalseAccusations = field(default_factory=FalseAccusations)

    async def why_not(self, proof: SumProof) -> str:
        """Why a proof convicts nobody, as `SumCheck.why_not`, in a thread."""
        return await self.tools.offload.run(partial(self.check.why_not, proof), cost_s=LOOK_COST_S)

    async def load(self) -> None:
        """Take up the proofs on disk. Each is checked again: an older release may have made it."""
        for data in [] if self.tools.audits.proofs is None else await self.tools.audits.proofs.load():
            try:
                proof = decode_proof(data, self.check.chunk_bytes)
            except RemoteProtocolError as error:
                log.info("proof_passed_over", reason=error.one_line())
                continue
            why_not = await self.why_not(proof)
            if why_not:
                log.info("proof_passed_over", reason=why_not)
            else:
                await self._take(proof, data, is_news=False)

    async def prove(self, proof: SumProof) -> None:
        """Keep a proof that was made and checked here, and let the machine act on it."""
        data = encode_proof(proof)
        if hash_of_proof(data) in self._known:
            return
        if self.tools.audits.proofs is not None:
            try:
                await self.tools.audits.proofs.write(data)
            except StorageError as error:  # it is shown as long as this process lives
                tell_failure(self.tools.publish, "keep_proof", error)
        await self._take(proof, data, is_news=True)

    async def _take(self, proof: SumProof, data: bytes, *, is_news: bool) -> None:
        notice = notice_of(proof, data)
        if len(self._known) < MOST_KEPT:
            self._known[notice.proof_hash] = data
        log.warning("false_sum_proven", peer=peer_name(notice.reducer), reason=f"it {proof.words}; it is out")
        self.tools.publish(SumConvicted(notice, proof.words))
        await self.tell(SumProven(notice, proof.words, is_news))

    async def fetch(self, order: FetchSumProof) -> None:
        """Ask a peer for the proof that it speaks of. A false accusation is forgotten, and not asked for again.

        Raises:
            TransportError: the peer is gone, silent or too slow.
        """
        notice = order.notice
        named = notice.proof_hash
        is_here = named in self._known or named in self._fetching
        if is_here or len(self._fetching) >= MOST_AT_ONCE or not self._false.may_be_true(order.source, named):
            return
        self._fetching.add(named)
        try:
            tools = self.tools
            proof = await fetch_proof(tools.network, tools.offload, order.source, notice, self.check)
        except RemoteProtocolError as error:
            self._false.note(order.source, named)
            log.info("accusation_without_proof", by=peer_name(order.source), reason=error.one_line())
            return
        finally:
            self._fetching.discard(named)
        await self.prove(proof)

    async def serve(self, request: FetchProof, stream: Stream) -> None:
        """Show a proof; an empty end if it is not here."""
        data = self._known.get(request.proof_hash, b"")
        for begin in range(0, len(data), PIECE_BYTES):
            await stream.send_frame(data[begin : begin + PIECE_BYTES])
