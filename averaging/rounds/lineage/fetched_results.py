"""Deletes fetched results of lineages that are not wanted any more when the head moves, so that they do not stay on disk.

Results that are still wanted stay, also between two tries: on a thin line it may take hours to fetch them again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import structlog

from averaging.state.unit_log import UnitLog
from protocol.errors import StorageError
from protocol.ids import CommitId, Root
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.lineage import TreeNode

log = structlog.get_logger()

Path = tuple[TreeNode, ...]
"""The commits of another lineage after the fork, oldest first."""


class FetchedResults:
    """The fetched results of one unit in one process. Those of an earlier process are deleted with updates that are too old
    (retention.py).
    """

    def __init__(self, unit_log: UnitLog) -> None:
        self._log = unit_log
        self._paths: dict[CommitId, Path] = {}
        self._running: Counter[CommitId] = Counter()

    @contextmanager
    def bringing(self, path: Path) -> Iterator[None]:
        """Marks that results of these commits are being written, for as long as the block lasts."""
        target = path[-1].link.commit
        self._paths[target] = path
        self._running[target] += 1
        try:
            yield
        finally:
            self._running[target] -= 1

    async def tidy(self, links: Sequence[ChainLink], is_wanted: Callable[[Path], bool]) -> None:
        """Delete results of lineages that are not wanted. If the disk refuses, it is tried again when the head moves next.

        Args:
            links: our lineage, oldest first. Results that its commits name stay, and so do those on its head or after it.
        """
        own = {link.parent: link for link in links if link.parent is not None}
        try:
            for target, path in list(self._paths.items()):
                if not (self._running[target] or is_wanted(path)) and await self._drop(path, own, links[-1].commit):
                    del self._paths[target], self._running[target]
        except StorageError as error:
            log.warning("brought_not_dropped", reason=error.one_line())

    async def _drop(self, path: Path, own: Mapping[CommitId, ChainLink], head: CommitId) -> bool:
        """Returns False if it is wanted again meanwhile."""
        target = path[-1].link.commit
        others = [node.link for other, nodes in self._paths.items() if other != target for node in nodes]
        for node in path:
            base = node.link.parent
            if base is None or base == head:
                break
            named = [link for link in (own.get(base), *others) if link is not None and link.parent == base]
            await self._log.drop_results(base, [name for link in named for name in _results_of(link)])
            if self._running[target]:
                return False
        return True


def _results_of(link: ChainLink) -> Sequence[Root]:
    return [] if link.record is None else [part.result_hash for part in link.record.slices]
