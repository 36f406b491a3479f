"""Strangers and members at a table of keepers: they are counted, and they decide nothing.

Rules: R3, R6, R7, R18 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol.identity.standing import PeerStanding
from protocol.rounds.lineage.record_rules import SignatureCheck, record_problem, result_problem, sum_of
from protocol.rounds.lineage.rule_numbers import BOUNDED_STRANGERS, CAP_FACTOR, NEW_RUNS, is_open, rules_with
from protocol.rounds.lineage.stranger_weights import recorded_weights
from protocol.rounds.messages.bounds import MAX_TOKENS
from protocol.rounds.messages.messages import PreVote, PreVoteRequest, Promise, Proposal, ResultReady
from protocol.rounds.messages.record import Ballot, CommitRecord, Omission, OmissionCode
from protocol.rounds.schedule.proposal import Voters, make_record
from tests.protocol.rounds.made_commits import proposal_on, results_of
from tests.protocol.rounds.round_table import (
    OUTER,
    RUN_ID,
    TARGET_TOKENS,
    UNIT,
    Seat,
    Table,
    acquaint,
    wanted,
    with_sum,
)
from tests.simulation.signing import HashVerifier

CHECK = SignatureCheck(HashVerifier(), RUN_ID)
LIE = MAX_TOKENS >> 8
STRANGER, MEMBER = PeerStanding.STRANGER, PeerStanding.MEMBER


def _table(
    num_keepers: int, num_juniors: int, standing: PeerStanding = STRANGER, *, longest_interval_s: float = 5.0
) -> tuple[Table, list[Seat]]:
    """Founders, and peers of this standing beside them."""
    rules = rules_with(NEW_RUNS, CAP_FACTOR, is_open_run=True)
    table = Table(
        num_keepers + num_juniors, num_founders=num_keepers, rules=rules, longest_interval_s=longest_interval_s
    )
    juniors = [seat for seat in table.live() if seat.peer not in table.genesis.roster]
    table.standings = dict.fromkeys([seat.peer for seat in juniors], standing)
    return table, juniors


def _records(table: Table) -> list[CommitRecord]:
    seat = max(table.live(), key=lambda each: each.head.index)
    return [link.record for link, _ in seat.disk.chain if link.record is not None]


def _roles(table: Table, juniors: list[Seat]) -> dict[str, bool]:
    """The parts that any of the juniors had in any commit."""
    peers, records = {seat.peer for seat in juniors}, _records(table)
    return {
        "counted": any(entry.peer in peers for record in records for entry in record.contributors),
        "reduces": any(part.reducer in peers for record in records for part in record.slices),
        "votes": any(peers.intersection(record.roster) for record in records),
        "leads": any(record.ballot.peer in peers for record in records),
    }


@pytest.mark.parametrize(("num_keepers", "num_strangers"), [(1, 1), (3, 1), (2, 5)])
def test_strangers_are_counted_and_neither_vote_nor_reduce_nor_lead(num_keepers: int, num_strangers: int) -> None:
    table, strangers = _table(num_keepers, num_strangers)
    table.run_until(lambda: table.all_at(8), 200.0)
    assert _roles(table, strangers) == {"counted": True, "reduces": False, "votes": False, "leads": False}


def test_a_member_reduces_and_does_not_vote() -> None:
    table, members = _table(3, 1, MEMBER)
    table.run_until(lambda: table.all_at(8), 200.0)
    assert _roles(table, members) == {"counted": True, "reduces": True, "votes": False, "leads": False}


def test_whoever_becomes_a_keeper_votes_from_the_next_commit_that_counts_it() -> None:
    table, (newcomer,) = _table(3, 1)
    table.run_until(lambda: table.all_at(3), 100.0)
    table.standings = {}
    table.run_until(lambda: table.all_at(6), 100.0)
    assert newcomer.peer in _records(table)[-1].roster


def test_strangers_alone_commit_nothing_however_long_they_wait() -> None:
    table, strangers = _table(2, 3)
    table.run_until(lambda: table.all_at(2), 100.0)
    for seat in table.others(*strangers):
        table.kill(seat)
    table.run_for(200.0)
    assert {seat.head.index for seat in strangers} == {2}


def test_the_last_keeper_goes_on_with_strangers_and_is_the_only_voter() -> None:
    table, strangers = _table(3, 2)
    table.run_until(lambda: table.all_at(2), 100.0)
    last, *others = table.others(*strangers)
    for seat in others:
        table.kill(seat)
    table.run_until(lambda: last.head.index >= 5, 400.0)
    assert _records(table)[-1].roster == (last.peer,)
    assert not _roles(table, strangers)["votes"]


def test_nobody_agrees_or_promises_to_a_stranger_that_would_lead() -> None:
    table, (stranger,) = _table(3, 1)
    acquaint(table)
    keeper = table.others(stranger)[0]
    ballot = Ballot(1, stranger.peer)
    keeper.hear(stranger, PreVoteRequest(UNIT, table.genesis.commit, ballot, 1000.0, lone=False))
    (answer,) = keeper.sent(PreVote)
    assert isinstance(answer, PreVote)
    assert "no keeper" in answer.objection
    keeper.hear(stranger, wanted(table, ballot))
    assert keeper.sent(Promise) == []
    assert any("keepers alone lead rounds" in reason for reason in keeper.reasons)


def _lying(table: Table, stranger: Seat, *, reduces: bool) -> CommitRecord:
    """A record that a lying leader makes, with the stranger among the next voters or with one of its slices."""
    members = table.live()
    proposal = proposal_on(table.genesis, members)
    slices = tuple(
        replace(part, reducer=part.reducer if reduces or part.reducer != stranger.peer else members[0].peer)
        for part in proposal.slices
    )
    proposal = replace(proposal, slices=slices)
    alive = frozenset(seat.peer for seat in members)
    left_out = frozenset({stranger.peer}) if reduces else frozenset()
    voters = Voters(alive, frozenset(), voteless=left_out)
    results = results_of(proposal, members)
    return make_record(table.genesis, proposal, proposal.ballot, results, voters, OUTER, TARGET_TOKENS)


def test_a_record_that_gives_a_stranger_a_vote_is_refused() -> None:
    table, (stranger,) = _table(3, 1)
    found = record_problem(table.genesis, _lying(table, stranger, reduces=False), CHECK, ())
    assert "is to vote next and is no keeper" in found


def test_a_record_with_a_slice_of_a_stranger_is_refused_and_so_is_its_result() -> None:
    table, (stranger,) = _table(3, 1)
    found = record_problem(table.genesis, _lying(table, stranger, reduces=True), CHECK, ())
    assert "is a stranger; expected a member or a keeper" in found
    proposal = proposal_on(table.genesis, table.live())
    headers = {header.reducer: header for header in results_of(proposal, table.live())}
    assert "is a stranger" in result_problem(headers[stranger.peer], proposal, CHECK, table.genesis.roster)


def test_no_member_is_left_out_of_a_record_by_the_words_of_strangers() -> None:
    """A record of an honest leader leaves strangers out of the voters, and keeps the rules as it does so."""
    table, (stranger,) = _table(3, 1)
    table.run_until(lambda: table.all_at(1), 60.0)
    (record,) = _records(table)
    assert stranger.peer in {entry.peer for entry in record.contributors}
    assert record_problem(table.genesis, record, CHECK, ()) == ""


def test_records_of_an_open_run_say_so_to_the_end_and_those_of_others_may_not() -> None:
    table, _ = _table(3, 1)
    members = table.live()
    genesis = table.genesis
    proposal = proposal_on(genesis, members)
    voters = Voters(frozenset(genesis.roster), frozenset(), voteless=frozenset(table.standings))
    slices = tuple(replace(part, reducer=genesis.roster[0]) for part in proposal.slices)
    proposal = replace(proposal, slices=slices)
    record = make_record(
        genesis, proposal, proposal.ballot, results_of(proposal, members), voters, OUTER, TARGET_TOKENS
    )
    assert is_open(record.rules)
    assert record_problem(genesis, record, CHECK, ()) == ""
    assert "expected its parent's rules" in record_problem(genesis, replace(record, rules=NEW_RUNS), CHECK, ())
    assert "expected its parent's rules" in record_problem(replace(genesis, rules=NEW_RUNS), record, CHECK, ())


# --- their weight -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_keepers", "num_strangers"), [(1, 1), (2, 6), (4, 3)])
def test_strangers_that_lie_about_tokens_hold_at_most_a_quarter_of_every_slice_and_of_all_credit(
    num_keepers: int, num_strangers: int
) -> None:
    table, strangers = _table(num_keepers, num_strangers)
    table.run_until(lambda: table.all_at(2), 100.0)
    for seat in strangers:
        seat.tokens = LIE
    table.run_until(lambda: table.all_at(6), 200.0)
    liars = {seat.peer for seat in strangers}
    records = _records(table)
    claimed = [entry.tokens for record in records for entry in record.contributors if entry.peer in liars]
    assert max(claimed) == LIE
    for record in records:
        for part in record.slices:
            inputs = sum_of(record, part).inputs
            theirs = sum(each.weight for each in inputs if each.peer in liars)
            assert 4 * theirs <= sum(each.weight for each in inputs)
        credited = sum(entry.credited_tokens for entry in record.contributors if entry.peer in liars)
        assert 4 * credited <= sum(entry.credited_tokens for entry in record.contributors)
        assert record.weight_cap_tokens < LIE, "nor do they move the cap of others"


def test_no_claim_of_strangers_opens_rounds_before_the_others_are_ready() -> None:
    table, strangers = _table(2, 5, longest_interval_s=100.0)
    for seat in table.live():
        seat.tokens = LIE if seat in strangers else 10  # of a target of 300
    acquaint(table)
    table.run_for(20.0)
    assert all(seat.head.index == 0 for seat in table.live())
    for seat in table.others(*strangers):
        seat.tokens = 120  # with a third of theirs it is due
    table.run_until(lambda: any(seat.head.index == 1 for seat in table.live()), 30.0)


def _with_claims(table: Table, is_told: bool) -> CommitRecord:
    """A record of an honest leader on the table's genesis, whose strangers say that they are, or do not."""
    members = sorted(table.live(), key=lambda seat: seat.peer)
    proposal = proposal_on(table.genesis, members)
    slices = tuple(replace(part, reducer=table.genesis.roster[0]) for part in proposal.slices)
    proposal = replace(proposal, slices=slices)
    results = results_of(proposal, members)
    assert all(entry.is_stranger == (is_told and entry.peer in table.standings) for entry in results[0].included)
    voters = Voters(frozenset(table.genesis.roster), frozenset(), voteless=frozenset(table.standings))
    return make_record(table.genesis, proposal, proposal.ballot, results, voters, OUTER, TARGET_TOKENS)


def test_a_stranger_that_does_not_say_so_is_refused_by_every_reader() -> None:
    table, (stranger,) = _table(3, 1)
    base = table.genesis
    table.genesis = replace(base, rules=base.rules - BOUNDED_STRANGERS)  # its claims are made as in an older run
    silent = replace(_with_claims(table, is_told=False), rules=base.rules)
    assert "is a stranger and does not say so" in record_problem(base, silent, CHECK, ())
    proposal = proposal_on(base, table.live())
    header = next(each for each in results_of(proposal, table.live()) if each.reducer != stranger.peer)
    assert "is a stranger and does not say so" in result_problem(header, proposal, CHECK, base.roster, base.rules)
    assert result_problem(header, proposal, CHECK, base.roster, table.genesis.rules) == ""


def test_an_open_run_of_an_older_release_counts_strangers_as_it_did_and_no_claim_tells_them() -> None:
    table, _ = _table(3, 1)
    told = _with_claims(table, is_told=True)
    table.genesis = old = replace(table.genesis, rules=table.genesis.rules - BOUNDED_STRANGERS)
    record = _with_claims(table, is_told=False)
    assert record_problem(old, record, CHECK, ()) == ""
    assert recorded_weights(record) == [entry.tokens for entry in record.contributors]
    assert "says that it is a stranger" in record_problem(old, replace(told, rules=old.rules), CHECK, ())


def test_a_record_whose_rules_bound_no_strangers_cannot_follow_one_whose_rules_do() -> None:
    table, _ = _table(3, 1)
    record = _with_claims(table, is_told=True)
    assert record_problem(table.genesis, record, CHECK, ()) == ""
    loose = replace(record, rules=record.rules - BOUNDED_STRANGERS)
    assert "expected its parent's rules" in record_problem(table.genesis, loose, CHECK, ())


def test_a_slice_of_strangers_alone_goes_into_no_record() -> None:
    table, (stranger,) = _table(3, 1)
    record = _with_claims(table, is_told=True)
    gone = tuple(Omission(peer, "", OmissionCode.LATE) for peer in table.genesis.roster)
    bare = replace(record, slices=(replace(record.slices[0], omitted=gone), *record.slices[1:]))
    assert "counts no token of a member or a keeper" in record_problem(table.genesis, bare, CHECK, ())
    proposal = proposal_on(table.genesis, table.live())
    header = next(each for each in results_of(proposal, table.live()) if each.reducer != stranger.peer)
    alone = replace(header, included=tuple(entry for entry in header.included if entry.is_stranger), omitted=gone)
    keeper = table.seats[header.reducer]
    assert "counts no token of a member or a keeper" in result_problem(
        with_sum(alone, proposal, keeper), proposal, CHECK
    )


def test_a_slice_in_which_strangers_stand_beside_keepers_without_a_token_goes_into_no_record() -> None:
    """It has no mean, and nobody could compute it again."""
    table, strangers = _table(3, 1)
    for seat in table.others(*strangers):
        seat.tokens = 0
    record = _with_claims(table, is_told=True)
    assert "counts no token of a member or a keeper" in record_problem(table.genesis, record, CHECK, ())
    proposal = proposal_on(table.genesis, table.live())
    for header in results_of(proposal, table.live()):
        assert "counts no token of a member or a keeper" in result_problem(header, proposal, CHECK)


def test_strangers_wait_with_their_work_for_keepers_that_have_none_and_are_counted_with_them() -> None:
    table, strangers = _table(3, 2, longest_interval_s=20.0)
    opener, *keepers = (table.opener(), *table.others(*strangers, table.opener()))
    for seat in keepers:
        seat.tokens = 0
    acquaint(table)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: any(seat.state.open.proposal is not None for seat in keepers), 60.0)
    table.drops = lambda sender, to, message: False
    table.kill(opener)  # the only keeper with work, in the middle of the round
    table.run_for(120.0)
    assert all(seat.head.index == 0 for seat in table.live())
    num_proposals = sum(len(seat.sent(Proposal)) for seat in keepers)
    assert num_proposals < 12, "attempts that come to nothing are made ever more rarely"
    for seat in keepers:
        seat.tokens = 150
    table.run_until(lambda: table.all_at(1), 60.0)
    (record,) = _records(table)
    assert {entry.peer for entry in record.contributors} >= {seat.peer for seat in strangers}
