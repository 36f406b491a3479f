from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from protocol.rounds.events import Progressed, RoundTicked
from protocol.rounds.liveness import next_tick_s
from protocol.rounds.messages.messages import Proposal
from protocol.rounds.orders import SendHeartbeat
from protocol.rounds.queries import SLOWEST_BEAT_S, slowest_beat_s
from protocol.rounds.schedule.stagger import Stagger
from protocol.rounds.state import Pulse, RoundConfig, RoundState
from protocol.rounds.telling import (
    BEATS_TO_OPENER,
    REPORT_EVERY_S,
    _turn_to_report,
    beat_interval_s,
    is_reported_to_opener,
    late_report,
    opener_beats,
    reachable,
    until_due_s,
)
from tests.protocol.rounds.round_table import Seat, Table, acquaint, heartbeat_of

TARGET_TOKENS = 300_000
QUICK_S = 1.0
LONG_S = 600.0


def _table(num_peers: int, **numbers: object) -> Table:
    """Peers whose round takes so many tokens that none of them is told by a single one."""
    table = Table(num_peers, **numbers)
    for seat in table.live():
        seat.state = replace(seat.state, link=replace(seat.state.link, target_tokens=TARGET_TOKENS))
    return table


def _met(num_peers: int = 4, *, since_s: float = 100.0, tokens: int = 1, **numbers: object) -> tuple[Table, Seat]:
    """Somebody who has just heard everybody, so long after the last commit; each has so many tokens ready."""
    table = _table(num_peers, **{"longest_interval_s": LONG_S, **numbers})
    for seat in table.live():
        seat.tokens = tokens
    table.now_s += since_s
    acquaint(table)
    seat = table.live()[0]
    table.perform = lambda at, action: None  # type: ignore[method-assign,assignment]
    seat.feed(RoundTicked())
    return table, seat


def test_heartbeats_are_rare_while_the_round_is_far_away() -> None:
    table, seat = _met()
    assert beat_interval_s(seat.state, table.now_s) == SLOWEST_BEAT_S


def test_they_become_no_rarer_than_the_longest_interval_asks_for() -> None:
    for longest_s, slowest_s in ((10.0, QUICK_S), (20.0, QUICK_S), (60.0, 3.0), (3600.0, SLOWEST_BEAT_S)):
        table, seat = _met(longest_interval_s=longest_s, since_s=longest_s / 2)
        assert slowest_beat_s(seat.state.config) == slowest_s
        assert beat_interval_s(seat.state, table.now_s) == slowest_s


def test_they_are_quick_after_a_commit_and_when_the_longest_interval_is_nearly_over() -> None:
    table, seat = _met(since_s=2.0)
    assert beat_interval_s(seat.state, table.now_s) == QUICK_S
    table, seat = _met(since_s=10.0)
    assert beat_interval_s(seat.state, table.now_s) == 5.0
    table, seat = _met(since_s=LONG_S - 20.0)
    assert beat_interval_s(seat.state, table.now_s) == 5.0
    assert beat_interval_s(seat.state, table.now_s + 17.0) == QUICK_S


def test_the_next_opener_of_many_is_told_by_a_part_of_them_at_a_time() -> None:
    for num_peers, every in ((4, 1), (BEATS_TO_OPENER + 1, 1), (2 * BEATS_TO_OPENER, 2)):
        table, seat = _met(num_peers, max_members=64)
        assert opener_beats(seat.state) == every
        reported = []
        for one in table.live():
            states = [replace(one.state, pulse=Pulse(num_heartbeats=number)) for number in range(every)]
            now = [is_reported_to_opener(state) for state in states]
            assert now.count(True) == 1
            reported.append(now.index(True))
        if every == 2:
            assert num_peers / 4 < reported.count(0) < num_peers * 3 / 4, "not all at once"


def test_after_a_commit_so_many_at_a_time_tell_the_next_opener_and_voters_first() -> None:
    table = Table(3 * BEATS_TO_OPENER, num_founders=8, max_members=64)
    acquaint(table)
    table.run_until(lambda: table.all_at(1))
    opener = table.opener()
    turns = {seat: _turn_to_report(seat.state, reachable(seat.state)) for seat in table.others(opener)}
    voters = set(opener.head.roster)
    assert max(Counter(turns.values()).values()) <= BEATS_TO_OPENER + 1
    assert max(turns.values()) == len(turns) // BEATS_TO_OPENER
    firsts = [seat.peer in voters for seat, turn in sorted(turns.items(), key=lambda item: item[1])]
    assert max(turn for seat, turn in turns.items() if seat.peer in voters) <= firsts.count(True) // BEATS_TO_OPENER


def test_a_report_to_the_next_opener_is_made_when_its_turn_comes_and_once() -> None:
    table, seat = _met(2 * BEATS_TO_OPENER, max_members=64)
    if seat is table.opener():
        seat = table.others(seat)[0]
    state = replace(seat.state, pulse=replace(seat.state.pulse, report_at_s=table.now_s + REPORT_EVERY_S))
    assert late_report(state, table.now_s) == (state, ())
    assert next_tick_s(state) <= REPORT_EVERY_S
    told, orders = late_report(state, table.now_s + REPORT_EVERY_S)
    assert [order.to for order in orders if isinstance(order, SendHeartbeat)] == [(table.opener().peer,)]
    assert late_report(told, table.now_s + 2 * REPORT_EVERY_S) == (told, ())


def test_they_are_quick_while_a_round_is_due_or_no_quorum_is_in_reach() -> None:
    table, seat = _met()
    due = replace(seat.state, open=replace(seat.state.open, due_since_s=table.now_s))
    alone = replace(seat.state, alone_since_s=table.now_s)
    assert [beat_interval_s(state, table.now_s) for state in (due, alone)] == [QUICK_S, QUICK_S]


def test_what_others_had_ready_is_taken_to_have_grown_since() -> None:
    """Each of four makes a tenth of the target in a hundred seconds: it takes 150 more."""
    table, seat = _met(tokens=TARGET_TOKENS // 10)
    assert 140.0 < until_due_s(seat.state, table.now_s) < 151.0
    table.wait(50.0)
    seat.feed(Progressed(TARGET_TOKENS * 3 // 20, True))
    assert 95.0 < until_due_s(seat.state, table.now_s) < 101.0


def test_who_does_not_know_what_others_have_goes_by_its_own_share() -> None:
    table, seat = _met(tokens=0)
    seat.feed(Progressed(TARGET_TOKENS // 4 - 1, True))
    assert until_due_s(seat.state, table.now_s) < 2.0


def test_a_unit_whose_first_round_is_due_at_a_part_of_the_work_expects_it_so_much_earlier() -> None:
    table, seat = _met(tokens=TARGET_TOKENS // 40)
    staggered = replace(seat.state, config=replace(seat.state.config, stagger=Stagger(0, 5)))
    assert 895.0 < until_due_s(replace(seat.state, config=_without_clock(seat.state)), table.now_s) < 905.0
    assert until_due_s(seat.state, table.now_s) == LONG_S - 100.0
    assert until_due_s(staggered, table.now_s) == LONG_S / 5 - 100.0
    assert 95.0 < until_due_s(replace(staggered, config=_without_clock(staggered)), table.now_s) < 105.0


def _without_clock(state: RoundState) -> RoundConfig:
    return replace(state.config, longest_interval_s=100 * LONG_S)


def test_nothing_is_expected_where_nobody_trains_or_the_run_is_over() -> None:
    table, seat = _met(tokens=0)
    assert until_due_s(seat.state, table.now_s) == math.inf
    assert beat_interval_s(seat.state, table.now_s) == SLOWEST_BEAT_S
    table, seat = _met(total_tokens=1)
    over = replace(seat.state, link=replace(seat.state.link, total_tokens=1))
    assert until_due_s(over, table.now_s) == math.inf
    assert beat_interval_s(over, table.now_s) == QUICK_S, "everybody waits to hear that all have the last commit"


def test_tokens_that_come_all_at_once_are_told_with_the_next_tick() -> None:
    table, seat = _met()
    table.now_s += 1.0
    assert not any(isinstance(action, SendHeartbeat) for action in seat.feed(RoundTicked()))
    seat.feed(Progressed(TARGET_TOKENS, True))
    assert any(isinstance(action, SendHeartbeat) for action in seat.feed(RoundTicked()))


def _train(table: Table, speeds: dict[Seat, float], until_s: float, begun_s: float = 100.0) -> None:
    """Virtual time in which everybody trains at its speed, in tokens a second, until the first proposal."""
    while table.now_s < until_s and not any(seat.sent(Proposal) for seat in table.live()):
        table.tick()
        for seat, tokens_per_s in speeds.items():
            seat.tokens = int((table.now_s - begun_s) * tokens_per_s)


def _opened_late_s(num_peers: int, spread: float) -> tuple[float, float]:
    """How late the opener of a round of ten minutes is, and how many heartbeats each of them sends a minute; the fastest trains
    (1 + spread) / (1 - spread) times as fast as the slowest.
    """
    table = _table(num_peers, longest_interval_s=2 * LONG_S, max_members=64)
    share = TARGET_TOKENS / LONG_S / num_peers
    places = [2 * place / (num_peers - 1) - 1 for place in range(num_peers)]
    speeds = {seat: share * (1 + spread * place) for seat, place in zip(table.live(), places, strict=True)}
    begun_s = table.now_s
    _train(table, speeds, begun_s + 2 * LONG_S)
    num_beats = [len(seat.ordered(SendHeartbeat)) for seat in table.live()]
    return table.now_s - begun_s - LONG_S, max(num_beats) * 60 / (table.now_s - begun_s)


def test_a_round_of_ten_minutes_is_opened_within_two_seconds_of_being_due_with_a_tenth_of_the_heartbeats() -> None:
    late_s, beats_a_minute = _opened_late_s(4, 0.0)
    assert 0.0 <= late_s <= 2.0
    assert beats_a_minute < 10.0


def test_it_is_also_where_speeds_differ_and_not_everybody_hears_everybody_each_time() -> None:
    late_s, _ = _opened_late_s(8, 0.6)
    assert -1.0 <= late_s <= 3.0


def test_who_stopped_long_before_the_round_is_due_is_not_waited_for() -> None:
    table = _table(4, longest_interval_s=LONG_S)
    share = TARGET_TOKENS / LONG_S / 4
    speeds = dict.fromkeys(table.live(), 1.5 * share)
    begun_s = table.now_s
    _train(table, speeds, begun_s + LONG_S / 4)
    opener = table.opener()
    frozen = table.others(opener)[0]
    table.freeze(frozen)
    _train(table, speeds, begun_s + 2 * LONG_S)
    proposals = opener.sent(Proposal)
    assert proposals
    assert all(isinstance(each, Proposal) and each.member(frozen.peer) is None for each in proposals)


def test_who_comes_back_is_heard_of_at_once() -> None:
    table, seat = _met()
    other = table.others(seat)[0]
    table.restart(other)
    before = len(other.ordered(SendHeartbeat))
    other.feed(Progressed(1, True))
    other.hear(seat, heartbeat_of(seat))
    table.now_s += 1.0
    other.feed(RoundTicked())
    assert len(other.ordered(SendHeartbeat)) == before + 1
