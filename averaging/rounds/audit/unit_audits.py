"""The audits of one unit at one peer: checks sums, keeps proofs, fetches what audits of work compare, and answers others' requests."""

from __future__ import annotations

from averaging.network.seams.interfaces import Stream
from averaging.rounds.audit.sum_audit import SumAudit
from averaging.rounds.audit.sum_check import SumCheck
from averaging.rounds.audit.sum_proofs import SumProofs
from averaging.rounds.audit.work_fetch import WorkFetch, send_steps
from averaging.rounds.exchange.chunk_means import ChunkMeans
from averaging.rounds.exchange.shown_offers import ShownOffers, send_shown
from averaging.rounds.lineage.round_context import RoundContext, Tasks, Tell
from averaging.rounds.lineage.unit_chain import UnitChain
from protocol.rounds.lineage.record_rules import SignatureCheck
from protocol.rounds.messages.requests import FetchChunk, FetchProof, FetchRequest, FetchSteps
from protocol.rounds.state import RoundConfig


class UnitAudits:
    """The parts that do a unit's audits, for its round service."""

    def __init__(
        self, config: RoundConfig, chain: UnitChain, tools: RoundContext, shown: ShownOffers, tasks: Tasks, tell: Tell
    ) -> None:
        codecs = chain.tools
        means = ChunkMeans(codecs.result_codec, codecs.grid, config.sums)
        check = SumCheck(config.unit, codecs.codec, means, SignatureCheck(config.verifier, config.run_id))
        proofs = SumProofs(check, tools, tell)
        self._tools = tools
        self._shown = shown
        self._chain = chain
        self._proofs = proofs
        self.look = SumAudit(config, chain, tools, shown, proofs, tasks).look
        self.load = proofs.load
        self.fetch = proofs.fetch
        self.work = WorkFetch(chain, tools, shown)

    async def serve(self, request: FetchRequest, stream: Stream) -> bool:
        """Whether this request is about audits, and was answered."""
        match request:
            case FetchProof():
                await self._proofs.serve(request, stream)
            case FetchChunk():
                await send_shown(self._shown.on(request.base), request, self._tools.offload, stream)
            case FetchSteps():
                await send_steps(self._chain.offered.steps_of(request.root), stream)
            case _:
                return False
        return True
