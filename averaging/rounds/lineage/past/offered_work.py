"""Our contributions (R8) on the bases of a unit's lineage, and the place in this peer's data that follows from them.

Rules: R8 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from averaging.rounds.lineage.past.followed_line import FollowedLine
from averaging.state.log_entries import LoggedContribution, LoggedRounds
from protocol.ids import CommitId, Root


class OfferedWork:
    """Contributions by base. Those on bases before the lineage's beginning are forgotten; `settled_step` is the local step after the
    last one of them that was counted.
    """

    def __init__(self, logged: LoggedRounds | None = None) -> None:
        bases = logged.bases if logged is not None else {}
        self.settled_step = logged.begins.next_step if logged is not None and logged.begins is not None else 0
        self._by_base = {base: known.contributions for base, known in bases.items() if known.contributions}

    def add(self, base: CommitId, contribution: LoggedContribution) -> None:
        """A contribution was written to disk."""
        self._by_base[base] = (*self._by_base.get(base, ()), contribution)

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
