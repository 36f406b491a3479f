"""Nothing that anybody says, in any order, makes two commits of a quorum on one base, or ends the machine."""

from __future__ import annotations

import typing
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.ids import CommitId, Root
from protocol.rounds.events import (
    AckLogged,
    Applied,
    BytesHeld,
    ContributionReady,
    Event,
    LeaveLogged,
    LeaveOrdered,
    MessageArrived,
    PeerLost,
    Progressed,
    PromiseLogged,
    RoundTicked,
    SumProven,
    Switched,
    SwitchPrepared,
)
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.bounds import MAX_TOKENS
from protocol.rounds.messages.messages import (
    Ack,
    AckedRecord,
    Certificate,
    Committed,
    DoubleVote,
    FalseSum,
    Heartbeat,
    Leave,
    Member,
    Mend,
    PreVote,
    PreVoteRequest,
    Promise,
    PromiseRequest,
    Proposal,
    Refusal,
    ResultHeader,
    ResultReady,
    RoundMessage,
    Settle,
    SliceSpec,
    UnitHead,
)
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot, Included, OuterStep
from protocol.rounds.messages.wire import decode_message, encode_body, encode_message, encode_record
from protocol.rounds.orders import (
    Action,
    Commit,
    FetchSumProof,
    GatherBytes,
    LogAck,
    LogLeave,
    LogPromise,
    PrepareContribution,
    PrepareSwitch,
    Send,
    Switch,
)
from protocol.rounds.schedule.sum_rules import SumRules
from protocol.rounds.state import OpenRound
from tests.protocol.rounds.made_commits import commit_on, record_on
from tests.protocol.rounds.round_table import (
    NUM_CHUNKS,
    UNIT,
    Answer,
    Parcel,
    Seat,
    Table,
    acquaint,
    contribution_root,
    heartbeat_of,
    state_root,
)
from tests.simulation.signing import HashSigner

T = TypeVar("T")


def _contested(num_peers: int) -> Table:
    """Everybody has met, and the first opener has proposed. Of it only votes and records arrive from here on, so that others want its
    place while it goes on.
    """
    table = Table(num_peers, min_members=2, sums=SumRules(first_within_s=5.0), settle_within_s=5.0)
    for seat in table.live():
        seat.tokens = 300
    acquaint(table)
    opener = table.opener()
    opener.feed(RoundTicked())
    table.drops = lambda sender, to, message: isinstance(message, Heartbeat) and sender == opener.peer
    _deliver_plain(table)
    for seat in table.others(opener):
        seat.feed(PeerLost(opener.peer))
    return table


def _choose(table: Table, pick: int) -> int:
    """A place in the queue; what a disk answers comes in the order in which it was asked."""
    place = pick % len(table.queue)
    item = table.queue[place]
    if not isinstance(item, Answer):
        return place
    return next(i for i, other in enumerate(table.queue) if isinstance(other, Answer) and other.to == item.to)


def _is_plain(item: Parcel | Answer) -> bool:
    if isinstance(item, Answer):
        return not isinstance(item.event, AckLogged | PromiseLogged)
    return isinstance(item.message, Heartbeat | Proposal | ResultReady | PreVoteRequest | PreVote)


def _deliver_plain(table: Table) -> None:
    """Other messages come in time: only votes and records are shuffled."""
    while any(_is_plain(item) for item in table.queue):
        item = next(item for item in table.queue if _is_plain(item))
        table.queue.remove(item)
        table.deliver(item)


def _happen(table: Table, what: int, pick: int) -> None:
    seat = list(table.seats.values())[pick % len(table.seats)]
    if what < 9 and table.queue:  # a message arrives, out of turn more often than not
        place = _choose(table, pick if what < 6 else 0)
        item = table.queue[place]
        del table.queue[place]
        table.deliver(item)
    elif what == 9 and table.queue:  # one comes twice
        item = table.queue[_choose(table, pick)]
        if not isinstance(item, Answer):
            table.deliver(item)
    elif what == 10 and table.queue:  # one is lost
        place = _choose(table, pick)
        if not isinstance(table.queue[place], Answer):
            del table.queue[place]
    elif what == 11:  # it seems that the first opener is gone
        seat.feed(PeerLost(table.opener().peer))
    elif what == 12 and pick < 16:  # a process dies and comes back
        table.restart(seat)
        seat.feed(Progressed(seat.tokens, True))
        for other in table.others(seat):
            seat.hear(other, heartbeat_of(other))
            other.hear(seat, heartbeat_of(seat))
    else:  # time passes for one of them
        table.now_s += (0.0, 0.5, 1.0, 3.0)[pick // 4 % 4]
        seat.feed(Progressed(seat.tokens, True))
        seat.feed(RoundTicked())


SCHEDULES = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 63)), min_size=60, max_size=200)


@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(schedule=SCHEDULES)
def test_in_no_order_of_messages_losses_repeats_and_restarts_do_two_openers_get_two_certificates_on_one_base(
    schedule: list[tuple[int, int]],
) -> None:
    table = _contested(3)
    for what, pick in schedule:
        _happen(table, what, pick)
        _deliver_plain(table)
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1), 200.0)
    assert len({seat.disk.chain[0][0].commit for seat in table.live()}) == 1


# --- any word from anybody ----------------------------------------------------------------------------------------------------

BITS = st.integers(0, (1 << 128) - 1)
WORDS = st.lists(st.tuples(st.sampled_from(typing.get_args(RoundMessage)), BITS), min_size=10, max_size=40)


class Babble:
    """Well-formed messages, true and false, from peers, strangers and the machine itself; every number comes from one draw."""

    def __init__(self, seat: Seat, bits: int) -> None:
        self.seat = seat
        self.bits = bits
        self.seats = list(seat.table.seats.values())
        self.stranger = Seat(seat.table, HashSigner(b"stranger"), seat.table.genesis)

    def one_of(self, *choices: T) -> T:
        self.bits, place = divmod(self.bits, len(choices))
        return choices[place]

    def who(self) -> Seat:
        return self.one_of(*self.seats, self.stranger)

    def base(self) -> ChainLink:
        """Our head three times in five, else the start of the run, or a commit that nobody made."""
        head, genesis = self.seat.head, self.seat.table.genesis
        return self.one_of(head, head, head, genesis, replace(head, commit=CommitId(b"?" * 32)))

    def ballot(self, sender: Seat) -> Ballot:
        proposal = self.seat.state.open.proposal
        running = proposal.ballot if proposal is not None else Ballot(0, sender.peer)
        mine = self.seat.state.open.leading
        led = mine.ballot if mine is not None else running
        attempt = self.one_of(0, 1, 2, 3, 1000, LAST_ATTEMPT)
        return self.one_of(Ballot(attempt, sender.peer), Ballot(attempt, self.who().peer), running, led)

    def record(self) -> bytes:
        base = self.base()
        made = record_on(
            base, [self.who().peer], tokens=self.one_of(0, 1, 300, MAX_TOKENS), lone=self.one_of(False, True)
        )
        short = replace(made, slices=(replace(made.slices[0], stop_chunk=3),))
        wrong = self.one_of(
            {}, {"index": 99}, {"total_tokens": 0}, {"codec": "int8"}, {"outer": OuterStep("mean", 9.0, 0.0)}
        )
        return self.one_of(
            encode_record(made), encode_record(replace(made, **wrong)), encode_record(short), b"", b"junk"
        )

    def acked(self) -> AckedRecord | None:
        return self.one_of(None, AckedRecord(self.ballot(self.who()), self.record()))

    def acks(self, commit: CommitId) -> tuple[bytes, bytes]:
        """Two acks on a base, which may prove that their voter lied."""
        base, ballot, voter = self.base().commit, self.ballot(self.seats[0]), self.one_of(*self.seats[1:])
        other = self.one_of(commit, base)
        one, two = (voter.sealed(encode_message(Ack(UNIT, base, ballot, each, version=1))) for each in (commit, other))
        return self.one_of((one, two), (one, b"junk"))

    def slices(self) -> tuple[SliceSpec, ...]:
        cut = self.one_of(1, 5, NUM_CHUNKS - 1)
        stop = self.one_of(NUM_CHUNKS, NUM_CHUNKS, NUM_CHUNKS + 1)
        return SliceSpec(0, cut, self.who().peer), SliceSpec(cut, stop, self.who().peer)

    def member(self, seat: Seat) -> Member:
        return replace(seat.member, session=self.one_of(1, 1, 1, 2), incarnation=self.one_of(1, 1, 1, 2))

    def certificate(self) -> Certificate:
        made = commit_on(
            self.seat.head,
            self.one_of(self.seats, self.seats[:1]),
            lone=self.one_of(False, True),
            salt=self.one_of(*range(4)),
        )
        leave = self.one_of((), (self.who().sealed(encode_message(self.leave(self.who()))),))
        forged = replace(made.certificate, acks=self.one_of((), (b"junk",), made.certificate.acks * 2), leaves=leave)
        orphan = commit_on(self.base(), self.seats).certificate
        return self.one_of(made.certificate, forged, orphan, Certificate(self.record(), made.certificate.acks))

    def leave(self, sender: Seat) -> Leave:
        who = self.one_of(sender, sender, self.who())
        return Leave(self.member(who), UNIT, self.base().commit, self.one_of(None, self.ballot(sender)), self.acked())

    def heartbeat(self, sender: Seat) -> Heartbeat:
        base, tokens = self.base(), self.one_of(0, 300, MAX_TOKENS)
        root = state_root(base.commit)
        head = UnitHead(UNIT, base.commit, base.index, 0, tokens, self.one_of(True, False), base.commit, root)
        silent = self.one_of((), tuple(seat.peer for seat in self.seats))
        who = self.one_of(sender, sender, self.who())
        return Heartbeat(
            self.member(who), self.one_of(True, False), tokens, (head,), self.one_of(0, (1 << 32) - 1), silent
        )

    def proposal(self, sender: Seat) -> Proposal:
        base = self.base()
        everybody = tuple(
            self.member(seat) for seat in self.one_of(self.seats, [*self.seats, self.stranger], [self.seat])
        )
        return Proposal(
            UNIT,
            base.commit,
            self.one_of(base.index + 1, base.index + 1, 0),
            self.ballot(sender),
            everybody,
            self.slices(),
            self.one_of("fp32", "fp32", "int8"),
            self.one_of(1, MAX_TOKENS),
            self.one_of(1e-9, 20.0, 86400.0),
            lone=self.one_of(False, True),
        )

    def result(self, sender: Seat) -> ResultReady:
        proposal = self.seat.state.open.proposal or self.proposal(sender)
        part = self.one_of(*proposal.slices, *self.slices())
        reducer = self.seat.table.seats.get(part.reducer, self.stranger)
        members = self.one_of(proposal.members, proposal.members[:1], (self.stranger.member,))
        root = state_root(proposal.base)
        included = tuple(
            Included(m.peer, m.incarnation, root, self.one_of(0, 100), proposal.base, root) for m in members
        )
        ballot = self.one_of(proposal.ballot, self.ballot(sender))
        bounds = part.first_chunk, part.stop_chunk
        header = ResultHeader(UNIT, proposal.base, ballot, *bounds, part.reducer, included, (), 1, root)
        signed = self.one_of(reducer, reducer, self.who()).sealed(encode_body(header))
        return ResultReady(UNIT, proposal.base, ballot, self.one_of(signed, signed, b"junk"))

    def say(self, kind: type, sender: Seat) -> RoundMessage:
        base, ballot = self.base().commit, self.ballot(sender)
        led = self.seat.state.open.leading
        commit = led.commit if led is not None and led.commit is not None else base
        makers: dict[type, Callable[[], RoundMessage]] = {
            Heartbeat: lambda: self.heartbeat(sender),
            Leave: lambda: self.leave(sender),
            Proposal: lambda: self.proposal(sender),
            Mend: lambda: Mend(UNIT, base, ballot, self.one_of(1, 2, 32), self.slices()),
            ResultReady: lambda: self.result(sender),
            Settle: lambda: Settle(UNIT, base, ballot, self.record(), (self.who().peer,)),
            Ack: lambda: Ack(UNIT, base, ballot, commit),
            Committed: lambda: Committed(UNIT, self.certificate()),
            PreVoteRequest: lambda: PreVoteRequest(
                UNIT, base, ballot, self.one_of(0.0, 5.0, 1e9), self.one_of(False, True)
            ),
            PreVote: lambda: PreVote(UNIT, base, ballot, self.one_of("", "no")),
            PromiseRequest: lambda: PromiseRequest(UNIT, base, ballot),
            Promise: lambda: Promise(UNIT, base, ballot, self.acked()),
            Refusal: lambda: Refusal(UNIT, base, ballot),
            DoubleVote: lambda: DoubleVote(UNIT, *self.acks(commit)),
            FalseSum: lambda: FalseSum(UNIT, base, self.who().peer, Root(bytes(32)), bytes(32)),
        }
        return makers[kind]()


def _answers(seat: Seat, action: Action) -> list[Event]:
    """The events that a driver would report at once if it had everything that it needs."""
    match action:
        case PrepareContribution(base):
            return [ContributionReady(base, contribution_root(seat.member, base), 100)]
        case GatherBytes(settle):
            return [BytesHeld(settle)]
        case FetchSumProof():
            return [SumProven(action.notice, "signed a false sum")]
        case LogAck():
            return [AckLogged(action.base, action.ballot, action.commit)]
        case LogPromise(base, ballot):
            return [PromiseLogged(base, ballot)]
        case LogLeave(leave):
            return [LeaveLogged(leave)]
        case Commit():
            return [Applied(action.link, action.certificate, state_root(action.link.commit), OpenRound())]
        case PrepareSwitch(_, path):
            return [SwitchPrepared(path[-1].link.commit)]
        case Switch(_, path):
            link = path[-1].link
            return [Switched(link, state_root(link.commit), OpenRound())]
        case Send(to, message) if seat.peer in to:
            return [MessageArrived(seat.peer, message, seat.sealed(encode_message(message)))]
        case _:
            return []


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(num_ticks=st.integers(0, 12), words=WORDS)
def test_no_well_formed_word_of_anybody_makes_the_machine_raise(num_ticks: int, words: list[tuple[type, int]]) -> None:
    table = Table(4, min_members=2, longest_interval_s=5.0, lone_patience_s=5.0)
    for _ in range(num_ticks):
        table.tick()
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    seat = table.live()[0]
    for kind, bits in words:
        babble = Babble(seat, bits)
        sender = babble.who()
        message = babble.say(kind, sender)
        encoded = encode_message(message)
        raw = babble.one_of(sender.sealed(encoded), sender.sealed(encoded), b"")
        waiting: list[Event] = [MessageArrived(sender.peer, decode_message(encoded), raw)]
        table.now_s += babble.one_of(0.0, 0.1, 1.0, 10.0)
        often = (RoundTicked(), RoundTicked(3.0), Progressed(300, True)) * 5
        waiting.append(babble.one_of(*often, PeerLost(babble.who().peer), Progressed(0, False), LeaveOrdered()))
        for _ in range(20):
            if not waiting:
                break
            waiting += [event for action in seat.feed(waiting.pop(0)) for event in _answers(seat, action)]
