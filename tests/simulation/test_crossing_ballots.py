"""Three openers of the production round machine with crossing ballots among five voters, beside a model of single-decree Paxos.

The openers are the machine itself (core.py with leading.py, attempt.py and voting.py), fed with events and its orders performed; all
five seats vote, so that ten majorities can form. The test chooses which message is delivered, late, before one that was sent earlier,
twice, long after or never, pre-votes among them, when a disk takes what it was given, who crashes before or after that and comes back
on its disk, and when an opener loses patience with the others. Nobody hears of a certificate: the fight for one base never ends.

The model (single_decree.py) objects where an ack is below a promise, where a disk's word is not what came back, where one base could
get two records, or where a higher ballot carries another record than the one that a quorum has acked.

That it can fail is itself tested: broken_rules.py breaks production code in six ways, and each is found within as many examples: a
take-over that ignores the highest ack, one that finishes the lowest, a promise forgotten at a restart, an ack below a promise, a
promise that does not tell what was acked, and a leader whose own promise falls below what it acked while its pre-votes were on their
way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protocol.ids import PeerId
from protocol.rounds.events import (
    AckLogged,
    BytesHeld,
    MessageArrived,
    PeerLost,
    Progressed,
    PromiseLogged,
    RoundTicked,
)
from protocol.rounds.lineage.chain import link_after
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages import messages as wire
from protocol.rounds.messages.messages import (
    Ack,
    Committed,
    Heartbeat,
    Mend,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    ResultReady,
    RoundMessage,
    Settle,
)
from protocol.rounds.orders import Action, LogAck, LogLeave, LogPromise, SendHeartbeat
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.schedule.sum_rules import SumRules
from tests.protocol.rounds.round_table import RUN_ID, UNIT, Answer, Parcel, Seat, Table, acquaint, heartbeat_of
from tests.simulation.broken_rules import BREAKS
from tests.simulation.single_decree import Ballot, Broken, SingleDecree, Vote

NUM_SEATS = 5
MAX_EXAMPLES = 80
SEEDS_OF_BROKEN = range(9, 39)
"""Some broken rules show in one seed of five; the search ends with the first that shows one."""

FIRST_SEEDS = {"finishes_the_lowest": 11, "promises_below_acks": 28}
"""Seeds that showed a broken rule: they are played first, and the others only where they show nothing any more."""

STEPS = 25
PATIENCE_S = 2.5 * SUSPECT_AFTER_S
"""Longer than anybody is held up by an opener that lives."""

MAX_ATTEMPT = 40
NUM_OPENERS = 3
OPENERS = st.integers(0, NUM_OPENERS - 1)
SILENT = st.sampled_from(((1,), (2,), (1,), (2,), (1, 2)))
"""Which of the other openers are taken for dead, counted from the one that begins anew."""

SEATS = st.integers(0, NUM_SEATS - 1)
PICKS = st.integers(0, 1000)
COMPANIES = st.sampled_from([frozenset(c) for size in (2, 3) for c in combinations(range(1, NUM_SEATS), size)])
"""The peers that an opener talks with, counted from its own seat on: a majority with itself, or one more."""

LIMITS = st.sampled_from((200, 24, 20, 16, 12, 9, 5))
"""Things that happen before a talk breaks off: from its first question to its certificate a ballot is about 25 of them."""

ACKS = st.sampled_from((1, 1, 2, NUM_SEATS))
"""So many disks have taken the ack of a ballot when its opener is interrupted: mostly too few for a quorum."""


@dataclass(frozen=True)
class Turn:
    """One opener begins anew while others are silent, and talks with a few of the rest until so many disks have its ack. Its pre-votes
    may stay on their way: then it still asks when the next one has its turn. The silent ones may find that their time is over, too.
    """

    number: int
    silent: tuple[int, ...]
    company: frozenset[int]
    num_acks: int
    has_late_pre_votes: bool
    ends_others: bool

    @property
    def heard(self) -> frozenset[int]:
        """Its company without the silent ones; those who open nothing take their places. Counted from its own seat on."""
        silent = {((self.number + other) % NUM_OPENERS - self.number) % NUM_SEATS for other in self.silent}
        voters = [(seat - self.number) % NUM_SEATS for seat in range(NUM_OPENERS, NUM_SEATS)]
        heard = self.company - silent
        return heard if len(heard) > 1 else heard.union(voters)


SELDOM = st.sampled_from((False, False, False, True))
TURN = st.builds(Turn, OPENERS, SILENT, COMPANIES, ACKS, has_late_pre_votes=SELDOM, ends_others=SELDOM)

PLAIN = Heartbeat | Proposal | Mend | ResultReady
"""Messages that decide nothing come at once."""

KINDS = st.permutations((PreVoteRequest, PreVote, PromiseRequest, Promise, Settle, Ack))

Write = LogAck | LogPromise
REACHED: Counter[str] = Counter()


def reported(ballot: wire.Ballot | None) -> Ballot | None:
    """A ballot in the model's words."""
    return None if ballot is None else (ballot.attempt, ballot.peer)


def vote(entry: wire.AckedRecord | None) -> Vote | None:
    """An ack in the model's words."""
    return None if entry is None else ((entry.ballot.attempt, entry.ballot.peer), entry.record)


class SlowTable(Table):
    """A table whose disks take each vote when the test says so, and where the model hears everything."""

    def __init__(self) -> None:
        self.unwritten: dict[PeerId, deque[Write]] = {}
        self.past: list[Parcel] = []
        super().__init__(
            NUM_SEATS,
            min_members=2,
            longest_interval_s=PATIENCE_S,
            sums=SumRules(first_within_s=PATIENCE_S),
            settle_within_s=PATIENCE_S,
            lone_patience_s=1e9,
        )
        first = first_opener(RUN_ID, UNIT, 0, self.genesis.roster)
        self.model = SingleDecree(self.seats, first)
        self.order = [self.seats[first], *(seat for seat in self.seats.values() if seat.peer != first)]
        """The owner of attempt 0, the other openers, and two who open nothing."""

        for seat in self.order[NUM_OPENERS:]:
            self.keep_from_opening(seat)

    @staticmethod
    def keep_from_opening(seat: Seat) -> None:
        """It votes and never wants anything itself."""
        seat.state = replace(seat.state, open=replace(seat.state.open, quiet_until_s=1e12))

    def perform(self, seat: Seat, action: Action) -> None:
        if not isinstance(action, SendHeartbeat):  # signs of life are the test's to give
            super().perform(seat, action)

    def _send(self, seat: Seat, to: tuple[PeerId, ...], message: RoundMessage) -> None:
        match message:
            case PromiseRequest(ballot=ballot):
                self.model.asked(seat.peer, (ballot.attempt, ballot.peer))
            case Promise(ballot=ballot, acked=acked):
                self.model.reported_promise(seat.peer, (ballot.attempt, ballot.peer), vote(acked))
            case Settle(ballot=ballot, record=record):
                self._note_settle(seat, (ballot.attempt, ballot.peer), record)
            case Ack(ballot=ballot, commit=commit):
                record = self.model.reported_ack(seat.peer, (ballot.attempt, ballot.peer))
                if link_after(self.genesis, record).commit != commit:
                    raise Broken(f"{seat.peer} told of an ack of another record than its disk has")
            case Committed(certificate=certificate):
                self._note(certificate)
                self.model.certified(certificate.record)
                REACHED["certificate"] += 1
                return
        super()._send(seat, to, message)
        if not isinstance(message, PLAIN):
            self.past += list(self.queue)[-len(to) :]

    def _note_settle(self, seat: Seat, ballot: Ballot, record: bytes) -> None:
        before = {settled: known for settled, known in self.model.settled.items() if settled < ballot}
        self.model.settles(seat.peer, ballot, record)
        if record in before.values():
            REACHED["finished what another ballot began"] += 1
        if len(set(before.values()) - {record}) and record in before.values():
            REACHED["finished one of several records"] += 1
        if self.model.chosen is not None and ballot > self.model.chosen[0]:
            REACHED["settled after the choice"] += 1

    def _write_vote(self, seat: Seat, action: LogAck | LogPromise | LogLeave) -> None:
        if isinstance(action, LogLeave):
            raise AssertionError("nobody leaves here")
        self.unwritten.setdefault(seat.peer, deque()).append(action)

    def write(self, seat: Seat) -> None:
        """The disk takes the oldest vote that it was given; that it did is still to be heard."""
        action = self.unwritten[seat.peer].popleft()
        ballot = (action.ballot.attempt, action.ballot.peer)
        if isinstance(action, LogAck):
            self.model.wrote_ack(seat.peer, ballot, action.record)
        else:
            self.model.wrote_promise(seat.peer, ballot)
        super()._write_vote(seat, action)

    def give_signs_of_life(self, *silent: Seat) -> None:
        """Everybody who runs has heard everybody now, but for these."""
        for seat in self.others(*silent):
            heartbeat = heartbeat_of(seat)
            for other in self.others(seat):
                other.feed(MessageArrived(seat.peer, heartbeat, b""))

    def talk_plainly(self) -> None:
        """The messages that decide nothing have come."""
        while (plain := next((item for item in self.queue if is_plain(item)), None)) is not None:
            self.queue.remove(plain)
            self.deliver(plain)


def is_plain(item: Parcel | Answer) -> bool:
    """Whether it comes at once."""
    if isinstance(item, Answer):
        return not isinstance(item.event, AckLogged | PromiseLogged | BytesHeld)
    return isinstance(item.message, PLAIN)


def _asks(seat: Seat, item: Parcel) -> bool:
    return item.sender == seat.peer and isinstance(item.message, PreVoteRequest)


def _comes_to(seat: Seat, kind: type[RoundMessage], item: Parcel) -> bool:
    return item.to == seat.peer and isinstance(item.message, kind)


class CrossingBallots(RuleBasedStateMachine):
    """Every rule is one thing that happens; what must hold is asked as it happens."""

    @initialize(is_opened=st.booleans(), company=COMPANIES, turns=st.lists(TURN, min_size=2, max_size=3))
    def begin(self, is_opened: bool, company: frozenset[int], turns: list[Turn]) -> None:
        """Mostly two records are about before anything else happens."""
        self.table = SlowTable()
        acquaint(self.table)
        if is_opened:
            self.time_passes(0, 1.0)
            self._talk(0, company, 200, 1)
            REACHED["attempt 0"] += 1
        self.openers_lose_patience(turns)

    def _seat(self, number: int) -> Seat:
        return self.table.order[number]

    # --- time ---------------------------------------------------------------------------------------------------------------

    @rule(number=OPENERS, seconds=st.sampled_from((0.5, 1.0, PATIENCE_S)))
    def time_passes(self, number: int, seconds: float) -> None:
        self._pass(self._seat(number), seconds)

    @rule(turns=st.lists(TURN, min_size=1, max_size=3))
    def openers_lose_patience(self, turns: list[Turn]) -> None:
        """One after another ends what it had begun, suspects others, begins anew, and comes so far with it."""
        for turn in turns:
            self._begin_anew(turn)
            if turn.has_late_pre_votes:
                self._deliver_all(partial(_asks, self._seat(turn.number)))
            else:
                self._talk(turn.number, turn.heard, 200, turn.num_acks)

    def _begin_anew(self, turn: Turn) -> None:
        opener = self._seat(turn.number)
        silent = [self._seat((turn.number + other) % NUM_OPENERS) for other in turn.silent]
        if not opener.is_up or opener.state.open.highest_attempt > MAX_ATTEMPT:
            return
        before = opener.state.open.leading
        for seat in silent if turn.ends_others else ():
            self._pass(seat, PATIENCE_S, opener)
        for _ in range(4):
            for seat in self.table.others(*silent):
                for one in silent:
                    seat.feed(PeerLost(one.peer))
            self._pass(opener, PATIENCE_S, *silent)
            led = opener.state.open.leading
            if led is not None and (before is None or led.deadline_s > before.deadline_s):
                REACHED["take-over"] += 1
                return

    def _pass(self, opener: Seat, seconds: float, *silent: Seat) -> None:
        self.table.now_s += seconds
        if opener.is_up:
            self.table.give_signs_of_life(*silent)
            opener.state = replace(opener.state, alone_since_s=None)  # commits without a quorum are no ballots
            opener.feed(RoundTicked())
            self.table.talk_plainly()

    # --- messages -----------------------------------------------------------------------------------------------------------

    def _pick(self, pick: int) -> Parcel | Answer:
        """Something on its way, whenever it was sent; what a disk answers comes in the order of its writes."""
        item = self.table.queue[pick % len(self.table.queue)]
        if isinstance(item, Answer):
            return next(other for other in self.table.queue if isinstance(other, Answer) and other.to == item.to)
        return item

    def _deliver(self, item: Parcel | Answer) -> None:
        self.table.deliver(item)
        self.table.talk_plainly()

    def _deliver_all(self, is_due: Callable[[Parcel], bool]) -> None:
        for item in [item for item in self.table.queue if isinstance(item, Parcel) and is_due(item)]:
            self.table.queue.remove(item)
            self._deliver(item)

    @rule(number=OPENERS, kinds=KINDS, keeps_up=st.booleans())
    def all_that_waits_for_an_opener_comes_at_once(
        self, number: int, kinds: tuple[type[RoundMessage], ...], keeps_up: bool
    ) -> None:
        """One kind after another, whatever was sent first; then its disk has answered, or not yet."""
        seat = self._seat(number)
        for kind in kinds:
            self._deliver_all(partial(_comes_to, seat, kind))
        for item in self._answers(seat) if keeps_up else ():
            self.table.queue.remove(item)
            self._deliver(item)

    @precondition(lambda self: self.table.past)
    @rule(pick=PICKS, how=st.sampled_from(("late", "again", "lost")))
    def a_message_goes_its_own_way(self, pick: int, how: str) -> None:
        """One that waits comes before or after its turn, or never; any that was ever sent comes once more."""
        if how == "again":
            self._deliver(self.table.past[pick % len(self.table.past)])
        elif self.table.queue:
            item = self._pick(pick)
            if how == "late" or isinstance(item, Parcel):
                self.table.queue.remove(item)
            if how == "late":
                self._deliver(item)

    @rule(number=OPENERS, company=COMPANIES, limit=LIMITS)
    def an_opener_and_a_few_talk_for_a_while(self, number: int, company: frozenset[int], limit: int) -> None:
        self._talk(number, company, limit)

    def _talk(self, number: int, company: frozenset[int], limit: int, num_acks: int = NUM_SEATS) -> None:
        """In order, and with the others as silent as if they were not there; it breaks off anywhere."""
        table, opener = self.table, self._seat(number).peer
        here = [*(self._seat((number + other) % NUM_SEATS).peer for other in sorted(company)), opener]
        for _ in range(limit):
            peer = next((peer for peer in here if table.unwritten.get(peer)), None)
            waiting = [item for item in table.queue if self._is_among(item, opener, here)]
            item = min(waiting, key=lambda item: isinstance(item, Parcel), default=None)
            if isinstance(item, Answer) or (
                item is not None and peer is None
            ):  # each is done with one thing before the next
                table.queue.remove(item)
                self._deliver(item)
            elif peer is not None:
                table.write(table.seats[peer])
            else:
                return
            led = self._seat(number).state.open.leading
            if led is not None and table.model.num_acks(reported(led.ballot)) >= num_acks:
                return

    @staticmethod
    def _is_among(item: Parcel | Answer, opener: PeerId, here: list[PeerId]) -> bool:
        if isinstance(item, Answer):
            return item.to in here
        return {item.sender, item.to} <= set(here) and opener in (item.sender, item.to)

    # --- disks --------------------------------------------------------------------------------------------------------------

    @rule(number=SEATS)
    def a_disk_takes_a_vote(self, number: int) -> None:
        seat = self._seat(number)
        if self.table.unwritten.get(seat.peer):
            self.table.write(seat)

    @rule(numbers=st.frozensets(SEATS, min_size=1, max_size=3), is_back=st.booleans())
    def voters_crash(self, numbers: frozenset[int], is_back: bool) -> None:
        """Votes that their disks have not taken are gone; votes that they took are not, even if no peer knows of them."""
        for number in sorted(numbers):
            if self._seat(number).is_up:
                self._crash(self._seat(number))
            if is_back:
                self.a_voter_comes_back(number)

    def _crash(self, seat: Seat) -> None:
        table = self.table
        if table.unwritten.pop(seat.peer, None):
            REACHED["crash before a write"] += 1
        if any(isinstance(i, Answer) and isinstance(i.event, AckLogged | PromiseLogged) for i in self._answers(seat)):
            REACHED["crash after a write"] += 1
        for item in self._answers(seat):
            table.queue.remove(item)
        table.kill(seat)

    def _answers(self, seat: Seat) -> list[Parcel | Answer]:
        return [item for item in self.table.queue if isinstance(item, Answer) and item.to == seat.peer]

    @rule(number=SEATS)
    def a_voter_comes_back(self, number: int) -> None:
        seat = self._seat(number)
        if seat.is_up:
            return
        self.table.restart(seat)
        opened = seat.state.open
        self.table.model.came_back(seat.peer, reported(opened.promised), vote(opened.acked))
        if number >= NUM_OPENERS:
            self.table.keep_from_opening(seat)
        seat.feed(Progressed(seat.tokens, True))
        self.table.give_signs_of_life()

    @invariant()
    def what_is_durable_is_known(self) -> None:
        """A process that runs never stands below its own disk."""
        for seat in self.table.live():
            acceptor, opened = self.table.model.acceptors[seat.peer], seat.state.open
            promised, acked = reported(opened.promised), vote(opened.acked)
            assert acceptor.promised is None or (promised is not None and promised >= acceptor.promised)
            assert acceptor.acked is None or (acked is not None and acked[0] >= acceptor.acked[0])


def _play(number: int) -> None:
    """The examples of a seed. Nothing is shrunk: the first story that fails is told as it is, in seconds."""
    REACHED.clear()
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        seed(number)(type("CrossingBallots", (CrossingBallots,), {})),
        settings=settings(
            max_examples=MAX_EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def _search(first: int) -> None:
    for number in dict.fromkeys((first, *SEEDS_OF_BROKEN)):
        _play(number)


def test_openers_with_crossing_ballots_never_make_two_records_of_one_base() -> None:
    _play(SEEDS_OF_BROKEN[0])
    for what in (
        "attempt 0",
        "take-over",
        "certificate",
        "finished what another ballot began",
        "finished one of several records",
        "settled after the choice",
        "crash before a write",
        "crash after a write",
    ):
        assert REACHED[what], f"never seen in {MAX_EXAMPLES} examples: {what}; seen: {REACHED}"


# --- it can fail --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.__name__)
def test_a_broken_rule_is_found(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        _search(FIRST_SEEDS.get(broken.__name__, SEEDS_OF_BROKEN[0]))
