from __future__ import annotations

import pytest

from protocol.rounds.messages import Proposal, ResultReady
from tests.protocol.rounds.round_table import Seat, Table


def _next_proposal(table: Table, before: Seat) -> Proposal:
    """Of whoever leads after that one."""
    table.run_until(lambda: any(seat.sent(Proposal) for seat in table.others(before)))
    (message,) = [seat.sent(Proposal)[-1] for seat in table.others(before) if seat.sent(Proposal)]
    assert isinstance(message, Proposal)
    return message


def _opened(table: Table, *, with_results: bool) -> Seat:
    """The leader of an attempt that lacks the others' results, so that it does not settle; they have their own, or none but its."""
    opener = table.opener()
    table.drops = lambda sender, to, message: (
        isinstance(message, ResultReady) and sender != opener.peer and (to == opener.peer or not with_results)
    )
    table.run_until(lambda: bool(opener.sent(Proposal)))
    table.tick()
    return opener


def test_a_leader_that_is_killed_once_it_has_brought_all_counts_in_the_next_attempt_and_sums_nothing_there() -> None:
    table = Table(4)
    opener = _opened(table, with_results=True)
    table.kill(opener)
    proposal = _next_proposal(table, opener)
    assert {member.peer for member in proposal.members} == set(table.seats)
    assert {part.reducer for part in proposal.slices} == {seat.peer for seat in table.live()}
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1))
    assert all(opener.peer not in seat.head.roster for seat in table.live())


def test_a_leader_that_is_killed_before_any_result_is_named_again_since_others_may_have_what_it_brought() -> None:
    table = Table(4)
    opener = _opened(table, with_results=False)
    table.kill(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) == opener.member
    table.drops = lambda sender, to, message: False
    table.run_until(lambda: table.all_at(1))
    records = [seat.head.record for seat in table.live()]
    assert all(record is not None and record.contributor(opener.peer) is None for record in records), "nobody has it"


@pytest.mark.parametrize("has_brought", [False, True])
def test_a_leader_that_falls_silent_is_named_again_only_where_our_own_result_counts_it(has_brought: bool) -> None:
    table = Table(4)
    opener = _opened(table, with_results=has_brought)
    table.freeze(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) == (opener.member if has_brought else None)


def test_who_is_back_in_another_process_is_named_as_that() -> None:
    table = Table(4)
    opener = _opened(table, with_results=True)
    table.kill(opener)
    table.tick()
    table.restart(opener)
    proposal = _next_proposal(table, opener)
    assert proposal.member(opener.peer) in (opener.member, None)


def test_no_more_are_named_than_a_round_may_have_though_they_had_brought_all() -> None:
    table = Table(5, max_members=4)
    opener = _opened(table, with_results=True)
    (first,) = opener.sent(Proposal)
    assert isinstance(first, Proposal)
    assert len(first.members) == 4
    table.kill(opener)
    assert len(_next_proposal(table, opener).members) == 4
