"""The files that a unit keeps on this peer's disk, and how much they may take.

Rules: R24 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

import structlog
import trio

from averaging.arithmetic.batched_codec import span_bytes
from averaging.codecs import Codec
from averaging.rounds.lineage.updates import APPLY_COST_S, UnitContext
from averaging.state.generations import GenerationRef
from averaging.state.state import UnitState
from protocol.errors import StorageError, UnreachableError
from protocol.estimates import unit_disk
from protocol.estimates.unit_disk import KEPT_UPDATE_SNAPSHOTS, Occasion
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
    """The state before the first commit, in memory of its own.

    Raises:
        UnreachableError: the shards with its values are not on this disk any more.
    """
    if isinstance(genesis, UnitState):
        return replace(genesis, anchor_N=genesis.anchor_N.clone(), momentum_N=genesis.momentum_N.clone())
    try:
        return await tools.offload.run(genesis, cost_s=APPLY_COST_S)
    except StorageError as error:
        expected = "the run's first weights on this disk"
        raise UnreachableError(error.found, expected, "the state comes from other peers") from error


async def first_state(genesis: Genesis, tools: UnitContext, root: ChainLink) -> UnitState | None:
    """The state at the beginning of a lineage, in memory of its own; None where that is a milestone: no state there can be made
    again. Raises as `genesis_state`.
    """
    return await genesis_state(genesis, tools) if not root.index else None


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


def generation_spacing(tools: UnitContext) -> int:
    """The most commits between two generations (protocol/estimates/unit_disk.py)."""
    num_values, weight = tools.grid.num_elements, update_bytes(tools.result_codec, tools.grid)
    return unit_disk.generation_spacing(num_values, weight, num_kept_updates(tools), tools.small_state_bytes)


def on_lineage(links: Sequence[ChainLink], on_disk: Sequence[GenerationRef]) -> list[ChainLink]:
    """The links of a lineage whose generations are on disk, oldest first."""
    first = links[0].index
    begun = [(links[ref.index - first], ref) for ref in on_disk if 0 <= ref.index - first < len(links)]
    return [link for link, ref in begun if link.commit == ref.commit]


def kept_generations(tools: UnitContext, links: Sequence[ChainLink], found: Sequence[ChainLink]) -> set[CommitId]:
    """The generations that are kept, of the good ones of a lineage on disk (`found`, oldest first). These are the two newest, and a
    few older ones, from which the kept updates lead to every fork among them. The one from which the last commit that a quorum
    made can be computed is kept however old, because the other peers also went on from there.
    """
    num_updates, newest, agreed = num_kept_updates(tools), links[-1].index, last_agreed(links).index
    block, firsts = unit_disk.generation_block(num_updates), dict[int, CommitId]()
    oldest = max(block, newest - num_updates)  # the first of the first block is the start, which can be made again
    for link in found:
        if link.index >= oldest:
            firsts.setdefault(link.index // block, link.commit)
    behind = [link for link in found if link.index <= agreed]
    return {*firsts.values(), *(link.commit for link in (*found[-2:], *behind[-1:]))}


def kept_bases(tools: UnitContext, links: Sequence[ChainLink], found: Sequence[ChainLink]) -> set[CommitId]:
    """The bases whose results stay: as many as updates are kept, and the head. Those that lead from a generation (`found`, as
    above) to the last commit that a quorum made come first, then the newest.
    """
    first, agreed, most = links[0].index, last_agreed(links).index, num_kept_updates(tools) + 1
    begin = max((link.index for link in found if link.index <= agreed), default=first)
    is_short = agreed - begin <= generation_spacing(tools)
    bases = {link.commit for link in links[begin - first : agreed - first]} if is_short else set()
    for link in reversed(links):
        if len(bases) >= most:
            break
        bases.add(link.commit)
    return bases


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
    tools: UnitContext,
    links: Sequence[ChainLink],
    state: UnitState,
    root: Root,
    occasion: Occasion = Occasion.REPLACED,
    doubtful: Collection[CommitId] = (),
) -> None:
    """Write the state at the head of a lineage if that is due on this occasion, and delete generations that are too old or
    `doubtful`. If the disk refuses, the next commit tries again, and a start has a longer log to replay; nothing is lost.

    Updates that are due are deleted first. Generations are deleted once the new one is on disk, if the disk has room for it.
    Otherwise all but those that stay with it are deleted before.
    """
    head = links[-1]
    try:
        found = [link for link in on_lineage(links, await tools.generations.list()) if link.commit not in doubtful]
        await _drop_updates(tools, links, found)
        newest = found[-1].index if found else 0
        if not found or unit_disk.is_generation_due(generation_spacing(tools), head.index, newest, occasion):
            found = [*(link for link in found if link is not head), head]
            await _write(tools, state, root, kept_generations(tools, links, found))
        await tools.generations.keep_only(kept_generations(tools, links, found), trio.current_time())
    except StorageError as error:
        log.warning("generation_not_written", reason=error.one_line(), index=head.index)


async def _write(tools: UnitContext, state: UnitState, root: Root, kept: set[CommitId]) -> None:
    """Write a generation, after others if the disk has no room for one more."""
    try:
        await tools.generations.write(state, root)
    except StorageError:
        if not await tools.generations.keep_only(kept, trio.current_time()):
            raise
        await tools.generations.write(state, root)


async def _drop_updates(tools: UnitContext, links: Sequence[ChainLink], found: Sequence[ChainLink]) -> None:
    """Delete the updates of failed attempts on the head's base, and all of the lineage that are too old. That includes updates
    that an earlier call could not delete, and those of a commit whose predecessor was not kept yet.
    """
    head, kept = links[-1], kept_bases(tools, links, found)
    if head.record is not None:
        await tools.log.drop_results(head.record.parent, [part.result_hash for part in head.record.slices])
    if too_many := set(await tools.log.result_bases()) - kept:  # also those of other lineages, which are being fetched
        for base in too_many.intersection(link.commit for link in links):
            await tools.log.drop_results(base, ())
