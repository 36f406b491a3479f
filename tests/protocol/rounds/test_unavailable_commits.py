"""Commits whose bytes nobody had: for how long they are passed over, and which peers bring them back. Their followers are in
test_following.py."""

from __future__ import annotations

from dataclasses import replace

from protocol.ids import CommitId
from protocol.rounds.events import PeerLost
from protocol.rounds.state import RoundState
from protocol.rounds.unavailable_commits import (
    FIRST_PAUSE_S,
    MAX_MISSING,
    MAX_PAUSE_S,
    passed_over,
    reviewed,
    with_missing,
    without_found,
)
from tests.protocol.rounds.made_commits import Made, commit_on, lineage_on
from tests.protocol.rounds.round_table import Seat, Table, acquaint, heartbeat_of


def _knowing() -> tuple[Table, Seat, list[Made]]:
    """A seat that knows a lineage of three commits, on none of which anybody stands."""
    table = Table(4)
    acquaint(table)
    seat = table.live()[0]
    made = lineage_on(table.genesis, table.live(), 3)
    tree = seat.state.tree.add_all([(one.link, one.certificate) for one in made])
    seat.state = replace(seat.state, tree=tree)
    return table, seat, made


def _stands_on(seat: Seat, other: Seat, commit: CommitId) -> RoundState:
    """The seat's state once another one says so."""
    view = seat.state.peers[other.peer]
    assert view.head is not None
    moved = replace(view, head=replace(view.head, head=commit), heard_at_s=seat.table.now_s)
    return replace(seat.state, peers={**seat.state.peers, other.peer: moved})  # type: ignore[arg-type]


def _all_heard(table: Table, seat: Seat, state: RoundState) -> RoundState:
    return replace(state, peers={peer: replace(v, heard_at_s=table.now_s) for peer, v in state.peers.items()})  # type: ignore[arg-type]


def test_a_commit_is_passed_over_for_twice_as_long_each_time_up_to_a_limit() -> None:
    table, seat, made = _knowing()
    state, commit = seat.state, made[0].link.commit
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S):
        state = with_missing(_all_heard(table, seat, state), commit, table.now_s)
        assert passed_over(state) == {commit}
        table.now_s += pause_s
        state = _all_heard(table, seat, state)
        assert reviewed(state, table.now_s - 0.1) is state
        state = reviewed(state, table.now_s)
        assert passed_over(state) == frozenset()


def test_a_commit_on_which_somebody_who_lives_stands_is_passed_over_no_longer_than_the_first_time() -> None:
    table, seat, made = _knowing()
    commit = made[0].link.commit
    state = _stands_on(seat, table.others(seat)[0], made[2].link.commit)
    for _ in range(4):
        state = with_missing(_all_heard(table, seat, state), commit, table.now_s)
        assert state.missing[commit].pause_s == FIRST_PAUSE_S
        table.now_s += FIRST_PAUSE_S
        state = reviewed(_all_heard(table, seat, state), table.now_s)


def test_somebody_new_on_it_or_somebody_who_was_not_asked_makes_it_wanted_at_once() -> None:
    table, seat, made = _knowing()
    commit, other = made[1].link.commit, table.others(seat)[0]
    seat.state = with_missing(seat.state, commit, table.now_s)
    assert passed_over(reviewed(_stands_on(seat, other, made[0].link.commit), table.now_s)) == {commit}, "before it"
    assert passed_over(reviewed(_stands_on(seat, other, made[2].link.commit), table.now_s)) == frozenset()
    seat.feed(PeerLost(other.peer))
    seat.state = with_missing(seat.state, commit, table.now_s)
    assert passed_over(seat.state) == {commit}
    seat.hear(other, heartbeat_of(other))
    assert passed_over(reviewed(seat.state, table.now_s)) == frozenset()


def test_what_is_behind_the_head_or_out_of_the_tree_is_forgotten_and_no_more_than_so_many_are_remembered() -> None:
    table, seat, made = _knowing()
    beside = commit_on(table.genesis, table.live(), salt=9)
    state = replace(seat.state, tree=seat.state.tree.add(beside.link, beside.certificate))
    for commit in (made[0].link.commit, beside.link.commit, CommitId(bytes(32))):
        state = with_missing(state, commit, table.now_s)
    assert set(without_found(replace(state, link=made[2].link)).missing) == {beside.link.commit}
    for number in range(MAX_MISSING + 5):
        state = with_missing(state, CommitId(number.to_bytes(32, "big")), table.now_s)
    assert len(state.missing) == MAX_MISSING
    assert made[0].link.commit not in state.missing
