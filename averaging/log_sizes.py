"""What a unit's log takes of the disk, and how much of that would stay if it were written anew: counted while it is written, so that
nobody reads it for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from protocol.ids import CommitId


@dataclass(frozen=True, slots=True)
class _Votes:
    """Bytes of what stands of the votes on one base: the highest promise, the last ack, and the last of a lone record."""

    promise_bytes: int = 0
    ack_bytes: int = 0
    lone_ack_bytes: int = 0

    @property
    def acks_bytes(self) -> int:
        return self.ack_bytes + self.lone_ack_bytes


def place_of(fork: CommitId, certificates: Sequence[tuple[CommitId, object]]) -> int:
    """Where the certificates by base go on after `fork`: the place of the first one on it, or the end."""
    return next((place for place, (base, _) in enumerate(certificates) if base == fork), len(certificates))


class LogSizes:
    """Told of every entry of a log, in order. All sizes are bytes on disk."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._contribution_bytes = 0
        self._certificates: list[tuple[CommitId, int]] = []
        self._certificate_bytes = 0
        self._decided: set[CommitId] = set()
        self._votes: dict[CommitId, _Votes] = {}
        """In the order of the last vote."""

    def add_contribution(self, num_bytes: int) -> None:
        """One more contribution; all are kept."""
        self.total_bytes += num_bytes
        self._contribution_bytes += num_bytes

    def add_certificate(self, base: CommitId, num_bytes: int) -> None:
        """The commit on this base."""
        self.total_bytes += num_bytes
        self._certificate_bytes += num_bytes
        self._certificates.append((base, num_bytes))
        self._decided.add(base)

    def add_switch(self, fork: CommitId, path: Sequence[tuple[CommitId, int]], num_bytes: int) -> None:
        """From `fork` on these follow: (base, the bytes of its certificate as an entry of its own)."""
        self.total_bytes += num_bytes
        self._certificates[place_of(fork, self._certificates) :] = path
        self._certificate_bytes = sum(size for _, size in self._certificates)
        self._decided = {base for base, _ in self._certificates}

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
        return self._contribution_bytes + self._certificate_bytes + votes
