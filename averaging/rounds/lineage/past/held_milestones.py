"""The host's milestones that a peer keeps, of all units: checked when they come, and kept until no lineage here begins
before them (R26).

Rules: R26 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import structlog

from averaging.rounds.lineage.past.followed_line import FollowedLine
from protocol.errors import PotluckError, RemoteProtocolError, VersionError
from protocol.ids import CommitId, UnitName, short
from protocol.rounds.lineage.milestones import CommitAt, MilestoneBook, SignedMilestone, open_milestone
from protocol.rounds.lineage.record_rules import SignatureCheck

log = structlog.get_logger()

_MOST_TOLD: Final = 1000
"""Refusals that are told; further ones are not."""


class HeldMilestones:
    """Milestones of one run. `lines`: how to find a unit's commits by their index, for units that have a lineage here."""

    def __init__(self, check: SignatureCheck, host_public_key: bytes, genesis: CommitId) -> None:
        self.lines: dict[UnitName, CommitAt] = {}
        self._check = check
        self._host_public_key = host_public_key
        self._genesis = genesis
        self._books: dict[UnitName, MilestoneBook] = {}
        self._told: set[str] = set()

    @property
    def sealed(self) -> tuple[bytes, ...]:
        """All of them in the host's envelopes, of each unit the oldest first."""
        return tuple(each.sealed for _, book in sorted(self._books.items()) for each in book.held)

    def newest(self) -> tuple[bytes, ...]:
        """The newest one of each unit."""
        return tuple(book.held[-1].sealed for _, book in sorted(self._books.items()) if book.held)

    def of(self, unit: UnitName) -> MilestoneBook:
        """Those of a unit."""
        return self._books.get(unit, MilestoneBook())

    def opened(self, sealed: bytes) -> SignedMilestone:
        """A milestone of this run, checked.

        Raises:
            RemoteProtocolError, VersionError: as `open_milestone`.
        """
        return open_milestone(sealed, check=self._check, host_public_key=self._host_public_key, genesis=self._genesis)

    def take(self, offered: Iterable[bytes], source: str) -> None:
        """Keep these milestones from now on. One that is forged, of another run, older than what is held or against our own
        certificates is named in one line and ignored. `source`: whoever sent them.
        """
        for found in sorted(self._good(offered, source), key=lambda found: found.link.index):
            unit = found.link.unit
            try:
                self._books[unit] = self.of(unit).with_one(found, self.lines.get(unit, _unknown))
            except RemoteProtocolError as error:
                self._tell(source, error)

    def _good(self, offered: Iterable[bytes], source: str) -> list[SignedMilestone]:
        found: list[SignedMilestone] = []
        for sealed in offered:
            try:
                found.append(self.opened(sealed))
            except (RemoteProtocolError, VersionError) as error:
                self._tell(source, error)
        return found

    def _tell(self, source: str, error: PotluckError) -> None:
        """Once each: a host that says it says it in every answer."""
        reason = error.one_line()
        if reason not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(reason)
            log.warning("milestone_refused", source=source, reason=reason)

    def settle(self, line: FollowedLine) -> None:
        """A unit's lineage has grown. Milestones before it are forgotten, and those that contradict it are named and ignored."""
        unit = line.root.unit
        book, kept = self.of(unit), list[SignedMilestone]()
        for each in book.since(line.root.index).held:
            own = line.commit_at(each.link.index)
            if own is None or own == each.link.commit:
                kept.append(each)
                continue
            found = f"the host's milestone of round {each.link.index} of {unit} names commit {short(each.link.commit)}"
            log.warning("milestone_contradicts", reason=f"{found}; our certificates prove {short(own)}: it is ignored")
        if len(kept) != len(book.held):
            self._books[unit] = MilestoneBook(tuple(kept))


def newest_milestone(held: HeldMilestones | None, unit: UnitName) -> SignedMilestone | None:
    """The newest milestone of a unit; None without any."""
    return held.of(unit).newest if held is not None else None


def _unknown(_index: int) -> CommitId | None:
    return None
