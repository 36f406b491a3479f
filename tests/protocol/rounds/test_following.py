from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

import pytest

from protocol.identity.envelope import taken_apart
from protocol.ids import CommitId, PeerId, short
from protocol.rounds import following
from protocol.rounds.events import (
    Applied,
    CommitsFetched,
    CommitStalled,
    FlipOrdered,
    PeerLost,
    RoundTicked,
    SpineMoved,
    Switched,
    SwitchFailed,
    SwitchPrepared,
)
from protocol.rounds.following import (
    LEADERS_WORD_S,
    MOST_LONE_SIBLINGS,
    MOST_UNPLACED,
    MOST_UNPLACED_EACH,
    would_switch,
)
from protocol.rounds.lineage.chain_link import ChainLink
from protocol.rounds.lineage.compact import compacted
from protocol.rounds.lineage.lineage import SpineView, TreeNode, known_commits
from protocol.rounds.lineage.quorum import first_opener
from protocol.rounds.messages.messages import Certificate, Committed, RoundMessage
from protocol.rounds.messages.record import Ballot
from protocol.rounds.messages.wire import decode_message, encode_message
from protocol.rounds.orders import CatchUp, Commit, EndExchange, PrepareSwitch, Send, SendHeartbeat, Switch
from protocol.rounds.queries import lone_refused
from protocol.rounds.schedule.telling_tree import FAN_OUT
from protocol.rounds.state import Leading, OpenRound, Switching
from protocol.rounds.unavailable_commits import FIRST_PAUSE_S, MAX_PAUSE_S
from tests.protocol.rounds.made_commits import Made, MadeSpine, commit_on, lineage_on, made_spine
from tests.protocol.rounds.round_table import (
    RUN_ID,
    TARGET_TOKENS,
    UNIT,
    Seat,
    Table,
    acquaint,
    first_proposal,
    heartbeat_of,
    mute,
    state_root,
)
from tests.simulation.signing import HashVerifier


def _muted(num_peers: int = 5, spine: SpineView | None = None, **numbers: object) -> tuple[Table, Seat, Seat]:
    """(table, a seat to judge, another): orders are recorded and not performed."""
    table = Table(num_peers, spine=spine, **numbers)
    acquaint(table)
    mute(table)
    seat, other = table.live()[:2]
    return table, seat, other


def _fetched(source: Seat, made: Sequence[Made]) -> CommitsFetched:
    return CommitsFetched(source.peer, tuple(one.certificate for one in made))


def _reported(made: Made) -> Committed:
    return Committed(UNIT, made.certificate)


def _apply(seat: Seat, made: Made) -> tuple[object, ...]:
    return seat.feed(Applied(made.link, made.certificate, state_root(made.link.commit), OpenRound()))


def _targets(actions: Sequence[object]) -> list[bytes]:
    return [action.path[-1].link.commit for action in actions if isinstance(action, PrepareSwitch)]


# --- the next commit ----------------------------------------------------------------------------------------------------------


def test_a_certificate_on_our_head_is_committed_from_whoever_holds_its_bytes() -> None:
    table, seat, other = _muted()
    made = commit_on(table.genesis, table.live())
    (order,) = seat.hear(other, _reported(made))
    assert isinstance(order, Commit)
    assert order.link == made.link
    assert order.certificate == made.certificate
    assert order.holders[0] == other.peer
    assert set(order.holders) == set(table.seats) - {seat.peer}
    assert seat.head == table.genesis


def test_while_a_commit_is_applied_nothing_else_is_followed_and_then_the_next_one_is() -> None:
    table, seat, other = _muted()
    first, second = lineage_on(table.genesis, table.live(), 2)
    seat.hear(other, _reported(first))
    assert seat.hear(other, _reported(first)) == ()
    assert seat.hear(other, _reported(second)) == ()
    orders = _apply(seat, first)
    assert orders[0] == EndExchange(table.genesis.commit, "committed")
    assert isinstance(orders[-1], Commit)
    assert orders[-1].link == second.link
    assert seat.head == first.link


class _Counting(HashVerifier):
    """Counts the signatures that it is asked about."""

    num_asked = 0

    def verify(self, public_key: bytes, message: bytes, signature: bytes) -> bool:
        self.num_asked += 1
        return super().verify(public_key, message, signature)


def test_a_certificate_of_a_commit_that_is_known_is_word_of_it_and_not_verified_again() -> None:
    table, seat, other = _muted()
    made, verifier = commit_on(table.genesis, table.live()), _Counting()
    seat.state = replace(seat.state, config=replace(seat.state.config, verifier=verifier))
    seat.hear(other, _reported(made))
    num_asked, tree = verifier.num_asked, seat.state.tree
    assert num_asked > 0
    assert seat.hear(other, _reported(made)) == ()
    _apply(seat, made)
    assert seat.hear(other, _reported(made)) == ()
    assert (verifier.num_asked, seat.state.tree) == (num_asked, tree)


def _forwarded(orders: Sequence[object], seat: Seat) -> list[Send]:
    """Certificates that were sent, without those to ourselves."""
    sends = [order for order in orders if isinstance(order, Send) and isinstance(order.message, Committed)]
    return [order for order in sends if order.to != (seat.peer,)]


def test_a_commit_goes_whole_from_its_leader_to_all_and_who_applied_it_says_so_to_two_successors() -> None:
    """A certificate grows with the members: with 32 each forwarded 27 kB a round."""
    table = Table(6)
    table.run_until(lambda: table.all_at(1))
    for seat in table.live():
        base = seat.disk.chain[0][0]
        assert base.record is not None
        is_leader = base.record.ballot.peer == seat.peer
        assert [len(sent.to) for sent in _forwarded(seat.orders, seat)] == ([5] if is_leader else [])
        others = sorted(set(table.seats) - {seat.peer})
        after = [p for p in others if p > seat.peer] + [p for p in others if p < seat.peer]
        beats = [order for order in seat.orders if isinstance(order, SendHeartbeat) and order.is_question]
        reported = [beat.to for beat in beats if beat.heartbeat.heads[0].head == base.commit]
        opener = first_opener(RUN_ID, base.unit, base.index, base.roster)
        to = dict.fromkeys((*(() if is_leader else after[:2]), *((opener,) if opener != seat.peer else ())))
        assert reported == ([tuple(to)] if to else [])


# --- who hears of a commit before its leader's word comes ---------------------------------------------------------------------


def _passed_by() -> tuple[Table, Seat, Seat, Made]:
    """(table, a member of an open round, one that stands at its commit already, the commit)."""
    table, _, _ = _muted()
    seat, other = table.others(table.opener())[:2]
    seat.hear(table.opener(), first_proposal(table))
    made = commit_on(table.genesis, table.live())
    _apply(other, made)
    return table, seat, other, made


def _asked(orders: Sequence[object]) -> list[PeerId]:
    return [order.source for order in orders if isinstance(order, CatchUp)]


def _ticked_for(table: Table, seat: Seat, seconds: float) -> list[object]:
    """Its orders while time passes."""
    until_s, orders = table.now_s + seconds, list[object]()
    while table.now_s < until_s:
        table.now_s += 0.25
        orders += seat.feed(RoundTicked())
    return orders


def test_who_hears_of_its_rounds_commit_waits_for_the_leaders_word_and_asks_the_first_two_who_told_once() -> None:
    table, seat, other, made = _passed_by()
    others = [one for one in table.live() if one not in (seat, other)]
    for one in others:
        _apply(one, made)
    for one in (other, other, *others):
        assert seat.hear(one, heartbeat_of(one)) == ()
    assert _asked(_ticked_for(table, seat, LEADERS_WORD_S - 0.25)) == []
    assert _asked(_ticked_for(table, seat, 0.25)) == [other.peer, others[0].peer]
    assert _asked(_ticked_for(table, seat, 2 * LEADERS_WORD_S)) == []


def test_liars_who_tell_of_a_commit_first_and_all_the_time_keep_nobody_from_asking_who_tells_the_truth() -> None:
    table, seat, honest, _ = _passed_by()
    liars = [one for one in table.live() if one not in (seat, honest)][:2]

    def lie() -> None:
        for number, liar in enumerate(liars):
            reported = heartbeat_of(liar)
            head = replace(reported.heads[0], head=CommitId(bytes([number]) * 32), index=1)
            seat.hear(liar, replace(reported, heads=(head,)))

    lie()
    assert _asked(_ticked_for(table, seat, LEADERS_WORD_S)) == [liar.peer for liar in liars]
    lie()
    assert _asked(seat.hear(honest, heartbeat_of(honest))) == [honest.peer]


def test_a_leader_that_was_overtaken_asks_at_once() -> None:
    """It waits for no word of its own."""
    table, _, _ = _muted()
    leader = table.opener()
    other = table.others(leader)[0]
    leader.hear(leader, first_proposal(table))
    _apply(other, commit_on(table.genesis, table.live()))
    assert _asked(leader.hear(other, heartbeat_of(other))) == [other.peer]


def test_nobody_is_asked_for_a_commit_whose_certificate_came_meanwhile() -> None:
    table, seat, other, made = _passed_by()
    assert seat.hear(other, heartbeat_of(other)) == ()
    (commit,) = seat.hear(table.opener(), _reported(made))
    assert isinstance(commit, Commit)
    assert _asked(_ticked_for(table, seat, 2 * LEADERS_WORD_S)) == []


def test_who_is_ahead_is_asked_as_soon_as_the_leader_is_gone() -> None:
    table, seat, other, _ = _passed_by()
    assert seat.hear(other, heartbeat_of(other)) == ()
    assert seat.state.open.proposal is not None
    seat.feed(PeerLost(seat.state.open.proposal.ballot.peer))
    assert _asked(_ticked_for(table, seat, 0.25)) == [other.peer]
    assert _asked(seat.hear(other, heartbeat_of(other))) == [other.peer]


def test_who_is_two_commits_ahead_is_asked_at_once() -> None:
    table, seat, other, _ = _passed_by()
    _, second = lineage_on(table.genesis, table.live(), 2)
    _apply(other, second)
    assert _asked(seat.hear(other, heartbeat_of(other))) == [other.peer]


def test_a_commit_of_which_its_leader_told_one_member_before_it_died_comes_to_all() -> None:
    table = Table(6)
    acquaint(table)
    leader = table.opener()
    heir = table.others(leader)[0]

    def drops(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        return isinstance(message, Committed) and sender == leader.peer and to not in (leader.peer, heir.peer)

    table.drops = drops
    table.run_until(lambda: heir.head.index == 1)
    table.kill(leader)
    began_s = table.now_s
    table.run_until(lambda: table.all_at(1))
    assert table.now_s - began_s <= LEADERS_WORD_S + 1.0


def _decided(num_peers: int = 3) -> tuple[Table, Seat, Seat, Made]:
    """(table, a leader that has settled a record of its own, another, that commit)."""
    table, _, _ = _muted(num_peers)
    leader = table.opener()
    leader.hear(leader, first_proposal(table))
    made = commit_on(table.genesis, table.live())
    leading = Leading(Ballot(0, leader.peer), "settling", 1e9, commit=made.link.commit)
    leader.state = replace(leader.state, open=replace(leader.state.open, leading=leading))
    return table, leader, table.others(leader)[0], made


def test_a_leader_tells_of_its_commit_before_it_applies_it_and_not_again_where_that_stalls() -> None:
    """Everybody waits for the certificate, and its acks are on disks already."""
    table, leader, other, made = _decided()
    reported, commit = leader.hear(other, _reported(made))
    assert isinstance(reported, Send)
    assert isinstance(commit, Commit)
    assert (reported.message, set(reported.to)) == (_reported(made), set(table.seats) - {leader.peer})
    leader.feed(CommitStalled(made.link.commit, "its bytes are with nobody who answers"))
    (again,) = leader.hear(other, _reported(made))
    assert isinstance(again, Commit)
    assert _forwarded(_apply(leader, made), leader) == []


def test_a_commit_that_others_decided_is_forwarded_when_it_is_applied_also_by_who_led_before() -> None:
    table, leader, other, made = _decided()
    leader.state = replace(leader.state, open=replace(leader.state.open, leading=None))
    (commit,) = leader.hear(other, _reported(made))
    assert isinstance(commit, Commit)
    (sent,) = _forwarded(_apply(leader, made), leader)
    assert set(sent.to) == set(table.seats) - {leader.peer}, "the open proposal was its own"


def test_who_lent_itself_as_a_reducer_hears_of_the_commit_when_its_result_is_here() -> None:
    """It keeps what it summed in memory until then."""
    table, leader, other, made = _decided(4)
    proposal = leader.state.open.proposal
    assert proposal is not None
    lender = next(seat for seat in table.others(leader) if seat is not other)
    members = tuple(member for member in proposal.members if member.peer != lender.peer)
    opened = replace(leader.state.open, proposal=replace(proposal, members=members))
    leader.state = replace(leader.state, open=opened)
    reported, _ = leader.hear(other, _reported(made))
    assert isinstance(reported, Send)
    assert set(reported.to) == set(table.seats) - {leader.peer, lender.peer}
    (sent,) = _forwarded(_apply(leader, made), leader)
    assert sent.to == (lender.peer,)


def test_whoever_applied_a_commit_tells_the_next_opener_at_once() -> None:
    """However late it was: the proposal goes to those whose head the opener knows."""
    table, _, _ = _muted()
    made = commit_on(table.genesis, table.live())
    opener = first_opener(RUN_ID, made.link.unit, made.link.index, made.link.roster)
    for one in table.live():
        beats = [action for action in _apply(one, made) if isinstance(action, SendHeartbeat)]
        assert len(beats) == 1
        assert (opener in beats[0].to) != (one.peer == opener)
        assert all(beat.heartbeat.heads[0].head == made.link.commit for beat in beats)


def test_what_a_commit_counted_makes_no_next_round_due() -> None:
    """The next opener hears of everybody's tokens with the commit: once it heard those of before it, and opened on nothing."""
    table = Table(3)
    for seat in table.live():
        seat.tokens, seat.tokens_a_tick = 0, 10
    table.run_until(lambda: table.all_at(6))
    records = [link.record for link, _ in table.live()[0].disk.chain]
    for record in records:
        assert record is not None
        assert sum(entry.credited_tokens for entry in record.contributors) >= TARGET_TOKENS


def test_a_commit_whose_parent_is_unknown_makes_us_ask_its_sender() -> None:
    table, seat, other = _muted()
    _, second = lineage_on(table.genesis, table.live(), 2)
    known = known_commits(seat.state.tree, seat.head.commit)
    assert seat.hear(other, _reported(second)) == (CatchUp(other.peer, known),)
    assert second.link.commit not in seat.state.tree.nodes


def test_commits_that_were_asked_for_are_followed_one_by_one() -> None:
    table, seat, other = _muted()
    made = lineage_on(table.genesis, table.live(), 3)
    (order,) = seat.feed(_fetched(other, made))
    assert isinstance(order, Commit)
    for one in made:
        assert seat.state.open.committing == one.link.commit
        _apply(seat, one)
    assert seat.head == made[-1].link


def test_certificates_that_do_not_verify_are_dropped_with_a_reason() -> None:
    table, seat, other = _muted()
    first, second = lineage_on(table.genesis, table.live(), 2)
    too_few = replace(first.certificate, acks=first.certificate.acks[:1])
    assert seat.hear(other, Committed(UNIT, too_few)) == ()
    assert "dropped a certificate" in seat.reasons[-1]
    assert "quorum" in seat.reasons[-1]
    assert seat.hear(other, Committed(UNIT, Certificate(b"no record", ()))) == ()
    assert "dropped a certificate" in seat.reasons[-1]
    assert seat.feed(CommitsFetched(other.peer, (too_few, second.certificate))) == ()
    assert "dropped a certificate" in seat.reasons[-1]
    assert set(seat.state.tree.nodes) == {table.genesis.commit}


@pytest.mark.parametrize("kind", ["an ack too few", "one voter five times", "votes of strangers", "another ack"])
def test_a_compact_certificate_that_proves_nothing_is_dropped_with_a_reason_and_the_true_one_is_taken_after_it(
    kind: str,
) -> None:
    table, seat, other = _muted(5)
    made = commit_on(table.genesis, table.live())
    brief = compacted(made.certificate, RUN_ID)
    stranger = Table(9).live()[8]
    false = {
        "an ack too few": replace(brief, votes=brief.votes[:2]),
        "one voter five times": replace(brief, votes=brief.votes[:1] * 5),
        "votes of strangers": replace(brief, votes=(*brief.votes[:2], _vote_of(stranger, brief.ack))),
        "another ack": replace(brief, ack=b"another" + brief.ack),
    }[kind]
    message = decode_message(encode_message(Committed(UNIT, false)))
    assert isinstance(message, Committed)
    assert seat.hear(other, message) == ()
    assert "dropped a certificate" in seat.reasons[-1]
    assert "\n" not in seat.reasons[-1]
    assert set(seat.state.tree.nodes) == {table.genesis.commit}
    (order,) = seat.hear(other, Committed(UNIT, brief))
    assert isinstance(order, Commit)
    assert order.link == made.link


def _vote_of(seat: Seat, ack: bytes) -> bytes:
    key, _, sealed = taken_apart(seat.sealed(ack))
    return key + sealed


def test_fetched_commits_on_a_base_that_we_do_not_know_are_of_no_use() -> None:
    table, seat, other = _muted()
    _, second = lineage_on(table.genesis, table.live(), 2)
    assert seat.feed(_fetched(other, [second])) == ()
    assert "on a base that we do not know" in seat.reasons[-1]


def test_commits_of_another_unit_are_none_of_ours() -> None:
    table, seat, other = _muted()
    made = commit_on(table.genesis, table.live())
    assert seat.hear(other, replace(_reported(made), unit=PeerId("fragment-9"))) == ()  # type: ignore[arg-type]
    assert seat.reasons == [f"{short(other.peer)} sent a commit of unit fragment-9; this is {UNIT}"]


# --- bytes that nobody gives --------------------------------------------------------------------------------------------------


def test_a_stalled_commit_is_taken_up_again_from_the_next_who_brings_it() -> None:
    table, seat, other = _muted()
    made = commit_on(table.genesis, table.live())
    seat.hear(other, _reported(made))
    seat.feed(CommitStalled(made.link.commit, "nobody has the bytes"))
    assert "commit waits: nobody has the bytes" in seat.reasons
    (again,) = seat.hear(other, _reported(made))
    assert isinstance(again, Commit)


def test_a_stalled_commit_with_a_successor_is_passed_over_by_fetching_a_whole_state() -> None:
    table, seat, other = _muted()
    first, second = lineage_on(table.genesis, table.live(), 2)
    seat.hear(other, _reported(first))
    seat.feed(CommitStalled(first.link.commit, "nobody has the bytes"))
    (order,) = seat.hear(other, _reported(second))
    assert isinstance(order, PrepareSwitch)
    assert order.fork == table.genesis.commit
    assert [node.link for node in order.path] == [first.link, second.link]


def test_an_answer_about_another_commit_than_the_one_that_is_written_stalls_nothing() -> None:
    table, seat, other = _muted()
    first, second = lineage_on(table.genesis, table.live(), 2)
    seat.hear(other, _reported(first))
    assert seat.feed(CommitStalled(second.link.commit, "whatever")) == ()
    assert seat.state.open.committing == first.link.commit


def test_a_head_far_ahead_is_had_as_a_whole_state_whose_fork_is_our_head() -> None:
    table, seat, other = _muted(replay_at_most=3)
    made = lineage_on(table.genesis, table.live(), 4)
    (order,) = seat.feed(_fetched(other, made))
    assert isinstance(order, PrepareSwitch)
    assert order.fork == seat.head.commit
    assert order.path[-1].link == made[-1].link
    assert "4 commits behind" in seat.reasons[-1]
    assert seat.feed(SwitchPrepared(made[-1].link.commit)) == (
        EndExchange(table.genesis.commit, "switching lineages"),
        Switch(table.genesis.commit, order.path),
    )


def test_a_few_commits_ahead_are_replayed() -> None:
    table, seat, other = _muted(replay_at_most=3)
    (order,) = seat.feed(_fetched(other, lineage_on(table.genesis, table.live(), 3)))
    assert isinstance(order, Commit)


# --- another lineage ----------------------------------------------------------------------------------------------------------


def _forked(num_ours: int = 2, num_theirs: int = 8) -> tuple[Table, Seat, Seat, list[Made], list[Made]]:
    """A seat that is some commits along its own side, and another side with more work."""
    table, seat, other = _muted(lone_patience_s=10.0)
    ours = lineage_on(table.genesis, [seat], num_ours, lone=True)
    theirs = lineage_on(table.genesis, table.others(seat), num_theirs, salt=1)
    for one in ours:
        seat.hear(other, _reported(one))
        _apply(seat, one)
    assert seat.head == ours[-1].link
    return table, seat, other, ours, theirs


def test_a_preferred_lineage_is_brought_here_while_work_on_our_own_goes_on() -> None:
    table, seat, other, ours, theirs = _forked()
    (order,) = seat.feed(_fetched(other, theirs))
    assert isinstance(order, PrepareSwitch)
    assert order.fork == table.genesis.commit
    assert [node.link for node in order.path] == [one.link for one in theirs]
    assert "another lineage is preferred to ours" in seat.reasons[-1]
    assert seat.head == ours[-1].link
    more = commit_on(ours[-1].link, [seat])
    (own,) = seat.hear(other, _reported(more))
    assert isinstance(own, Commit)
    assert own.link == more.link
    _apply(seat, more)
    assert seat.head == more.link
    (_, flip) = seat.feed(SwitchPrepared(theirs[-1].link.commit))
    assert flip == Switch(order.fork, order.path)


def test_a_side_whose_download_takes_long_does_not_stand_still_meanwhile() -> None:
    table = Table(5, lone_patience_s=6.0, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    one, two, *rest = table.live()
    table.split(one, two)
    table.run_until(lambda: one.head.index >= 4 and all(seat.head.index >= 8 for seat in rest), 200.0)
    table.prepares = False
    table.heal()
    table.run_for(5.0)
    assert one.ordered(PrepareSwitch)
    before, num_orders = one.head.index, len(one.ordered(PrepareSwitch))
    table.run_until(lambda: one.head.index >= before + 3 and two.head.index >= before + 3, 60.0)
    assert one.head.commit != rest[0].head.commit
    assert len(one.ordered(PrepareSwitch)) == num_orders


def test_a_newer_commit_on_the_lineage_that_is_being_fetched_does_not_begin_the_fetch_again() -> None:
    table, seat, other, _, theirs = _forked()
    seat.feed(_fetched(other, theirs))
    newer = lineage_on(theirs[-1].link, table.others(seat), 2)
    assert seat.feed(_fetched(other, newer)) == ()
    (_, flip) = seat.feed(SwitchPrepared(theirs[-1].link.commit))
    assert isinstance(flip, Switch)
    assert flip.path[-1].link == theirs[-1].link
    link = theirs[-1].link
    orders = seat.feed(Switched(link, state_root(link.commit), OpenRound()))
    assert seat.head == link
    assert [order.link for order in orders if isinstance(order, Commit)] == [newer[0].link]


def test_a_third_lineage_that_is_better_still_is_fetched_instead() -> None:
    table, seat, other, _, theirs = _forked()
    seat.feed(_fetched(other, theirs))
    third = lineage_on(table.genesis, table.others(seat, other), 17, salt=2)
    assert _targets(seat.feed(_fetched(other, third))) == [third[-1].link.commit]
    assert seat.feed(SwitchPrepared(theirs[-1].link.commit)) == ()
    assert seat.state.switching is not None
    assert seat.state.switching.target == third[-1].link.commit


def test_what_was_fetched_is_judged_again_before_the_head_moves() -> None:
    table, seat, other = _muted(lone_patience_s=10.0)
    ours, theirs = (
        lineage_on(table.genesis, [one], length, lone=True, salt=length) for one, length in ((seat, 2), (other, 8))
    )
    for one in ours:
        seat.hear(other, _reported(one))
        _apply(seat, one)
    assert _targets(seat.feed(_fetched(other, theirs))) == [theirs[-1].link.commit]
    ahead = lineage_on(ours[-1].link, [seat], 20)
    orders = seat.feed(_fetched(other, ahead))
    assert _targets(orders) == [ahead[-1].link.commit]  # ours again, and far ahead
    assert seat.feed(SwitchPrepared(theirs[-1].link.commit)) == ()
    assert seat.head == ours[-1].link


def test_nobody_leaves_what_a_quorum_acked_for_what_a_few_signed_alone_however_much_it_is() -> None:
    """One peer signs commits alone, offline, from the start of the run on: only the first of them is lone, for it is the whole
    roster of the next.
    """
    table, seat, other = _muted()
    ours = lineage_on(table.genesis, table.live(), 2)
    for one in ours:
        seat.hear(other, _reported(one))
        _apply(seat, one)
    alone = lineage_on(table.genesis, [other], 60, tokens=100 * TARGET_TOKENS, lone=True, salt=1)
    assert _targets(seat.feed(_fetched(other, alone))) == []
    assert seat.head == ours[-1].link
    assert seat.state.switching is None


def test_a_lineage_may_be_left_for_one_with_fewer_rounds_and_more_tokens() -> None:
    table, seat, other = _muted()
    ours = lineage_on(table.genesis, [seat], 5, tokens=10, lone=True)
    for one in ours:
        seat.hear(other, _reported(one))
        _apply(seat, one)
    better = commit_on(table.genesis, table.others(seat), tokens=5000, salt=1)
    (order,) = seat.hear(other, _reported(better))
    assert isinstance(order, PrepareSwitch)
    seat.feed(SwitchPrepared(better.link.commit))
    seat.feed(Switched(better.link, state_root(better.link.commit), OpenRound()))
    assert seat.head.index == 1
    assert seat.state.switching is None


def test_a_switch_that_failed_is_tried_again_when_somebody_speaks_of_it() -> None:
    _, seat, other, ours, theirs = _forked()
    seat.feed(_fetched(other, theirs))
    assert seat.feed(SwitchFailed(theirs[-1].link.commit, "the donor is gone")) == ()
    assert "the rounds of the other peers could not be applied: the donor is gone" in seat.reasons[-1]
    assert seat.head == ours[-1].link
    assert _targets(seat.hear(other, _reported(theirs[-1]))) == [theirs[-1].link.commit]


def _three_sides() -> tuple[Table, Seat, Seat, list[Made], list[Made], list[Made]]:
    """Ours, the next best, and the preferred one, whose first commit nobody has the bytes of any more."""
    table, seat, other, ours, next_best = _forked()
    seat.feed(_fetched(other, next_best))
    preferred = lineage_on(table.genesis, table.others(seat, other), 40, salt=2)
    assert _targets(seat.feed(_fetched(other, preferred))) == [preferred[-1].link.commit]
    return table, seat, other, ours, next_best, preferred


def _not_to_be_had(preferred: Sequence[Made]) -> SwitchFailed:
    first, last = preferred[0].link.commit, preferred[-1].link.commit
    return SwitchFailed(last, "its bytes are with nobody who answers", first)


def _hear_all(table: Table, seat: Seat) -> None:
    for other in table.others(seat):
        seat.hear(other, heartbeat_of(other))


def test_a_lineage_whose_bytes_nobody_has_is_passed_over_for_the_best_that_can_be_had() -> None:
    _, seat, other, _, next_best, preferred = _three_sides()
    assert _targets(seat.feed(_not_to_be_had(preferred))) == [next_best[-1].link.commit]
    seat.feed(SwitchPrepared(next_best[-1].link.commit))
    seat.feed(Switched(next_best[-1].link, state_root(next_best[-1].link.commit), OpenRound()))
    assert seat.hear(other, _reported(preferred[-1])) == (), "word of it is no proof that anybody has the bytes"
    assert would_switch(seat.state, SpineView(seat.head.commit, seat.state.tree)) is None
    assert seat.head == next_best[-1].link


def test_what_was_passed_over_is_wanted_again_after_a_while_and_each_time_later() -> None:
    table, seat, _, _, next_best, preferred = _three_sides()
    seat.feed(_not_to_be_had(preferred))
    seat.feed(SwitchPrepared(next_best[-1].link.commit))
    seat.feed(Switched(next_best[-1].link, state_root(next_best[-1].link.commit), OpenRound()))
    for pause_s in (FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, MAX_PAUSE_S, MAX_PAUSE_S):
        wanted_s = table.now_s + pause_s
        while table.now_s < wanted_s - 1.0:
            table.now_s += 1.0
            _hear_all(table, seat)
            assert _targets(seat.feed(RoundTicked())) == []
        table.now_s = wanted_s
        assert _targets(seat.feed(RoundTicked())) == [preferred[-1].link.commit]
        seat.feed(_not_to_be_had(preferred))


def test_what_is_being_brought_here_meanwhile_is_not_left_for_what_was_passed_over_long_enough() -> None:
    table, seat, _, _, next_best, preferred = _three_sides()
    assert _targets(seat.feed(_not_to_be_had(preferred))) == [next_best[-1].link.commit]
    for _ in range(5):
        table.now_s += FIRST_PAUSE_S
        _hear_all(table, seat)
        assert _targets(seat.feed(RoundTicked())) == []
    (_, flip) = seat.feed(SwitchPrepared(next_best[-1].link.commit))
    assert isinstance(flip, Switch)
    seat.feed(Switched(next_best[-1].link, state_root(next_best[-1].link.commit), OpenRound()))
    assert _targets(seat.feed(RoundTicked())) == [preferred[-1].link.commit]


def test_what_was_passed_over_is_wanted_at_once_when_somebody_comes_or_comes_to_stand_on_it() -> None:
    for do_stand in (True, False):
        table, seat, other, _, _, preferred = _three_sides()
        _, _, late = table.live()[:3]
        if not do_stand:
            seat.feed(PeerLost(late.peer))
        seat.feed(_not_to_be_had(preferred))
        assert _targets(seat.feed(RoundTicked())) == []
        heartbeat = heartbeat_of(late)
        if do_stand:
            (head,) = heartbeat.heads
            heartbeat = replace(heartbeat, heads=(replace(head, head=preferred[30].link.commit),))
        seat.hear(late, heartbeat)
        seat.feed(RoundTicked())
        assert seat.state.switching is not None
        seat.feed(SwitchFailed(seat.state.switching.target, "something else"))
        assert _targets(seat.hear(other, _reported(preferred[-1]))) == [preferred[-1].link.commit]


def test_of_a_lineage_that_breaks_off_what_can_be_had_is_followed() -> None:
    _, seat, _, _, _, preferred = _three_sides()
    broken = SwitchFailed(preferred[-1].link.commit, "its bytes are with nobody who answers", preferred[35].link.commit)
    assert _targets(seat.feed(broken)) == [preferred[34].link.commit]


def test_who_is_merely_behind_passes_nothing_over() -> None:
    table, seat, other = _muted(replay_at_most=3)
    ahead = lineage_on(table.genesis, table.others(seat), 9)
    assert _targets(seat.feed(_fetched(other, ahead))) == [ahead[-1].link.commit]
    seat.feed(SwitchFailed(ahead[-1].link.commit, "its bytes are with nobody who answers", ahead[0].link.commit))
    assert seat.state.missing == {}
    assert _targets(seat.hear(other, _reported(ahead[-1]))) == [ahead[-1].link.commit]


def _stand(seat: Seat, other: Seat, made: Made) -> None:
    """Another one says that it stands there."""
    heartbeat = heartbeat_of(other)
    (head,) = heartbeat.heads
    seat.hear(other, replace(heartbeat, heads=(replace(head, head=made.link.commit),)))


def _stalled(made: Made) -> CommitStalled:
    return CommitStalled(made.link.commit, "its bytes are with nobody who answers", is_missing=True)


def _at_the_fork(num_lost: int) -> tuple[Table, Seat, Seat, list[Made], list[Made]]:
    """A seat whose head is the fork of a preferred lineage, which it wants, and of a held one, on which another seat stands."""
    table, seat, other = _muted(replay_at_most=3)
    lost = lineage_on(table.genesis, table.others(seat, other), num_lost, tokens=5000)
    held = lineage_on(table.genesis, table.live(), 2, tokens=10, salt=1)
    seat.feed(_fetched(other, lost))
    seat.feed(_fetched(other, held))
    assert seat.head == table.genesis
    _stand(seat, other, held[-1])
    return table, seat, other, lost, held


def test_where_our_head_is_the_fork_a_lost_lineage_is_passed_over_for_one_that_somebody_holds() -> None:
    _, seat, _, lost, held = _at_the_fork(num_lost=9)
    failed = SwitchFailed(lost[-1].link.commit, "its bytes are with nobody who answers", lost[0].link.commit)
    (order,) = seat.feed(failed)
    assert isinstance(order, Commit)
    assert order.link == held[0].link


def test_a_lost_lineage_of_a_single_commit_is_passed_over_for_one_that_somebody_holds() -> None:
    table, seat, _, lost, held = _at_the_fork(num_lost=1)
    (order,) = seat.feed(_stalled(lost[0]))
    assert isinstance(order, Commit)
    assert order.link == held[0].link
    for one in held:
        assert _targets(_apply(seat, one)) == []
    table.now_s += FIRST_PAUSE_S
    assert _targets(seat.feed(RoundTicked())) == [lost[0].link.commit], "wanted again, from the branch that is followed"


def test_a_commit_that_cannot_be_written_here_is_passed_over_by_nobody() -> None:
    _, seat, _, lost, _ = _at_the_fork(num_lost=1)
    assert seat.feed(CommitStalled(lost[0].link.commit, "the disk is full")) == ()
    assert seat.state.missing == {}


def test_a_lost_lineage_is_looked_for_again_as_long_as_nobody_stands_on_another() -> None:
    _, seat, other, lost, held = _at_the_fork(num_lost=1)
    seat.feed(PeerLost(other.peer))
    for _ in range(3):
        assert seat.feed(_stalled(lost[0])) == ()
        assert "commit waits: its bytes are with nobody who answers" in seat.reasons
        (again,) = seat.hear(other, _reported(lost[0]))
        assert isinstance(again, Commit)
        assert again.link == lost[0].link
        seat.feed(PeerLost(other.peer))
    _stand(seat, other, held[-1])
    (order,) = seat.feed(_stalled(lost[0]))
    assert isinstance(order, Commit)
    assert order.link == held[0].link


def test_that_somebody_who_stands_on_a_lineage_gives_nothing_is_believed_the_second_time() -> None:
    for num_lost in (1, 9):
        table, seat, other, lost, held = _at_the_fork(num_lost)
        _stand(seat, table.live()[2], lost[-1])
        failed = SwitchFailed(lost[-1].link.commit, "nobody gave it", lost[0].link.commit)
        gone = _stalled(lost[0]) if num_lost == 1 else failed
        assert seat.feed(gone) == ()
        (again,) = seat.hear(other, _reported(lost[-1]))
        assert (again.link if isinstance(again, Commit) else again.path[-1].link) == lost[-1].link  # type: ignore[attr-defined]
        (order,) = seat.feed(gone)
        assert isinstance(order, Commit)
        assert order.link == held[0].link


def test_what_was_passed_over_is_forgotten_once_it_lies_behind_the_head() -> None:
    table, seat, _, _, _, preferred = _three_sides()
    seat.feed(_not_to_be_had(preferred))
    table.now_s += FIRST_PAUSE_S
    seat.feed(RoundTicked())
    seat.feed(SwitchPrepared(preferred[-1].link.commit))
    seat.feed(Switched(preferred[-1].link, state_root(preferred[-1].link.commit), OpenRound()))
    assert seat.head == preferred[-1].link
    assert seat.state.missing == {}


def test_a_switch_that_was_prepared_while_a_commit_was_applied_is_made_afterwards() -> None:
    for is_stalled in (False, True):
        table, seat, other, ours, theirs = _forked()
        seat.feed(_fetched(other, theirs))
        more = commit_on(ours[-1].link, [seat])
        seat.hear(other, _reported(more))
        assert seat.feed(SwitchPrepared(theirs[-1].link.commit)) == ()
        if is_stalled:
            orders: Sequence[object] = seat.feed(CommitStalled(more.link.commit, "nobody has the bytes"))
        else:
            orders = _apply(seat, more)
        assert [order for order in orders if isinstance(order, Switch)]
        assert seat.state.switching is not None
        assert seat.state.switching.fork == table.genesis.commit


def test_while_the_head_flips_nothing_else_is_followed() -> None:
    _, seat, other, ours, theirs = _forked()
    seat.feed(_fetched(other, theirs))
    seat.feed(SwitchPrepared(theirs[-1].link.commit))
    ahead = lineage_on(ours[-1].link, [seat], 30)
    assert seat.feed(_fetched(other, ahead)) == ()
    assert seat.feed(SwitchPrepared(theirs[-1].link.commit)) == ()
    assert seat.head == ours[-1].link


def test_votes_that_the_log_knows_on_the_new_head_are_kept() -> None:
    table, seat, other, _, theirs = _forked()
    seat.feed(_fetched(other, theirs))
    seat.feed(SwitchPrepared(theirs[-1].link.commit))
    link = theirs[-1].link
    logged = OpenRound(highest_attempt=3)
    seat.feed(Switched(link, state_root(link.commit), logged))
    assert seat.state.open == logged
    assert seat.state.state_root == state_root(link.commit)
    assert seat.state.committed_at_s == table.now_s


def test_two_sides_of_a_healed_partition_end_on_one_lineage() -> None:
    table = Table(5, lone_patience_s=6.0, longest_interval_s=5.0)
    table.run_until(lambda: table.all_at(1))
    one, two, *rest = table.live()
    table.split(one, two)
    table.run_until(lambda: one.head.index >= 4 and all(seat.head.index >= 8 for seat in rest), 200.0)
    assert one.head.commit != rest[0].head.commit
    assert any(link.is_lone for link, _ in one.disk.chain)
    table.heal()
    table.run_until(lambda: len({seat.head.commit for seat in table.live()}) == 1, 60.0)
    assert one.ordered(Switch) or rest[0].ordered(Switch)
    before = one.head.index
    table.run_until(lambda: table.all_at(before + 2), 60.0)
    record = one.head.record
    assert record is not None
    assert len(record.contributors) == 5


def test_holders_are_asked_in_an_order_that_begins_with_who_told_us_and_leaves_out_the_dead() -> None:
    table, seat, other = _muted()
    strangers = [s for s in table.live() if s not in (seat, other)]
    seat.feed(PeerLost(strangers[0].peer))
    made = commit_on(table.genesis, [seat, other, strangers[1]])
    (order,) = seat.hear(other, _reported(made))
    assert isinstance(order, Commit)
    assert order.holders[0] == other.peer
    assert strangers[0].peer not in order.holders
    assert len(set(order.holders)) == len(order.holders)


# --- beside the spine ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Beside:
    """A seat two commits along a side that cites the left lineage of the spine, which it follows; it also knows another side, with
    more work, that cites the right one.
    """

    table: Table
    seat: Seat
    other: Seat
    spine: MadeSpine
    ours: list[Made]
    theirs: list[Made]

    def move_to(self, side: ChainLink) -> tuple[object, ...]:
        return self.seat.feed(SpineMoved(self.spine.at(side)))

    @property
    def order(self) -> FlipOrdered:
        """To the other side."""
        return FlipOrdered(self.table.genesis.commit, tuple(TreeNode(m.link, m.certificate) for m in self.theirs))

    @property
    def switching(self) -> Switching | None:
        return self.seat.state.switching


def _beside() -> Beside:
    spine = made_spine()
    table, seat, other = _muted(spine=spine.at(spine.left), lone_patience_s=10.0)
    ours = lineage_on(table.genesis, [seat], 2, lone=True, spine=spine.left.commit)
    theirs = lineage_on(table.genesis, table.others(seat), 8, salt=1, spine=spine.right.commit)
    for one in ours:
        seat.hear(other, _reported(one))
        _apply(seat, one)
    assert seat.feed(_fetched(other, theirs)) == ()
    return Beside(table, seat, other, spine, ours, theirs)


def test_a_heavier_side_that_cites_another_spine_is_followed_only_when_the_spine_goes_there() -> None:
    at = _beside()
    assert at.seat.head == at.ours[-1].link
    (order,) = at.move_to(at.spine.right)
    assert isinstance(order, PrepareSwitch)
    assert [node.link for node in order.path] == [made.link for made in at.theirs]
    assert at.seat.state.spine == at.spine.at(at.spine.right)


def test_when_the_spine_comes_back_before_the_flip_the_unit_stays() -> None:
    at = _beside()
    at.move_to(at.spine.right)
    at.move_to(at.spine.left)
    assert at.seat.feed(SwitchPrepared(at.theirs[-1].link.commit)) == ()
    assert (at.seat.head, at.switching) == (at.ours[-1].link, None)


def test_a_spine_that_only_grows_moves_no_unit() -> None:
    at = _beside()
    ahead = commit_on(at.spine.left, [at.seat])
    tree = at.spine.tree.add(ahead.link, ahead.certificate)
    assert at.seat.feed(SpineMoved(SpineView(ahead.link.commit, tree))) == ()
    assert at.seat.state.run_tokens == ahead.link.total_tokens


def test_if_only_one_side_moved_a_unit_it_is_followed_whatever_spine_it_cites() -> None:
    spine = made_spine()
    table, seat, other = _muted(spine=spine.at(spine.left))
    made = commit_on(table.genesis, table.live(), spine=spine.right.commit)
    (order,) = seat.hear(other, _reported(made))
    assert isinstance(order, Commit)
    _apply(seat, made)
    assert seat.feed(SpineMoved(spine.at(spine.right))) == ()
    assert seat.feed(SpineMoved(spine.at(spine.left))) == ()
    assert seat.head == made.link


def test_what_a_unit_would_have_to_do_beside_the_spine_is_told_and_nothing_is_done() -> None:
    at = _beside()
    before = at.seat.state
    assert would_switch(before, at.spine.at(at.spine.right)) == Switch(at.order.fork, at.order.path)
    assert would_switch(before, at.spine.at(at.spine.left)) is None
    assert at.seat.state == before


def test_a_unit_that_is_merely_behind_would_not_have_to_switch() -> None:
    at = _beside()
    more = commit_on(at.ours[-1].link, [at.seat], spine=at.spine.left.commit)
    at.seat.hear(at.other, _reported(more))
    assert at.seat.state.open.committing == more.link.commit
    assert would_switch(at.seat.state, at.spine.at(at.spine.left)) is None


def _lead(seat: Seat) -> None:
    leading = Leading(Ballot(2, seat.peer), "collecting", 1e9)
    seat.state = replace(seat.state, open=replace(seat.state.open, leading=leading))


def test_an_ordered_flip_ends_the_exchange_and_our_own_attempt_until_the_head_has_moved() -> None:
    at = _beside()
    _lead(at.seat)
    assert at.seat.feed(at.order) == (EndExchange(at.ours[-1].link.commit, "switching lineages"),)
    expected = Switching(at.order.fork, at.theirs[-1].link.commit, is_prepared=True, is_flipping=True)
    assert at.switching == replace(expected, is_with_spine=True)
    assert at.seat.state.open.leading is None
    assert at.seat.head == at.ours[-1].link
    assert at.move_to(at.spine.right) == (), "nothing else is followed meanwhile"
    link = at.theirs[-1].link
    at.seat.feed(Switched(link, state_root(link.commit), OpenRound()))
    assert (at.seat.head, at.switching) == (link, None)


def test_an_ordered_flip_takes_the_place_of_a_lineage_that_was_being_fetched() -> None:
    at = _beside()
    third = lineage_on(at.table.genesis, at.table.others(at.seat, at.other), 8, salt=2, spine=at.spine.left.commit)
    assert any(isinstance(order, PrepareSwitch) for order in at.seat.feed(_fetched(at.other, third)))
    assert at.seat.feed(at.order)
    assert at.switching is not None
    assert at.switching.target == at.theirs[-1].link.commit


def test_an_ordered_flip_is_refused_while_a_commit_is_applied() -> None:
    at = _beside()
    more = commit_on(at.ours[-1].link, [at.seat], spine=at.spine.left.commit)
    at.seat.hear(at.other, _reported(more))
    _lead(at.seat)
    before = at.seat.state
    assert at.seat.feed(at.order) == ()
    assert at.seat.state == before


def test_an_ordered_flip_is_refused_while_the_head_flips_already() -> None:
    at = _beside()
    at.move_to(at.spine.right)
    (_, flip) = at.seat.feed(SwitchPrepared(at.theirs[-1].link.commit))
    assert isinstance(flip, Switch)
    before = at.seat.state
    assert at.seat.feed(replace(at.order, path=at.order.path[:3])) == ()
    assert at.seat.state == before


def test_an_ordered_flip_from_a_fork_that_is_not_on_our_lineage_is_refused() -> None:
    at = _beside()
    before = at.seat.state
    assert at.seat.feed(FlipOrdered(at.theirs[0].link.commit, at.order.path[1:])) == ()
    assert at.seat.state == before


def test_an_ordered_flip_that_did_not_come_about_leaves_the_unit_where_it_was() -> None:
    at = _beside()
    at.seat.feed(at.order)
    assert at.seat.feed(SwitchFailed(at.theirs[-1].link.commit, "the disk is full")) == ()
    assert (at.seat.head, at.switching) == (at.ours[-1].link, None)
    more = commit_on(at.ours[-1].link, [at.seat], spine=at.spine.left.commit)
    (order,) = at.seat.hear(at.other, _reported(more))
    assert isinstance(order, Commit)


def test_of_lone_commits_that_the_same_voters_sign_on_one_base_only_a_few_are_kept() -> None:
    """One member can sign as many as it likes. Others' lone commits on that base are still taken."""
    table, seat, other = _muted()
    for salt in range(1, 20):
        seat.hear(other, _reported(commit_on(table.genesis, [other], lone=True, salt=salt)))
    assert len(seat.state.tree.nodes) == 1 + MOST_LONE_SIBLINGS
    seat.hear(other, _reported(commit_on(table.genesis, table.others(seat), lone=True, salt=20)))
    assert len(seat.state.tree.nodes) == 2 + MOST_LONE_SIBLINGS


def _lone_chain(parent: ChainLink, signers: Sequence[Seat], number: int) -> list[Made]:
    """A lone commit of some peers, and what they commit after it as the only voters."""
    made = [commit_on(parent, signers, lone=True)]
    while len(made) < number:
        made.append(commit_on(made[-1].link, signers))
    return made


def test_of_lone_lineages_beside_that_of_a_quorum_only_so_many_commits_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One member can sign endless ones, beside our head and beside every commit behind it."""
    monkeypatch.setattr(following, "MOST_BESIDE", 20)
    table, seat, other = _muted()
    ours = commit_on(table.genesis, table.live())
    seat.hear(other, _reported(ours))
    _apply(seat, ours)
    for each in table.others(seat):
        seat.hear(each, heartbeat_of(each))
    for parent in (table.genesis, ours.link):
        for made in _lone_chain(parent, [other], 30):
            seat.hear(other, _reported(made))
    assert len(seat.state.tree.nodes) <= 2 + 20 + 1
    more = commit_on(ours.link, table.live(), salt=1)
    seat.hear(other, _reported(more))
    assert more.link.commit in seat.state.tree.nodes, "there is always room for our own lineage"


def test_of_a_lone_lineage_beside_one_of_more_voters_only_so_many_commits_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It can never be preferred. One of as many voters can, by its work."""
    monkeypatch.setattr(following, "MOST_BESIDE", 20)
    table, seat, other = _muted()
    third, fourth = table.others(seat, other)[:2]
    table.wait(200.0)
    ours = commit_on(table.genesis, [seat, third], lone=True)
    seat.hear(third, _reported(ours))
    _apply(seat, ours)
    seat.feed(_fetched(other, _lone_chain(table.genesis, [other], 40)))
    assert len(seat.state.tree.nodes) <= 2 + 20 + 1
    as_many = _lone_chain(table.genesis, [other, fourth], 40)
    seat.feed(_fetched(other, as_many))
    assert as_many[-1].link.commit in seat.state.tree.nodes


def test_a_lone_lineage_that_may_be_followed_is_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else of our voters is heard, so it may be all that is left of the run."""
    monkeypatch.setattr(following, "MOST_BESIDE", 20)
    table, seat, other = _muted()
    table.wait(200.0)
    made = _lone_chain(table.genesis, [other], 40)
    seat.feed(_fetched(other, made))
    assert made[-1].link.commit in seat.state.tree.nodes


def test_a_lone_lineage_longer_than_what_is_kept_is_followed_while_only_those_are_here_who_signed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their head is not known here before the whole lineage is, so it cannot tell whether they stand on it."""
    monkeypatch.setattr(following, "MOST_BESIDE", 20)
    table, seat, other = _muted()
    signers = [other, table.others(seat, other)[0]]
    made = _lone_chain(table.genesis, signers, 50)
    table.wait(200.0)
    for first in (0, 25):
        for signer in signers:
            heard = heartbeat_of(signer)
            seat.hear(signer, replace(heard, heads=(replace(heard.heads[0], head=made[-1].link.commit),)))
        seat.feed(_fetched(other, made[first : first + 25]))
    assert made[-1].link.commit in seat.state.tree.nodes


def test_a_signer_of_a_lone_commit_that_stands_elsewhere_by_a_known_head_is_one_of_those_without_it() -> None:
    table, seat, other = _muted(3)
    made = commit_on(table.genesis, [other], lone=True)
    for each in table.others(seat):
        seat.hear(each, heartbeat_of(each))
    seat.hear(other, _reported(made))
    assert lone_refused(seat.state, table.now_s) == {made.link.commit}


def _lone_after_sleep(*, are_lost: bool, num_peers: int = 5) -> tuple[Table, Seat, list[Seat], tuple[object, ...]]:
    """(table, a peer that slept, the other sleepers, its orders when the lone commit of the one that was awake comes first)."""
    table, seat, awake = _muted(num_peers)
    seat.feed(RoundTicked())
    for other in table.others(seat, awake) if are_lost else ():
        seat.feed(PeerLost(other.peer))
    table.now_s += 150.0
    orders = seat.hear(awake, _reported(commit_on(table.genesis, [awake], lone=True)))
    return table, seat, table.others(seat, awake), orders


@pytest.mark.parametrize("are_lost", [False, True])
def test_who_slept_follows_no_lone_commit_before_the_other_voters_could_be_heard(are_lost: bool) -> None:
    table, seat, others, orders = _lone_after_sleep(are_lost=are_lost)
    assert not any(isinstance(order, Commit | PrepareSwitch) for order in orders)
    for _ in range(18):
        table.now_s += 0.5
        seat.feed(RoundTicked())
    for other in others:
        seat.hear(other, heartbeat_of(other))
    table.now_s += 2.0
    assert lone_refused(seat.state, table.now_s), "they are most of the voters and stand where we do"


@pytest.mark.parametrize("are_lost", [False, True])
def test_who_slept_follows_a_lone_commit_when_the_other_voters_stay_silent(are_lost: bool) -> None:
    table, seat, _, _ = _lone_after_sleep(are_lost=are_lost)
    for _ in range(40):
        table.now_s += 0.5
        seat.feed(RoundTicked())
    assert not lone_refused(seat.state, table.now_s)


def test_of_two_the_one_that_slept_follows_what_the_other_committed_alone() -> None:
    """It is half of the voters: without the other it would go on alone as well, and one of both sides would be left."""
    *_, orders = _lone_after_sleep(are_lost=False, num_peers=2)
    assert any(isinstance(order, Commit) for order in orders)


# --- many peers ---------------------------------------------------------------------------------------------------------------


def test_among_many_peers_a_commit_comes_to_each_once_and_nobody_sends_it_to_many() -> None:
    table = Table(20)
    acquaint(table)
    table.run_until(lambda: table.all_at(1))
    told = [[peer for sent in _forwarded(seat.orders, seat) for peer in sent.to] for seat in table.live()]
    heard = [peer for to in told for peer in to]
    assert len(set(heard)) == len(heard) == len(table.live()) - 1  # all but the one that made the certificate
    assert max(len(to) for to in told) <= 2 * FAN_OUT


def test_among_many_peers_a_commit_that_a_dead_peer_was_to_pass_on_comes_by_heartbeat() -> None:
    table = Table(20)
    acquaint(table)
    leader = table.opener()
    dead: list[PeerId] = []

    def drops(sender: PeerId, to: PeerId, message: RoundMessage) -> bool:
        """The first peer with others to tell hears of it, and dies."""
        if isinstance(message, Committed) and sender != leader.peer and not dead:
            dead.append(sender)
        return isinstance(message, Committed) and sender in dead

    table.drops = drops
    table.run_until(lambda: table.all_at(1))
    assert dead


def test_a_peer_of_many_that_takes_no_part_waits_for_the_certificate_that_others_bring() -> None:
    table, seat, other = _muted(20)
    made = commit_on(table.genesis, table.live())
    _apply(other, made)
    assert seat.hear(other, heartbeat_of(other)) == ()
    assert _asked(_ticked_for(table, seat, LEADERS_WORD_S - 0.25)) == []
    assert _asked(_ticked_for(table, seat, 0.5)) == [other.peer]


def test_a_certificate_that_is_known_or_false_is_not_passed_on() -> None:
    table, seat, other = _muted(40)
    made = commit_on(table.genesis, table.live())
    false = Committed(UNIT, replace(made.certificate, acks=made.certificate.acks[:3]))
    assert _forwarded(seat.hear(other, false), seat) == []
    sent = _forwarded(seat.hear(other, _reported(made)), seat)
    assert _forwarded(seat.hear(other, _reported(made)), seat) == []
    assert all(other.peer not in one.to for one in sent)


def _passed_on(orders: Sequence[object], seat: Seat) -> dict[bytes, set[PeerId]]:
    """The peers to which each commit was told, by its record."""
    found: dict[bytes, set[PeerId]] = {}
    for send in _forwarded(orders, seat):
        assert isinstance(send.message, Committed)
        found.setdefault(send.message.certificate.record, set()).update(send.to)
    return found


ORDERS: Final = [*permutations(range(3)), *permutations(range(3), 2)]
"""The order in which the leaders' certificates of three commits come; some never do, and are fetched."""


@pytest.mark.parametrize("order", ORDERS)
def test_a_commit_is_passed_on_once_its_missing_parents_are_known_whichever_way_they_come(order: Sequence[int]) -> None:
    """The first of them was dropped on its way, say. Others hear of the later ones from this peer alone."""
    table, seat, other = _muted(40)
    made = lineage_on(table.genesis, table.live(), 3)
    plain = _muted(40)[1]
    expected = {one.certificate.record: _passed_on(plain.hear(other, _reported(one)), plain) for one in made}
    orders: list[object] = []
    for place in order:
        orders += seat.hear(other, _reported(made[place]))
        known = [one for one in made if one.link.commit in seat.state.tree.nodes]
        assert _passed_on(orders, seat).keys() <= {one.certificate.record for one in known}, (
            "nothing unverified goes on"
        )
    if len(order) < len(made):
        orders += seat.feed(_fetched(other, made))
    told = _passed_on(orders, seat)
    for place in order:
        record = made[place].certificate.record
        assert told.get(record, set()) == expected[record].get(record, set())
    sent = [send.message.certificate for send in _forwarded(orders, seat) if isinstance(send.message, Committed)]
    assert len(sent) == len(set(sent)), "each goes on once"
    assert any(expected[record] for record in expected)


def test_certificates_on_an_unknown_base_are_kept_for_few_senders_and_false_ones_go_to_nobody() -> None:
    table, seat, other = _muted(40)
    made = lineage_on(table.genesis, table.live(), 2)
    whole = made[1].certificate
    for number, teller in enumerate([other, other, *table.others(seat)[:9]]):
        seat.hear(teller, Committed(UNIT, replace(whole, acks=whole.acks[: number + 1])))
        assert seat.state.open.ahead is not None
        senders = [sender for sender, _ in seat.state.open.ahead.unplaced]
        assert max(map(senders.count, senders)) <= MOST_UNPLACED_EACH
    assert seat.state.open.ahead is not None
    assert len(seat.state.open.ahead.unplaced) == MOST_UNPLACED
    orders = seat.hear(other, _reported(made[0]))
    assert made[1].certificate.record not in _passed_on(orders, seat)
    assert seat.state.open.ahead is not None
    assert seat.state.open.ahead.unplaced == ()
