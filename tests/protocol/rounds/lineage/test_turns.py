"""More peers than a round takes: members, voters, and how far the mean of a few moves the model of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from protocol.ids import PeerId
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.record_rules import SignatureCheck, record_problem
from protocol.rounds.lineage.rule_numbers import NEW_RUNS, NEWEST, SIGNED, TURNS
from protocol.rounds.lineage.turns import (
    by_turn,
    drawn,
    keeps_voters,
    last_counted,
    left_out,
    roster_by_turns,
    rounds_a_turn,
)
from protocol.rounds.messages.record import CommitRecord
from protocol.rounds.schedule.outer_rule import turns_of_base
from protocol.rounds.schedule.proposal import Voters, make_record
from tests.protocol.rounds.made_commits import proposal_on, results_of
from tests.protocol.rounds.round_table import OUTER, RUN_ID, TARGET_TOKENS, Seat, Table
from tests.simulation.signing import HashVerifier

CHECK = SignatureCheck(HashVerifier(), RUN_ID)


def _ids(*names: str) -> list[PeerId]:
    return [PeerId(name) for name in names]


# --- who takes part -----------------------------------------------------------------------------------------------------------


def test_who_waited_longest_goes_first_and_who_has_nothing_goes_last() -> None:
    a, b, c, d = _ids("a", "b", "c", "d")
    ready = {a: 5, b: 900, c: 7, d: 0}
    assert by_turn(ready, {a: 3, b: 9, c: 4, d: 1}, 10, 2) == [a, c, b, d]


def test_of_equals_no_word_of_theirs_decides_and_nobody_is_first_in_each_round() -> None:
    peers = _ids(*map(str, range(12)))
    honest, firsts = dict.fromkeys(peers, 100), Counter[PeerId]()
    for index in range(200):
        order = by_turn(honest, {}, index, 4)
        for liar in order[4:]:
            assert by_turn({**honest, liar: 1 << 53}, {}, index, 4) == order
        firsts.update(order[:4])
    assert min(firsts.values()) > 40
    assert max(firsts.values()) < 100


def test_newcomers_wait_as_long_as_a_turn_of_all_takes_and_keep_nobody_out() -> None:
    old, lately, newcomer = _ids("old", "lately", "newcomer")
    ready = dict.fromkeys((old, lately, newcomer, *_ids(*map(str, range(9)))), 1)
    order = by_turn(ready, {old: 1, lately: 9, **dict.fromkeys(_ids(*map(str, range(9))), 9)}, 10, 4)
    assert order.index(old) < order.index(newcomer) < order.index(lately)


@pytest.mark.parametrize(("num_peers", "room"), [(9, 4), (12, 4), (7, 6)])
def test_everybody_takes_part_as_often_as_the_others(num_peers: int, room: int) -> None:
    table = Table(num_peers, num_founders=room, longest_interval_s=5.0, max_members=room)
    num_rounds = 3 * num_peers
    table.run_until(lambda: table.all_at(num_rounds), 400.0)
    counted = Counter(entry.peer for record in _records(table) for entry in record.contributors)
    fair = num_rounds * room / num_peers
    assert set(counted) == set(table.seats)
    assert max(counted.values()) - min(counted.values()) <= 0.6 * fair, counted


def _records(table: Table) -> list[CommitRecord]:
    links = [link for link, _ in table.live()[0].disk.chain]
    return [link.record for link in links if link.record is not None]


# --- how far their mean moves the model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_peers", "room"), [(12, 4), (16, 4)])
def test_the_model_moves_in_a_round_by_the_work_of_one_round_however_many_wait(num_peers: int, room: int) -> None:
    """Everybody trains the same in a round, and what was not counted is brought later: a contribution is as large as the wait."""
    table = Table(num_peers, num_founders=room, longest_interval_s=5.0, max_members=room)
    table.run_until(lambda: table.all_at(4 * num_peers), 600.0)
    moved, waited = [], Counter[PeerId]()
    for record in _records(table):
        waited.update(dict.fromkeys(table.seats, 1))
        mean = sum(waited[entry.peer] for entry in record.contributors) / len(record.contributors)
        moved.append(record.outer.learning_rate * mean)
        for entry in record.contributors:
            del waited[entry.peer]
    settled = moved[2 * num_peers // room :]
    assert 0.7 <= sum(settled) / len(settled) <= 1.4, settled


def test_a_run_in_which_everybody_fits_keeps_its_whole_step_and_its_rules() -> None:
    table = Table(4, max_members=4)
    table.run_until(lambda: table.all_at(5))
    assert {(record.rules, record.outer) for record in _records(table)} == {(NEW_RUNS, OUTER)}


def test_a_turn_is_as_long_as_most_contributors_waited_and_newcomers_waited_a_round_more_than_those_before() -> None:
    table = Table(6)
    first, second, third = (table.live()[place : place + 2] for place in (0, 2, 4))
    links = [table.genesis]
    for members in (first, second, third, first):
        links.append(_link(links[-1], members))
    newest_first = list(reversed(links))
    assert rounds_a_turn(newest_first, 1) == 3
    assert rounds_a_turn(newest_first[1:], 2) == 3
    assert rounds_a_turn([replace(newest_first[0], rules=SIGNED), *newest_first[1:]], 1) == 1
    assert turns_of_base(OUTER, newest_first) == 3


def _out_of(record: CommitRecord) -> list[PeerId]:
    return left_out((entry.peer for entry in record.contributors), record.roster, ())


def _link(parent: ChainLink, members: Sequence[Seat]) -> ChainLink:
    """A commit with these contributors, which leaves somebody out of the voters."""
    proposal = proposal_on(parent, members)
    voters = Voters(frozenset(seat.peer for seat in members), frozenset())
    record = make_record(parent, proposal, proposal.ballot, results_of(proposal, members), voters, OUTER, TARGET_TOKENS)
    return replace(
        parent,
        commit=type(parent.commit)(bytes([parent.index + 1]) * 32),
        index=parent.index + 1,
        content=record,
        rules=TURNS,
    )


def test_an_outer_step_divided_by_far_too_much_or_too_little_is_acked_by_nobody() -> None:
    for factor in (8.0, 0.1):
        table = Table(12, num_founders=4, longest_interval_s=5.0, max_members=4)
        table.run_until(lambda table=table: table.all_at(9), 200.0)
        opener = table.opener()
        opener.reconfigure(outer=replace(OUTER, learning_rate=factor * OUTER.learning_rate))
        table.run_until(lambda table=table: table.all_at(10), 200.0)
        heard = [reason for seat in table.others(opener) for reason in seat.reasons]
        assert any("refused a record with outer step" in reason for reason in heard)


# --- who votes ----------------------------------------------------------------------------------------------------------------


def test_most_voters_stay_and_the_others_are_drawn_among_the_contributors() -> None:
    table = Table(9, num_founders=4, longest_interval_s=5.0, max_members=4)
    table.run_until(lambda: table.all_at(20), 60.0)
    parent = table.genesis
    for link, _ in table.live()[0].disk.chain:
        assert link.record is not None
        assert keeps_voters(parent, link.roster, 3)
        assert len(link.roster) == 4
        parent = link
    assert len({peer for record in _records(table) for peer in record.roster}) > 6, "all come to vote in time"


def _crowded() -> tuple[Table, CommitRecord]:
    """(twelve peers, a record of eight that did not vote and of one of the four voters)."""
    table = Table(13, num_founders=4)
    seats = sorted(table.live(), key=lambda seat: seat.peer)
    voters = [seat for seat in seats if seat.peer in table.genesis.roster]
    members = sorted([voters[0], *(seat for seat in seats if seat not in voters)][:9], key=lambda seat: seat.peer)
    proposal = proposal_on(table.genesis, members)
    alive = Voters(frozenset(seat.peer for seat in members), frozenset(), frozenset(table.genesis.roster), room=9)
    results = results_of(proposal, members)
    return table, make_record(table.genesis, proposal, proposal.ballot, results, alive, OUTER, TARGET_TOKENS)


def test_a_record_that_leaves_contributors_out_of_the_voters_by_the_draw_breaks_no_rule() -> None:
    table, record = _crowded()
    assert record.rules == NEWEST
    assert len(_out_of(record)) == 2
    assert keeps_voters(table.genesis, record.roster, 3)
    assert record_problem(table.genesis, record, CHECK, ()) == ""


def _with_roster(record: CommitRecord, roster: Sequence[PeerId]) -> CommitRecord:
    return replace(record, roster=tuple(sorted(roster)), incarnations=(1,) * len(roster))


def _swap(table: Table, record: CommitRecord) -> CommitRecord:
    """The last drawn voter gives its place to the first one that was not drawn."""
    order = drawn(table.genesis, (e.peer for e in record.contributors if e.peer not in table.genesis.roster))
    out = _out_of(record)
    last = [peer for peer in order if peer in record.roster][-1]
    return _with_roster(record, [*(peer for peer in record.roster if peer != last), out[0]])


def _few_voters(table: Table, record: CommitRecord) -> CommitRecord:
    """All contributors vote but one, and two of four voters."""
    order = drawn(table.genesis, (e.peer for e in record.contributors if e.peer not in table.genesis.roster))
    kept = [peer for peer in table.genesis.roster if peer in record.roster][:2]
    return _with_roster(record, [*kept, *order[: 9 - len(kept)]])


def _without_a_voter_that_took_part(table: Table, record: CommitRecord) -> CommitRecord:
    both = next(e.peer for e in record.contributors if e.peer in table.genesis.roster)
    others = [peer for peer in table.genesis.roster if peer != both]
    return _with_roster(record, [*others, *(p for p in record.roster if p not in table.genesis.roster)])


def _small(table: Table, record: CommitRecord) -> CommitRecord:
    order = drawn(table.genesis, (e.peer for e in record.contributors if e.peer not in table.genesis.roster))
    kept = [peer for peer in record.roster if peer in table.genesis.roster]
    return _with_roster(record, [*kept, *order[:2]])


FORGED: dict[str, tuple[Callable[[Table, CommitRecord], CommitRecord], str]] = {
    "another contributor in place of a drawn one": (_swap, "was drawn as a voter and is left out"),
    "contributors in place of most voters": (_few_voters, "take the votes of too many"),
    "a voter that took part is dropped": (_without_a_voter_that_took_part, "voted and contributed"),
    "contributors left out though there is room": (_small, "expected 9 at least"),
    "rules of runs in which everybody fits": (
        lambda _, record: replace(record, rules=NEW_RUNS),
        "nobody who takes part",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_leader_that_chooses_the_next_voters_breaks_a_rule(what: str) -> None:
    change, words = FORGED[what]
    table, record = _crowded()
    assert words in record_problem(table.genesis, change(table, record), CHECK, ())


def test_rules_of_turns_are_taken_only_where_somebody_is_left_out_or_was() -> None:
    table = Table(3)
    seats = table.live()
    proposal = proposal_on(table.genesis, seats)
    voters = Voters(frozenset(seat.peer for seat in seats), frozenset())
    record = make_record(table.genesis, proposal, proposal.ballot, results_of(proposal, seats), voters, OUTER, 300)
    for version in (TURNS, NEWEST):
        assert "leaves nobody out" in record_problem(table.genesis, replace(record, rules=version), CHECK, ())
        in_turns = replace(table.genesis, rules=version)
        assert record_problem(in_turns, replace(record, rules=version), CHECK, ()) == ""
    assert "as older releases make it" in record_problem(in_turns, record, CHECK, ())


def test_silent_voters_stay_only_where_too_few_others_do() -> None:
    table = Table(13, num_founders=6)
    parent, contributors = table.genesis, [peer for peer in table.seats if peer not in table.genesis.roster]
    here, silent = parent.roster[:3], parent.roster[3:]
    roster = roster_by_turns(parent, contributors, parent.roster, here, 4, 6)
    assert set(here) < set(roster)
    assert len(set(silent) & set(roster)) == 1
    assert len(roster) == 6


def test_a_lineage_is_walked_from_its_head_as_far_as_the_tree_goes() -> None:
    table = Table(3)
    table.run_until(lambda: table.all_at(4))
    seat = table.live()[0]
    links = list(seat.state.tree.behind(seat.head.commit))
    assert [link.index for link in links] == [4, 3, 2, 1, 0]
    assert last_counted(links) == dict.fromkeys(table.seats, 4)
