"""Our contributions (R8) on the bases of a unit's lineage, and the place in this peer's data that follows from them.

The local steps of the newest ones are told to auditors (R27), also after a restart. One that could not tell them would look like one
that hides them.

Rules: R8, R27 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.state.log_entries import LoggedContribution, LoggedRounds
from protocol.ids import CommitId, Root
from protocol.rounds.messages.requests import StepsTaken

MOST_STEPS_KNOWN: Final = 16
"""Own contributions whose steps are told: the newest, and those of a few rounds before."""


class OfferedWork:
    """Contributions by base. Those on bases before the lineage's beginning are forgotten; `settled_step` is the local step after the
    last one of them that was counted.
    """

    def __init__(self, logged: LoggedRounds | None = None) -> None:
        bases = logged.bases if logged is not None else {}
        self.settled_step = logged.begins.next_step if logged is not None and logged.begins is not None else 0
        self._by_base = {base: known.contributions for base, known in bases.items() if known.contributions}
        self.newest: LoggedContribution | None = None
        """Of this process; None before its first."""

        self._told: dict[Root, LoggedContribution] = {}
        self._tell(each for found in self._by_base.values() for each in found)

    def add(self, base: CommitId, contribution: LoggedContribution) -> None:
        """A contribution was written to disk."""
        self._by_base[base] = (*self._by_base.get(base, ()), contribution)
        self.newest = contribution
        self._tell([contribution])

    def _tell(self, contributions: Iterable[LoggedContribution]) -> None:
        for each in contributions:
            if each.num_steps:
                self._told[each.root] = each
            while len(self._told) > MOST_STEPS_KNOWN:
                del self._told[next(iter(self._told))]

    def steps_of(self, root: Root) -> StepsTaken | None:
        """The local steps that made our contribution of this root; None where they are not known any more, or lie apart."""
        found = self._told.get(root)
        return StepsTaken(root, max(0, found.next_step - found.num_steps), found.num_steps) if found else None

    def next_step(self, line: FollowedLine) -> int:
        """The local step to resume from: after the last one that a commit of this lineage counted, or that an offered contribution
        may still count. No commit can count later steps, so their data is read again. No step is counted twice.
        """
        behind = {link.commit: place for place, link in enumerate(line.links[:-1])}
        offered = [(each.next_step, base, each.root) for base, found in self._by_base.items() for each in found]
        for next_step, base, root in sorted(offered, reverse=True):
            if next_step <= self.settled_step:
                break
            place = behind.get(base)
            if place is None or root in _roots_counted(line, place + 1):
                return next_step
        return self.settled_step

    def begin_at(self, line: FollowedLine, place: int) -> None:
        """The lineage begins at this place of `line` from now on: forget contributions on bases before it."""
        dropped = {link.commit: number for number, link in enumerate(line.links[:place])}
        for base in dropped.keys() & self._by_base.keys():
            counted = _roots_counted(line, dropped[base] + 1)
            steps = [each.next_step for each in self._by_base.pop(base) if each.root in counted]
            self.settled_step = max([self.settled_step, *steps])

    def begin_anew(self, next_step: int) -> None:
        """The lineage begins at a commit that does not follow ours."""
        self.settled_step = next_step
        self._by_base.clear()


def _roots_counted(line: FollowedLine, place: int) -> set[Root]:
    record = line.links[place].record
    return {entry.root for entry in record.contributors} if record is not None else set()
