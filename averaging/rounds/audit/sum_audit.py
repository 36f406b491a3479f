"""Looks at others' sums before the ack, computes some chunks of them again, and shows to everybody what it can prove.

An audit begins when a record is settled and its bytes are here. The ack waits for it, but only for a moment: a liar that answers
nobody must not hold up rounds. An audit that ends later still convicts.

Rules: R14, R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
import torch
import trio

from averaging.arithmetic.batched_codec import decode_run
from averaging.rounds.audit.chunk_fetch import collecting_of, proof_of, result_hashes
from averaging.rounds.audit.proof_fetch import LOOK_COST_S
from averaging.rounds.audit.sum_proofs import SumProofs
from averaging.rounds.exchange.shown_offers import ShownOffers
from averaging.rounds.lineage.round_context import RoundContext, Tasks
from averaging.rounds.lineage.round_reports import SumNotShown, SumsAudited
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.contribution import EncodedContribution, split_chunks
from protocol.identity.names import peer_name
from protocol.rounds.audit.sum_audit_core import Glance, Pick, glanced_chunks, others_slices, picks
from protocol.rounds.events import SumWithheld
from protocol.rounds.messages.record import CommitRecord, SliceRecord
from protocol.rounds.state import RoundConfig

log = structlog.get_logger()

HOLD_S: Final = 2.0
"""How long an ack waits for our own audit of its record: a few times the way around the world and back."""


@dataclass
class SumAudit:
    """The audits of one unit at one peer."""

    config: RoundConfig
    chain: UnitChain
    tools: RoundContext
    shown: ShownOffers
    proofs: SumProofs
    tasks: Tasks
    _num_in_vain: int = 0

    async def look(self, record: CommitRecord, own: EncodedContribution | None) -> None:
        """Audit a record whose bytes are here, and return once that has ended, or HOLD_S have passed."""
        if self.config.sums.audit_share <= 0.0 or not others_slices(record, self.config.me.peer):
            return
        over = trio.Event()
        self.tasks.spawn(self._look, record, own, over)
        with trio.move_on_after(HOLD_S):
            await over.wait()

    async def _look(self, record: CommitRecord, own: EncodedContribution | None, over: trio.Event) -> None:
        try:
            sums, me = self.config.sums, self.config.me.peer
            suspects = await self._suspects(record, own)
            chosen = picks(record, me, sums.audit_share, suspects, self._num_in_vain, self.tools.audits.draw)
            num_bytes = 0
            for pick in chosen:
                num_bytes += await self._audit(record, pick)
            if chosen:
                num_suspect = sum(pick.is_suspect for pick in chosen)
                self.tools.publish(SumsAudited(len(chosen), num_bytes, num_suspect))
        finally:
            over.set()

    async def _suspects(self, record: CommitRecord, own: EncodedContribution | None) -> list[SliceRecord]:
        """The others' slices that look wrong beside our own delta."""
        me, found = self.config.me.peer, list[SliceRecord]()
        entry = record.contributor(me)
        if own is None or entry is None or entry.root != own.root:
            return found
        for part in others_slices(record, me):
            absent = {each.peer for each in part.omitted} | {each.peer for each in part.disagreeing}
            result = None if me in absent else self.chain.updates.fresh(part.result_hash)
            if result is None:
                continue  # it came from elsewhere, and is not read again for this
            chunks = glanced_chunks(part, self.tools.audits.draw)
            glance = await self.tools.offload.run(
                partial(self._glance, own, part, result.data, chunks), cost_s=LOOK_COST_S
            )
            if glance.looks_wrong:
                found.append(part)
        return found

    def _glance(
        self, own: EncodedContribution, part: SliceRecord, result: bytes | memoryview, chunks: Sequence[int]
    ) -> Glance:
        tools = self.chain.tools
        results = split_chunks(result, tools.result_codec, tools.grid, part.first_chunk, part.stop_chunk)
        own_squared = result_squared = product = 0.0
        for chunk in chunks:
            begin, stop = tools.grid.bounds(chunk)
            size = tools.grid.chunk_elements
            own_n = decode_run(tools.codec, [own.chunks[chunk]], size, stop - begin).double()
            mean_n = decode_run(tools.result_codec, [results[chunk - part.first_chunk]], size, stop - begin).double()
            own_squared += float(torch.dot(own_n, own_n))
            result_squared += float(torch.dot(mean_n, mean_n))
            product += float(torch.dot(own_n, mean_n))
        return Glance(own_squared, result_squared, product)

    async def _audit(self, record: CommitRecord, pick: Pick) -> int:
        """Compute one chunk again. Returns the bytes that came for it."""
        tools, part = self.chain.tools, pick.part
        hashes = await self._hashes_of(record, part)
        if hashes is None:
            return 0  # the base is past, and its results are gone
        collected = collecting_of(record, pick, tools.grid, tools.codec)
        here = self.shown.on(record.parent)
        if here is not None:
            own = partial(here.shown, pick.chunk, frozenset(collected.missing))
            collected.take(await self.tools.offload.run(own))
        await collected.ask_all(self.tools.network)
        if collected.missing:
            await self._not_shown(record, pick, len(collected.missing), len(collected.what.inputs))
            return collected.num_bytes
        proof = await self.tools.offload.run(partial(proof_of, collected, part, hashes))
        why_not = await self.proofs.why_not(proof)
        if not why_not:
            self._num_in_vain = 0
            await self.proofs.prove(proof)
        elif pick.is_suspect:
            self._num_in_vain += 1
        return collected.num_bytes

    async def _hashes_of(self, record: CommitRecord, part: SliceRecord) -> Sequence[bytes] | None:
        """The leaf hashes of a result, from memory or from disk; None where it is gone."""
        tools, fresh = self.chain.tools, self.chain.updates.fresh(part.result_hash)
        if fresh is not None:
            return fresh.hashes
        result = await tools.log.read_result(record.parent, part.result_hash)
        if result is None:
            return None
        return await self.tools.offload.run(partial(result_hashes, part, result, tools.result_codec, tools.grid))

    async def _not_shown(self, record: CommitRecord, pick: Pick, num_missing: int, num_inputs: int) -> None:
        """Once the round is over here, others may rightly have forgotten its chunks."""
        if self.chain.head.commit != record.parent:
            return
        reducer, found = pick.part.reducer, f"{num_missing} of {num_inputs} contributions"
        reason = f"{found} to chunk {pick.chunk} were shown by nobody"
        log.info("sum_not_shown", reducer=peer_name(reducer), reason=reason)
        self.tools.publish(SumNotShown(reducer, reason))
        await self.proofs.tell(SumWithheld(record.parent, reducer, reason))
