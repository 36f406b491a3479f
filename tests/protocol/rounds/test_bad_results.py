from __future__ import annotations

from protocol.ids import Root
from protocol.rounds.bad_results import names_useless
from protocol.rounds.events import ResultRefused
from protocol.rounds.messages.messages import Mend, Proposal, ResultReady, Settle
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import LogAck
from tests.protocol.rounds.round_table import Seat, Table, result_hash


def _refused(proposal: Proposal, reducer: Seat, *, is_useless: bool = True) -> ResultRefused:
    part = next(part for part in proposal.slices if part.reducer == reducer.peer)
    useless = result_hash(proposal.base, proposal.ballot, part) if is_useless else None
    return ResultRefused(proposal.base, proposal.ballot, reducer.peer, "a scale that is not normal", useless)


def _proposal(seat: Seat) -> Proposal:
    message = seat.sent(Proposal)[-1]
    assert isinstance(message, Proposal)
    return message


def _settled(table: Table, opener: Seat) -> Proposal:
    """Everybody has the settled record of the first attempt, and nobody its bytes."""
    table.gathers = False
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    table.talk()
    return _proposal(opener)


def test_where_results_are_still_awaited_the_slice_goes_to_another_within_the_attempt() -> None:
    table = Table(4)
    opener = table.opener()
    bad, slow, *_ = table.others(opener)
    held = table.hold_results(slow)
    table.run_until(lambda: len(opener.state.open.results) == 3, 10.0)
    proposal = _proposal(opener)
    opener.feed(_refused(proposal, bad))
    assert bad.peer in opener.state.open.unfit
    table.let_go(slow, held)
    table.run_until(lambda: table.all_at(1), 10.0)
    (mend,) = opener.sent(Mend)
    assert isinstance(mend, Mend)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot == proposal.ballot
    assert bad.peer not in {part.reducer for part in (*mend.slices, *record.slices)}
    assert any("a scale that is not normal; its slice is given to others" in reason for reason in opener.reasons)


def test_the_last_results_that_come_before_our_own_mend_do_not_settle_the_one_that_was_refused() -> None:
    """The mend is on its way to us, too. Nobody could ack a record that names bytes which mean nothing."""
    table = Table(4)
    opener = table.opener()
    bad, slow, *_ = table.others(opener)
    held = table.hold_results(slow)
    table.run_until(lambda: len(opener.state.open.results) == 3, 10.0)
    opener.feed(_refused(_proposal(opener), bad))
    for to, message in list(held):
        if to == opener.peer:
            opener.hear(slow, message)
    assert opener.sent(Settle) == []
    table.let_go(slow, held)
    table.run_until(lambda: table.all_at(1), 10.0)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert bad.peer not in {part.reducer for part in record.slices}


def test_an_attempt_whose_record_names_it_ends_at_once_and_the_next_one_leaves_its_reducer_out() -> None:
    table = Table(4)
    opener = table.opener()
    bad, *others = table.others(opener)
    proposal = _settled(table, opener)
    for seat in (opener, *others):
        seat.feed(_refused(proposal, bad))
    assert opener.state.open.leading is None
    table.gathers, began_s = True, table.now_s
    table.run_until(lambda: table.all_at(1), 10.0)
    assert table.now_s - began_s < 3.0
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot.attempt == 1
    assert bad.peer not in {part.reducer for part in record.slices}
    assert len(record.contributors) == 4, "what it contributes counts"


def test_an_attempt_goes_on_whose_record_somebody_else_acked_for_then_the_bytes_are_to_be_had() -> None:
    table = Table(4)
    opener = table.opener()
    bad, acker, *_ = table.others(opener)
    table.gathers = False
    table.drops = lambda sender, to, message: isinstance(message, Settle) and to not in (acker.peer, opener.peer)
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    table.gathers = True
    table.retry(acker)
    table.talk()
    led = opener.state.open.leading
    assert led is not None
    assert acker.peer in led.acks
    opener.feed(_refused(_proposal(opener), bad, is_useless=False))
    assert opener.state.open.leading is led


def test_who_does_not_lead_gives_nothing_away_and_acks_no_record_that_names_it() -> None:
    table = Table(4)
    opener = table.opener()
    bad, member, *_ = table.others(opener)
    held = table.hold_results(bad)
    table.run_until(lambda: len(opener.state.open.results) == 3, 10.0)
    assert member.feed(_refused(_proposal(opener), bad)) == ()
    assert member.state.open.unfit == (bad.peer,)
    table.let_go(bad, held)
    table.run_until(lambda: table.all_at(1), 20.0)
    assert not member.ordered(LogAck)
    assert "refused a record that names a result whose bytes mean nothing" in member.reasons


def test_what_only_its_reducer_acked_is_not_settled_again() -> None:
    """A voter may say that it acked anything: a record that nobody can apply would else be settled for ever."""
    table = Table(4)
    opener = table.opener()
    bad, *others = table.others(opener)
    proposal = _settled(table, opener)
    table.gathers = True
    table.retry(bad)
    table.gathers = False
    table.talk()
    assert bad.state.open.acked is not None
    for seat in (opener, *others):
        seat.feed(_refused(proposal, bad))
    table.gathers = True
    for seat in (opener, *others):
        seat.waiting = []  # what they hold of it means nothing to them
    table.run_until(lambda: table.all_at(1), 20.0)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot.attempt > 0
    assert bad.peer not in {part.reducer for part in record.slices}


def test_who_finds_its_own_result_useless_leads_on_and_sums_nothing() -> None:
    table = Table(3)
    opener = table.opener()
    proposal = _settled(table, opener)
    opener.feed(_refused(proposal, opener))
    table.gathers = True
    for seat in table.live():
        seat.waiting = []
    table.run_until(lambda: table.all_at(1), 20.0)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot.peer == opener.peer
    assert opener.peer not in {part.reducer for part in record.slices}


def test_what_was_refused_on_a_base_that_has_its_commit_changes_nothing() -> None:
    table = Table(3)
    opener = table.opener()
    bad, *_ = table.others(opener)
    table.run_until(lambda: table.all_at(1), 10.0)
    assert opener.feed(_refused(_proposal(opener), bad)) == ()
    assert opener.state.open.unfit == ()


def test_a_record_names_what_one_of_its_slices_came_to_and_none_of_nothing_is_useless() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and sender != to and to != opener.peer
    table.run_until(lambda: bool(opener.sent(Settle)), 10.0)
    (settle, *_) = opener.sent(Settle)
    assert isinstance(settle, Settle)
    first = decode_record(settle.record).slices[0].result_hash
    assert names_useless(settle.record, frozenset({first}))
    assert not names_useless(settle.record, frozenset())
    assert not names_useless(settle.record, frozenset({Root(bytes(32))}))
    assert not names_useless(b"no record", frozenset({first}))
