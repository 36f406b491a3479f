from __future__ import annotations

from dataclasses import replace

from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.rounds.bad_results import MOST_OLD, false_sum_problem, may_have_been_acked, names_useless, sum_accused
from protocol.rounds.events import BytesHeld, ResultRefused, SumProven, SumWithheld
from protocol.rounds.messages.messages import FalseSum, Mend, Proposal, ResultReady, Settle
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_record
from protocol.rounds.orders import FetchSumProof, GatherBytes, LogAck, Send
from tests.protocol.rounds.round_table import UNIT, Seat, Table, acquaint, result_hash


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


# --- false sums ---------------------------------------------------------------------------------------------------------------


RESULT = Root(b"f" * 32)


def _notice(base: CommitId, reducer: Seat, result: Root = RESULT) -> FalseSum:
    return FalseSum(UNIT, base, reducer.peer, result, b"p" * 32)


def _named_by(proposal: Proposal, reducer: Seat) -> FalseSum:
    part = next(part for part in proposal.slices if part.reducer == reducer.peer)
    return _notice(proposal.base, reducer, result_hash(proposal.base, proposal.ballot, part))


def test_an_accusation_is_followed_by_a_question_for_its_proof_and_convicts_nobody_by_itself() -> None:
    table = Table(4)
    acquaint(table)
    seat, witness, liar, _ = table.live()
    before = seat.state.barred
    notice = _notice(seat.head.commit, liar)
    assert seat.hear(witness, notice) == (FetchSumProof(witness.peer, notice),)
    assert seat.state.barred == before


def test_an_accusation_of_somebody_unknown_of_us_of_an_expelled_peer_or_on_an_unknown_commit_is_not_followed() -> None:
    table = Table(4)
    acquaint(table)
    seat, witness, liar, _ = table.live()
    here = _notice(seat.head.commit, liar)
    for notice in (
        replace(here, unit=UnitName("another")),
        replace(here, base=CommitId(b"x" * 32)),
        replace(here, reducer=PeerId("stranger")),
        replace(here, reducer=seat.peer),
    ):
        assert seat.hear(witness, notice) == ()
    seat.feed(SumProven(here, "lied"))
    assert seat.hear(witness, here) == ()


def test_an_accusation_far_behind_the_head_is_not_followed() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(3), 60.0)
    seat, witness, liar = table.live()
    old = replace(seat.state.link, index=seat.state.link.index + MOST_OLD)
    base = seat.state.link.parent
    seat.state = replace(seat.state, link=old)
    assert sum_accused(seat.state, witness.peer, _notice(base, liar)).actions == ()
    newer = replace(seat.state, link=replace(old, index=old.index - 2))
    assert sum_accused(newer, witness.peer, _notice(base, liar)).actions != ()


def test_a_proven_liar_is_out_and_all_others_are_told_once() -> None:
    table = Table(4)
    acquaint(table)
    seat, witness, liar, third = table.live()
    notice = _notice(seat.head.commit, liar)
    (told,) = seat.feed(SumProven(notice, "signed a false sum"))
    assert told == Send(tuple(sorted((witness.peer, third.peer))), notice)
    assert liar.peer in seat.state.barred.expelled
    assert seat.feed(SumProven(notice, "signed a false sum")) == ()
    other = table.live()[1]
    assert other.feed(SumProven(notice, "signed a false sum", is_news=False)) == (), "read from disk after a start"
    assert liar.peer in other.state.barred.expelled
    liar.feed(SumProven(notice, "signed a false sum"))
    assert liar.state.barred.expelled == frozenset(), "nobody expels itself"


def test_the_slice_of_a_proven_liar_goes_to_another_within_the_attempt() -> None:
    table = Table(4)
    opener = table.opener()
    bad, slow, *_ = table.others(opener)
    held = table.hold_results(slow)
    table.run_until(lambda: len(opener.state.open.results) == 3, 10.0)
    proposal = _proposal(opener)
    opener.feed(SumProven(_named_by(proposal, bad), "signed a false sum"))
    table.let_go(slow, held)
    table.run_until(lambda: opener.state.link.index == 1, 20.0)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert record.ballot == proposal.ballot
    assert bad.peer not in {part.reducer for part in record.slices}


def test_a_reducer_that_shows_its_sum_to_nobody_gets_no_slice_for_a_while_and_keeps_its_vote() -> None:
    table = Table(4)
    acquaint(table)
    opener = table.opener()
    silent = table.others(opener)[0]
    opener.feed(SumWithheld(CommitId(b"x" * 32), silent.peer, "nobody showed it"))
    opener.feed(SumWithheld(opener.head.commit, opener.peer, "nobody showed it"))
    assert opener.state.barred.no_slices_until == {}
    opener.feed(SumWithheld(opener.head.commit, silent.peer, "nobody showed it"))
    table.run_until(lambda: table.all_at(1), 20.0)
    record = opener.disk.chain[0][0].record
    assert record is not None
    assert silent.peer not in {part.reducer for part in record.slices}
    assert silent.peer in record.roster


def test_a_fresh_record_with_a_false_sum_is_not_acked_by_who_has_the_proof_also_while_its_bytes_come() -> None:
    table = Table(4)
    opener = table.opener()
    proposal = _settled(table, opener)
    bad, early, late = table.others(opener)
    (settle,) = opener.sent(Settle)
    early.feed(SumProven(_named_by(proposal, bad), "signed a false sum"))
    assert early.state.open.gathering is None
    assert not [each for each in early.feed(BytesHeld(settle)) if isinstance(each, LogAck)]
    late.state = replace(late.state, open=replace(late.state.open, gathering=None))
    late.feed(SumProven(_named_by(proposal, bad), "signed a false sum"))
    assert not [each for each in late.hear(opener, settle) if isinstance(each, GatherBytes)]
    assert "is proven to be false" in late.reasons[-1]


def test_a_record_that_others_may_have_acked_is_finished_as_it_is_false_sums_and_all() -> None:
    """A quorum may have acked it, and some may follow it already."""
    table = Table(4)
    opener = table.opener()
    proposal = _settled(table, opener)
    bad, second, third = table.others(opener)
    (settle,) = opener.sent(Settle)
    assert isinstance(settle, Settle)
    third.feed(SumProven(_named_by(proposal, bad), "signed a false sum"))
    record = decode_record(settle.record)
    assert false_sum_problem(third.state, settle, record) != ""
    again = replace(settle, ballot=Ballot(3, second.peer))
    assert false_sum_problem(third.state, again, record) == ""
    assert may_have_been_acked(third.state, settle.record), "and a promise that names it is believed"


def test_peers_that_all_have_the_proof_go_on_without_the_liar() -> None:
    table = Table(4)
    opener = table.opener()
    proposal = _settled(table, opener)
    bad = table.others(opener)[0]
    for seat in table.live():
        seat.feed(SumProven(_named_by(proposal, bad), "signed a false sum"))
    table.gathers = True
    table.run_until(lambda: opener.state.link.index == 2, 120.0)
    record = opener.state.link.record
    assert record is not None
    assert record.contributor(bad.peer) is None
