"""Single-decree Paxos as its textbooks have it: a model of one base, which shares nothing with the machine that it judges.

It is told what every voter's disk took and what everybody said, and objects as soon as that could make two records of one base. A
ballot is (attempt, peer), a quorum is more than half of the voters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

Ballot = tuple[int, str]
Vote = tuple[Ballot, bytes]


class Broken(AssertionError):
    """A rule of single-decree Paxos does not hold."""


def must(is_so: bool, rule: str) -> None:
    """Raises Broken, also where Python runs without its assertions."""
    if not is_so:
        raise Broken(rule)


@dataclass
class Acceptor:
    """The contents of a voter's disk, which outlive every crash."""

    promised: Ballot | None = None
    votes: list[Vote] = field(default_factory=list)
    """Every ack ever written, ballots rising."""

    @property
    def acked(self) -> Vote | None:
        """Its highest ack."""
        return self.votes[-1] if self.votes else None

    def may_still_ack(self, ballot: Ballot) -> bool:
        """Whether no promise stands above it."""
        return self.promised is None or ballot >= self.promised

    def acked_below(self, ballot: Ballot) -> Vote | None:
        """Its highest ack below a ballot."""
        return next((vote for vote in reversed(self.votes) if vote[0] < ballot), None)


class SingleDecree:
    """One base and its voters.

    Attributes:
        first: the only peer that may use attempt 0, which needs no promises.
        settled: what each ballot asked the voters to ack.
        chosen: the lowest ballot in which a quorum has acked, and the record.
    """

    def __init__(self, voters: Iterable[str], first: str) -> None:
        self.acceptors = {voter: Acceptor() for voter in voters}
        self.first = first
        self.settled: dict[Ballot, bytes] = {}
        self.chosen: Vote | None = None

    @property
    def quorum_size(self) -> int:
        """Voters that are more than half."""
        return len(self.acceptors) // 2 + 1

    # --- what the disks took ------------------------------------------------------------------------------------------------

    def wrote_promise(self, voter: str, ballot: Ballot) -> None:
        """A voter's disk has a promise: each is higher than the one before."""
        acceptor = self.acceptors[voter]
        must(acceptor.promised is None or ballot > acceptor.promised, f"{voter} promised {ballot} below its promise")
        acceptor.promised = ballot

    def wrote_ack(self, voter: str, ballot: Ballot, record: bytes) -> None:
        """A voter's disk has an ack: never below its promise, one record a ballot, and one that was put to it."""
        acceptor = self.acceptors[voter]
        must(acceptor.may_still_ack(ballot), f"{voter} acked {ballot}, its promise is {acceptor.promised}")
        must(self.settled.get(ballot) == record, f"{voter} acked what nobody settled in {ballot}")
        acceptor.promised = ballot
        if (ballot, record) not in acceptor.votes:
            acceptor.votes.append((ballot, record))
        self._look_whether_chosen(ballot, record)

    def _look_whether_chosen(self, ballot: Ballot, record: bytes) -> None:
        num_votes = sum((ballot, record) in acceptor.votes for acceptor in self.acceptors.values())
        if num_votes < self.quorum_size:
            return
        must(self.chosen is None or self.chosen[1] == record, f"{ballot} chose another record than {self.chosen}")
        if self.chosen is None or ballot < self.chosen[0]:
            self.chosen = (ballot, record)

    def num_acks(self, ballot: Ballot | None) -> int:
        """Disks that have an ack of this ballot."""
        return sum(any(vote[0] == ballot for vote in acceptor.votes) for acceptor in self.acceptors.values())

    # --- what was said --------------------------------------------------------------------------------------------------------

    def asked(self, opener: str, ballot: Ballot) -> None:
        """An opener asks for promises: in its own ballot, above 0, which its own disk has, so that no crash lets it begin twice."""
        must(ballot[1] == opener and ballot[0] > 0, f"{opener} asked in ballot {ballot}")
        must(self._has_promised(opener, ballot), f"{opener} asked for {ballot} before its own promise was written")

    def reported_promise(self, voter: str, ballot: Ballot, acked: Vote | None) -> None:
        """A voter says that it promised, and what it acked: both as its disk has them. An ack of this very ballot may be on its way
        to the disk: its opener has settled already, and nobody else hears this.
        """
        acceptor = self.acceptors[voter]
        must(acceptor.promised == ballot, f"{voter} told of a promise of {ballot}, its disk has {acceptor.promised}")
        is_settled = acked is not None and acked[0] == ballot and self.settled.get(ballot) == acked[1]
        must(is_settled or acceptor.acked == acked, f"{voter} told of another ack than its disk has")

    def reported_ack(self, voter: str, ballot: Ballot) -> bytes:
        """A voter says that it acked: its disk has it. Returns the record."""
        record = next((record for acked, record in self.acceptors[voter].votes if acked == ballot), None)
        must(record is not None, f"{voter} told of an ack in {ballot} that its disk does not have")
        return record or b""

    def settles(self, opener: str, ballot: Ballot, record: bytes) -> None:
        """An opener asks for acks: one record a ballot, and one that is safe in it."""
        must(ballot[1] == opener, f"{opener} settled in {ballot}")
        must(self._has_promised(opener, ballot), f"{opener} settled in {ballot} before its own promise was written")
        must(self.settled.setdefault(ballot, record) == record, f"two records were settled in {ballot}")
        if self.chosen is not None and ballot > self.chosen[0]:
            must(record == self.chosen[1], f"{ballot} settled another record than the chosen one of {self.chosen[0]}")
        if ballot[0] == 0:
            must(opener == self.first, f"{opener} settled in attempt 0")
        else:
            must(self.is_safe(ballot, record), f"{ballot} settled what no quorum of promises allows")

    def certified(self, record: bytes) -> None:
        """Somebody says that a record is chosen."""
        must(self.chosen is not None and self.chosen[1] == record, "a certificate for what no quorum has acked")

    def came_back(self, voter: str, promised: Ballot | None, acked: Vote | None) -> None:
        """A voter begins again: with all that its disk has."""
        acceptor = self.acceptors[voter]
        must(promised == acceptor.promised, f"{voter} came back with the promise {promised}, not {acceptor.promised}")
        must(acked == acceptor.acked, f"{voter} came back with another ack than its disk has")

    def is_safe(self, ballot: Ballot, record: bytes) -> bool:
        """Whether a quorum can ack nothing below this ballot any more, and what it acked below, if anything, is this record in the
        highest ballot of these.
        """
        closed = [
            acceptor
            for acceptor in self.acceptors.values()
            if acceptor.promised is not None and acceptor.promised >= ballot
        ]
        for quorum in itertools.combinations(closed, self.quorum_size):
            votes = [vote for acceptor in quorum if (vote := acceptor.acked_below(ballot)) is not None]
            if not votes or max(votes)[1] == record:
                return True
        return False

    def _has_promised(self, voter: str, ballot: Ballot) -> bool:
        promised = self.acceptors[voter].promised
        return promised is not None and promised >= ballot
