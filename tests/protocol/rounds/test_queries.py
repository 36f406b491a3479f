from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from protocol.rounds.events import PeerLost, Progressed, RoundTicked
from protocol.rounds.failure_probes import FULL_MESH
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.messages.messages import ResultReady, Settle, UnitHead
from protocol.rounds.messages.record import LAST_ATTEMPT, Ballot
from protocol.rounds.queries import (
    GONE_PATIENCE_S,
    caught_up,
    idle_patience_s,
    is_due,
    is_silent,
    is_suspected,
    lenders,
    may_be_lone,
    quorum_in_reach,
    ready_tokens,
    silent_members,
    slowest_beat_s,
    until_first_unit,
)
from protocol.rounds.schedule.liveness_timing import SUSPECT_AFTER_S
from protocol.rounds.schedule.stagger import Stagger
from protocol.rounds.telling import opener_patience_s, own_heartbeat
from tests.protocol.rounds.made_commits import commit_on, lineage_on, made_spine
from tests.protocol.rounds.round_table import SPINE, TARGET_TOKENS, Seat, Table, acquaint, heartbeat_of, state_root


def test_ready_tokens_count_live_caught_up_holders_only() -> None:
    table = Table(3)
    seat, other, third = table.live()
    for one in table.live():
        one.feed(Progressed(100, True))
    seat.hear(other, heartbeat_of(other))
    assert ready_tokens(seat.state, table.now_s) == 200
    assert not is_due(seat.state, table.now_s)
    seat.hear(third, heartbeat_of(third))
    assert is_due(seat.state, table.now_s)
    assert [view.peer for view in caught_up(seat.state, table.now_s)] == sorted([other.peer, third.peer])
    assert ready_tokens(seat.state, table.now_s + 60.0) == 100


def test_the_first_round_of_a_staggered_unit_is_due_at_its_share_of_a_rounds_work() -> None:
    table = Table(1)
    seat = table.live()[0]
    seat.feed(Progressed(TARGET_TOKENS // 2, True))
    early = replace(seat.state, config=replace(seat.state.config, stagger=Stagger(0, 2)))
    late = replace(seat.state, config=replace(seat.state.config, stagger=Stagger(1, 2)))
    assert (is_due(early, table.now_s), is_due(late, table.now_s)) == (True, False)
    half_s = seat.state.committed_at_s + seat.state.config.longest_interval_s / 2
    few = replace(early, tokens_ready=1)
    assert (is_due(few, half_s - 1.0), is_due(few, half_s)) == (False, True)


def test_a_peer_that_may_not_contribute_is_no_holder() -> None:
    table = Table(3)
    seat, other, _ = table.live()
    other.feed(Progressed(100, False))
    seat.hear(other, heartbeat_of(other))
    assert caught_up(seat.state, table.now_s) == ()


def test_a_voter_that_holds_the_unit_no_longer_is_out_of_reach_and_who_is_left_need_not_wait_for_it_for_long() -> None:
    table = Table(3)
    seat, *others = table.live()
    acquaint(table)
    ballot = Ballot(LAST_ATTEMPT, seat.peer)
    assert quorum_in_reach(seat.state, ballot, table.now_s)
    for other in others:
        seat.hear(other, replace(heartbeat_of(other), heads=()))
    assert not quorum_in_reach(seat.state, ballot, table.now_s)
    alone = replace(seat.state, alone_since_s=table.now_s)
    assert may_be_lone(alone, table.now_s + GONE_PATIENCE_S)


def test_a_round_with_nothing_to_average_is_never_due() -> None:
    table = Table(3)
    for one in table.live():
        one.tokens = 0
    acquaint(table)
    assert not is_due(table.live()[0].state, table.now_s + 10_000.0)


def test_the_heartbeat_says_where_we_stand() -> None:
    table = Table(3)
    seat = table.live()[0]
    seat.feed(Progressed(42, True, 7000))
    heartbeat = own_heartbeat(seat.state, table.now_s)
    assert heartbeat.member == seat.member
    assert heartbeat.upload_bytes_per_s == 7000
    assert heartbeat.heads[0].tokens_ready == 42
    assert heartbeat.heads[0].head == seat.head.commit


def test_in_a_larger_swarm_silence_means_less_while_nothing_is_open_but_for_the_opener() -> None:
    small, large = Table(3).live()[0], Table(30).live()[0]
    assert idle_patience_s(small.state) == opener_patience_s(small.state)
    assert idle_patience_s(large.state) > opener_patience_s(large.state)
    assert opener_patience_s(large.state) == opener_patience_s(small.state) + slowest_beat_s(small.state.config)


# --- beside the spine ---------------------------------------------------------------------------------------------------------


def _hear_at(seat: Seat, other: Seat, link: ChainLink, ready: int = 0) -> None:
    """The other one's heartbeat, which tells of the spine as well."""
    root = state_root(link.commit)
    head = UnitHead(SPINE, link.commit, link.index, link.total_tokens, ready, True, link.commit, root)
    heartbeat = heartbeat_of(other)
    seat.hear(other, replace(heartbeat, heads=(*heartbeat.heads, head)))


def test_when_the_first_units_round_is_due_is_known_once_all_have_told_of_it_on_one_head() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.left), stagger=Stagger(1, 4))
    acquaint(table)
    seat, one, two = table.live()
    assert until_first_unit(seat.state, table.now_s) is None, "nothing is known of what we have ready ourselves"
    seat.feed(Progressed(100, True, spine_ready=30))
    _hear_at(seat, one, spine.left, 40)
    _hear_at(seat, two, spine.trunk, 200)
    assert until_first_unit(seat.state, table.now_s) is None, "one of them has what an earlier round counts"
    _hear_at(seat, two, spine.left, 50)
    assert until_first_unit(seat.state, table.now_s) == TARGET_TOKENS - 120
    _hear_at(seat, two, spine.left, 500)
    assert until_first_unit(seat.state, table.now_s) == TARGET_TOKENS - 570 < 0
    first = replace(seat.state, config=replace(seat.state.config, stagger=Stagger(0, 4)))
    assert until_first_unit(first, table.now_s) is None


def test_who_trains_with_another_lineage_of_the_spine_is_not_caught_up() -> None:
    spine = made_spine()
    table = Table(4, spine=spine.at(spine.left))
    acquaint(table)
    seat, one, two, three = table.live()
    for other, link in ((one, spine.right), (two, spine.left), (three, spine.trunk)):
        _hear_at(seat, other, link)
    assert [view.peer for view in caught_up(seat.state, table.now_s)] == sorted([two.peer, three.peer])
    _hear_at(seat, one, spine.left)
    assert len(caught_up(seat.state, table.now_s)) == 3


def test_who_is_ahead_on_the_spine_or_does_not_tell_of_it_is_caught_up() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.trunk))
    acquaint(table)
    seat, one, two = table.live()
    _hear_at(seat, one, spine.right)
    assert {view.peer for view in caught_up(seat.state, table.now_s)} == {one.peer, two.peer}


def test_tokens_of_those_on_another_lineage_of_the_spine_make_no_round_due() -> None:
    spine = made_spine()
    table = Table(3, spine=spine.at(spine.left))
    acquaint(table)
    seat, one, _ = table.live()
    assert is_due(seat.state, table.now_s)
    _hear_at(seat, one, spine.right)
    assert not is_due(seat.state, table.now_s)


def test_the_run_is_over_when_the_spine_has_its_tokens_whatever_the_unit_has() -> None:
    spine = made_spine(tokens=1000)
    running, over = (Table(3, spine=spine.at(spine.left), total_tokens=number) for number in (2001, 2000))
    for table in (running, over):
        acquaint(table)
    assert running.live()[0].state.run_tokens == 2000
    assert is_due(running.live()[0].state, running.now_s)
    assert not is_due(over.live()[0].state, over.now_s)
    own = commit_on(running.genesis, running.live(), tokens=5000)
    seat = running.live()[0]
    seat.state = replace(seat.state, link=own.link, tokens_ready=TARGET_TOKENS)
    assert is_due(seat.state, running.now_s), "tokens of the unit itself end nothing"


# --- suspicion ----------------------------------------------------------------------------------------------------------------


def _exchanging(table: Table) -> list[Seat]:
    """Everybody, in an exchange that does not end; the opener comes first."""
    table.drops = lambda sender, to, message: isinstance(message, Settle)
    for seat in table.live():
        seat.tokens = 150
    table.run_until(lambda: all(seat.state.open.exchange is not None for seat in table.live()), 10.0)
    opener = table.opener()
    return [opener, *table.others(opener)]


def test_silence_is_said_before_it_is_suspicion() -> None:
    table = Table(2)
    seat, other = _exchanging(table)
    seat.hear(other, heartbeat_of(other))
    table.now_s += SUSPECT_AFTER_S - 0.1
    assert not is_suspected(seat.state, other.peer, table.now_s)
    assert silent_members(seat.state, table.now_s) == (other.peer,)
    table.now_s += 0.2
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_a_member_that_answers_from_another_process_is_suspected_at_once() -> None:
    table = Table(4)
    seat, other, *_ = _exchanging(table)
    beat = heartbeat_of(other)
    seat.hear(other, beat)
    assert not is_suspected(seat.state, other.peer, table.now_s)
    seat.hear(other, replace(beat, member=replace(beat.member, session=beat.member.session + 1)))
    assert is_suspected(seat.state, other.peer, table.now_s), "what it had of the exchange died with the process before"


def test_one_dead_link_makes_no_suspect_while_others_hear_the_peer() -> None:
    table = Table(4)
    seat, other, *_ = _exchanging(table)
    table.cuts = {(other.peer, seat.peer), (seat.peer, other.peer)}
    table.run_for(10.0)
    assert silent_members(seat.state, table.now_s) == (other.peer,)
    assert not is_suspected(seat.state, other.peer, table.now_s)


def test_two_witnesses_who_do_not_hear_it_either_make_a_suspect() -> None:
    table = Table(5)
    seat, other, one, two, three = _exchanging(table)
    silent = {(other.peer, to.peer) for to in (seat, one, two)}
    table.cuts = silent | {(b, a) for a, b in silent}
    table.run_for(SUSPECT_AFTER_S + 0.5)
    assert is_suspected(seat.state, other.peer, table.now_s)
    assert not is_suspected(three.state, other.peer, table.now_s)


def test_our_sign_of_life_at_the_start_of_an_exchange_is_enough_until_a_suspicion_takes_effect() -> None:
    table = Table(3)
    acquaint(table)
    table.now_s += 5.0
    seat, other, _ = _exchanging(table)
    assert not is_suspected(seat.state, other.peer, seat.state.open.proposal_at_s + SUSPECT_AFTER_S - 0.1)


def test_a_long_exchange_of_a_large_round_is_not_taken_for_the_end_of_the_quorum() -> None:
    table = Table(FULL_MESH + 4, max_members=64)
    acquaint(table)
    opener, *_ = _exchanging(table)
    hub = opener.state.open.proposal
    assert hub is not None
    table.run_for(2 * idle_patience_s(opener.state))
    for seat in table.live():
        assert quorum_in_reach(seat.state, Ballot(LAST_ATTEMPT, seat.peer), table.now_s)
        assert seat.state.alone_since_s is None


def test_a_reducer_that_is_no_member_is_no_witness() -> None:
    table = Table(3)
    seat, other, lender = _exchanging(table)
    proposal = seat.state.open.proposal
    assert proposal is not None
    members = tuple(member for member in proposal.members if member.peer != lender.peer)
    opened = replace(seat.state.open, proposal=replace(proposal, members=members))
    seat.state = replace(seat.state, open=opened)
    table.wait(SUSPECT_AFTER_S + 1.0)
    seat.hear(lender, heartbeat_of(lender))
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_a_member_whose_process_is_new_is_no_witness() -> None:
    table = Table(3)
    seat, other, restarted = _exchanging(table)
    table.wait(SUSPECT_AFTER_S + 1.0)
    seat.hear(restarted, replace(heartbeat_of(restarted), silent=()))
    assert not is_suspected(seat.state, other.peer, table.now_s), "its first process hears the other one"
    table.restart(restarted)
    seat.hear(restarted, heartbeat_of(restarted))
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_a_member_that_was_never_heard_is_no_witness() -> None:
    table = Table(3)
    seat, other, unheard = _exchanging(table)
    heard = MappingProxyType({peer: view for peer, view in seat.state.peers.items() if peer != unheard.peer})
    seat.state = replace(seat.state, peers=heard)
    table.now_s += SUSPECT_AFTER_S + 1.0
    assert is_suspected(seat.state, other.peer, table.now_s)


def test_lenders_of_one_class_of_upload_are_asked_in_an_order_that_each_round_draws_anew() -> None:
    table = Table(9)
    seat, *others = table.live()
    for number, other in enumerate(others):
        reported = replace(heartbeat_of(other), heads=(), is_inbound_reachable=True)
        seat.hear(other, replace(reported, upload_bytes_per_s=5000 if number == 0 else 1000 + number))
    orders = set()
    for made in lineage_on(table.genesis, table.live(), 4):
        link = made.link
        asked = [view.peer for view in lenders(replace(seat.state, link=link), table.now_s)]
        assert asked[0] == others[0].peer, "twice the upload comes before any order"
        assert set(asked) == {other.peer for other in others}
        orders.add(tuple(asked))
    assert len(orders) == 4


# --- quorum and patience ------------------------------------------------------------------------------------------------------


def test_a_voter_need_not_be_caught_up_to_be_in_reach() -> None:
    table = Table(3)
    acquaint(table)
    seat, other, third = table.live()
    seat.feed(PeerLost(third.peer))
    head = replace(heartbeat_of(other).heads[0], can_contribute=False)
    seat.hear(other, replace(heartbeat_of(other), heads=(head,)))
    assert quorum_in_reach(seat.state, Ballot(0, seat.peer), table.now_s)
    seat.feed(PeerLost(other.peer))
    assert not quorum_in_reach(seat.state, Ballot(0, seat.peer), table.now_s)


def test_a_voter_that_came_back_on_a_new_disk_is_no_vote_in_reach() -> None:
    table = Table(3)
    acquaint(table)
    made = commit_on(table.genesis, table.live())
    seat, other, third = table.live()
    seat.state = replace(seat.state, link=made.link)
    seat.feed(PeerLost(third.peer))
    assert quorum_in_reach(seat.state, Ballot(0, seat.peer), table.now_s)
    seat.hear(other, replace(heartbeat_of(other), member=replace(other.member, incarnation=2, session=2)))
    assert not quorum_in_reach(seat.state, Ballot(0, seat.peer), table.now_s)


def test_patience_begins_when_the_quorum_is_out_of_reach_and_ends_when_it_is_back() -> None:
    table = Table(3)
    acquaint(table)
    seat, other, _ = table.live()
    patience_s = seat.state.config.lone_patience_s
    table.now_s += 20.0
    seat.feed(RoundTicked())
    assert seat.state.alone_since_s == table.now_s
    assert not may_be_lone(seat.state, table.now_s + patience_s - 1.0)
    assert may_be_lone(seat.state, table.now_s + patience_s)
    seat.hear(other, heartbeat_of(other))
    seat.feed(RoundTicked())
    assert seat.state.alone_since_s is None
    assert not may_be_lone(seat.state, table.now_s + 10_000.0)


def test_patience_is_short_only_when_all_who_are_missing_refuse_connections() -> None:
    table = Table(3)
    acquaint(table)
    seat, other, third = table.live()
    seat.feed(PeerLost(other.peer))
    table.now_s += 20.0
    seat.feed(RoundTicked())
    assert not may_be_lone(seat.state, table.now_s + GONE_PATIENCE_S)
    seat.feed(PeerLost(third.peer))
    assert may_be_lone(seat.state, table.now_s + GONE_PATIENCE_S)


def test_a_peer_that_takes_no_part_calls_nobody_silent_whom_it_heard_within_the_patience_of_a_quiet_time() -> None:
    table = Table(20, max_members=8)
    acquaint(table)
    seat, other, gone, *_ = table.live()
    seat.feed(PeerLost(gone.peer))
    now_s = table.now_s + 10 * SUSPECT_AFTER_S
    assert seat.state.open.proposal is None
    assert not is_silent(seat.state, other.peer, now_s)
    assert is_silent(seat.state, gone.peer, now_s)
    assert is_silent(seat.state, other.peer, table.now_s + idle_patience_s(seat.state) + 1.0)


def test_in_an_exchange_silence_is_what_makes_a_member_suspected() -> None:
    table = Table(3)
    acquaint(table)
    table.drops = lambda sender, to, message: isinstance(message, ResultReady)
    table.run_until(lambda: all(seat.state.open.proposal is not None for seat in table.live()), 10.0)
    seat, other, _ = table.live()
    now_s = table.now_s + 10 * SUSPECT_AFTER_S
    assert is_suspected(seat.state, other.peer, now_s)
    assert is_silent(seat.state, other.peer, now_s)
