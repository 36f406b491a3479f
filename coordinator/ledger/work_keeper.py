"""Counts each peer's work by days, for standings and for the leaderboard. Each round counts once, as the lineage credits it that was
followed first: where the host changes to another lineage, rounds of both must not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.ledger.juniors import WORK_COUNTED_TO, DayOfWork, add_work, all_work
from coordinator.policy.door import DAY_S
from coordinator.policy.standing_core import WorkDay
from protocol.errors import PotluckError
from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.round_row import disagreed_in
from protocol.rounds.lineage.stranger_weights import recorded_weights

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.chain_log import ChainLog

_log = structlog.get_logger()

_AT_MOST: Final = 256
"""Rounds that one look adds."""


def work_in(links: Iterable[ChainLink], day: int) -> list[DayOfWork]:
    """The work that these commits credit, as of this day (UTC, days since 1970).

    Tokens count as brought if reducers summed them, kept or not: chunks that came late say nothing about the work.
    """
    sums: dict[PeerId, WorkDay] = {}
    for record in (link.record for link in links):
        if record is None:
            continue
        left_out = {entry.peer: entry.share for entry in disagreed_in(record)}
        for entry, most in zip(record.contributors, recorded_weights(record), strict=True):
            share, credited = left_out.get(entry.peer, 0.0), entry.credited_tokens
            brought = most if share >= 1.0 else min(most, round(credited / (1.0 - share)))
            before = sums.get(entry.peer, WorkDay(day, 0, 0))
            sums[entry.peer] = WorkDay(day, before.credited_tokens + credited, before.brought_tokens + brought)
    return [DayOfWork(peer, work) for peer, work in sorted(sums.items())]


class WorkKeeper:
    """The days of work of everybody. Call `restore` once, then `look` about once a second. `seen` gets the commits that were counted,
    the oldest first.
    """

    def __init__(
        self, ledger: LedgerWriter, clock: Clock, seen: Callable[[Sequence[ChainLink]], None] = lambda _: None
    ) -> None:
        self._seen = seen
        self._ledger = ledger
        self._clock = clock
        self._counted_to = 0
        self._has_failed = False
        self.days: Mapping[PeerId, Sequence[WorkDay]] = MappingProxyType({})
        """The days of work of each peer, the oldest first."""

    async def restore(self) -> None:
        """Read what earlier processes of the host counted.

        Raises:
            StorageError: the ledger cannot be read.
        """
        counted, self.days = await self._ledger.run(lambda ledger: (ledger.get(WORK_COUNTED_TO), all_work(ledger)))
        self._counted_to = int.from_bytes(counted or b"", "big")

    async def look(self, chain: ChainLog | None) -> None:
        """Count the rounds since the last look. Writes that the ledger refuses are tried again."""
        if chain is None or chain.head.index <= self._counted_to:
            return
        ahead = takewhile(lambda each: each[1] > self._counted_to, chain.behind(chain.head.commit))
        due = list(ahead)[::-1][:_AT_MOST]
        links = [link for commit, _ in due if (link := chain.link(commit)) is not None]
        work, counted_to = work_in(links, int(self._clock.unix_s()) // DAY_S), due[-1][1]
        try:
            await self._ledger.run(lambda ledger: add_work(ledger, work, counted_to))
            self.days = await self._ledger.run(all_work)
        except PotluckError as error:
            (_log.debug if self._has_failed else _log.warning)("work_not_counted", reason=error.one_line())
            self._has_failed = True
        else:
            self._counted_to, self._has_failed = counted_to, False
            self._seen(links)
