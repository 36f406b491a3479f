"""What a unit's log takes of the disk, and how much of that would stay if it were written anew: counted while it is written, so that
nobody reads it for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocol.frozen import replace
from protocol.ids import CommitId

MAX_DISPLACED: Final = 256
"""Certificates of lineages that were left which a log keeps: the host is to hear of both sides of a fork, also when it was away and
all who knew the other side were restarted. Each is verified at every start and told to the host after it, which takes a second or two
for so many; of a side that went on for longer its beginning is told.
"""

MAX_DISPLACED_BYTES: Final = 1 << 20
"""What they take of the log at most: a certificate of 64 members is 12 kB, so 80 rounds of a side, and little beside one state."""


@dataclass(frozen=True)
class _Votes:
    """Bytes of what stands of the votes on one base: the highest promise, the last ack, and the last of a lone record."""

    promise_bytes: int = 0
    ack_bytes: int = 0
    lone_ack_bytes: int = 0

    @property
    def acks_bytes(self) -> int:
        return self.ack_bytes + self.lone_ack_bytes


@dataclass(frozen=True, slots=True)
class LoggedCertificate:
    """A certificate in a log: the commit that it follows, the bytes that it takes as an entry of its own, and its hash."""

    base: CommitId
    num_bytes: int
    digest: bytes


def _within_bounds(displaced: Iterable[LoggedCertificate]) -> list[LoggedCertificate]:
    """As many of the first as may be kept."""
    kept: list[LoggedCertificate] = []
    num_bytes = 0
    for entry in islice(displaced, MAX_DISPLACED):
        num_bytes += entry.num_bytes
        if num_bytes > MAX_DISPLACED_BYTES:
            break
        kept.append(entry)
    return kept


class LogSizes:
    """Told of every entry of a log, in order. All sizes are bytes on disk."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.certificates: list[LoggedCertificate] = []
        """Of the lineage that is followed, oldest first."""

        self.displaced: list[LoggedCertificate] = []
        """Of lineages that were left, as far as they are kept: those of the last switch first, of each the oldest first. A commit's
        parent is on the lineage or stands before it, so what is left out at the end leaves no gap.
        """

        self._contribution_bytes = 0
        self._certificate_bytes = 0
        self._decided: set[CommitId] = set()
        self._votes: dict[CommitId, _Votes] = {}
        """In the order of the last vote."""

    def add_contribution(self, num_bytes: int) -> None:
        """One more contribution; all are kept."""
        self.total_bytes += num_bytes
        self._contribution_bytes += num_bytes

    def add_certificate(self, entry: LoggedCertificate) -> None:
        """The next commit of the lineage."""
        self.total_bytes += entry.num_bytes
        self._certificate_bytes += entry.num_bytes
        self.certificates.append(entry)
        self._decided.add(entry.base)
        if entry in self.displaced:
            self.displaced.remove(entry)

    def add_switch(self, fork: CommitId, path: Sequence[LoggedCertificate], num_bytes: int) -> None:
        """From `fork` on these follow, in one entry of `num_bytes`."""
        self.total_bytes += num_bytes
        place = next((i for i, entry in enumerate(self.certificates) if entry.base == fork), len(self.certificates))
        left = dict.fromkeys((*self.certificates[place:], *self.displaced))
        self.certificates[place:] = path
        followed = set(path)
        self.displaced = _within_bounds(entry for entry in left if entry not in followed)
        self._certificate_bytes = sum(entry.num_bytes for entry in self.certificates)
        self._decided = {entry.base for entry in self.certificates}

    def add_displaced(self, entry: LoggedCertificate) -> None:
        """One of a lineage that was left before the log was written anew."""
        self.total_bytes += entry.num_bytes
        self.displaced = _within_bounds((*self.displaced, entry))

    def add_promise(self, base: CommitId, num_bytes: int) -> None:
        """A promise, which takes the place of the one before."""
        self.total_bytes += num_bytes
        self._votes[base] = replace(self._votes.pop(base, _Votes()), promise_bytes=num_bytes)

    def add_ack(self, base: CommitId, num_bytes: int, promise_bytes: int, *, lone: bool) -> None:
        """An ack, which takes the place of the one before, and is a promise that would take `promise_bytes`."""
        self.total_bytes += num_bytes
        known = replace(self._votes.pop(base, _Votes()), promise_bytes=promise_bytes)
        self._votes[base] = replace(known, lone_ack_bytes=num_bytes) if lone else replace(known, ack_bytes=num_bytes)

    def whole_bases(self, newest: Collection[CommitId], num_others: int) -> set[CommitId]:
        """The bases whose acks are kept: these newest of the lineage, and of those without a certificate the ones voted on last."""
        others = [
            base
            for base, votes in self._votes.items()
            if votes.acks_bytes and base not in self._decided and base not in newest
        ]
        return {*newest, *others[max(0, len(others) - num_others) :]}

    def live_bytes(self, whole: Collection[CommitId]) -> int:
        """What stays where acks are kept on these bases alone."""
        votes = sum(v.promise_bytes + (v.acks_bytes if base in whole else 0) for base, v in self._votes.items())
        displaced = sum(entry.num_bytes for entry in self.displaced)
        return self._contribution_bytes + self._certificate_bytes + displaced + votes
