"""Keeps the run's memory (run_memory.py) in the ledger while the host runs, and gives it back after a restart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import structlog

from coordinator.ledger.run_memory import (
    MAX_EVENTS,
    Credits,
    EventRow,
    HeardRow,
    RunMemory,
    RunPast,
    count_commits,
    forget_credits,
    remember,
    remembered,
)
from protocol.errors import PotluckError
from protocol.host.calls import NO_COMMIT
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName
from protocol.ids import CommitId, PeerId

if TYPE_CHECKING:
    from averaging.network.seams.interfaces import Clock
    from coordinator.ledger.ledger import Ledger
    from coordinator.ledger.ledger_writer import LedgerWriter
    from coordinator.progress.chain_log import ChainLog

_log = structlog.get_logger()

WRITE_EVERY_S: Final = 60.0
"""How often the times of the last reports are written when nothing else is, in seconds."""

NEWEST_APART: Final = 256
"""Newest commits that are not in the sum of credits: a fork may still replace them, and screens have them anyway."""

_AT_LEAST: Final = 128
"""Commits to add to the sum at once. With NEWEST_APART fewer than the rounds that the host shows."""

_AT_MOST: Final = 256
"""Commits that one look adds, so that a long ledger of an older release is counted in the background."""


class MemoryKeeper:
    """The memory as it is now. Call `restore` once, then `look` about once a second."""

    def __init__(self, ledger: LedgerWriter, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._past = RunPast()
        self._written: dict[PeerId, HeardRow] = {}
        self._named: dict[PeerId, ChosenName] = {}
        self._unwritten: list[EventRow] = []
        self._written_s = clock.monotonic_s()
        self._looked_at = NO_COMMIT
        self._due: list[CommitId] = []
        self._has_failed = False

    @property
    def past(self) -> RunPast:
        """The past for the screens."""
        return self._past

    async def restore(self) -> RunMemory:
        """Read the memory of earlier processes of the host.

        Raises:
            StorageError: the ledger cannot be read.
        """
        memory = await self._ledger.run(remembered)
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        self._written = {row.peer: row for row in memory.heard}
        self._named = dict(memory.chosen)
        heard_s = {row.peer: now_s - (unix_s - row.unix_s) for row in memory.heard}
        self._past = RunPast(memory.credits, heard_s, memory.chosen)
        return memory

    async def look(
        self,
        chain: ChainLog | None,
        heard_s: Mapping[PeerId, float],
        states: Mapping[PeerId, str],
        events: Sequence[EventRow],
        chosen: Mapping[PeerId, ChosenName] = MappingProxyType({}),
    ) -> None:
        """Take in the present: the commits, when each peer was last heard (monotonic seconds), their states, the events since the last
        look, and how the peers call themselves. Writes that the ledger refuses are tried again.
        """
        self._past = replace(
            self._past, heard_s={**self._past.heard_s, **heard_s}, chosen={**self._past.chosen, **chosen}
        )
        self._unwritten = [*self._unwritten, *events][-MAX_EVENTS:]
        try:
            await self._write(states)
            if chain is not None:
                await self._count(chain)
        except PotluckError as error:
            if not self._has_failed:
                _log.warning("history_not_kept", reason=error.one_line())
            self._has_failed = True
        else:
            self._has_failed = False

    async def _write(self, states: Mapping[PeerId, str]) -> None:
        now_s, unix_s = self._clock.monotonic_s(), self._clock.unix_s()
        if not self._unwritten and now_s - self._written_s < WRITE_EVERY_S:
            return
        heard_s = self._past.heard_s
        rows = [HeardRow(p, int(unix_s - (now_s - heard_s[p])), state) for p, state in states.items() if p in heard_s]
        changed = [row for row in rows if _is_news(self._written.get(row.peer), row)]
        events = tuple(self._unwritten)
        names = {p: name for p, name in self._past.chosen.items() if name != self._named.get(p, NONE_CHOSEN)}
        if changed or events or names:
            await self._ledger.run(lambda ledger: remember(ledger, events, changed, names))
        self._named.update(names)
        self._unwritten = self._unwritten[len(events) :]
        self._written.update((row.peer, row) for row in changed)
        self._written_s = now_s

    async def _count(self, chain: ChainLog) -> None:
        if not self._due and chain.head.commit != self._looked_at:
            self._looked_at = chain.head.commit
            await self._find_due(chain)
        if self._due:
            await self._take(partial(count_commits, before=self._past.credits, commits=self._due[:_AT_MOST]))
            self._due = self._due[_AT_MOST:]

    async def _find_due(self, chain: ChainLog) -> None:
        """Find the commits between the counted one and the newest. The count begins again if the counted one is not followed."""
        counted, ahead = self._past.credits, list[CommitId]()
        for commit, index in chain.behind(chain.head.commit):
            if index <= counted.index:
                if counted.index and commit != counted.commit:
                    self._looked_at = NO_COMMIT
                    await self._take(forget_credits)
                elif len(ahead) >= NEWEST_APART + _AT_LEAST:
                    self._due = ahead[: NEWEST_APART - 1 : -1]
                return
            ahead.append(commit)
        # the counted one is older than what is remembered: credits of the rounds in between are lost
        self._due = ahead[: NEWEST_APART - 1 : -1] if len(ahead) >= NEWEST_APART + _AT_LEAST else []

    async def _take(self, change: Callable[[Ledger], Credits]) -> None:
        self._past = replace(self._past, credits=await self._ledger.run(change))


def _is_news(before: HeardRow | None, row: HeardRow) -> bool:
    """Whether a row says more than the written one. Rounding alone does not."""
    return before is None or before.state != row.state or row.unix_s > before.unix_s + 1
