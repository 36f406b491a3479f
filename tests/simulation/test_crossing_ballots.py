"""Two openers with crossing ballots against three real voters, beside a model of what a voter may say.

The openers are played by the test and keep the rules of their side: a record needs promises of all three voters, and the highest acked
record among them is taken over. In any order of requests, settlements, repeats and restarts each voter answers as the model does, and
all that is ever acked by everybody in one ballot is one record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.ids import PeerId
from protocol.rounds.chain import link_after
from protocol.rounds.messages import Ack, Ballot, Promise, PromiseRequest, Refusal, RoundMessage, Settle, SliceRecord
from protocol.wire import decode_record, encode_record
from tests.protocol.rounds.made_commits import record_on
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint

NUM_SEATS = 5
OPENERS = st.sampled_from((0, 1))
VOTERS = st.sampled_from((2, 3, 4))
MAX_ATTEMPT = 30


@dataclass
class Voter:
    """The model: what a voter has written, and so what it may answer."""

    promised: Ballot | None = None
    acked: tuple[Ballot, bytes] | None = None

    def promise(self, ballot: Ballot) -> object:
        """Each ballot once, and none below it: a leader that forgot has to take another one."""
        if self.promised is not None and ballot <= self.promised:
            return ("refused", self.promised)
        self.promised = ballot
        return ("promised", ballot, self.acked)

    def settle(self, ballot: Ballot, record: bytes) -> object:
        """One record a ballot, none below a promise."""
        if self.promised is not None and ballot < self.promised:
            return ("refused", self.promised)
        if self.acked is not None and self.acked[0] == ballot and self.acked[1] != record:
            return None
        self.promised, self.acked = ballot, (ballot, record)
        return ("acked", ballot, record)


@dataclass
class Opener:
    """One opener's present attempt; it is given a record of its own to want."""

    seat: Seat
    record: bytes
    ballot: Ballot
    promises: dict[PeerId, tuple[Ballot, bytes] | None] = field(default_factory=dict)
    settled: bytes | None = None


class CrossingBallots(RuleBasedStateMachine):
    """Every rule is one message to one voter, a new attempt, or a restart."""

    @initialize()
    def begin(self) -> None:
        self.table = Table(NUM_SEATS)
        acquaint(self.table)
        self.seats = list(self.table.seats.values())
        self.said: list[tuple[PeerId, RoundMessage]] = []
        self.table.drops = self._overhear
        self.models = {seat.peer: Voter() for seat in self.seats[2:]}
        roster = [seat.peer for seat in self.seats]
        self.openers = [
            Opener(seat, encode_record(record_on(self.table.genesis, roster, salt=place)), Ballot(place + 1, seat.peer))
            for place, seat in enumerate(self.seats[:2])
        ]
        self.commits = {opener.record: bytes(_commit_of(self.table, opener.record)) for opener in self.openers}
        self.acks: dict[Ballot, dict[PeerId, bytes]] = {}
        self.history: list[tuple[int, int, Ballot, bytes | None]] = []

    def _overhear(self, sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        """What voters say to openers is written down; nothing else passes between the seats."""
        if isinstance(message, Ack | Promise | Refusal):
            self.said.append((to, message))
        return True

    @rule(number=OPENERS)
    def new_attempt(self, number: int) -> None:
        opener = self.openers[number]
        attempt = 1 + max(other.ballot.attempt for other in self.openers)
        if attempt < MAX_ATTEMPT:
            opener.ballot, opener.promises, opener.settled = Ballot(attempt, opener.seat.peer), {}, None

    @rule(number=OPENERS, voter=VOTERS)
    def ask_for_a_promise(self, number: int, voter: int) -> None:
        self._ask(number, voter, self.openers[number].ballot)

    @rule(number=OPENERS, voter=VOTERS)
    def settle(self, number: int, voter: int) -> None:
        opener = self.openers[number]
        if opener.settled is None and len(opener.promises) == len(self.models):
            acked = [entry for entry in opener.promises.values() if entry is not None]
            opener.settled = max(acked)[1] if acked else opener.record
        if opener.settled is not None:
            self._settle(number, voter, opener.ballot, opener.settled)

    @precondition(lambda self: bool(self.history))
    @rule(pick=st.integers(0, 1000))
    def say_something_again(self, pick: int) -> None:
        number, voter, ballot, record = self.history[pick % len(self.history)]
        if record is None:
            self._ask(number, voter, ballot)
        else:
            self._settle(number, voter, ballot, record)

    @rule(voter=VOTERS)
    def restart(self, voter: int) -> None:
        seat = self.seats[voter]
        self.table.kill(seat)
        self.table.restart(seat)
        self.table.queue.clear()
        acquaint(self.table)
        self.said.clear()

    def _ask(self, number: int, voter: int, ballot: Ballot) -> None:
        self.history.append((number, voter, ballot, None))
        seat, opener = self.seats[voter], self.openers[number]
        answer = self._told(opener.seat, seat, PromiseRequest(UNIT, self.table.genesis.commit, ballot))
        assert answer == self.models[seat.peer].promise(ballot)
        if isinstance(answer, tuple) and answer[0] == "promised" and ballot == opener.ballot:
            opener.promises[seat.peer] = answer[2]

    def _settle(self, number: int, voter: int, ballot: Ballot, record: bytes) -> None:
        self.history.append((number, voter, ballot, record))
        seat, opener = self.seats[voter], self.openers[number]
        answer = self._told(opener.seat, seat, Settle(UNIT, self.table.genesis.commit, ballot, record, ()))
        assert answer == self.models[seat.peer].settle(ballot, record)
        if isinstance(answer, tuple) and answer[0] == "acked":
            self.acks.setdefault(ballot, {})[seat.peer] = record

    def _told(self, opener: Seat, voter: Seat, message: RoundMessage) -> object:
        """The one answer of the voter, in the model's words."""
        self.said.clear()
        voter.disk.results.update(part.result_hash for o in self.openers for part in _slices(o.record))
        voter.hear(opener, message)
        self.table.talk()
        answers = [said for to, said in self.said if to == opener.peer]
        assert len(answers) <= 1
        match answers:
            case [Promise(ballot=ballot, acked=acked)]:
                return ("promised", ballot, None if acked is None else (acked.ballot, acked.record))
            case [Refusal(promised=promised)]:
                return ("refused", promised)
            case [Ack(ballot=ballot, commit=commit)]:
                return ("acked", ballot, next(r for r, known in self.commits.items() if known == commit))
        return None

    @invariant()
    def what_all_acked_in_one_ballot_is_one_record(self) -> None:
        decided = {
            record
            for acks in getattr(self, "acks", {}).values()
            if len(acks) == len(self.models)
            for record in acks.values()
        }
        assert len(decided) <= 1


def _commit_of(table: Table, record: bytes) -> bytes:
    return link_after(table.genesis, record).commit


def _slices(record: bytes) -> tuple[SliceRecord, ...]:
    return decode_record(record).slices


CrossingBallots.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestCrossingBallots = CrossingBallots.TestCase
