"""Fetches what an audit of a peer's work compares: the local steps that the peer says it took, and some chunks of its contribution.

The contributor and the reducers show chunks only for a short time after the commit, so both are fetched as soon as the commit is here.
The chunks come by the requests of sum audits. The steps are told for some rounds, so a contributor that is away is asked again.

Rules: R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import structlog
import torch
import trio

from averaging.arithmetic.batched_codec import decode_run
from averaging.network.seams.interfaces import Network, Stream
from averaging.rounds.audit.chunk_fetch import ASKED_WITHIN_S, Collecting, collecting_of
from averaging.rounds.exchange.shown_offers import ShownOffers
from averaging.rounds.lineage.round_context import RoundContext
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import PIECE_BYTES, ask_all
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.rounds.audit.sum_audit_core import Pick
from protocol.rounds.messages.record import CommitRecord, Contributor, SliceRecord
from protocol.rounds.messages.requests import FetchSteps, StepsTaken
from protocol.rounds.messages.wire import decode_body, encode_body

log = structlog.get_logger()


@dataclass(frozen=True, eq=False)
class ShownWork:
    """The shown part of a contribution.

    Attributes:
        steps: the local steps that its contributor says it took; None where it tells none.
        chunks: the values of each chunk by its number, in order, float32 of that chunk's length.
    """

    steps: StepsTaken | None
    chunks: Mapping[int, torch.Tensor]


@dataclass(frozen=True)
class WorkFetch:
    """Fetches the work of one unit's contributors."""

    chain: UnitChain
    tools: RoundContext
    shown: ShownOffers

    async def fetch(self, record: CommitRecord, entry: Contributor, chunks: Sequence[int]) -> ShownWork:
        """The steps of a contributor, and those of these chunks of its contribution that a peer still shows. Ends within seconds.

        Args:
            entry: the contributor, in that record.
            chunks: numbers of chunks, each in a slice that sums the contribution.
        """
        found: dict[int, torch.Tensor] = {}
        async with trio.open_nursery() as nursery:
            for chunk in chunks:
                nursery.start_soon(self._take, record, entry, chunk, found)
            steps = await self.steps(record, entry)
        return ShownWork(steps, {chunk: found[chunk] for chunk in chunks if chunk in found})

    async def steps(self, record: CommitRecord, entry: Contributor) -> StepsTaken | None:
        """The local steps that made a contribution, as its contributor says; None where it tells none within seconds."""
        return await steps_told(self.tools.network, record, entry)

    async def _take(self, record: CommitRecord, entry: Contributor, chunk: int, found: dict[int, torch.Tensor]) -> None:
        tools, here = self.chain.tools, self.shown.on(record.parent)
        pick = Pick(slice_of(record, chunk), chunk)
        collected = from_contributor(entry, collecting_of(record, pick, tools.grid, tools.codec))
        if here is not None:
            collected.take(await self.tools.offload.run(partial(here.shown, chunk, frozenset(collected.missing))))
        await collected.ask_all(self.tools.network)
        if collected.missing:
            return
        begin, stop = tools.grid.bounds(chunk)
        data = collected.found[entry.root].data
        try:
            found[chunk] = decode_run(tools.codec, [data], tools.grid.chunk_elements, stop - begin)
        except RemoteProtocolError as error:  # its reducer would have refused it, too
            log.info("work_not_decoded", of=peer_name(entry.peer), reason=error.one_line())


def slice_of(record: CommitRecord, chunk: int) -> SliceRecord:
    """The slice that a chunk lies in. Raises StopIteration for a chunk that the record does not have."""
    return next(part for part in record.slices if part.first_chunk <= chunk < part.stop_chunk)


def from_contributor(entry: Contributor, collecting: Collecting) -> Collecting:
    """The same request for the chunk of this contributor alone."""
    inputs = tuple(each for each in collecting.what.inputs if each.root == entry.root)
    return replace(collecting, what=replace(collecting.what, inputs=inputs))


async def steps_told(network: Network, record: CommitRecord, entry: Contributor) -> StepsTaken | None:
    """The local steps that made a contribution, as its contributor says; None where it tells none."""
    request = FetchSteps(record.unit, record.parent, entry.root)
    try:
        frames = await ask_all(network, entry.peer, request, PIECE_BYTES, within_s=ASKED_WITHIN_S)
        told = [decode_body(StepsTaken, frame) for frame in frames]
    except PotluckError as error:
        log.debug("steps_not_told", by=peer_name(entry.peer), reason=error.one_line())
        return None
    return next((each for each in told if each.root == entry.root), None)


async def send_steps(steps: StepsTaken | None, stream: Stream) -> None:
    """Tell the local steps of an own contribution; an empty end answers where they are not known."""
    if steps is not None:
        await stream.send_frame(encode_body(steps))
