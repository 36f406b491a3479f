"""The size of a unit's log on disk, and of the part that a rewrite would keep, counted while the log is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from protocol.frozen import replace
from protocol.ids import CommitId

MAX_DISPLACED: Final = 256
"""Certificates of abandoned lineages that a log keeps, so that the host learns of both sides of a fork even after restarts.

Each is verified and reported to the host at every start, so there must not be many. Of a longer side, the beginning is kept.
"""

MAX_DISPLACED_BYTES: Final = 1 << 20
"""Most bytes of these certificates; one of 64 members has about 12 kB."""


@dataclass(frozen=True)
class _Votes:
    """Bytes of the live votes on one base: the highest promise, the last ack, the last ack of another record before it, the last ack
    of a lone record, and the goodbyes that acks rely on. `digest` is that of the record in the last ack.
    """

    promise_bytes: int = 0
    ack_bytes: int = 0
    before_bytes: int = 0
    lone_ack_bytes: int = 0
    leaves_bytes: int = 0
    digest: bytes = b""

    @property
    def acks_bytes(self) -> int:
        return self.ack_bytes + self.before_bytes + self.lone_ack_bytes

    def with_ack(self, num_bytes: int, digest: bytes) -> _Votes:
        is_other = self.ack_bytes > 0 and digest != self.digest
        before_bytes = self.ack_bytes if is_other else self.before_bytes
        return replace(self, ack_bytes=num_bytes, before_bytes=before_bytes, digest=digest)


@dataclass(frozen=True, slots=True)
class LoggedCertificate:
    """A certificate in a log: its parent commit, its bytes as an entry of its own, and its hash."""

    base: CommitId
    num_bytes: int
    digest: bytes


def _within_bounds(displaced: Iterable[LoggedCertificate]) -> list[LoggedCertificate]:
    """The first certificates, as many as may be kept."""
    kept: list[LoggedCertificate] = []
    num_bytes = 0
    for entry in islice(displaced, MAX_DISPLACED):
        num_bytes += entry.num_bytes
        if num_bytes > MAX_DISPLACED_BYTES:
            break
        kept.append(entry)
    return kept


class LogSizes:
    """Counts every entry of a log, in order. All sizes are bytes on disk."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self.certificates: list[LoggedCertificate] = []
        """Certificates of the present lineage, oldest first."""

        self.displaced: list[LoggedCertificate] = []
        """Kept certificates of abandoned lineages: those of the last switch first, of each switch the oldest first. A commit's
        parent is on the lineage or before it in the list, so that cutting the end leaves no gap.
        """

        self.dropped: set[CommitId] = set()
        """Bases before the last milestone at which the lineage began: all entries about them are obsolete."""

        self._milestone_bytes = 0
        self._contribution_bytes: Counter[CommitId] = Counter()
        """By base."""

        self._certificate_bytes = 0
        self._decided: set[CommitId] = set()
        self._votes: dict[CommitId, _Votes] = {}
        """By base, in the order of the last vote."""

    def add_contribution(self, base: CommitId, num_bytes: int) -> None:
        """Add a contribution. All on the bases of the lineage are kept."""
        self.total_bytes += num_bytes
        self._contribution_bytes[base] += num_bytes

    def begin_at(self, commit: CommitId, num_bytes: int) -> None:
        """The lineage begins at this commit from now on. If it is not on the lineage, all of that is obsolete."""
        place = next((i for i, entry in enumerate(self.certificates) if entry.base == commit), len(self.certificates))
        self.dropped = {entry.base for entry in self.certificates[:place]}
        del self.certificates[:place]
        self._decided -= self.dropped
        self._certificate_bytes = sum(entry.num_bytes for entry in self.certificates)
        for base in self.dropped:
            self._votes.pop(base, None)
            self._contribution_bytes.pop(base, None)
        self.total_bytes += num_bytes
        self._milestone_bytes = num_bytes

    def add_certificate(self, entry: LoggedCertificate) -> None:
        """Add the next commit of the lineage."""
        self.total_bytes += entry.num_bytes
        self._certificate_bytes += entry.num_bytes
        self.certificates.append(entry)
        self._decided.add(entry.base)
        if entry in self.displaced:
            self.displaced.remove(entry)

    def add_switch(self, fork: CommitId, path: Sequence[LoggedCertificate], num_bytes: int) -> None:
        """Add a switch of `num_bytes`: the lineage continues with `path` from `fork` on."""
        self.total_bytes += num_bytes
        place = next((i for i, entry in enumerate(self.certificates) if entry.base == fork), len(self.certificates))
        left = dict.fromkeys((*self.certificates[place:], *self.displaced))
        self.certificates[place:] = path
        followed = set(path)
        self.displaced = _within_bounds(entry for entry in left if entry not in followed)
        self._certificate_bytes = sum(entry.num_bytes for entry in self.certificates)
        self._decided = {entry.base for entry in self.certificates}

    def add_displaced(self, entry: LoggedCertificate) -> None:
        """Add a certificate of a lineage that was abandoned before a rewrite of the log."""
        self.total_bytes += entry.num_bytes
        self.displaced = _within_bounds((*self.displaced, entry))

    def add_promise(self, base: CommitId, num_bytes: int) -> None:
        """Add a promise, which replaces the previous one."""
        self.total_bytes += num_bytes
        self._votes[base] = replace(self._votes.pop(base, _Votes()), promise_bytes=num_bytes)

    def add_ack(self, base: CommitId, num_bytes: int, promise_bytes: int, digest: bytes) -> None:
        """Add an ack of the record with this hash, which is also a promise of `promise_bytes`. It replaces the previous ack of this
        record; one of another record is kept beside it.
        """
        self.total_bytes += num_bytes
        known = replace(self._votes.pop(base, _Votes()), promise_bytes=promise_bytes)
        self._votes[base] = known.with_ack(num_bytes, digest)

    def add_lone_ack(self, base: CommitId, num_bytes: int, promise_bytes: int) -> None:
        """Add an ack of a lone record, which replaces the previous one and is also a promise of `promise_bytes`."""
        self.total_bytes += num_bytes
        known = self._votes.pop(base, _Votes())
        self._votes[base] = replace(known, promise_bytes=promise_bytes, lone_ack_bytes=num_bytes)

    def add_leaves(self, base: CommitId, num_bytes: int) -> None:
        """Add the goodbyes that the next ack may rely on. They replace the previous ones."""
        self.total_bytes += num_bytes
        self._votes[base] = replace(self._votes.pop(base, _Votes()), leaves_bytes=num_bytes)

    def whole_bases(self, newest: Collection[CommitId], num_others: int) -> set[CommitId]:
        """The bases whose acks are kept: `newest` of the lineage, and the last voted on of those without a certificate."""
        others = [
            base
            for base, votes in self._votes.items()
            if votes.acks_bytes and base not in self._decided and base not in newest
        ]
        return {*newest, *others[max(0, len(others) - num_others) :]}

    def live_bytes(self, whole: Collection[CommitId]) -> int:
        """Bytes that a rewrite keeps if acks are kept on the `whole` bases only."""
        votes = sum(
            v.promise_bytes + (v.acks_bytes + v.leaves_bytes if base in whole else 0) for base, v in self._votes.items()
        )
        displaced = sum(entry.num_bytes for entry in self.displaced)
        lineage = self._milestone_bytes + self._certificate_bytes
        return self._contribution_bytes.total() + lineage + displaced + votes
