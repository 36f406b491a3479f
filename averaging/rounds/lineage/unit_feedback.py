"""A unit's error feedback at one peer: it changes with the commits that count our contributions, and survives a restart.

`run` writes the files in the background. After a crash, what was not written is made up from the log of commits, chunk by chunk.
A later commit that names a contribution of ours replaces a chunk's residual by the pending one, or by zero if that is not on
disk. So the result does not depend on how much was written; work may be lost but is never offered twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import structlog
import trio

from averaging.arithmetic.error_feedback import NO_ORIGIN, FedDelta, Feedback, no_residual
from averaging.network.seams.interfaces import Offload, Storage
from averaging.state.residual_files import ResidualFiles, bound_bytes
from protocol.errors import StorageError
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import CommitTree
from protocol.rounds.schedule.proposal import covered_chunks
from protocol.tensors.tensor_schema import ChunkGrid

log = structlog.get_logger()

CATCH_UP_COST_S = 0.001
"""Virtual time to go through the commits since a residual was saved."""


def counted_chunks(links: Iterable[ChainLink], me: PeerId) -> dict[Root, set[int]]:
    """The chunks of our contributions that these commits counted, by root."""
    counted: dict[Root, set[int]] = {}
    for root, chunks in counts_of(links, me):
        counted.setdefault(root, set()).update(chunks)
    return counted


def counts_of(links: Iterable[ChainLink], me: PeerId) -> list[tuple[Root, set[int]]]:
    """As `counted_chunks`, commit by commit."""
    counts: list[tuple[Root, set[int]]] = []
    for link in links:
        record = link.record  # that of an old link is read anew at each look
        entry = record.contributor(me) if record is not None else None
        if record is not None and entry is not None:
            ranges = (range(first, stop) for first, stop in covered_chunks(record, me))
            counts.append((entry.root, set().union(*ranges)))
    return counts


class ErrorFeedback:
    """One unit's residual in memory and on disk."""

    def __init__(self, me: PeerId, beta: float, grid: ChunkGrid, storage: Storage, offload: Offload) -> None:
        self._me = me
        self._offload = offload
        self._files = ResidualFiles(storage, grid, offload)
        self._grid = grid
        self._now: tuple[Feedback, CommitId | None] = (Feedback(beta, grid, no_residual(grid)), None)
        self._written: list[Root | None] = [NO_ORIGIN] * grid.num_chunks
        """By chunk, the origin of the residual on disk; None if that belongs to another lineage."""

        self._written_pending: object = None
        self._changed = trio.Event()

    @property
    def state(self) -> Feedback:
        """The current residual, and the pending one."""
        return self._now[0]

    @property
    def bound_bytes(self) -> int:
        """The most bytes that it takes on disk."""
        return bound_bytes(self._grid)

    # --- the start of a process -----------------------------------------------------------------------------------------------

    async def restore(self, links: Sequence[ChainLink], tree: CommitTree) -> None:
        """Read the disk, and advance the residual to the end of `links`, the lineage from the genesis on."""
        found = await self._files.load()
        if found.problems:
            log.warning("residual_damaged", reason=f"no residual where it was damaged: {'; '.join(found.problems)}")
        self._written = list(found.residual.origins)
        self._written_pending = found.pending
        state = Feedback(self.state.beta, self._grid, found.residual, found.pending)
        await self._follow(state, found.standing, links, tree)

    async def follow(self, links: Sequence[ChainLink], tree: CommitTree) -> None:
        """Follow a head that jumped to the end of `links` before the rounds began."""
        state, standing = self._now
        await self._follow(state, (standing,) * self._grid.num_chunks, links, tree)

    async def _follow(
        self,
        state: Feedback,
        standing: Sequence[CommitId | None],
        links: Sequence[ChainLink],
        tree: CommitTree,
    ) -> None:
        work = partial(_followed, state, standing, links, tree, self._me)
        followed, off_lineage = await self._offload.run(work, cost_s=CATCH_UP_COST_S)
        for chunk in off_lineage:
            self._written[chunk] = None
        self._now = followed, links[-1].commit
        self.changed()

    # --- the rounds -----------------------------------------------------------------------------------------------------------

    def offer(self, root: Root, fed: FedDelta) -> None:
        """Note what was offered on the head."""
        if fed.num_clipped or fed.num_dropped:
            reason = f"{fed.num_clipped} chunks of the residual scaled down to its bound, {fed.num_dropped} left out"
            log.warning("residual_bounded", reason=reason)
        state, standing = self._now
        self._now = state.offered(root, fed), standing
        self.changed()

    def commit(self, link: ChainLink) -> None:
        """Note a commit on our lineage. Safe in a thread; call `changed` afterwards."""
        self._now = self.state.after(counts_of([link], self._me)), link.commit

    def switch(self, state: Feedback, head: CommitId) -> None:
        """Note a switch of lineages, with the residual after it. Safe in a thread; call `changed` afterwards."""
        self._now = state, head
        self._written = [None if origin != NO_ORIGIN else origin for origin in state.residual.origins]

    # --- writing --------------------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Wake the writer."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        while True:
            changed = self._changed
            try:
                await self._save()
            except StorageError as error:
                log.warning("residual_not_saved", reason=error.one_line())
            await changed.wait()

    async def _save(self) -> None:
        """Write the residual first: a pending one is useless without the residual that it was built on."""
        written = self._written  # read first: a switch meanwhile replaces this list
        state, standing = self._now
        origins = state.residual.origins
        for number, chunks in enumerate(self._files.segments):
            if standing is not None and any(written[chunk] != origins[chunk] for chunk in chunks):
                await self._files.write_stored(number, standing, state.residual)
                for chunk in chunks:
                    written[chunk] = origins[chunk]
        pending = self.state.pending
        if pending is None or pending is self._written_pending:
            return
        for number in range(len(self._files.segments)):
            if self.state.pending is not pending:
                return
            await self._files.write_pending(number, pending)
        self._written_pending = pending


def _followed(
    state: Feedback,
    standing: Sequence[CommitId | None],
    links: Sequence[ChainLink],
    tree: CommitTree,
    me: PeerId,
) -> tuple[Feedback, set[int]]:
    """The feedback after the commits since then, and the chunks whose commit is not on this lineage."""
    places = {link.commit: place for place, link in enumerate(links)}
    groups: dict[CommitId | None, set[int]] = {}
    for chunk, commit in enumerate(standing):
        groups.setdefault(commit, set()).add(chunk)
    off_lineage = set[int]()
    for commit, chunks in groups.items():
        path, left = links, dict[Root, set[int]]()
        if commit is not None and commit in places:
            path = links[places[commit] + 1 :]
        elif commit is not None:
            off_lineage |= chunks
            ways = _paths(commit, links[-1].commit, tree)
            if ways is None:
                log.warning("residual_dropped", reason="its commits are on a lineage that is not known")
                state = state.without(chunks)
            else:
                path, left = ways[0], counted_chunks(ways[1], me)
        state = state.after((root, (counted & chunks) - left.get(root, set())) for root, counted in counts_of(path, me))
    return state, off_lineage


def _paths(
    commit: CommitId, head: CommitId, tree: CommitTree
) -> tuple[Sequence[ChainLink], Sequence[ChainLink]] | None:
    """The commits from the fork to the head, and from the fork to this commit of an abandoned lineage; None if they are not
    known.
    """
    fork = tree.common(commit, head)
    path, lost = (tree.path(fork, end) if fork is not None else None for end in (head, commit))
    if path is None or lost is None:
        return None
    return [node.link for node in path], [node.link for node in lost]
