from __future__ import annotations

from protocol.rounds.messages import Ack, Ballot, Promise, PromiseRequest, Refusal, Settle
from protocol.rounds.state import BytesHeld, GatherBytes, LogAck, LogPromise, MessageArrived, PromiseLogged, Send
from tests.protocol.rounds.round_table import UNIT, Seat, Table


def _settled(table: Table) -> tuple[Seat, Settle]:
    """A member that has a settled record before it, its bytes not yet on disk."""
    table.gathers = False
    table.run_until(lambda: any(isinstance(a, GatherBytes) for seat in table.live() for a in seat.orders))
    seat = next(s for s in table.live() if any(isinstance(a, GatherBytes) for a in s.orders))
    settle = next(a.settle for a in seat.orders if isinstance(a, GatherBytes))
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    return seat, settle


def test_an_ack_is_written_only_when_all_bytes_are_on_disk_and_told_only_when_written() -> None:
    seat, settle = _settled(Table(3))
    assert not any(isinstance(a, LogAck) for a in seat.orders)
    (order,) = seat.feed(BytesHeld(settle))
    assert isinstance(order, LogAck)
    assert not any(isinstance(a, Send) and isinstance(a.message, Ack) for a in seat.orders)


def test_a_promise_names_the_acked_record_and_refuses_lower_ballots() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    seat.feed(BytesHeld(settle))
    asker = next(s.peer for s in table.live() if s is not seat)
    high = Ballot(7, asker)
    (order,) = seat.feed(MessageArrived(asker, PromiseRequest(UNIT, settle.base, high), b""))
    assert order == LogPromise(settle.base, high)
    (told,) = seat.feed(PromiseLogged(settle.base, high))
    assert isinstance(told, Send)
    assert isinstance(told.message, Promise)
    assert told.message.acked is not None
    assert told.message.acked.record == settle.record
    (refused,) = seat.feed(MessageArrived(asker, PromiseRequest(UNIT, settle.base, Ballot(3, asker)), b""))
    assert isinstance(refused, Send)
    assert refused.message == Refusal(UNIT, settle.base, high)


def test_bytes_that_arrive_after_a_higher_promise_are_not_acked() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    asker = next(s.peer for s in table.live() if s is not seat)
    seat.feed(MessageArrived(asker, PromiseRequest(UNIT, settle.base, Ballot(9, asker)), b""))
    actions = seat.feed(BytesHeld(settle))
    assert not any(isinstance(a, LogAck) for a in actions)
    assert seat.state.open.acked is None


def test_a_second_record_in_one_ballot_is_refused() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    seat.feed(BytesHeld(settle))
    other = Settle(settle.unit, settle.base, settle.ballot, _other_record(settle.record), ())
    actions = seat.feed(MessageArrived(settle.ballot.peer, other, b""))
    assert actions == ()
    assert "two records" in seat.reasons[-1]


def _other_record(record: bytes) -> bytes:
    from dataclasses import replace

    from protocol.wire import decode_record, encode_record

    first = decode_record(record)
    return encode_record(replace(first, next_target_tokens=first.next_target_tokens + 1))


def test_a_record_with_another_outer_step_than_the_runs_is_refused() -> None:
    from dataclasses import replace

    from protocol.rounds.messages import OuterStep
    from protocol.wire import decode_record, encode_record

    table = Table(3)
    seat, settle = _settled(table)
    bad = encode_record(replace(decode_record(settle.record), outer=OuterStep("mean", 5.0, 0.0)))
    higher = Settle(settle.unit, settle.base, Ballot(4, settle.ballot.peer), bad, ())
    actions = seat.feed(MessageArrived(settle.ballot.peer, higher, b""))
    assert actions == ()
    assert "outer step" in seat.reasons[-1]


def test_nobody_may_ask_for_a_promise_in_anothers_name_or_for_attempt_zero() -> None:
    table = Table(3)
    seat, settle = _settled(table)
    asker, third = (s.peer for s in table.live() if s is not seat)
    assert seat.feed(MessageArrived(asker, PromiseRequest(UNIT, settle.base, Ballot(2, third)), b"")) == ()
    assert seat.feed(MessageArrived(asker, PromiseRequest(UNIT, settle.base, Ballot(0, asker)), b"")) == ()
