"""What of a unit stays on this peer's disk, and how much that may come to.

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
from averaging.state.generations import MAX_PINNED
from averaging.state.state import STATE_BYTES_PER_VALUE, UnitState
from protocol.errors import StorageError
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain import ChainLink
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

KEPT_UPDATE_SNAPSHOTS: Final = 4
"""One snapshot's weight would do for safety; four give a slow joiner time to finish its download."""

OLD_GENERATIONS: Final = 3
"""At every half of the kept updates: as many fit into their span."""

OPEN_UPDATES: Final = 3
"""Results of several attempts on the head, until it moves."""

KEPT_VOTES: Final = 64
"""Acks are kept in full on at least so many bases of the lineage, the newest."""


Genesis: TypeAlias = UnitState | Callable[[], UnitState]
"""The state before the first commit, or what makes it once more and blocks: it is wanted only where no generation on the disk is good,
and need not be held in memory for that.
"""


async def genesis_state(genesis: Genesis, tools: UnitContext) -> UnitState:
    """The state before the first commit."""
    return genesis if isinstance(genesis, UnitState) else await tools.offload.run(genesis, cost_s=APPLY_COST_S)


def update_bytes(codec: Codec, grid: ChunkGrid) -> int:
    """What the results of one commit weigh: chunk by chunk, as they are encoded; all but the last are of one size."""
    return len(span_bytes(codec, grid, 0, grid.num_chunks))


def num_kept_updates(tools: UnitContext) -> int:
    """Updates are kept until they weigh more than some snapshots: beyond that a snapshot is the shorter way (R24)."""
    return (
        KEPT_UPDATE_SNAPSHOTS
        * STATE_BYTES_PER_VALUE
        * tools.grid.num_elements
        // update_bytes(tools.result_codec, tools.grid)
    )


def num_kept_votes(tools: UnitContext) -> int:
    """On so many of the newest bases acks are kept in full: a start that has lost results comes back to one of them, mostly."""
    return max(KEPT_VOTES, num_kept_updates(tools))


def last_agreed(links: Sequence[ChainLink]) -> ChainLink:
    """The newest commit of a lineage that a quorum made, or the genesis."""
    return next((link for link in reversed(links) if not link.is_lone), links[0])


def kept_generations(tools: UnitContext, links: Sequence[ChainLink]) -> set[CommitId]:
    """The two newest of a lineage, a few older ones from which the kept updates lead to every fork among them, and the commit on which
    we went on without a quorum, however long ago: the others went on from there, too.
    """
    num_updates, newest = num_kept_updates(tools), links[-1].index
    spacing = max(1, num_updates // 2)
    old = [link for link in links if link.index % spacing == 0 and link.index >= newest - num_updates]
    return {link.commit for link in (*old, *links[-2:], last_agreed(links))}


def kept_bases(tools: UnitContext, commits: Sequence[CommitId]) -> Sequence[CommitId]:
    """The bases whose results stay: of the kept updates, and of the round on the head. `commits`: a lineage, oldest first."""
    return commits[-(num_kept_updates(tools) + 1) :]


def max_updates(tools: UnitContext) -> int:
    """Results of so many commits lie on the disk at most: the kept ones; beside them, until the head moves there, those of a lineage
    that is being brought here, of which nobody has more than we keep of ours; and those of the open round's attempts.
    """
    return 2 * (num_kept_updates(tools) + 1) + OPEN_UPDATES


def disk_bound_bytes(tools: UnitContext) -> int:
    """What a unit takes of the disk at most: generations (the two newest, three old ones, the last that a quorum made, those that
    joiners are downloading, one being written), a download of our own, updates (`max_updates`), the residuals of error feedback, and
    the log: twice what would stay of it if it were written anew, and 1 MiB. What stays grows by a certificate a round; of it 1 MiB at
    most are certificates of lineages that were left.
    """
    num_states = 2 + OLD_GENERATIONS + 1 + MAX_PINNED + 1 + 1
    updates_bytes = max_updates(tools) * update_bytes(tools.result_codec, tools.grid)
    files_bytes = num_states * STATE_BYTES_PER_VALUE * tools.grid.num_elements + updates_bytes
    feedback_bytes = tools.feedback.bound_bytes if tools.feedback is not None else 0
    return files_bytes + feedback_bytes + tools.log.bound_bytes


async def keep_generation(
    tools: UnitContext, links: Sequence[ChainLink], state: UnitState, root: Root, doubtful: Collection[CommitId] = ()
) -> None:
    """Write the state at the head of a lineage, drop what is too old or `doubtful`. The log is the truth: a disk that refuses costs
    only a longer replay.

    Updates go first, and all that are due. Generations go once the new one is on the disk, where it has room for that; else before,
    but for the newest that is there.
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
    """Those of attempts on the head's base that came to nothing, and all of the lineage that are too old: also those that an earlier
    call could not drop, or that a commit passed by which came before its predecessor was kept.
    """
    head, kept = links[-1], num_kept_updates(tools)
    if head.record is not None:
        await tools.log.drop_results(head.record.parent, [part.result_hash for part in head.record.slices])
    newest = {link.commit for link in links[-kept - 1 :]}
    if found := set(await tools.log.result_bases()) - newest:  # of other lineages, too, which are on their way here
        for base in found.intersection(link.commit for link in links):
            await tools.log.drop_results(base, ())


async def _newest_on_disk(
    tools: UnitContext, links: Sequence[ChainLink], doubtful: Collection[CommitId]
) -> set[CommitId]:
    """The generation of a lineage that the next start would take; empty where there is none."""
    good = {link.commit for link in links} - set(doubtful)
    return set([ref.commit for ref in await tools.generations.list() if ref.commit in good][-1:])
