from __future__ import annotations

from protocol.rounds.messages import Ack, Committed, Proposal, ResultReady, Settle
from tests.protocol.rounds.round_table import Table


def _all_at(table: Table, index: int) -> bool:
    return all(seat.head.index >= index for seat in table.live())


def test_the_next_peer_takes_over_when_the_opener_was_dead_all_along() -> None:
    table = Table(3)
    table.tick()
    dead = table.opener()
    table.kill(dead)
    table.run_until(lambda: _all_at(table, 1))
    record = table.live()[0].head.record
    assert record is not None
    assert record.ballot.attempt >= 1
    assert dead.peer not in record.roster


def test_the_round_goes_on_when_the_opener_dies_after_its_proposal() -> None:
    table = Table(4)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and opener.is_up
    table.run_until(lambda: any(s.state.open.proposal is not None for s in table.live()))
    table.kill(opener)
    table.run_until(lambda: _all_at(table, 1))
    assert len({seat.head.commit for seat in table.live()}) == 1


def test_a_successor_finishes_an_acked_record_byte_for_byte() -> None:
    table = Table(3)
    opener = table.opener()
    table.drops = lambda sender, to, message: isinstance(message, Ack | Committed) and opener.is_up
    table.run_until(lambda: all(seat.state.open.acked is not None for seat in table.live()))
    acked = {seat.state.open.acked.record for seat in table.live() if seat.state.open.acked}
    table.kill(opener)
    table.run_until(lambda: _all_at(table, 1))
    assert len(acked) == 1
    assert {seat.certificates[0].record for seat in table.live()} == acked


def test_two_who_take_over_at_once_commit_one_record_only() -> None:
    table = Table(5)
    opener = table.opener()
    table.kill(opener)
    table.drops = lambda sender, to, message: isinstance(message, Proposal) and message.ballot.attempt == 1
    table.run_until(lambda: _all_at(table, 1))
    assert len({seat.head.commit for seat in table.live()}) == 1


def test_a_dead_reducer_costs_an_attempt_and_not_the_round() -> None:
    table = Table(4)
    opener = table.opener()
    victim = next(seat for seat in table.live() if seat is not opener)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady) and sender == victim.peer
    table.run_until(lambda: opener.state.open.leading is not None and opener.state.open.leading.stage == "collecting")
    table.kill(victim)
    table.run_until(lambda: _all_at(table, 1))
    record = opener.head.record
    assert record is not None
    assert all(part.reducer != victim.peer for part in record.slices)


def test_a_killed_member_leaves_the_roster_and_two_go_on() -> None:
    table = Table(3)
    table.run_until(lambda: _all_at(table, 2))
    victim = next(seat for seat in table.live() if seat is not table.opener())
    table.kill(victim)
    table.run_until(lambda: _all_at(table, 5))
    assert all(victim.peer not in seat.head.roster for seat in table.live())


def test_a_lost_settle_is_made_up_for_by_a_later_attempt() -> None:
    table = Table(3)
    table.drops = lambda sender, to, message: isinstance(message, Settle) and message.ballot.attempt == 0
    table.run_until(lambda: _all_at(table, 1))
    assert len({seat.head.commit for seat in table.live()}) == 1


def test_a_member_that_sends_but_hears_nobody_holds_up_one_attempt_and_then_gets_no_slice() -> None:
    table = Table(4)
    deaf = next(seat for seat in table.live() if seat is not table.opener())
    table.drops = lambda sender, to, message: to == deaf.peer and sender != deaf.peer
    table.run_until(lambda: max(seat.head.index for seat in table.live()) >= 1, 60.0)
    record = next(seat.head.record for seat in table.live() if seat.head.index >= 1)
    assert record is not None
    assert all(part.reducer != deaf.peer for part in record.slices)
