"""Gets what an audit of somebody's work needs: its local steps, as it says, and some chunks of its contribution and of our own.

The contributor and the reducers show chunks for a short time after the commit, so it is fetched as soon as that is here.

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
from averaging.network.seams.interfaces import Network
from averaging.rounds.audit.chunk_fetch import ASKED_WITHIN_S, Collecting, collecting_of
from averaging.rounds.exchange.shown_offers import ShownOffers
from averaging.rounds.lineage.round_context import RoundContext
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.transfer import PIECE_BYTES, ask_all
from protocol.errors import PotluckError, RemoteProtocolError
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.audit.sum_audit_core import Pick
from protocol.rounds.messages.record import CommitRecord, Contributor, SliceRecord
from protocol.rounds.messages.requests import FetchSteps, StepsTaken
from protocol.rounds.messages.wire import decode_body

log = structlog.get_logger()


@dataclass(frozen=True, eq=False)
class ShownWork:
    """The shown part of a contribution.

    Attributes:
        steps: those that its contributor says it took.
        chunks: by number, in order: the values of its chunk and of our own, each float32 of that chunk's length.
    """

    steps: StepsTaken
    chunks: Mapping[int, tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class WorkFetch:
    """Fetches the work of one unit's contributors."""

    chain: UnitChain
    tools: RoundContext
    shown: ShownOffers

    async def fetch(self, record: CommitRecord, of: PeerId, own: PeerId, chunks: Sequence[int]) -> ShownWork | None:
        """The steps of the contributor `of`, and these chunks of its contribution and of our own, of those that anybody shows. None
        where it tells no steps, or no chunk is shown. It ends within seconds.

        Args:
            record: counts both; each chunk lies in a slice that sums both.
        """
        theirs, ours = record.contributor(of), record.contributor(own)
        if theirs is None or ours is None:
            return None
        steps = await steps_told(self.tools.network, record, theirs)
        if steps is None:
            return None
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        async with trio.open_nursery() as nursery:
            for chunk in chunks:
                nursery.start_soon(self._take, record, chunk, (theirs, ours), found)
        return ShownWork(steps, {chunk: found[chunk] for chunk in chunks if chunk in found}) if found else None

    async def _take(
        self,
        record: CommitRecord,
        chunk: int,
        pair: tuple[Contributor, Contributor],
        found: dict[int, tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        tools, here = self.chain.tools, self.shown.on(record.parent)
        collected = pair_of(collecting_of(record, Pick(slice_of(record, chunk), chunk), tools.grid, tools.codec), pair)
        if here is not None:
            collected.take(await self.tools.offload.run(partial(here.shown, chunk, frozenset(collected.missing))))
        await collected.ask_all(self.tools.network)
        if collected.missing:
            return
        begin, stop = tools.grid.bounds(chunk)
        size = tools.grid.chunk_elements
        try:
            theirs_n, own_n = (
                decode_run(tools.codec, [collected.found[entry.root].data], size, stop - begin) for entry in pair
            )
        except RemoteProtocolError as error:  # its reducer would have refused it, too
            log.info("work_not_decoded", of=peer_name(pair[0].peer), reason=error.one_line())
            return
        found[chunk] = theirs_n, own_n


def slice_of(record: CommitRecord, chunk: int) -> SliceRecord:
    """The slice that a chunk lies in. Raises StopIteration for a chunk that the record does not have."""
    return next(part for part in record.slices if part.first_chunk <= chunk < part.stop_chunk)


def pair_of(collecting: Collecting, pair: Sequence[Contributor]) -> Collecting:
    """The same with the contributions of this pair alone."""
    roots = {entry.root for entry in pair}
    inputs = tuple(each for each in collecting.what.inputs if each.root in roots)
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
