"""The files that a unit keeps on this peer's disk, and how much they may take.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeAlias

import structlog
import trio

from averaging.arithmetic.batched_codec import span_bytes
from averaging.codecs import Codec
from averaging.rounds.lineage.updates import APPLY_COST_S, UnitContext
from averaging.state.state import UnitState
from protocol.errors import StorageError
from protocol.estimates import unit_disk
from protocol.estimates.unit_disk import KEPT_UPDATE_SNAPSHOTS
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

KEPT_VOTES: Final = 64
"""The least number of newest bases of the lineage on which acks are kept in full."""


Genesis: TypeAlias = UnitState | Callable[[], UnitState]
"""The state before the first commit, or a blocking function that makes it again. It is needed only if no generation on disk is
good, and the function saves its memory.
"""


async def genesis_state(genesis: Genesis, tools: UnitContext) -> UnitState:
    """The state before the first commit."""
    return genesis if isinstance(genesis, UnitState) else await tools.offload.run(genesis, cost_s=APPLY_COST_S)


def update_bytes(codec: Codec, grid: ChunkGrid) -> int:
    """Bytes of one commit's results, encoded chunk by chunk; all chunks but the last have one size."""
    return len(span_bytes(codec, grid, 0, grid.num_chunks))


def num_kept_updates(tools: UnitContext) -> int:
    """Number of newest updates that are kept: until they weigh more than some snapshots, because a snapshot is cheaper from there
    on (R24).
    """
    num_values, weight = tools.grid.num_elements, update_bytes(tools.result_codec, tools.grid)
    return unit_disk.num_kept_updates(num_values, weight, KEPT_UPDATE_SNAPSHOTS)


def num_kept_votes(tools: UnitContext) -> int:
    """Number of newest bases on which acks are kept in full. A start that has lost results mostly returns to one of them."""
    return max(KEPT_VOTES, num_kept_updates(tools))


def last_agreed(links: Sequence[ChainLink]) -> ChainLink:
    """The newest commit of a lineage that a quorum made, or the genesis."""
    return next((link for link in reversed(links) if not link.is_lone), links[0])


def kept_generations(tools: UnitContext, links: Sequence[ChainLink]) -> set[CommitId]:
    """The generations of a lineage that are kept. These are the two newest, and a few older ones, from which the kept updates
    lead to every fork among them. The last commit that a quorum made is kept however old, because the other peers also went on
    from there.
    """
    num_updates, newest = num_kept_updates(tools), links[-1].index
    spacing = max(1, num_updates // 2)
    old = [link for link in links if link.index % spacing == 0 and link.index >= newest - num_updates]
    return {link.commit for link in (*old, *links[-2:], last_agreed(links))}


def kept_bases(tools: UnitContext, commits: Sequence[CommitId]) -> Sequence[CommitId]:
    """The bases whose results stay: those of the kept updates, and the head. `commits`: a lineage, oldest first."""
    return commits[-(num_kept_updates(tools) + 1) :]


def max_updates(tools: UnitContext) -> int:
    """The most commits whose results are on disk. These are the kept ones, those of a lineage that is being fetched (no peer has
    more than we keep of ours), and those of the open round's attempts.
    """
    return unit_disk.max_updates(num_kept_updates(tools))


def disk_bound_bytes(tools: UnitContext) -> int:
    """The most bytes that a unit takes on disk: its states, updates and residuals (`unit_disk_bytes`), and the log. The log may
    take twice its compacted size, and 1 MiB. It grows by a certificate a round; certificates of lineages that were left take at most
    1 MiB of it.
    """
    num_values, weight = tools.grid.num_elements, update_bytes(tools.result_codec, tools.grid)
    feedback_bytes = tools.feedback.bound_bytes if tools.feedback is not None else 0
    files_bytes = unit_disk.unit_disk_bytes(num_values, weight, feedback_bytes, KEPT_UPDATE_SNAPSHOTS)
    return files_bytes + tools.log.bound_bytes


async def keep_generation(
    tools: UnitContext, links: Sequence[ChainLink], state: UnitState, root: Root, doubtful: Collection[CommitId] = ()
) -> None:
    """Write the state at the head of a lineage, and delete generations that are too old or `doubtful`. If the disk refuses, the
    next start has a longer log to replay; nothing is lost.

    Updates that are due are deleted first. Generations are deleted once the new one is on disk, if the disk has room for it.
    Otherwise all but the newest one are deleted before.
    """
    head = links[-1]
    kept = kept_generations(tools, links) - set(doubtful)
    try:
        await _drop_updates(tools, links)
        try:
            await tools.generations.write(state, root)
        except StorageError:
            spared = await _newest_on_disk(tools, links, doubtful)
            if not await tools.generations.keep_only(kept | spared, trio.current_time()):
                raise
            await tools.generations.write(state, root)
        await tools.generations.keep_only(kept, trio.current_time())
    except StorageError as error:
        log.warning("generation_not_written", reason=error.one_line(), index=head.index)


async def _drop_updates(tools: UnitContext, links: Sequence[ChainLink]) -> None:
    """Delete the updates of failed attempts on the head's base, and all of the lineage that are too old. That includes updates
    that an earlier call could not delete, and those of a commit whose predecessor was not kept yet.
    """
    head, kept = links[-1], num_kept_updates(tools)
    if head.record is not None:
        await tools.log.drop_results(head.record.parent, [part.result_hash for part in head.record.slices])
    newest = {link.commit for link in links[-kept - 1 :]}
    if found := set(await tools.log.result_bases()) - newest:  # also those of other lineages, which are being fetched
        for base in found.intersection(link.commit for link in links):
            await tools.log.drop_results(base, ())


async def _newest_on_disk(
    tools: UnitContext, links: Sequence[ChainLink], doubtful: Collection[CommitId]
) -> set[CommitId]:
    """The generation of a lineage that the next start would load; empty if there is none."""
    good = {link.commit for link in links} - set(doubtful)
    return set([ref.commit for ref in await tools.generations.list() if ref.commit in good][-1:])
