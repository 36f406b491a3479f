from __future__ import annotations

from itertools import combinations

from protocol.ids import CommitId, PeerId, RunId, UnitName
from protocol.rounds.lineage.quorum import electorate, first_opener, is_quorum, opener_order, tie_holder
from protocol.rounds.messages.messages import Leave, Member
from protocol.rounds.messages.record import Ballot
from tests.protocol.rounds.made_commits import commit_on
from tests.protocol.rounds.round_table import RUN_ID, Table

RUN = RunId(bytes(32))
UNIT = UnitName("fragment-0")
PEERS = tuple(PeerId(f"peer{i}") for i in range(6))


def _leave(peer: PeerId, promised: Ballot | None) -> Leave:
    return Leave(Member(peer, 1, 1), UnitName("fragment-0"), CommitId(bytes(32)), promised)


def test_any_two_quorums_of_one_roster_share_a_peer() -> None:
    for size in range(1, 7):
        roster = PEERS[:size]
        quorums = [
            set(votes)
            for count in range(size + 1)
            for votes in combinations(roster, count)
            if is_quorum(RUN, roster, votes)
        ]
        assert quorums
        assert all(a & b for a, b in combinations(quorums, 2))


def test_half_of_an_even_roster_counts_only_with_the_tie_holder() -> None:
    roster = PEERS[:4]
    holder = tie_holder(RUN, roster)
    others = [peer for peer in roster if peer != holder]
    assert is_quorum(RUN, roster, {holder, others[0]})
    assert not is_quorum(RUN, roster, set(others[:2]))


def test_votes_from_outside_the_roster_do_not_count() -> None:
    assert not is_quorum(RUN, PEERS[:3], {PEERS[0], PEERS[4], PEERS[5]})


def test_the_opener_changes_with_the_round_and_the_attempt_and_not_with_the_order_of_peers() -> None:
    assert opener_order(RUN, UNIT, 3, 1, PEERS) == opener_order(RUN, UNIT, 3, 1, reversed(PEERS))
    assert {first_opener(RUN, UNIT, index, PEERS) for index in range(64)} == set(PEERS)
    assert {opener_order(RUN, UNIT, 3, attempt, PEERS)[0] for attempt in range(64)} == set(PEERS)


def test_runs_and_units_have_openers_of_their_own() -> None:
    assert {first_opener(RunId(bytes([run]) * 32), UNIT, 0, PEERS) for run in range(64)} == set(PEERS)
    assert {first_opener(RUN, UnitName(f"fragment-{number}"), 0, PEERS) for number in range(64)} == set(PEERS)


def test_a_leader_cannot_choose_the_next_opener_by_what_it_writes_into_its_record() -> None:
    """The commit id changes with every word of a record: a leader could try words until the hash of it made itself the next one."""
    table = Table(5)
    ids = {commit_on(table.genesis, table.live(), salt=salt).link for salt in range(16)}
    assert len({link.commit for link in ids}) == 16
    assert len({first_opener(RUN_ID, link.unit, link.index, link.roster) for link in ids}) == 1


def test_who_left_no_longer_counts_but_for_ballots_below_what_it_promised() -> None:
    leaves = {PEERS[0]: _leave(PEERS[0], Ballot(2, PEERS[1])), PEERS[2]: _leave(PEERS[2], None)}
    assert electorate(PEERS, Ballot(1, PEERS[1]), leaves) == (PEERS[0], PEERS[1], *PEERS[3:])
    assert electorate(PEERS, Ballot(2, PEERS[1]), leaves) == (PEERS[1], *PEERS[3:])
    assert electorate(PEERS, Ballot(3, PEERS[0]), leaves) == (PEERS[1], *PEERS[3:])


def test_a_quorum_without_a_leaver_together_with_its_goodbye_meets_every_quorum_with_it() -> None:
    for size in range(2, 7):
        roster = PEERS[:size]
        rest = roster[1:]
        before = [set(v) for n in range(1, size + 1) for v in combinations(roster, n) if is_quorum(RUN, roster, v)]
        after = [set(v) for n in range(1, size) for v in combinations(rest, n) if is_quorum(RUN, rest, v)]
        assert all((votes | {roster[0]}) & earlier for votes in after for earlier in before)


def test_the_tie_holder_depends_on_the_run_and_the_roster_only() -> None:
    assert tie_holder(RUN, PEERS) == tie_holder(RUN, reversed(PEERS))
    assert {tie_holder(bytes([i]) * 32, PEERS) for i in range(64)} == set(PEERS)
